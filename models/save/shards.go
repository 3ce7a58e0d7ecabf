package models

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// readAs returns the dtype that tensors of a file's dtype have in memory, and
// reports whether they can be read.
func readAs(d checkpoint.Dtype) (mlx.Dtype, bool) {
	switch d {
	case checkpoint.F8E4M3:
		return mlx.BFloat16, true
	case checkpoint.F64: // no weights are
		return 0, false
	}
	return nn.DtypeOf(d)
}

// slot describes a tensor that is to be written.
func slot(name string, dtype mlx.Dtype, shape ...int) checkpoint.Tensor {
	stored, _ := nn.FileDtype(dtype)
	return checkpoint.Tensor{Name: name, Dtype: stored, Shape: shape}
}

// shards divides entries, of one or more slots each, into files of a size at most,
// unless one alone is larger. Those with the largest elements come first in each,
// so that all lie at multiples of their elements' size.
func shards[T any](entries []T, slots func(T) []checkpoint.Tensor, most int64) (files [][]T) {
	var size int64
	for _, e := range entries {
		var n int64
		for _, s := range slots(e) {
			n += s.Bytes()
		}
		if len(files) == 0 || size > 0 && size+n > most {
			files, size = append(files, nil), 0
		}
		files[len(files)-1] = append(files[len(files)-1], e)
		size += n
	}
	for _, file := range files {
		slices.SortStableFunc(file, func(a, b T) int {
			return cmp.Compare(slots(b)[0].Dtype.Size(), slots(a)[0].Dtype.Size())
		})
	}
	return files
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
