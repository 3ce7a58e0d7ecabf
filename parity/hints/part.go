package hints

import (
	"fmt"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// Tests lower these sizes.
var (
	// maxValues is the size of the largest tensor that is searched as a whole.
	maxValues = 1 << 22
	// partValues is about the size of the part that is searched of a larger one.
	partValues = 1 << 18
)

// minIndices is the least number of tokens, rows or features in a part; of q, k and v one head will
// do.
const minIndices = 4

// A part is a range of indices of one axis: of tokens, of an image's rows, or of heads. All tensors
// that a hint is computed from are cut to the same part.
type part struct {
	shape          []int // of the wrong tensor, before it is cut
	axis, from, to int
}

func (p part) String() string {
	return fmt.Sprintf("indices %d to %d of the %d along axis %d", p.from, p.to-1, p.shape[p.axis], p.axis)
}

// of returns the part of a tensor of the run: what belongs to the same tokens, rows or heads. A
// tensor without such an axis is returned whole.
func (p part) of(a *mlx.Array) *mlx.Array {
	if a == nil {
		return nil
	}
	shape, length := a.Shape(), p.shape[p.axis]
	if len(shape) == len(p.shape) && shape[p.axis] == length {
		return a.Slice(p.axis, p.from, p.to)
	}
	for axis, d := range shape {
		last := axis == len(shape)-1 // features, unless the tensor is an index of tokens
		if d == length && (!last || len(shape) <= 2 && length != p.shape[len(p.shape)-1]) {
			return a.Slice(axis, p.from, p.to)
		}
	}
	return a
}

// cut returns the question about a part.
func (q Question) cut(p part) Question {
	whole := q.Tensor
	q.Ours, q.Reference, q.Input = p.of(q.Ours), p.of(q.Reference), p.of(q.Input)
	q.Tensor = func(n hooks.Name) *mlx.Array { return p.of(whole(n)) }
	return q
}

// partOf chooses the part of a tensor along an axis, of about a number of values: the indices that
// have most of the error.
func (q Question) partOf(axis, values int) part {
	shape := q.Ours.Shape()
	n := min(shape[axis], max(q.least(), values/(q.Ours.Size()/shape[axis])))
	return q.worst(axis, n)
}

// least returns the least number of indices in a part.
func (q Question) least() int {
	if q.Name.Point.Kind == hooks.Inner {
		return 1
	}
	return minIndices
}

// worst returns the n indices of an axis that have most of the error.
func (q Question) worst(axis, n int) part {
	wrong := q.wrongAlong(axis)
	sum := 0.0
	for _, e := range wrong[:n] {
		sum += e
	}
	best, from := sum, 0
	for i := n; i < len(wrong); i++ {
		if sum += wrong[i] - wrong[i-n]; sum > best*(1+1e-6) {
			best, from = sum, i-n+1
		}
	}
	return part{q.Ours.Shape(), axis, from, from + n}
}

// wrongAlong returns the sum of squared errors of each index of an axis.
func (q Question) wrongAlong(axis int) []float64 {
	shape := q.Ours.Shape()
	outer, inner := tensor{shape: shape}.around(axis)
	e := q.Ours.AsType(mlx.Float32).Sub(q.Reference.AsType(mlx.Float32)).Square()
	return hostTensor("", e.Reshape(outer, shape[axis], inner).Sum(2).Reshape(outer, shape[axis]).Sum(0)).v
}

// partAxis returns the axis along which a large tensor is cut: heads of q, k and v, tokens of other
// tensors of a transformer, and rows of images. It is -1 if the axis is too short.
func (q Question) partAxis() int {
	shape := q.Ours.Shape()
	axis := 0
	switch n := len(shape); {
	case n == 1, n == 2, n == 3 && strings.HasPrefix(q.Name.Module, "image"):
	case n == 3:
		axis = 1
	case n == 4 && q.Name.Point.Kind == hooks.Inner:
		if axis = 1; lengthFirst(q.Name.Module) {
			axis = 2
		}
	case n == 4 && lengthFirst(q.Name.Module):
		axis = 1
	default:
		axis = n - 2
	}
	if least := q.least(); shape[axis] < least || q.Ours.Size()/shape[axis]*least > maxValues {
		return -1
	}
	return axis
}

// crossOrder looks for another order of tokens, rows or heads, which a part of a few of them does
// not show: in parts along the other axes.
func (s *search) crossOrder() {
	var permuted []Hint
	for axis, d := range s.whole.Ours.Shape() {
		if least := s.whole.least(); axis == s.part.axis || d < least || s.whole.Ours.Size()/d*least > maxValues {
			continue
		}
		other := newSearch(s.whole.cut(s.whole.partOf(axis, partValues)))
		other.sampled = true
		if other.off == 0 {
			continue
		}
		if other.windowOrder(); len(other.hints) == 0 {
			other.order()
		}
		switch {
		case len(other.hints) == 0:
		case other.hints[0].Key == "permuted":
			permuted = other.hints
		default:
			s.hints = other.hints
			return
		}
	}
	if !s.exchanged(s.whole, s.part.of) {
		s.hints = permuted
	}
}
