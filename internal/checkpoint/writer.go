package checkpoint

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/atomicfile"
	"github.com/gomflux/gomflux/internal/oserr"
)

// WriteFile writes tensors to a file in the format of its extension:
// .safetensors, .npy (exactly one tensor) or .npz. Only safetensors files can have
// metadata. WriteFile replaces an existing file atomically.
func WriteFile(path string, tensors []*Array, metadata map[string]string) error {
	return writeFile(path, tensors, metadata, atomicfile.Replace)
}

// WritePrivateFile is [WriteFile] for a file that only its owner can read.
func WritePrivateFile(path string, tensors []*Array, metadata map[string]string) error {
	return writeFile(path, tensors, metadata, atomicfile.ReplacePrivate)
}

func writeFile(path string, tensors []*Array, metadata map[string]string,
	replace func(string, func(io.Writer) error) error) error {
	write, err := encoder(path, metadata)
	if err == nil {
		err = checkAll(tensors)
	}
	if err == nil {
		err = replace(path, func(w io.Writer) error { return write(w, tensors) })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, oserr.Bare(err))
	}
	return nil
}

// encoder returns the function that writes the format of a file name.
func encoder(path string, metadata map[string]string) (func(io.Writer, []*Array) error, error) {
	switch ext := filepath.Ext(path); {
	case ext == ".safetensors":
		return func(w io.Writer, tensors []*Array) error { return writeSafetensors(w, tensors, metadata) }, nil
	case ext != ".npy" && ext != ".npz":
		return nil, fmt.Errorf("the name ends in %q, expected .safetensors, .npy or .npz", ext)
	case len(metadata) > 0:
		return nil, fmt.Errorf("NumPy's files cannot store the metadata %s (write a .safetensors file)",
			strings.Join(slices.Sorted(maps.Keys(metadata)), ", "))
	case ext == ".npy":
		return writeNPY, nil
	}
	return writeNPZ, nil
}

// checkAll validates tensors that are to be written to one file.
func checkAll(tensors []*Array) error {
	seen := map[string]bool{}
	for _, t := range tensors {
		if err := t.check(); err != nil {
			return fmt.Errorf("tensor %s: %w", t.Name, err)
		}
		if seen[t.Name] {
			return fmt.Errorf("duplicate tensor %s", t.Name)
		}
		seen[t.Name] = true
	}
	return nil
}

// writeSafetensors writes a safetensors file.
func writeSafetensors(w io.Writer, tensors []*Array, metadata map[string]string) error {
	// the largest elements first, so that all are aligned to their size
	sorted := slices.SortedFunc(slices.Values(tensors), func(a, b *Array) int {
		return cmp.Or(cmp.Compare(b.Dtype.Size(), a.Dtype.Size()), cmp.Compare(a.Name, b.Name))
	})
	var list []Tensor
	for _, t := range sorted {
		list = append(list, t.Tensor())
	}
	header, err := encodeHeader(list, metadata)
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	for _, t := range sorted {
		if _, err := w.Write(t.Data); err != nil {
			return err
		}
	}
	return nil
}

// A Writer writes a new safetensors file tensor by tensor.
type Writer struct {
	f    *os.File
	w    *bufio.Writer
	left int64 // bytes left to write
}

// Create creates a file, which must not exist, and writes the header for tensors.
// The caller then writes their elements in the same order.
func Create(path string, tensors []Tensor, metadata map[string]string) (*Writer, error) {
	seen := map[string]bool{}
	var size int64
	for _, t := range tensors {
		if seen[t.Name] {
			return nil, fmt.Errorf("duplicate tensor %s", t.Name)
		}
		seen[t.Name] = true
		size += t.Bytes()
	}
	header, err := encodeHeader(tensors, metadata)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	w := &Writer{f, bufio.NewWriterSize(f, 1<<20), size}
	if _, err := w.w.Write(header); err != nil {
		f.Close()
		return nil, err
	}
	return w, nil
}

// Write implements io.Writer. It appends elements.
func (w *Writer) Write(data []byte) (int, error) {
	w.left -= int64(len(data))
	return w.w.Write(data)
}

// Close completes the file and syncs it to disk.
func (w *Writer) Close() error {
	err := w.w.Flush()
	if err == nil && w.left != 0 {
		err = fmt.Errorf("%d bytes of tensors were not written", w.left)
	}
	if err == nil {
		err = w.f.Sync()
	}
	if e := w.f.Close(); err == nil {
		err = e
	}
	return err
}

// Discard closes the file without completing it. It does nothing after Close.
func (w *Writer) Discard() { w.f.Close() }
