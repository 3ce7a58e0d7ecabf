package tensors

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/oserr"
)

// MaxBytes bounds a tensor that is read: a few kilobytes of a compressed file
// can ask for any amount of memory.
const MaxBytes = 64 << 30

// A File is an open file of tensors. Its headers have been read and checked,
// its elements have not been read.
type File struct {
	Path     string
	Format   string            // safetensors, npy or npz
	Metadata map[string]string // of a safetensors file

	f       *os.File
	entries []entry
}

// An entry is one tensor of a file.
type entry struct {
	Info
	bigEndian, fortran bool
	open               func() (io.ReadCloser, error)
	sized              bool // whether the file is known to have all elements
}

// Open opens a file of tensors. What kind it is its first bytes say.
func Open(path string) (*File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, oserr.Bare(err))
	}
	if !info.Mode().IsRegular() {
		what := "something else"
		if info.IsDir() {
			what = "a folder"
		}
		return nil, fmt.Errorf("%s: expected a file, found %s", path, what)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, oserr.Bare(err))
	}
	file := &File{Path: path, f: f}
	if err := file.parse(f, info.Size()); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return file, nil
}

// parse reads the headers.
func (f *File) parse(r io.ReaderAt, size int64) error {
	magic := make([]byte, len(npyMagic))
	n, err := r.ReadAt(magic, 0)
	if err != nil && err != io.EOF {
		return oserr.Bare(err)
	}
	switch {
	case bytes.Equal(magic[:n], npyMagic):
		f.Format = "npy"
		return f.parseNPY(r, size)
	case bytes.HasPrefix(magic[:n], []byte("PK\x03\x04")), bytes.HasPrefix(magic[:n], []byte("PK\x05\x06")):
		f.Format = "npz"
		return f.parseNPZ(r, size)
	}
	f.Format = "safetensors"
	return f.parseSafetensors(r, size)
}

func (f *File) parseSafetensors(r io.ReaderAt, size int64) error {
	h, err := checkpoint.ParseHeader(r, size)
	if err != nil {
		return err
	}
	f.Metadata = h.Metadata
	for _, name := range h.Names {
		t := h.Tensors[name]
		f.entries = append(f.entries, entry{Info: Info{name, Dtype(t.Dtype), t.Shape}, sized: true, open: func() (io.ReadCloser, error) {
			return io.NopCloser(io.NewSectionReader(r, h.DataOffset+t.Begin, t.End-t.Begin)), nil
		}})
	}
	return nil
}

func (f *File) parseNPY(r io.ReaderAt, size int64) error {
	s := io.NewSectionReader(r, 0, size)
	e, err := readNPYHeader(s)
	if err != nil {
		return err
	}
	at, _ := s.Seek(0, io.SeekCurrent)
	if got, want := size-at, e.Bytes(); got != want {
		return fmt.Errorf("%d bytes follow the header, expected %d for %v: the file is damaged or cut short", got, want, e.Info)
	}
	e.Name = strings.TrimSuffix(filepath.Base(f.Path), ".npy")
	e.sized = true
	e.open = func() (io.ReadCloser, error) { return io.NopCloser(io.NewSectionReader(r, at, size-at)), nil }
	f.entries = []entry{e}
	return nil
}

// maxMembers bounds the arrays of a .npz file.
const maxMembers = 100_000

func (f *File) parseNPZ(r io.ReaderAt, size int64) error {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return fmt.Errorf("not a whole .npz file: %w", err)
	}
	if len(z.File) > maxMembers {
		return fmt.Errorf("%d arrays, at most %d can be read", len(z.File), maxMembers)
	}
	seen := map[string]bool{}
	for _, m := range z.File {
		name, ok := strings.CutSuffix(m.Name, ".npy")
		if strings.HasSuffix(m.Name, "/data.pkl") {
			return errors.New("it is a PyTorch checkpoint: convert it with the package in scripts/reference")
		}
		if !ok {
			return fmt.Errorf("member %q is no .npy file", m.Name)
		}
		if seen[name] {
			return fmt.Errorf("array %q is there twice", name)
		}
		seen[name] = true
		e, err := memberHeader(m)
		if err != nil {
			return fmt.Errorf("array %q: %w", name, err)
		}
		e.Name = name
		f.entries = append(f.entries, e)
	}
	return nil
}

