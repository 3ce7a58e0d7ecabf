package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/gomflux/gomflux/internal/oserr"
)

// File is an open safetensors file whose header has been validated.
type File struct {
	// Name is the file's name for messages, with its folder if known.
	Name   string
	Header *Header
	f      *os.File
}

// Open opens a safetensors file and validates its header with ParseHeader. A file
// that is not an *os.File, such as an embedded one, is first copied to an unnamed
// temporary file, which disappears when it is closed.
func Open(fsys fs.FS, name string) (*File, error) {
	full := FullName(fsys, name)
	src, size, err := openRegular(fsys, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", full, err)
	}
	f, ok := src.(*os.File)
	if !ok {
		f, size, err = spool(src)
		src.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", full, err)
		}
	}
	h, err := ParseHeader(f, size)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", full, err)
	}
	for name, t := range h.Tensors {
		t.File = full
		h.Tensors[name] = t
	}
	return &File{full, h, f}, nil
}

// spool copies src to an unnamed temporary file.
func spool(src io.Reader) (*os.File, int64, error) {
	const hint = "set TMPDIR to a writable folder with enough space"
	f, err := os.CreateTemp("", "gomflux-*.safetensors")
	if err != nil {
		return nil, 0, fmt.Errorf("cannot create a temporary file (%s): %w", hint, err)
	}
	err = os.Remove(f.Name())
	var size int64
	if err == nil {
		size, err = io.Copy(f, src)
	}
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("cannot copy to a temporary file in %s (%s): %w", os.TempDir(), hint, err)
	}
	return f, size, nil
}

// Path rewinds the open file and returns its path under /dev/fd. On macOS the
// descriptor from opening that path shares the offset (on Linux it does not), so
// call Path before each use. The path is valid until Close, even if the file is
// replaced, moved or removed.
func (f *File) Path() (string, error) {
	if _, err := f.f.Seek(0, io.SeekStart); err != nil {
		return "", fmt.Errorf("%s: %w", f.Name, oserr.Bare(err))
	}
	fd := f.f.Fd()
	for _, dir := range []string{"/dev/fd", "/proc/self/fd"} {
		path := fmt.Sprintf("%s/%d", dir, fd)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: the open file is neither in /dev/fd nor in /proc/self/fd (is /proc mounted?)", f.Name)
}

// WriteSample writes the header, the size and samples of the tensors to w, in the time of a few reads.
// They tell apart files of the same tensors with other values, such as those of a model that was trained
// further.
func (f *File) WriteSample(w io.Writer) error {
	const samples, size = 64, 1 << 12
	info, err := f.f.Stat()
	if err != nil {
		return fmt.Errorf("%s: %w", f.Name, oserr.Bare(err))
	}
	fmt.Fprintln(w, info.Size())
	parts := []*io.SectionReader{io.NewSectionReader(f.f, 0, f.Header.DataOffset)}
	for i := range int64(samples) {
		parts = append(parts, io.NewSectionReader(f.f, f.Header.DataOffset+(info.Size()-f.Header.DataOffset)*i/samples, size))
	}
	for _, part := range parts {
		if _, err := io.Copy(w, part); err != nil {
			return fmt.Errorf("%s: %w", f.Name, oserr.Bare(err))
		}
	}
	return nil
}

// Close closes the file. Arrays that MLX has loaded from Path but not yet
// evaluated stay valid: MLX reads them through a descriptor of its own.
func (f *File) Close() error {
	if err := f.f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("%s: %w", f.Name, oserr.Bare(err))
	}
	return nil
}
