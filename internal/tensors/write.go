package tensors

import (
	"archive/zip"
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/oserr"
)

// WriteFile writes tensors to a file whose name's end says its kind:
// .safetensors, .npy (of one tensor) or .npz. Only safetensors files have
// metadata. The file appears whole or not at all, and takes the place of one
// that is there.
func WriteFile(path string, tensors []*Tensor, metadata map[string]string) error {
	write, err := encoder(path)
	if err == nil {
		err = checkAll(tensors)
	}
	if err == nil {
		err = replaceFile(path, func(w io.Writer) error { return write(w, tensors, metadata) })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, oserr.Bare(err))
	}
	return nil
}

func encoder(path string) (func(io.Writer, []*Tensor, map[string]string) error, error) {
	switch ext := filepath.Ext(path); ext {
	case ".safetensors":
		return writeSafetensors, nil
	case ".npy":
		return writeNPY, nil
	case ".npz":
		return writeNPZ, nil
	default:
		return nil, fmt.Errorf("the name ends in %q, expected .safetensors, .npy or .npz", ext)
	}
}

// replaceFile makes a file under a temporary name and renames it.
func replaceFile(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".gomflux-*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<16)
	err = write(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}

func checkAll(tensors []*Tensor) error {
	seen := map[string]bool{}
	for _, t := range tensors {
		if err := t.check(); err != nil {
			return fmt.Errorf("tensor %s: %w", t.Name, err)
		}
		if seen[t.Name] {
			return fmt.Errorf("tensor %s is given twice", t.Name)
		}
		seen[t.Name] = true
	}
	return nil
}

func writeSafetensors(w io.Writer, tensors []*Tensor, metadata map[string]string) error {
	// the largest elements first, so that all lie at multiples of their size
	sorted := slices.SortedFunc(slices.Values(tensors), func(a, b *Tensor) int {
		return cmp.Or(cmp.Compare(b.Dtype.Size(), a.Dtype.Size()), cmp.Compare(a.Name, b.Name))
	})
	infos := make([]Info, len(sorted))
	for i, t := range sorted {
		infos[i] = Info{t.Name, t.Dtype, t.Shape}
	}
	header, err := SafetensorsHeader(infos, metadata)
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

// SafetensorsHeader is what a safetensors file begins with whose tensors follow in
// this order, with nothing between them. Metadata that are nil are left out.
func SafetensorsHeader(list []Info, metadata map[string]string) ([]byte, error) {
	type entry struct {
		Dtype   Dtype    `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	text := make([]byte, 8, 1<<10)
	put := func(key string, value any) error {
		k, err := json.Marshal(key)
		if err != nil {
			return err
		}
		v, err := json.Marshal(value)
		if err != nil {
			return err
		}
		text = append(text, map[bool]byte{true: '{', false: ','}[len(text) == 8])
		text = append(append(append(text, k...), ':'), v...)
		return nil
	}
	if metadata != nil {
		if err := put("__metadata__", metadata); err != nil {
			return nil, err
		}
	}
	var at int64
	for _, t := range list {
		if t.Name == "__metadata__" || strings.IndexByte(t.Name, 0) >= 0 {
			return nil, fmt.Errorf("tensor %q: a safetensors file cannot have that name", t.Name)
		}
		end := at + t.Bytes()
		if err := put(t.Name, entry{t.Dtype, append([]int{}, t.Shape...), [2]int64{at, end}}); err != nil {
			return nil, err
		}
		at = end
	}
	if len(text) == 8 {
		text = append(text, '{')
	}
	text = append(text, '}')
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	binary.LittleEndian.PutUint64(text, uint64(len(text)-8))
	return text, nil
}

func writeNPY(w io.Writer, tensors []*Tensor, metadata map[string]string) error {
	if len(tensors) != 1 {
		return fmt.Errorf("a .npy file has one array, not %d (write a .npz file)", len(tensors))
	}
	if len(metadata) > 0 {
		return noMetadata(metadata)
	}
	t := tensors[0]
	header, err := npyHeader(t)
	if err != nil {
		return fmt.Errorf("tensor %s: %w", t.Name, err)
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	_, err = w.Write(t.Data)
	return err
}

func writeNPZ(w io.Writer, tensors []*Tensor, metadata map[string]string) error {
	if len(metadata) > 0 {
		return noMetadata(metadata)
	}
	z := zip.NewWriter(w)
	for _, t := range tensors {
		if t.Name == "" {
			return errors.New("an array of a .npz file needs a name")
		}
		m, err := z.CreateHeader(&zip.FileHeader{Name: t.Name + ".npy", Method: zip.Store})
		if err != nil {
			return err
		}
		if err := writeNPY(m, []*Tensor{t}, nil); err != nil {
			return err
		}
	}
	return z.Close()
}

func noMetadata(metadata map[string]string) error {
	return fmt.Errorf("NumPy's files have no place for metadata (%s): write a .safetensors file", strings.Join(slices.Sorted(maps.Keys(metadata)), ", "))
}
