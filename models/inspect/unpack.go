package models

import (
	"context"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/tensors"
	"github.com/gomflux/gomflux/mlx"
)

// A matrix is a tensor as it is compared: as it is stored, or unpacked from what a
// quantized one is stored as.
type matrix struct {
	*TensorWeights
	shape          []int // unpacked
	scales, biases *checkpoint.Tensor
	packing        mlx.Quantization
}

// dtype says how the elements are stored.
func (m *matrix) dtype() string {
	switch {
	case m.scales == nil:
		return string(m.Dtype)
	case m.packing.Mode == "affine":
		return fmt.Sprintf("%d bits in groups of %d", m.packing.Bits, m.packing.Group)
	}
	return m.packing.Mode
}

// matrices are a component's tensors, those that belong to a quantized matrix as
// one.
func (c *ComponentWeights) matrices() (list []*matrix) {
	byName := map[string]*TensorWeights{}
	for _, t := range c.Tensors {
		byName[t.Name] = t
	}
	for _, t := range c.Tensors {
		if owner, ok := companion(t.Name); ok && byName[owner] != nil && byName[owner].Dtype == "U32" {
			continue
		}
		m := &matrix{TensorWeights: t, shape: t.Shape}
		list = append(list, m)
		module, ok := strings.CutSuffix(t.Name, "weight")
		if scales := byName[module+"scales"]; ok && t.Dtype == "U32" && scales != nil {
			m.scales, m.shape = &scales.Tensor, nil
			if biases := byName[module+"biases"]; biases != nil {
				m.biases = &biases.Tensor
			}
		}
	}
	return list
}

// unpacked finds out how a matrix is quantized that has a number of columns. The
// error says what does not go together.
func (m *matrix) unpacked(columns int) error {
	p, s := m.Shape, m.scales.Shape
	if len(p) != 2 || len(s) != 2 || p[0] != s[0] || columns < 1 || s[1] < 1 || p[1]*32%columns != 0 || columns%s[1] != 0 {
		return fmt.Errorf("%v packed, with scales %v, is no matrix of %d columns", p, s, columns)
	}
	q := mlx.Quantization{Mode: "affine", Bits: p[1] * 32 / columns, Group: columns / s[1]}
	if m.biases == nil {
		block, _ := mlx.Block(q.Bits, q.Group)
		q.Mode = block.Mode
	}
	switch {
	case m.biases != nil && !slices.Equal(m.biases.Shape, s):
		return fmt.Errorf("scales %v and biases %v", s, m.biases.Shape)
	case m.biases == nil && (q.Mode == "" || m.scales.Dtype != "U8"), m.biases != nil && (!readable(m.scales.Dtype) || !readable(m.biases.Dtype) || q.Bits > 8):
		return fmt.Errorf("%d bits in groups of %d, with scales of dtype %s, are no quantization that is known", q.Bits, q.Group, m.scales.Dtype)
	}
	m.packing, m.shape = q, []int{p[0], columns}
	return nil
}

// rowwise says whether the elements are only known in whole rows.
func (m *matrix) rowwise() bool {
	return m.scales != nil || slices.ContainsFunc(m.Forms, func(f checkpoint.Form) bool { return f.Op == checkpoint.FormChannelsFirst })
}

// values yields the elements, so many at a time, which are whole rows if it is
// rowwise. They are good until the next ones.
func (r *reader) values(ctx context.Context, m *matrix, step int) iter.Seq2[[]float64, error] {
	if m.scales != nil {
		return r.unpacked(ctx, m, step/m.shape[1])
	}
	return func(yield func([]float64, error) bool) {
		for part, err := range r.parts(ctx, m.Tensor, step) {
			var values []float64
			if err == nil {
				values = channelsFirst(m.Tensor, part.Float64s())
			}
			if !yield(values, err) {
				return
			}
		}
	}
}

