package expr

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.starlark.net/starlark"

	"github.com/gomflux/gomflux/mlx"
)

// sliceName and ellipsisName are the names of a function and a value in rewritten source.
const (
	sliceName    = "ślice"
	ellipsisName = "ęllipsis"
)

// An axisSlice is a:b:step in t[0, a:b:step].
type axisSlice struct{ bounds starlark.Tuple }

func (*axisSlice) String() string        { return "slice" }
func (*axisSlice) Type() string          { return "slice" }
func (*axisSlice) Freeze()               {}
func (*axisSlice) Truth() starlark.Bool  { return true }
func (*axisSlice) Hash() (uint32, error) { return 0, errors.New("a slice has no hash") }

// ellipsis is ... in t[..., 0].
type ellipsis struct{}

func (ellipsis) String() string        { return "..." }
func (ellipsis) Type() string          { return "ellipsis" }
func (ellipsis) Freeze()               {}
func (ellipsis) Truth() starlark.Bool  { return true }
func (ellipsis) Hash() (uint32, error) { return 0, errors.New("... has no hash") }

// A bracket is an open bracket of the source.
type bracket struct {
	index          bool // of t[...], not of a list
	start          int  // the position after it
	commas, colons []int
	dots           bool // whether ... is in it
}

// sliceAxes rewrites indices that Starlark's parser does not know: t[0, 1:2] and t[..., 0].
func sliceAxes(source string) string {
	if !strings.Contains(source, "[") {
		return source
	}
	s := &scanner{text: []rune(source), powers: map[position]bool{}}
	text := slices.Clone(s.text) // without the scanner's changes
	var out []rune
	var open []bracket
	for s.i < len(s.text) {
		start, c := s.i, s.text[s.i]
		operand := s.operand
		if s.token() != nil {
			return source // which scan refuses
		}
		at := len(out)
		token := text[start:s.i]
		out = append(out, token...)
		top := len(open) - 1
		switch {
		case c == '[' || c == '(' || c == '{':
			open = append(open, bracket{index: c == '[' && operand, start: at + 1})
		case top < 0:
		case c == ']' || c == ')' || c == '}':
			b := open[top]
			open = open[:top]
			if b.index && c == ']' && (b.dots || len(b.commas) > 0 && len(b.colons) > 0) {
				items := axisItems(out[b.start:at], b)
				out = append(append(out[:b.start], items...), ']')
			}
		case c == ',':
			open[top].commas = append(open[top].commas, at)
		case c == ':':
			open[top].colons = append(open[top].colons, at)
		case string(token) == "lambda":
			open[top].index = false
		case string(token) == "...":
			open[top].dots = true
		}
	}
	return string(out)
}

// axisItems writes the items of an index, separated by commas, with calls for slices.
func axisItems(inside []rune, b bracket) []rune {
	var items []string
	start := b.start
	colons := b.colons
	for _, end := range append(slices.Clone(b.commas), b.start+len(inside)) {
		var bounds []string
		from := start
		for len(colons) > 0 && colons[0] < end {
			bounds = append(bounds, strings.TrimSpace(string(inside[from-b.start:colons[0]-b.start])))
			from, colons = colons[0]+1, colons[1:]
		}
		last := string(inside[from-b.start : end-b.start])
		switch bounds = append(bounds, strings.TrimSpace(last)); {
		case len(bounds) > 1:
			for i, bound := range bounds {
				if bound == "" {
					bounds[i] = "None"
				}
			}
			items = append(items, sliceName+"("+strings.Join(bounds, ", ")+")")
		case bounds[0] == "...":
			items = append(items, ellipsisName)
		default:
			items = append(items, last)
		}
		start = end + 1
	}
	return []rune(strings.Join(items, ","))
}

// Get returns t[i], t[i, j], or a part such as t[..., 0, 1:2].
func (t *tensor) Get(k starlark.Value) (v starlark.Value, found bool, err error) {
	index, ok := k.(starlark.Tuple)
	if !ok {
		index = starlark.Tuple{k}
	}
	err = t.try(func(r *run) (err error) {
		v, err = r.indexed(t, index)
		return err
	})
	return v, err == nil, err
}

// A selection is a range of an axis, or a single element, whose axis the result does not have.
type selection struct {
	start, end, step int
	single           bool
}

