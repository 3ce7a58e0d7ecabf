package inspect

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// A matrix is a tensor as it is compared. A quantized matrix is dequantized from several
// tensors.
type matrix struct {
	*TensorWeights
	shape          []int // after dequantization
	scales, biases *checkpoint.Tensor
	quantization   mlx.Quantization
}

// dtype describes how the elements are stored.
func (m *matrix) dtype() string {
	switch {
	case m.Packing != nil:
		return m.Packing.Format
	case m.scales == nil:
		return string(m.Dtype)
	case m.quantization.Mode == "affine":
		return fmt.Sprintf("%d bits in groups of %d", m.quantization.Bits, m.quantization.Group)
	}
	return m.quantization.Mode
}

// matrices returns a component's tensors. The tensors of a quantized matrix are one
// matrix.
func (c *ComponentWeights) matrices() (list []*matrix) {
	byName := map[string]*TensorWeights{}
	for _, t := range c.Tensors {
		byName[t.Name] = t
	}
	for _, t := range c.Tensors {
		if owner, ok := nn.Companion(t.Name); ok && byName[owner] != nil && byName[owner].Dtype == checkpoint.U32 {
			continue
		}
		m := &matrix{TensorWeights: t, shape: t.Shape}
		list = append(list, m)
		module, ok := strings.CutSuffix(t.Name, "weight")
		if scales := byName[module+"scales"]; ok && t.Dtype == checkpoint.U32 && scales != nil {
			m.scales, m.shape = &scales.Tensor, nil
			if biases := byName[module+"biases"]; biases != nil {
				m.biases = &biases.Tensor
			}
		}
	}
	return list
}

// detectQuantization determines the quantization of a matrix with a number of columns.
// It returns an error if the tensors do not agree with each other.
func (m *matrix) detectQuantization(columns int) error {
	p, s := m.Shape, m.scales.Shape
	if len(p) != 2 || len(s) != 2 || p[0] != s[0] || columns < 1 || s[1] < 1 || p[1]*32%columns != 0 || columns%s[1] != 0 {
		return fmt.Errorf("a quantized weight %v with scales %v cannot be a matrix of %d columns", p, s, columns)
	}
	q := mlx.Quantization{Mode: "affine", Bits: p[1] * 32 / columns, Group: columns / s[1]}
	if m.biases == nil {
		block, _ := mlx.Block(q.Bits, q.Group)
		q.Mode = block.Mode
	}
	switch {
	case m.biases != nil && !slices.Equal(m.biases.Shape, s):
		return fmt.Errorf("scales %v and biases %v must have the same shape", s, m.biases.Shape)
	case m.biases == nil && (q.Mode == "" || m.scales.Dtype != checkpoint.U8),
		m.biases != nil && (!m.scales.Dtype.IsReadable() || !m.biases.Dtype.IsReadable() || q.Bits > 8):
		return fmt.Errorf("unknown quantization: %d bits in groups of %d, with scales of dtype %s", q.Bits, q.Group, m.scales.Dtype)
	}
	m.quantization, m.shape = q, []int{p[0], columns}
	return nil
}

// rowwise reports whether elements can only be read in whole rows.
func (m *matrix) rowwise() bool {
	return m.scales != nil || m.InRows()
}

// values yields the elements, step at a time, which must be whole rows if the matrix is
// rowwise. They are valid until the next iteration.
func (m *matrix) values(ctx context.Context, ck *checkpoint.Checkpoint, step int) iter.Seq2[[]float64, error] {
	if m.scales != nil {
		return m.rows(ctx, ck, step/m.shape[1])
	}
	return ck.Values(ctx, m.Tensor, step)
}

// rows yields the elements of a quantized matrix, a number of rows at a time.
func (m *matrix) rows(ctx context.Context, ck *checkpoint.Checkpoint, rows int) iter.Seq2[[]float64, error] {
	return func(yield func([]float64, error) bool) {
		next := func(t *checkpoint.Tensor) (func() (*checkpoint.Array, error, bool), func()) {
			return iter.Pull2(ck.Parts(ctx, *t, rows*t.Shape[1]))
		}
		scales, stopScales := next(m.scales)
		defer stopScales()
		biases := func() (*checkpoint.Array, error, bool) { return nil, nil, true }
		if m.biases != nil {
			var stop func()
			biases, stop = next(m.biases)
			defer stop()
		}
		for packed, err := range ck.Parts(ctx, m.Tensor, rows*m.Shape[1]) {
			s, errS, _ := scales()
			b, errB, _ := biases()
			for _, err := range []error{err, errS, errB} {
				if err != nil {
					yield(nil, err)
					return
				}
			}
			if !yield(dequantize(m.quantization, packed.Data, m.shape[1], s, b), nil) {
				return
			}
		}
	}
}

// dequantize computes the elements of rows that MLX has quantized. Integers or small
// floats of q.Bits bits are packed with the first one in the lowest bits. Each is
// multiplied by the scale of its group; affine quantization adds the bias of the group.
func dequantize(q mlx.Quantization, packed []byte, columns int, scales, biases *checkpoint.Array) []float64 {
	rowBytes := columns * q.Bits / 8
	rows := len(packed) / rowBytes
	out := make([]float64, 0, rows*columns)
	var scale, bias []float64
	eightBits := checkpoint.EightBits(checkpoint.F8E4M3)
	switch q.Mode {
	case "affine":
		scale, bias = scales.Float64s(), biases.Float64s()
	case "nvfp4":
		for _, b := range scales.Data {
			scale = append(scale, float64(eightBits[b]))
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
				out = append(out, scale[group]*float64(eightBits[v]))
			default:
				out = append(out, scale[group]*checkpoint.FourBits[v])
			}
		}
	}
	return out
}