// channelsFirst brings rows into the form that the tensor's axes have.
func channelsFirst(t checkpoint.Tensor, rows []float64) []float64 {
	shape := t.Stored
	for _, f := range t.Forms {
		switch f.Op {
		case checkpoint.FormChannelsFirst:
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
		case checkpoint.FormSqueeze:
			shape = shape[:2]
		case checkpoint.FormExpand:
			shape = append(slices.Clip(shape), 1)
		}
	}
	return rows
}

// unpacked yields the elements of a quantized matrix, so many rows at a time.
func (r *reader) unpacked(ctx context.Context, m *matrix, rows int) iter.Seq2[[]float64, error] {
	return func(yield func([]float64, error) bool) {
		next := func(t *checkpoint.Tensor) (func() (*tensors.Tensor, error, bool), func()) {
			return iter.Pull2(r.parts(ctx, *t, rows*t.Shape[1]))
		}
		scales, stopScales := next(m.scales)
		defer stopScales()
		biases := func() (*tensors.Tensor, error, bool) { return nil, nil, true }
		if m.biases != nil {
			var stop func()
			biases, stop = next(m.biases)
			defer stop()
		}
		for packed, err := range r.parts(ctx, m.Tensor, rows*m.Shape[1]) {
			s, errS, _ := scales()
			b, errB, _ := biases()
			for _, err := range []error{err, errS, errB} {
				if err != nil {
					yield(nil, err)
					return
				}
			}
			if !yield(unpack(m.packing, packed.Data, m.shape[1], s, b), nil) {
				return
			}
		}
	}
}

// unpack computes the elements of rows that MLX has packed: numbers of q.Bits,
// the first in the lowest bits, that a scale is multiplied with for every group
// and, if it is affine, a bias is added to.
func unpack(q mlx.Quantization, packed []byte, columns int, scales, biases *tensors.Tensor) []float64 {
	rowBytes := columns * q.Bits / 8
	rows := len(packed) / rowBytes
	out := make([]float64, 0, rows*columns)
	var scale, bias []float64
	switch q.Mode {
	case "affine":
		scale, bias = scales.Float64s(), biases.Float64s()
	case "nvfp4":
		for _, b := range scales.Data {
			scale = append(scale, float64(eightBits["F8_E4M3"][b]))
		}
	default: // a power of two
		for _, b := range scales.Data {
			scale = append(scale, math.Ldexp(1, int(b)-127))
		}
	}
	mask := uint(1)<<q.Bits - 1
	for row := range rows {
		data := packed[row*rowBytes : (row+1)*rowBytes]
		for i := range columns {
			at := i * q.Bits
			word := uint(data[at/8])
			if at/8+1 < len(data) {
				word |= uint(data[at/8+1]) << 8
			}
			v := word >> (at % 8) & mask
			group := (row*columns + i) / q.Group
			switch {
			case q.Mode == "affine":
				out = append(out, scale[group]*float64(v)+bias[group])
			case q.Bits == 8:
				out = append(out, scale[group]*float64(eightBits["F8_E4M3"][v]))
			default:
				out = append(out, scale[group]*fourBits[v])
			}
		}
	}
	return out
}

// fourBits are the values of a float with a sign, two bits of exponent and one of
// fraction (OCP Microscaling Formats, E2M1).
var fourBits = [16]float64{0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6}

// A span is a part of a file's data.
type span struct{ begin, end int64 }

// spans are where the rows of a tensor in its form are, in their order.
func spans(t checkpoint.Tensor) []span {
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
		case checkpoint.FormRows:
			list = cut(list, int64(f.From)*row, int64(f.To)*row)
		case checkpoint.FormSwap:
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

// readSpans fills a buffer with what spans begin with, and returns the rest.
func readSpans(f io.ReaderAt, base int64, list []span, buffer []byte) ([]span, error) {
	for len(buffer) > 0 {
		n := min(int64(len(buffer)), list[0].end-list[0].begin)
		if _, err := f.ReadAt(buffer[:n], base+list[0].begin); err != nil {
			return nil, err
		}
		buffer = buffer[n:]
		if list[0].begin += n; list[0].begin == list[0].end {
			list = list[1:]
		}
	}
	return list, nil
}
