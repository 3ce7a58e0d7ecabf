package models

import "slices"

// An lru is a cache of the values that were used last, the latest at the end.
type lru[T any] []T

// find returns the value that is meant, if it is kept, and makes it the latest.
func (c lru[T]) find(meant func(T) bool) (value T, ok bool) {
	i := slices.IndexFunc(c, meant)
	if i < 0 {
		return value, false
	}
	value = c[i]
	copy(c[i:], c[i+1:])
	c[len(c)-1] = value
	return value, true
}

// add keeps a value, and at most so many in all.
func (c *lru[T]) add(value T, most int) {
	*c = append(*c, value)
	*c = slices.Delete(*c, 0, max(0, len(*c)-most))
}
