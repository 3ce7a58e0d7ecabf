package hints

import (
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// Shapes guesses why two shapes differ; "" is no guess.
func Shapes(ours, reference []int) string {
	g, w := ours, reference
	without := func(s []int) []int { return slices.DeleteFunc(slices.Clone(s), func(d int) bool { return d == 1 }) }
	sorted := func(s []int) []int { return slices.Sorted(slices.Values(s)) }
	size := checkpoint.Len
	switch {
	case slices.Equal(without(g), without(w)):
		return "the same except for axes of length 1, such as a batch axis"
	case len(g) == len(w) && slices.Equal(sorted(g), sorted(w)):
		return "transposed: the same axes in another order"
	case size(g) == size(w):
		return "as many values: packed, unpacked or heads split otherwise"
	case size(g)*2 == size(w):
		return "half as many values: one of two batch rows, or one of two joined halves"
	case size(g) == size(w)*2:
		return "twice as many values"
	}
	differ, axis := 0, -1
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			differ++
			axis = i
		}
	}
	if len(g) == len(w) && differ == 1 {
		return fmt.Sprintf("axis %d has %d, the reference's %d: other padding, or another number of tokens", axis, g[axis], w[axis])
	}
	return ""
}
