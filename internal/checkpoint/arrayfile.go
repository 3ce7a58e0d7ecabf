package checkpoint

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"

	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/quote"
)

// maxBytes limits the size of a tensor, since a few kilobytes of a compressed
// file can expand to any size.
const maxBytes = 64 << 30

// An ArrayFile is an open file of tensors whose headers have been validated. The
// elements are read on demand.
type ArrayFile struct {
	Path     string
	Format   string            // safetensors, npy or npz
	Metadata map[string]string // of a safetensors file

	f       arraySource
	members []member
}

// An arraySource is a file of tensors.
type arraySource interface {
	io.ReaderAt
	io.Closer
}

// A member is one tensor of a file.
type member struct {
	Tensor
	bigEndian, fortran bool
	open               func() (io.ReadCloser, error)
	sized              bool // the file is known to have all elements
}

// OpenArrays opens a file of tensors. It recognises the format by the first bytes.
func OpenArrays(path string) (*ArrayFile, error) { return OpenArraysFS(hostFiles{}, path) }

// hostFiles are the files of this machine, by names as the operating system has them.
type hostFiles struct{}

func (hostFiles) Open(name string) (fs.File, error)     { return os.Open(name) }
func (hostFiles) Stat(name string) (fs.FileInfo, error) { return os.Stat(name) }

// OpenArraysFS opens a file of tensors in a file system, which must be one of
// regular files, as that of a folder on disk is.
func OpenArraysFS(fsys fs.FS, name string) (*ArrayFile, error) {
	full := FullName(fsys, name)
	src, size, err := openRegular(fsys, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", full, err)
	}
	f, ok := src.(arraySource)
	if !ok {
		src.Close()
		return nil, fmt.Errorf("%s: the file can only be read from its beginning", full)
	}
	file := &ArrayFile{Path: full, f: f}
	if err := file.parse(f, size); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", full, err)
	}
	return file, nil
}

// parse reads the headers.
func (f *ArrayFile) parse(r io.ReaderAt, size int64) error {
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

// parseSafetensors reads the header of a safetensors file.
func (f *ArrayFile) parseSafetensors(r io.ReaderAt, size int64) error {
	h, err := ParseHeader(r, size)
	if err != nil {
		return err
	}
	f.Metadata = h.Metadata
	for _, name := range h.Names {
		t := h.Tensors[name]
		f.members = append(f.members, member{Tensor: t, sized: true, open: func() (io.ReadCloser, error) {
			return io.NopCloser(stored(r, h.DataOffset, t)), nil
		}})
	}
	return nil
}

// Close closes the file.
func (f *ArrayFile) Close() error { return f.f.Close() }

// Tensors lists the tensors in the order of the file.
func (f *ArrayFile) Tensors() []Tensor {
	out := make([]Tensor, len(f.members))
	for i, e := range f.members {
		out[i] = e.Tensor
	}
	return out
}

// names lists the names of the tensors.
func (f *ArrayFile) names() []string {
	out := make([]string, len(f.members))
	for i, e := range f.members {
		out[i] = e.Name
	}
	return out
}

// Tensor finds a tensor by its name.
func (f *ArrayFile) Tensor(name string) (Tensor, bool) {
	if i := f.find(name); i >= 0 {
		return f.members[i].Tensor, true
	}
	return Tensor{}, false
}

// find returns the index of a tensor, or -1.
func (f *ArrayFile) find(name string) int {
	return slices.IndexFunc(f.members, func(e member) bool { return e.Name == name })
}

// member finds a tensor and checks that it can be read.
func (f *ArrayFile) member(name string) (member, error) {
	i := f.find(name)
	if i < 0 {
		return member{}, fmt.Errorf("%s: %w", f.Path, f.noTensor(name))
	}
	e := f.members[i]
	err := e.checkNumeric()
	if n := e.Bytes(); err == nil && (n > maxBytes || n > math.MaxInt) {
		err = fmt.Errorf("%s has %d bytes, at most %d can be read", e.Type(), n, int64(maxBytes))
	}
	if err != nil {
		return e, fmt.Errorf("%s: tensor %s: %w", f.Path, quote.Printable(name), err)
	}
	return e, nil
}

// Read reads a tensor.
func (f *ArrayFile) Read(name string) (*Array, error) {
	e, err := f.member(name)
	if err != nil {
		return nil, err
	}
	data, err := e.read()
	if err != nil {
		return nil, fmt.Errorf("%s: tensor %s: %w", f.Path, quote.Printable(name), oserr.Bare(err))
	}
	return NewArray(name, e.Dtype, e.Shape, data)
}

// read returns the elements, row-major and little-endian.
func (e member) read() ([]byte, error) {
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
	} else { // do not allocate memory for elements that may not exist
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

// Stats returns the statistics of a tensor and its first values. It does not hold
// the whole tensor in memory, unless its order has to be changed.
func (f *ArrayFile) Stats(name string, first int) (Stats, []float64, error) {
	e, err := f.member(name)
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
		if s, head, err = summarize(r, e.Tensor, first); err == nil {
			return s, head, nil
		}
	}
	return Stats{}, nil, fmt.Errorf("%s: tensor %s: %w", f.Path, quote.Printable(name), oserr.Bare(err))
}

// swap reverses the bytes of every element.
func swap(data []byte, size int) {
	for i := 0; i+size <= len(data); i += size {
		slices.Reverse(data[i : i+size])
	}
}

// rowMajor converts column-major (Fortran) to row-major order. size is that of an
// element in bytes.
func rowMajor(data []byte, shape []int, size int) []byte {
	out := make([]byte, 0, len(data))
	var visit func(axis, at int)
	visit = func(axis, at int) {
		if axis == len(shape) {
			out = append(out, data[at:at+size]...)
			return
		}
		step := size * Len(shape[:axis])
		for i := range shape[axis] {
			visit(axis+1, at+i*step)
		}
	}
	visit(0, 0)
	return out
}

// noTensor returns the error about a tensor that does not exist. It lists all
// tensors if they are few, otherwise those with similar names.
func (f *ArrayFile) noTensor(name string) error {
	const few = 5
	if n := len(f.members); n > few {
		return fmt.Errorf("has no tensor %s (%s)", quote.Printable(name), Hint(name, f.names()))
	} else if n == 0 {
		return fmt.Errorf("has no tensor %s, and no other", quote.Printable(name))
	}
	return fmt.Errorf("has no tensor %s, only %s", quote.Printable(name), f.list())
}