// memberHeader reads the header of one array of a .npz file.
func memberHeader(m *zip.File) (entry, error) {
	r, err := m.Open()
	if err != nil {
		return entry{}, err
	}
	defer r.Close()
	counted := &counter{r: r}
	e, err := readNPYHeader(counted)
	if err != nil {
		return e, err
	}
	skip, size := counted.n, m.UncompressedSize64
	if uint64(skip) > size || uint64(e.Bytes()) != size-uint64(skip) {
		return e, fmt.Errorf("%d bytes follow the header, expected %d for %v", int64(size)-skip, e.Bytes(), e.Info)
	}
	e.open = func() (io.ReadCloser, error) {
		r, err := m.Open()
		if err != nil {
			return nil, err
		}
		if _, err := io.CopyN(io.Discard, r, skip); err != nil {
			r.Close()
			return nil, oserr.NoEOF(err)
		}
		return r, nil
	}
	return e, nil
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }

// Tensors lists what is in the file, in its order.
func (f *File) Tensors() []Info {
	out := make([]Info, len(f.entries))
	for i, e := range f.entries {
		out[i] = e.Info
	}
	return out
}

func (f *File) names() []string {
	out := make([]string, len(f.entries))
	for i, e := range f.entries {
		out[i] = e.Name
	}
	return out
}

// Info finds a tensor by its name.
func (f *File) Info(name string) (Info, bool) {
	if i := f.find(name); i >= 0 {
		return f.entries[i].Info, true
	}
	return Info{}, false
}

func (f *File) find(name string) int {
	return slices.IndexFunc(f.entries, func(e entry) bool { return e.Name == name })
}

// entry finds a tensor whose elements can be read.
func (f *File) entry(name string) (entry, error) {
	i := f.find(name)
	if i < 0 {
		return entry{}, fmt.Errorf("%s: %w", f.Path, f.lacks(name))
	}
	e := f.entries[i]
	err := e.check()
	if n := e.Bytes(); err == nil && (n > MaxBytes || n > math.MaxInt) {
		err = fmt.Errorf("%v has %d bytes, at most %d can be read", e.Info, n, int64(MaxBytes))
	}
	if err != nil {
		return e, fmt.Errorf("%s: tensor %s: %w", f.Path, printable(name), err)
	}
	return e, nil
}

// Read reads a tensor.
func (f *File) Read(name string) (*Tensor, error) {
	e, err := f.entry(name)
	if err != nil {
		return nil, err
	}
	data, err := e.read()
	if err != nil {
		return nil, fmt.Errorf("%s: tensor %s: %w", f.Path, printable(name), oserr.Bare(err))
	}
	return New(name, e.Dtype, e.Shape, data)
}

func (e entry) read() ([]byte, error) {
	r, err := e.open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var data []byte
	n := int(e.Bytes())
	if e.sized {
		data = make([]byte, n)
		_, err = io.ReadFull(r, data)
	} else { // no more memory than there is data
		data, err = io.ReadAll(io.LimitReader(r, int64(n)+1))
		if err == nil && len(data) != n {
			err = fmt.Errorf("found %d bytes, expected %d", len(data), n)
		}
	}
	if err != nil {
		return nil, oserr.NoEOF(err)
	}
	if e.bigEndian {
		swap(data, e.Dtype.Size())
	}
	if e.fortran {
		data = rowMajor(data, e.Shape, e.Dtype.Size())
	}
	return data, nil
}

// Stats sum a tensor up, with its first values, without holding all of it in
// memory.
func (f *File) Stats(name string, first int) (Stats, []float64, error) {
	e, err := f.entry(name)
	if err != nil {
		return Stats{}, nil, err
	}
	if e.bigEndian || e.fortran {
		t, err := f.Read(name)
		if err != nil {
			return Stats{}, nil, err
		}
		return t.Stats(), t.First(first), nil
	}
	r, err := e.open()
	if err == nil {
		defer r.Close()
		var s Stats
		var head []float64
		if s, head, err = summarize(r, e.Info, first); err == nil {
			return s, head, nil
		}
	}
	return Stats{}, nil, fmt.Errorf("%s: tensor %s: %w", f.Path, printable(name), oserr.Bare(err))
}

// swap turns the bytes of every element around.
func swap(data []byte, size int) {
	for i := 0; i+size <= len(data); i += size {
		slices.Reverse(data[i : i+size])
	}
}

// rowMajor takes elements whose first axis is the fastest to the order in
// which the last one is.
func rowMajor(data []byte, shape []int, size int) []byte {
	out := make([]byte, len(data))
	strides := make([]int, len(shape))
	step := 1
	for i, d := range shape {
		strides[i] = step
		step *= d
	}
	at := make([]int, len(shape))
	from := 0
	for to := 0; to < len(out); to += size {
		copy(out[to:to+size], data[from*size:])
		for axis := len(shape) - 1; axis >= 0; axis-- {
			at[axis]++
			from += strides[axis]
			if at[axis] < shape[axis] {
				break
			}
			from -= strides[axis] * shape[axis]
			at[axis] = 0
		}
	}
	return out
}
