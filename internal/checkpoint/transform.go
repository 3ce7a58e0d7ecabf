package checkpoint

import (
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/internal/quote"
)

// A Transform is a step of the conversion of a stored tensor to diffusers' layout.
type Transform struct {
	Op TransformOp
	// From and To bound the rows that TransformRows selects.
	From, To int
}

// A TransformOp is the operation of a [Transform].
type TransformOp string

const (
	// TransformRows selects rows. It extracts one of several matrices that are stored
	// as one.
	TransformRows TransformOp = "rows"
	// TransformSwap exchanges the first and the second half of the rows.
	TransformSwap TransformOp = "swap"
	// TransformChannelsFirst moves the last axis to the second position.
	TransformChannelsFirst TransformOp = "channels first"
	// TransformSqueeze drops all axes after the second. They must be 1.
	TransformSqueeze TransformOp = "squeeze"
	// TransformExpand appends an axis of size 1.
	TransformExpand TransformOp = "expand"
	// TransformFrame drops the third of five axes, which must be 1: the frames of a
	// convolution over images.
	TransformFrame TransformOp = "frame"
	// TransformSixRows divides a vector into six rows: the shifts, scales and gates of two
	// modulations.
	TransformSixRows TransformOp = "six rows"
)

// Apply returns the tensor with one more transform, or an error if the shape does not
// allow it.
func (t Tensor) Apply(f Transform) (Tensor, error) {
	s := t.Shape
	bad := func(want string) (Tensor, error) {
		return t, fmt.Errorf("%s: tensor %s: expected %s, found shape %v", t.File, quote.Text(t.Name), want, s)
	}
	var shape []int
	switch f.Op {
	case TransformRows:
		if len(s) == 0 || f.From < 0 || f.To <= f.From || f.To > s[0] {
			return bad(fmt.Sprintf("%d rows or more", f.To))
		}
		shape = append([]int{f.To - f.From}, s[1:]...)
	case TransformSwap:
		if len(s) == 0 || s[0]%2 != 0 {
			return bad("an even number of rows")
		}
		shape = s
	case TransformChannelsFirst:
		if len(s) < 3 {
			return bad("three axes or more")
		}
		shape = slices.Concat(s[:1], s[len(s)-1:], s[1:len(s)-1])
	case TransformSqueeze:
		if len(s) < 3 || slices.Max(s[2:]) != 1 {
			return bad("a convolution with a kernel of 1")
		}
		shape = s[:2]
	case TransformExpand:
		shape = append(slices.Clip(s), 1)
	case TransformFrame:
		if len(s) != 5 || s[2] != 1 {
			return bad("a convolution over one frame")
		}
		shape = slices.Concat(s[:2], s[3:])
	case TransformSixRows:
		if len(s) != 1 || s[0]%6 != 0 {
			return bad("a vector of six parts")
		}
		shape = []int{6, s[0] / 6}
	default:
		panic("checkpoint: unknown transform " + string(f.Op))
	}
	if t.Stored == nil {
		t.Stored = t.Shape
	}
	t.Shape, t.Transforms = shape, append(slices.Clip(t.Transforms), f)
	return t, nil
}

// InRows reports whether the elements can be computed only for whole rows.
func (t Tensor) InRows() bool {
	return t.Packing != nil || slices.ContainsFunc(t.Transforms, func(f Transform) bool { return f.Op == TransformChannelsFirst })
}

// channelsFirst applies the tensor's transforms of axes to some of its rows.
func channelsFirst(t Tensor, rows []float64) []float64 {
	now := Tensor{Shape: t.Stored}
	for _, f := range t.Transforms {
		if f.Op == TransformChannelsFirst {
			inRow := now.Shape[1:]
			channels, rest := inRow[len(inRow)-1], Len(inRow[:len(inRow)-1])
			out := make([]float64, len(rows))
			for begin := 0; begin < len(rows); begin += channels * rest {
				for i := range rest {
					for c := range channels {
						out[begin+c*rest+i] = rows[begin+i*channels+c]
					}
				}
			}
			rows = out
		}
		now, _ = now.Apply(f) // as when it was applied to t
	}
	return rows
}

// A span is a range of bytes of a file, counted from Header.DataOffset.
type span struct{ begin, end int64 }

// spans returns the places of the rows of a transformed tensor, in order.
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
	for _, f := range t.Transforms {
		switch f.Op {
		case TransformRows:
			list = cut(list, int64(f.From)*row, int64(f.To)*row)
		case TransformSwap:
			var all int64
			for _, s := range list {
				all += s.end - s.begin
			}
			list = append(cut(list, all/2, all), cut(list, 0, all/2)...)
		}
	}
	return list
}

// cut returns the range from..to of the concatenation of spans.
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
