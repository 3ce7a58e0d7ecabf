package checkpoint

import (
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/internal/quote"
)

// A Form is a step from a tensor as another program stores it to the form that
// diffusers has it in.
type Form struct {
	Op FormOp
	// From and To bound the rows that FormRows takes.
	From, To int
}

// A FormOp is what a [Form] does.
type FormOp string

const (
	// FormRows takes some rows, of several matrices that are stored as one.
	FormRows FormOp = "rows"
	// FormSwap exchanges the first and the second half of the rows.
	FormSwap FormOp = "swap"
	// FormChannelsFirst moves the last axis behind the first.
	FormChannelsFirst FormOp = "channels first"
	// FormSqueeze drops the axes behind the second, which are 1.
	FormSqueeze FormOp = "squeeze"
	// FormExpand adds an axis of 1 behind the last.
	FormExpand FormOp = "expand"
)

// In returns the tensor with a form more.
func (t Tensor) In(f Form) (Tensor, error) {
	s := t.Shape
	bad := func(want string) (Tensor, error) {
		return t, fmt.Errorf("%s: tensor %s: expected %s, found shape %v", t.File, quote.Text(t.Name), want, s)
	}
	var shape []int
	switch f.Op {
	case FormRows:
		if len(s) == 0 || f.From < 0 || f.To <= f.From || f.To > s[0] {
			return bad(fmt.Sprintf("%d rows or more", f.To))
		}
		shape = append([]int{f.To - f.From}, s[1:]...)
	case FormSwap:
		if len(s) == 0 || s[0]%2 != 0 {
			return bad("an even number of rows")
		}
		shape = s
	case FormChannelsFirst:
		if len(s) < 3 {
			return bad("three axes or more")
		}
		shape = slices.Concat(s[:1], s[len(s)-1:], s[1:len(s)-1])
	case FormSqueeze:
		if len(s) < 3 || slices.Max(s[2:]) != 1 {
			return bad("a convolution with a kernel of 1")
		}
		shape = s[:2]
	case FormExpand:
		shape = append(slices.Clip(s), 1)
	default:
		panic("checkpoint: unknown form " + string(f.Op))
	}
	if t.Stored == nil {
		t.Stored = t.Shape
	}
	t.Shape, t.Forms = shape, append(slices.Clip(t.Forms), f)
	return t, nil
}

// InRows reports whether the elements in the tensor's form are known only for whole
// rows.
func (t Tensor) InRows() bool {
	return slices.ContainsFunc(t.Forms, func(f Form) bool { return f.Op == FormChannelsFirst })
}

// channelsFirst brings rows into the form that the tensor's axes have.
func channelsFirst(t Tensor, rows []float64) []float64 {
	shape := t.Stored
	for _, f := range t.Forms {
		switch f.Op {
		case FormChannelsFirst:
			channels, rest := shape[len(shape)-1], 1
			for _, d := range shape[1 : len(shape)-1] {
				rest *= d
			}
			out := make([]float64, len(rows))
			for begin := 0; begin < len(rows); begin += channels * rest {
				for i := range rest {
					for c := range channels {
						out[begin+c*rest+i] = rows[begin+i*channels+c]
					}
				}
			}
			rows = out
			shape = slices.Concat(shape[:1], shape[len(shape)-1:], shape[1:len(shape)-1])
		case FormSqueeze:
			shape = shape[:2]
		case FormExpand:
			shape = append(slices.Clip(shape), 1)
		}
	}
	return rows
}

// A span is a part of a file's data.
type span struct{ begin, end int64 }

// spans are where the rows of a tensor in its form are, in their order.
func spans(t Tensor) []span {
	shape := t.Shape
	if t.Stored != nil {
		shape = t.Stored
	}
	list := []span{{t.Begin, t.End}}
	if len(shape) == 0 || shape[0] == 0 {
		return list
	}
	row := (t.End - t.Begin) / int64(shape[0])
	for _, f := range t.Forms {
		switch f.Op {
		case FormRows:
			list = cut(list, int64(f.From)*row, int64(f.To)*row)
		case FormSwap:
			var all int64
			for _, s := range list {
				all += s.end - s.begin
			}
			list = append(cut(list, all/2, all), cut(list, 0, all/2)...)
		}
	}
	return list
}

// cut is a part of what spans are together.
func cut(list []span, from, to int64) (out []span) {
	at := int64(0)
	for _, s := range list {
		begin, end := max(s.begin, s.begin+from-at), min(s.end, s.begin+to-at)
		if begin < end {
			out = append(out, span{begin, end})
		}
		at += s.end - s.begin
	}
	return out
}