func (r *run) indexed(t *tensor, index starlark.Tuple) (*tensor, error) {
	shape := t.shape()
	index, err := expand(index, shape)
	if err != nil {
		return nil, err
	}
	parts := make([]selection, len(index))
	result, stepped := []int{}, false
	for axis, x := range index {
		if parts[axis], err = selected(x, axis, shape); err != nil {
			return nil, err
		}
		p := parts[axis]
		stepped = stepped || p.step != 1
		if !p.single {
			result = append(result, p.len())
		}
	}
	result = append(result, shape[len(index):]...)
	compute := func() *mlx.Array {
		x := t.a
		for axis, p := range parts {
			x = p.of(x, axis)
		}
		return x.Reshape(result...)
	}
	if stepped {
		return r.op(result, t.dtype(), compute, t)
	}
	return r.view(result, t, compute)
}

// expand replaces ... by whole axes.
func expand(index starlark.Tuple, shape []int) (starlark.Tuple, error) {
	var out starlark.Tuple
	dots := 0
	for _, x := range index {
		if _, ok := x.(ellipsis); !ok {
			out = append(out, x)
			continue
		}
		dots++
		for range len(shape) - (len(index) - 1) {
			out = append(out, &axisSlice{starlark.Tuple{starlark.None, starlark.None}})
		}
	}
	if dots > 1 {
		return nil, errors.New("more than one ... in an index")
	}
	if len(out) > len(shape) {
		return nil, fmt.Errorf("%d indices for a tensor with shape %s", len(out), shapeText(shape))
	}
	return out, nil
}

// selected reads the index of an axis. Numbers count from the end if they are negative.
func selected(x starlark.Value, axis int, shape []int) (selection, error) {
	if s, ok := x.(*axisSlice); ok {
		return s.of(axis, shape[axis])
	}
	i, err := starlark.AsInt32(x)
	if err != nil {
		return selection{}, fmt.Errorf("index %s of axis %d: expected a whole number", brief(x), axis)
	}
	if i < -shape[axis] || i >= shape[axis] {
		return selection{}, fmt.Errorf("index %d of axis %d of a tensor with shape %s", i, axis, shapeText(shape))
	}
	if i < 0 {
		i += shape[axis]
	}
	return selection{i, i + 1, 1, true}, nil
}

// of returns the elements that a slice selects from n, as Python does.
func (s *axisSlice) of(axis, n int) (selection, error) {
	values := [3]int{0, n, 1}
	given := [3]bool{}
	for i, x := range s.bounds {
		if x == starlark.None {
			continue
		}
		v, err := starlark.AsInt32(x)
		if err != nil {
			return selection{}, fmt.Errorf("slice of axis %d: %s: expected a whole number", axis, brief(x))
		}
		values[i], given[i] = v, true
	}
	step := values[2]
	if step == 0 {
		return selection{}, fmt.Errorf("slice of axis %d: step 0", axis)
	}
	low, high := 0, n
	if step < 0 {
		low, high = -1, n-1
		if !given[0] {
			values[0] = high
		}
		if !given[1] {
			values[1] = low
		}
	}
	for i := range 2 {
		if given[i] && values[i] < 0 {
			values[i] += n
		}
		values[i] = min(max(values[i], low), high)
	}
	p := selection{start: values[0], end: values[1], step: step}
	if step == 1 {
		p.end = max(p.start, p.end)
	}
	return p, nil
}

// len is the number of selected elements.
func (p selection) len() int {
	if p.step > 0 {
		return max(0, (p.end-p.start+p.step-1)/p.step)
	}
	return max(0, (p.start-p.end-p.step-1)/-p.step)
}

// rows lists the selected indices.
func (p selection) rows() []int32 {
	rows := make([]int32, p.len())
	for i := range rows {
		rows[i] = int32(p.start + i*p.step)
	}
	return rows
}

// of selects from an axis of x, which stays.
func (p selection) of(x *mlx.Array, axis int) *mlx.Array {
	if p.step == 1 {
		return x.Slice(axis, p.start, p.end)
	}
	order := make([]int, x.Ndim()) // with the axis first
	for i := range order {
		order[i] = i
	}
	order[0], order[axis] = axis, 0
	return x.Transpose(order...).TakeRows(p.rows()).Transpose(order...)
}
