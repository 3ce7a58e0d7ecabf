package expr

import (
	"slices"

	"go.starlark.net/starlark"

	"github.com/gomflux/gomflux/mlx"
)

// An axisSlice is a:b:step in t[0, a:b:step].
type axisSlice struct{ starlark.Tuple }

func (axisSlice) Type() string { return "slice" }

// ellipsis is ... in t[..., 0].
type ellipsis struct{ starlark.NoneType }

func (ellipsis) Type() string { return "ellipsis" }

// Get returns t[i], t[i, j], or a part such as t[..., 0, 1:2].
func (t *tensor) Get(k starlark.Value) (starlark.Value, bool, error) {
	index, ok := k.(starlark.Tuple)
	if !ok {
		index = starlark.Tuple{k}
	}
	v, err := t.in.running.try(func() starlark.Value {
		shape := t.a.Shape()
		var parts []selection
		for i, x := range index {
			if _, ok := x.(ellipsis); ok {
				if slices.Contains(index[i+1:], x) {
					fail("more than one ... in an index")
				}
				for range len(shape) - (len(index) - 1) {
					parts = append(parts, selection{0, shape[len(parts)], 1, false})
				}
				continue
			}
			if len(parts) >= len(shape) {
				fail("%d indices for a tensor with shape %s", len(index), shapeText(shape))
			}
			parts = append(parts, selected(x, len(parts), shape))
		}
		return t.pick(parts)
	})
	return v, err == nil, err
}

// A selection is a range of an axis, or a single element, whose axis the result does not have.
type selection struct {
	start, end, step int
	single           bool
}

// selected reads the index of an axis. Numbers count from the end if they are negative.
func selected(x starlark.Value, axis int, shape []int) selection {
	if s, ok := x.(axisSlice); ok {
		return s.of(axis, shape[axis])
	}
	i, err := starlark.AsInt32(x)
	if err != nil {
		fail("index %s of axis %d: expected a whole number", brief(x), axis)
	}
	if i < -shape[axis] || i >= shape[axis] {
		fail("index %d of axis %d of a tensor with shape %s", i, axis, shapeText(shape))
	}
	if i < 0 {
		i += shape[axis]
	}
	return selection{i, i + 1, 1, true}
}

// of returns the elements that a slice selects from n, as Python does.
func (s axisSlice) of(axis, n int) selection {
	p := selection{0, n, 1, false}
	values := []*int{&p.start, &p.end, &p.step}
	given := [3]bool{}
	for i, x := range s.Tuple {
		if x == starlark.None {
			continue
		}
		v, err := starlark.AsInt32(x)
		if err != nil {
			fail("slice of axis %d: %s: expected a whole number", axis, brief(x))
		}
		*values[i], given[i] = v, true
	}
	low, high := 0, n
	switch {
	case p.step == 0:
		fail("slice of axis %d: step 0", axis)
	case p.step < 0:
		low, high = -1, n-1
		if !given[0] {
			p.start = high
		}
		if !given[1] {
			p.end = low
		}
	}
	for i, v := range values[:2] {
		if given[i] && *v < 0 {
			*v += n
		}
		*v = min(max(*v, low), high)
	}
	return p
}

// rows lists the selected indices.
func (p selection) rows() []int32 {
	var rows []int32
	for i := p.start; p.step > 0 && i < p.end || p.step < 0 && i > p.end; i += p.step {
		rows = append(rows, int32(i))
	}
	return rows
}

// pick returns the selected parts of the first axes.
func (t *tensor) pick(parts []selection) *tensor {
	result := []int{}
	stepped := false
	for _, p := range parts {
		stepped = stepped || p.step != 1
		switch {
		case p.single:
		case p.step == 1:
			result = append(result, max(0, p.end-p.start))
		default:
			result = append(result, len(p.rows()))
		}
	}
	result = append(result, t.a.Shape()[len(parts):]...)
	compute := func() *mlx.Array {
		x := t.a
		for axis, p := range parts {
			if p.step == 1 {
				x = x.Slice(axis, p.start, max(p.start, p.end))
			} else {
				x = x.Take(axis, p.rows())
			}
		}
		return x.Reshape(result...)
	}
	if stepped {
		return t.in.running.op(compute)
	}
	return t.in.running.view(compute)
}
