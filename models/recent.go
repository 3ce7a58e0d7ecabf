package models

import "slices"

// recent are the values that were used last, the latest at the end.
type recent[T any] []T

// find is the value that is meant, if it is kept, which makes it the latest.
func (r recent[T]) find(meant func(T) bool) (value T, ok bool) {
	i := slices.IndexFunc(r, meant)
	if i < 0 {
		return value, false
	}
	value = r[i]
	copy(r[i:], r[i+1:])
	r[len(r)-1] = value
	return value, true
}

// add keeps a value, and most of them in all.
func (r *recent[T]) add(value T, most int) {
	*r = append(*r, value)
	*r = slices.Delete(*r, 0, max(0, len(*r)-most))
}
