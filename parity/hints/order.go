package hints

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
)

// order looks for the reference's values in another order.
func (s *search) order() {
	if s.part != nil {
		defer func() {
			if len(s.hints) == 0 {
				s.crossOrder()
			}
		}()
	}
	same := s.sameValues()
	if !same && !s.sampled {
		return
	}
	if s.exchanged(s.Question, func(x *mlx.Array) *mlx.Array { return x }) {
		return
	}
	for axis := range s.want.shape {
		if o, ok := s.orderAlong(s.want, s.got, axis); ok {
			s.say(o.key, "ours is the reference with axis %d %s", axis, o.text)
			return
		}
	}
	if !same || s.offSorted() > 1e-3*norm(s.want) { // many values of one distribution are similar
		return
	}
	s.say("permuted", "ours has the reference's values in another order")
}

// exchanged looks for neighbouring groups of axes that one side of a question has in the other's order. It
// compares a part of them, which of returns: the one that is searched.
func (s *search) exchanged(q Question, of func(*mlx.Array) *mlx.Array) bool {
	shape := q.Reference.Shape()
	for _, g := range groups(len(shape)) {
		exchange := func(x *mlx.Array) tensor {
			return hostTensor("", of(x.Reshape(grouped(shape, g)...).Transpose(0, 2, 1, 3).Reshape(shape...)))
		}
		text := "ours is the reference with"
		if !s.fits(exchange(q.Reference)) {
			if distance(exchange(q.Ours), s.want) > 0.1*s.off {
				continue
			}
			text = "the reference is ours with"
		}
		s.say("layout", "%s axes %d to %d after axes %d to %d: a layout is mistaken (channels first or last, a missing transpose)",
			text, g[0], g[1]-1, g[1], g[2]-1)
		return true
	}
	return false
}

// grouped returns the sizes of the axes before a group, of its two parts, and of those after it.
func grouped(shape []int, g [3]int) []int {
	sizes := make([]int, 0, 4)
	from := 0
	for _, to := range []int{g[0], g[1], g[2], len(shape)} {
		sizes = append(sizes, checkpoint.Len(shape[from:to]))
		from = to
	}
	return sizes
}

// groups lists the neighbouring groups of n axes, i to j-1 and j to k-1.
func groups(n int) (all [][3]int) {
	for i := range n {
		for j := i + 1; j < n; j++ {
			for k := j + 1; k <= n; k++ {
				all = append(all, [3]int{i, j, k})
			}
		}
	}
	return all
}

// windowOrder looks for rows of the vision encoder that come in another order: that of windows
// for that of the image, or the other way round.
func (s *search) windowOrder() {
	sorted := func(t tensor) tensor {
		rows := slices.Collect(slices.Chunk(t.v, t.last()))
		slices.SortFunc(rows, slices.Compare[[]float64])
		return tensor{v: slices.Concat(rows...)}
	}
	if strings.Contains(s.Name.Module, ".visual") && len(s.want.shape) == 2 && distance(sorted(s.got), sorted(s.want)) <= 0.1*s.off {
		s.say("window order", "ours has the reference's rows in another order: in that of windows instead of the image's (or the "+
			"other way round), or windows have another size (window_size)")
	}
}

// sameValues reports whether both sides have the same values, in any order. Parts of two tensors
// have similar ones anyway.
func (s *search) sameValues() bool {
	most := 0.1 * s.off
	if s.sampled {
		most = min(most, 1e-4*norm(s.want))
	}
	return s.offSorted() <= most
}

// offSorted is the norm of the error between the sorted values of both sides.
func (s *search) offSorted() float64 {
	sorted := func(t tensor) tensor { return tensor{v: slices.Sorted(slices.Values(t.v))} }
	return distance(sorted(s.got), sorted(s.want))
}

// An axisOrder is another order of an axis' indices: index i has the values of at(i).
type axisOrder struct {
	key, text string
	at        func(i int) int
}

// orderAlong finds the order of an axis that makes got of want.
func (s *search) orderAlong(want, got tensor, axis int) (axisOrder, bool) {
	d := want.shape[axis]
	outer, inner := want.around(axis)
	for o := range axisOrders(d) {
		if !s.looksLike(want, got, axis, o) {
			continue
		}
		out := tensor{v: make([]float64, 0, len(want.v))}
		for k := range outer {
			for i := range d {
				at := (k*d + o.at(i)) * inner
				out.v = append(out.v, want.v[at:at+inner]...)
			}
		}
		if distance(out, got) <= 0.1*s.off {
			return o, true
		}
	}
	return axisOrder{}, false
}

// looksLike reports whether an order holds for a few of the values, which rules out most orders.
func (s *search) looksLike(want, got tensor, axis int, o axisOrder) bool {
	const samples = 64
	d := want.shape[axis]
	_, inner := want.around(axis)
	off, size := 0.0, 0.0
	for k := range samples {
		to := k * (len(want.v) - 1) / (samples - 1)
		i := to / inner % d
		e := want.v[to+(o.at(i)-i)*inner] - got.v[to]
		off, size = off+e*e, size+got.v[to]*got.v[to]
	}
	return off <= 0.01*size
}

// axisOrders yields the orders in which axes of length d are known to come by mistake.
func axisOrders(d int) iter.Seq[axisOrder] {
	return func(yield func(axisOrder) bool) {
		reversed := axisOrder{"reversed", "reversed", func(i int) int { return d - 1 - i }}
		if d < 2 || !yield(reversed) {
			return
		}
		for by := 1; by < d && d > 2; by++ {
			o := axisOrder{"parts in another order", fmt.Sprintf("beginning at index %d of %d: parts are joined in another "+
				"order (text and image, image and references, q, k and v)", by, d), func(i int) int { return (i + by) % d }}
			if !yield(o) {
				return
			}
		}
		transposedParts(d, yield)
	}
}

// transposedParts yields the orders that arise where an axis consists of parts [..., a, b, c],
// and a and b are exchanged.
func transposedParts(d int, yield func(axisOrder) bool) {
	for c := 1; c <= d; c++ {
		for b := 2; b <= d/c; b++ {
			for a := 2; a <= d/c/b; a++ {
				if d%(a*b*c) != 0 {
					continue
				}
				text := fmt.Sprintf("read as %dx%d parts of %d and transposed: interleaved pairs for half-split ones (RoPE), another "+
					"order of channel, row and column, or of heads", b, a, c)
				at := func(i int) int {
					unit, rest := i/c, i%c
					first := unit / (a * b) * (a * b)
					unit -= first
					return (first+unit%a*b+unit/a)*c + rest
				}
				if !yield(axisOrder{"interleaved", text, at}) {
					return
				}
			}
		}
	}
}
