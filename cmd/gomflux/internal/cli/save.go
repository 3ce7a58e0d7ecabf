package cli

import (
	"context"
	"errors"
	"fmt"
	"image"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gomflux/gomflux/internal/atomicfile"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/picture"
)

// CheckOutput checks that an image can be written to a file, before it is generated.
func CheckOutput(name string) error {
	if err := CheckName(name, "image.png"); err != nil {
		return err
	}
	if _, err := picture.FormatOf(name); err != nil && !picture.IsOpenRaster(name) {
		return fmt.Errorf("output %s: %w", name, err)
	}
	return CheckFolderOf(name)
}

// CheckName checks that a name can be that of a file. The example is the name of such a file.
func CheckName(name, example string) error {
	if name == "" {
		return errors.New("output: the name is empty")
	}
	info, err := os.Stat(name)
	if err == nil && info.IsDir() || strings.HasSuffix(name, string(filepath.Separator)) {
		return fmt.Errorf("output %s: is a folder (give the name of a file, such as %s)", name, filepath.Join(name, example))
	}
	if err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("output %s: is not a regular file", name)
	}
	return nil
}

// CheckFolderOf checks that a file can be made in its folder.
func CheckFolderOf(name string) error {
	dir := filepath.Dir(name)
	if info, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("output %s: folder %s does not exist (create it first)", name, dir)
	} else if err == nil && !info.IsDir() {
		return fmt.Errorf("output %s: %s is not a folder", name, dir)
	}
	if _, err := os.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) { // such as a name that is too long
		return fmt.Errorf("output %s: %w", name, oserr.Bare(err))
	}
	f, err := NewTemporary(name)
	if err != nil {
		return fmt.Errorf("output %s: %w", name, err)
	}
	f.Discard()
	return nil
}

// A Saver writes images.
type Saver struct {
	Overwrite bool
	Settings  *picture.Settings // stored in the image unless nil
	Sidecar   *picture.Settings // stored in a file next to the image unless nil
	Layers    []*image.NRGBA    // that compose the image, for an OpenRaster file
}

// Save writes an image and returns the name of its file: the given one or, if it is
// taken and not to be overwritten, the first free one of name_1.png, name_2.png and
// so on. The file appears complete or not at all. If it cannot be written, the image
// is saved in the folder for temporary files, which the error names.
func (s Saver) Save(ctx context.Context, name string, img image.Image) (string, error) {
	saved, err := s.Write(ctx, name, img)
	if err == nil || context.Cause(ctx) != nil {
		return saved, err
	}
	// the name may be the problem
	ext := filepath.Ext(name)
	if strings.EqualFold(ext, ".webp") {
		ext = ".png" // the image may be too large for WebP
	}
	elsewhere := filepath.Join(os.TempDir(), "gomflux-rescued"+ext)
	s.Overwrite = false
	rescued, rescueErr := s.Write(ctx, elsewhere, img)
	if rescueErr != nil {
		return "", err
	}
	return "", fmt.Errorf("%w (the image is saved as %s instead)", err, rescued)
}

func (s Saver) Write(ctx context.Context, name string, img image.Image) (string, error) {
	format, err := picture.FormatOf(name)
	encode := func(w io.Writer) error { return picture.Encode(w, format, img, s.Settings) }
	if len(s.Layers) > 0 && picture.IsOpenRaster(name) {
		encode, err = func(w io.Writer) error { return picture.EncodeOpenRaster(w, img, s.Layers, s.Settings) }, nil
	}
	if err != nil {
		return "", fmt.Errorf("output %s: %w", name, err)
	}
	f, err := writeTemporary(name, encode)
	if err != nil {
		return "", fmt.Errorf("output %s: %w", name, err)
	}
	defer f.Discard()
	var beside *atomicfile.File
	if s.Sidecar != nil {
		beside, err = writeTemporary(name, func(w io.Writer) error { return picture.EncodeSettings(w, s.Sidecar) })
		if err != nil {
			return "", fmt.Errorf("output %s: %w", sidecarName(name), err)
		}
		defer beside.Discard()
	}
	if err := context.Cause(ctx); err != nil {
		return "", err
	}
	return Place(f, beside, name, s.Overwrite)
}

// Place gives a file and its sidecar, which may be nil, their names, and returns that of the
// file: the given one, which replaces an existing file, or the first free one.
func Place(f, beside *atomicfile.File, name string, overwrite bool) (string, error) {
	if overwrite {
		return name, moveBoth(f, beside, name)
	}
	return linkToFree(f, beside, name)
}

// moveBoth renames a file and its sidecar to their names, replacing existing files. The
// sidecar comes first, so that no image is without it.
func moveBoth(f, beside *atomicfile.File, name string) error {
	if beside != nil {
		if err := beside.Replace(sidecarName(name)); err != nil {
			return fmt.Errorf("output %s: %w", sidecarName(name), oserr.Bare(err))
		}
	}
	if err := f.Replace(name); err != nil {
		return fmt.Errorf("output %s: %w", name, oserr.Bare(err))
	}
	return nil
}

// sidecarName returns the name of an image's sidecar, as in mflux:
// image.metadata.json for image.png.
func sidecarName(name string) string {
	return strings.TrimSuffix(name, filepath.Ext(name)) + ".metadata.json"
}

// NewTemporary makes an empty temporary file next to name.
func NewTemporary(name string) (*atomicfile.File, error) {
	f, err := atomicfile.New(name)
	if err != nil {
		return nil, fmt.Errorf("cannot write to folder %s: %w", filepath.Dir(name), oserr.Bare(err))
	}
	return f, nil
}

// writeTemporary writes a temporary file next to name.
func writeTemporary(name string, encode func(io.Writer) error) (*atomicfile.File, error) {
	f, err := NewTemporary(name)
	if err != nil {
		return nil, err
	}
	if err := f.Fill(encode); err != nil {
		f.Discard()
		return nil, oserr.Bare(err)
	}
	return f, nil
}

// linkToFree renames a file to the first free name, together with its sidecar.
func linkToFree(f, beside *atomicfile.File, name string) (string, error) {
	for i := 0; ; i++ {
		candidate := numbered(name, i)
		if exists(candidate) {
			continue
		}
		if beside != nil {
			err := beside.Create(sidecarName(candidate))
			if errors.Is(err, fs.ErrExist) {
				continue
			}
			if err != nil {
				return "", fmt.Errorf("output %s: %w", sidecarName(candidate), oserr.Bare(err))
			}
		}
		err := f.Create(candidate)
		if err == nil {
			return candidate, nil
		}
		if beside != nil {
			if err := beside.Withdraw(sidecarName(candidate)); err != nil {
				return "", fmt.Errorf("output %s: %w", sidecarName(candidate), oserr.Bare(err))
			}
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("output %s: %w", candidate, oserr.Bare(err))
		}
	}
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// numbered returns name for i = 0, and otherwise name_i before the extension.
func numbered(name string, i int) string {
	if i == 0 {
		return name
	}
	ext := filepath.Ext(name)
	return fmt.Sprintf("%s_%d%s", strings.TrimSuffix(name, ext), i, ext)
}
