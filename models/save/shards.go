package save

import (
	"cmp"
	"fmt"
	"slices"
)

// maxShard is the maximum size of a file of weights, unless a single tensor is larger.
var maxShard int64 = 2 << 30

// shards divides entries into files of at most a size, unless a single entry is larger.
// In each file, tensors with the largest elements come first, so that every tensor
// is aligned to the size of its elements.
func shards(entries []*entry, most int64) (files [][]*entry) {
	var size int64
	for _, e := range entries {
		n := e.bytes()
		if len(files) == 0 || size > 0 && size+n > most {
			files, size = append(files, nil), 0
		}
		files[len(files)-1] = append(files[len(files)-1], e)
		size += n
	}
	for _, file := range files {
		slices.SortStableFunc(file, func(a, b *entry) int {
			return cmp.Compare(b.slots[0].Dtype.Size(), a.slots[0].Dtype.Size())
		})
	}
	return files
}

// A naming describes the names of a component's files in a layout.
type naming struct {
	stem     string // the beginning of the names
	numbered bool   // names are plain numbers, as in mflux
}

// of returns the name of file i of n.
func (f naming) of(i, n int) string {
	switch {
	case f.numbered:
		return fmt.Sprintf("%d.safetensors", i)
	case n > 1:
		return fmt.Sprintf("%s-%05d-of-%05d.safetensors", f.stem, i+1, n)
	}
	return f.stem + ".safetensors"
}

// index returns the name of the index file, which maps tensors to files.
func (f naming) index() string { return f.stem + ".safetensors.index.json" }
