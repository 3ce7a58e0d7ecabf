package models

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/tensors"
	"github.com/gomflux/gomflux/mlx"
)

// A slot is the place of a tensor in a file that is to be written.
type slot struct {
	name  string
	dtype mlx.Dtype
	shape []int
}

func (s slot) bytes() int64 {
	n := int64(s.dtype.ItemSize())
	for _, d := range s.shape {
		n *= int64(d)
	}
	return n
}

// dtypeNames are safetensors' names of what tensors are written in.
var dtypeNames = map[mlx.Dtype]checkpoint.Dtype{
	mlx.Float32: "F32", mlx.Float16: "F16", mlx.BFloat16: "BF16", mlx.Uint32: "U32", mlx.Int32: "I32",
	mlx.Uint16: "U16", mlx.Int16: "I16", mlx.Uint8: "U8", mlx.Int8: "I8", mlx.Bool: "BOOL", mlx.Uint64: "U64", mlx.Int64: "I64",
}

// readAs is the dtype that tensors of safetensors' names are in memory, and whether
// they can be.
func readAs(name checkpoint.Dtype) (mlx.Dtype, bool) {
	if name == "F8_E4M3" {
		return mlx.BFloat16, true
	}
	for d, own := range dtypeNames {
		if own == name {
			return d, true
		}
	}
	return 0, false
}

// shards divides entries, of one or more slots each, into files of a size at most,
// unless one alone is larger. Those with the largest elements come first in each,
// so that all lie at multiples of their elements' size.
func shards[T any](entries []T, slots func(T) []slot, most int64) (files [][]T) {
	var size int64
	for _, e := range entries {
		var n int64
		for _, s := range slots(e) {
			n += s.bytes()
		}
		if len(files) == 0 || size > 0 && size+n > most {
			files, size = append(files, nil), 0
		}
		files[len(files)-1] = append(files[len(files)-1], e)
		size += n
	}
	for _, file := range files {
		slices.SortStableFunc(file, func(a, b T) int {
			return cmp.Compare(slots(b)[0].dtype.ItemSize(), slots(a)[0].dtype.ItemSize())
		})
	}
	return files
}

// A shardFile is a safetensors file that is written one tensor after the other.
type shardFile struct {
	f    *os.File
	w    *bufio.Writer
	left int64 // bytes that are still to be written
}

// createShard begins a file with the header of all that it will have.
func createShard(path string, slots []slot, metadata map[string]string) (*shardFile, error) {
	seen := map[string]bool{}
	var infos []tensors.Info
	var size int64
	for _, s := range slots {
		if seen[s.name] {
			return nil, fmt.Errorf("tensor %s is to be written twice", s.name)
		}
		seen[s.name] = true
		infos = append(infos, tensors.Info{Name: s.name, Dtype: tensors.Dtype(dtypeNames[s.dtype]), Shape: s.shape})
		size += s.bytes()
	}
	header, err := tensors.SafetensorsHeader(infos, metadata)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	s := &shardFile{f, bufio.NewWriterSize(f, 1<<20), size}
	if _, err := s.w.Write(header); err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

func (s *shardFile) write(data []byte) error {
	s.left -= int64(len(data))
	_, err := s.w.Write(data)
	return err
}

// close ends the file, which is on the disk then.
func (s *shardFile) close() error {
	err := s.w.Flush()
	if err == nil && s.left != 0 {
		err = fmt.Errorf("%d bytes of the tensors are still to be written", s.left)
	}
	if err == nil {
		err = s.f.Sync()
	}
	if e := s.f.Close(); err == nil {
		err = e
	}
	return err
}

// writeNew writes a small file that is not there yet.
func writeNew(path string, data []byte) error {
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	}
	if err == nil {
		_, err = f.Write(data)
		if err == nil {
			err = f.Sync()
		}
		if e := f.Close(); err == nil {
			err = e
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, oserr.Bare(err))
	}
	return nil
}

func writeNewJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return writeNew(path, append(data, '\n'))
}
