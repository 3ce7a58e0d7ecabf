package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"image"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/picture"
)

// checkOutput finds out early whether a picture can be written under a name.
func checkOutput(name string) error {
	if name == "" {
		return errors.New("output: the name is empty")
	}
	info, err := os.Stat(name)
	if err == nil && info.IsDir() || strings.HasSuffix(name, string(filepath.Separator)) {
		return fmt.Errorf("output %s: is a folder (give a file in it, such as %s)", name, filepath.Join(name, "image.png"))
	}
	if err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("output %s: is not a regular file", name)
	}
	if _, err := picture.FormatOf(name); err != nil {
		return fmt.Errorf("output %s: %w", name, err)
	}
	dir := filepath.Dir(name)
	if info, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("output %s: the folder %s is not there (make it first)", name, dir)
	} else if err == nil && !info.IsDir() {
		return fmt.Errorf("output %s: %s is not a folder", name, dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // such as a name that is too long
		return fmt.Errorf("output %s: %w", name, oserr.Bare(err))
	}
	f, err := newTemporary(name)
	if err != nil {
		return fmt.Errorf("output %s: %w", name, err)
	}
	f.discard()
	return nil
}

// A saver writes pictures.
type saver struct {
	overwrite bool
	settings  *picture.Settings // to store in the picture, nil for none
	sidecar   *picture.Settings // to write beside it, nil for none
}

// save writes a picture and returns the name it got: the given one, or the
// next free of name_1.png, name_2.png, ... if that is taken and nothing is to
// be overwritten. The file appears whole or not at all. A picture that cannot
// be written there is not lost: the error says where it is then.
func (s saver) save(ctx context.Context, name string, img image.Image) (string, error) {
	saved, err := s.write(ctx, name, img)
	if err == nil || context.Cause(ctx) != nil {
		return saved, err
	}
	// the name may be what is wrong
	elsewhere := filepath.Join(os.TempDir(), "gomflux-rescued"+filepath.Ext(name))
	s.overwrite = false
	rescued, rescueErr := s.write(ctx, elsewhere, img)
	if rescueErr != nil {
		return "", err
	}
	return "", fmt.Errorf("%w (the picture is in %s)", err, rescued)
}

func (s saver) write(ctx context.Context, name string, img image.Image) (string, error) {
	format, err := picture.FormatOf(name)
	if err != nil {
		return "", fmt.Errorf("output %s: %w", name, err)
	}
	f, err := writeTemporary(name, func(w io.Writer) error { return picture.Encode(w, format, img, s.settings) })
	if err != nil {
		return "", fmt.Errorf("output %s: %w", name, err)
	}
	defer f.discard()
	var beside *temporary
	if s.sidecar != nil {
		beside, err = writeTemporary(name, func(w io.Writer) error { return picture.EncodeSettings(w, s.sidecar) })
		if err != nil {
			return "", fmt.Errorf("output %s: %w", sidecarName(name), err)
		}
		defer beside.discard()
	}
	if err := context.Cause(ctx); err != nil {
		return "", err
	}
	if s.overwrite {
		return name, moveBoth(f, beside, name)
	}
	return linkToFree(f, beside, name)
}

// moveBoth gives a file and its sidecar, which may be nil, their names, whatever
// has them. The sidecar comes first, so that no picture is there without its own.
func moveBoth(f, beside *temporary, name string) error {
	if beside != nil {
		if err := os.Rename(beside.Name(), sidecarName(name)); err != nil {
			return fmt.Errorf("output %s: %w", sidecarName(name), oserr.Bare(err))
		}
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return fmt.Errorf("output %s: %w", name, oserr.Bare(err))
	}
	return nil
}

// sidecarName is the name of a picture's sidecar, as mflux gives it:
// image.metadata.json for image.png.
func sidecarName(name string) string {
	return strings.TrimSuffix(name, filepath.Ext(name)) + ".metadata.json"
}

// A temporary is a file beside the one it will become.
type temporary struct{ *os.File }

// temporaries holds the names of all temporary files, for removeTemporaries.
var temporaries = struct {
	sync.Mutex
	names map[string]bool
}{names: map[string]bool{}}

func newTemporary(name string) (*temporary, error) {
	temporaries.Lock()
	defer temporaries.Unlock()
	dir := filepath.Dir(name)
	for {
		// not os.CreateTemp, whose files only their owner can read
		path := filepath.Join(dir, fmt.Sprintf(".gomflux-%08x.tmp", rand.Uint32()))
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		switch {
		case err == nil:
			temporaries.names[path] = true
			return &temporary{f}, nil
		case !errors.Is(err, fs.ErrExist):
			return nil, fmt.Errorf("cannot write to the folder %s: %w", dir, oserr.Bare(err))
		}
	}
}

// writeTemporary makes a whole temporary file beside name.
func writeTemporary(name string, encode func(io.Writer) error) (*temporary, error) {
	f, err := newTemporary(name)
	if err != nil {
		return nil, err
	}
	w := bufio.NewWriter(f)
	err = encode(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync() // or a crash of the machine could leave the name with no content
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		f.discard()
		return nil, oserr.Bare(err)
	}
	return f, nil
}

// discard closes and removes the file, or does nothing where it has got its
// final name.
func (t *temporary) discard() {
	temporaries.Lock()
	defer temporaries.Unlock()
	t.Close()
	os.Remove(t.Name())
	delete(temporaries.names, t.Name())
}

// removeTemporaries is for those who end the process.
func removeTemporaries() {
	temporaries.Lock() // and never unlocked: none may be made from now on
	for name := range temporaries.names {
		os.Remove(name)
	}
}

// linkToFree gives a file the first name that is free, together with that of its
// sidecar if it has one. A link, unlike a rename, fails where another process was
// faster.
func linkToFree(f, beside *temporary, name string) (string, error) {
	for i := 0; ; i++ {
		candidate := numbered(name, i)
		if exists(candidate) {
			continue
		}
		if beside != nil {
			err := beside.link(sidecarName(candidate))
			if errors.Is(err, fs.ErrExist) {
				continue
			}
			if err != nil {
				return "", fmt.Errorf("output %s: %w", sidecarName(candidate), oserr.Bare(err))
			}
		}
		err := f.link(candidate)
		if err == nil {
			return candidate, nil
		}
		if beside != nil {
			if err := beside.unlink(sidecarName(candidate)); err != nil {
				return "", fmt.Errorf("output %s: %w", sidecarName(candidate), oserr.Bare(err))
			}
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("output %s: %w", candidate, oserr.Bare(err))
		}
	}
}

// link gives the file a name that is free; what has it already is kept.
func (t *temporary) link(name string) error {
	err := os.Link(t.Name(), name)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	if exists(name) { // a file system without links
		return fs.ErrExist
	}
	return os.Rename(t.Name(), name)
}

// unlink undoes link.
func (t *temporary) unlink(name string) error {
	if exists(t.Name()) {
		return os.Remove(name)
	}
	return os.Rename(name, t.Name())
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// numbered is name for i = 0, and name_i before the extension otherwise.
func numbered(name string, i int) string {
	if i == 0 {
		return name
	}
	ext := filepath.Ext(name)
	return fmt.Sprintf("%s_%d%s", strings.TrimSuffix(name, ext), i, ext)
}
