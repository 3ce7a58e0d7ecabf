package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"image"
	"image/jpeg"
	"image/png"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

const jpegQuality = 95

// encodePicture writes a picture in the format that a file name asks for.
func encodePicture(w io.Writer, name string, img image.Image) error {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".png":
		return png.Encode(w, img)
	case ".jpg", ".jpeg":
		return jpeg.Encode(w, img, &jpeg.Options{Quality: jpegQuality})
	}
	return errFormat
}

var errFormat = errors.New("expected a name that ends in .png, .jpg or .jpeg")

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
	if err := encodePicture(io.Discard, name, image.NewGray(image.Rect(0, 0, 1, 1))); err != nil {
		return fmt.Errorf("output %s: %w", name, err)
	}
	dir := filepath.Dir(name)
	if info, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("output %s: the folder %s is not there (make it first)", name, dir)
	} else if err == nil && !info.IsDir() {
		return fmt.Errorf("output %s: %s is not a folder", name, dir)
	}
	f, err := newTemporary(name)
	if err != nil {
		return fmt.Errorf("output %s: %w", name, err)
	}
	f.discard()
	return nil
}

// savePicture writes a picture and returns the name it got: the given one, or
// the next free of name_1.png, name_2.png, ... if that is taken and overwrite
// is false. The file appears whole or not at all.
func savePicture(ctx context.Context, name string, overwrite bool, img image.Image) (string, error) {
	f, err := newTemporary(name)
	if err != nil {
		return "", fmt.Errorf("output %s: %w", name, err)
	}
	defer f.discard()
	w := bufio.NewWriter(f)
	err = encodePicture(w, name, img)
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
		return "", fmt.Errorf("output %s: %w", name, bare(err))
	}
	if err := context.Cause(ctx); err != nil {
		return "", err
	}
	if overwrite {
		err = os.Rename(f.Name(), name)
	} else {
		name, err = f.linkToFree(name)
	}
	if err != nil {
		return "", fmt.Errorf("output %s: %w", name, bare(err))
	}
	return name, nil
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
			return nil, fmt.Errorf("cannot write to the folder %s: %w", dir, bare(err))
		}
	}
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

// linkToFree gives the file the first name that is free. A link, unlike a
// rename, fails where another process was faster.
func (t *temporary) linkToFree(name string) (string, error) {
	for i := 0; ; i++ {
		candidate := numbered(name, i)
		if _, err := os.Lstat(candidate); err == nil {
			continue
		}
		err := os.Link(t.Name(), candidate)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil { // a file system without links
			err = os.Rename(t.Name(), candidate)
		}
		return candidate, err
	}
}

// numbered is name for i = 0, and name_i before the extension otherwise.
func numbered(name string, i int) string {
	if i == 0 {
		return name
	}
	ext := filepath.Ext(name)
	return fmt.Sprintf("%s_%d%s", strings.TrimSuffix(name, ext), i, ext)
}

// bare takes operation and path from an error of the file system, for messages
// that name the file themselves.
func bare(err error) error {
	var pathErr *fs.PathError
	var linkErr *os.LinkError
	switch {
	case errors.As(err, &pathErr):
		return pathErr.Err
	case errors.As(err, &linkErr):
		return linkErr.Err
	}
	return err
}
