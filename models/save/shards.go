package save

import (
	"cmp"
	"fmt"
	"slices"
)

// maxShard is how large a file of weights gets, unless one tensor is larger.
var maxShard int64 = 2 << 30

// shards divides entries into files of a size at most, unless one alone is larger.
// Those with the largest elements come first in each, so that all lie at multiples
// of their elements' size.
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

// A naming is what a component's files are called in a layout.
type naming struct {
	stem     string // of the names of files
	numbered bool   // mflux's files have numbers alone
}

// of is the name of one of n files.
func (f naming) of(i, n int) string {
	switch {
	case f.numbered:
		return fmt.Sprintf("%d.safetensors", i)
	case n > 1:
		return fmt.Sprintf("%s-%05d-of-%05d.safetensors", f.stem, i+1, n)
	}
	return f.stem + ".safetensors"
}

// index is the name of the file that says which tensor is where.
func (f naming) index() string { return f.stem + ".safetensors.index.json" }
