package checkpoint

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// An Array is a tensor in the host's memory. Its elements are little-endian, in
// row-major order.
type Array struct {
	Name  string
	Dtype Dtype
	Shape []int // no axes for a scalar
	Data  []byte
}

// NewArray returns an array that uses data, whose length must match the shape.
func NewArray(name string, dtype Dtype, shape []int, data []byte) (*Array, error) {
	t := &Array{name, dtype, slices.Clone(shape), data}
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("tensor %s: %w", name, err)
	}
	return t, nil
}

// FromFloat32 returns an array with a copy of float32 values.
func FromFloat32(name string, shape []int, values []float32) (*Array, error) {
	data := make([]byte, 0, 4*len(values))
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return NewArray(name, F32, shape, data)
}

// Tensor describes the array.
func (t *Array) Tensor() Tensor { return Tensor{Name: t.Name, Dtype: t.Dtype, Shape: t.Shape} }

// Len returns the number of elements.
func (t *Array) Len() int { return t.Tensor().Len() }

// String returns the array's dtype and shape.
func (t *Array) String() string { return t.Tensor().Type() }

// check validates dtype, shape and length.
func (t *Array) check() error {
	described := t.Tensor()
	if err := described.checkNumeric(); err != nil {
		return err
	}
	if want := described.Bytes(); int64(len(t.Data)) != want {
		return fmt.Errorf("%d bytes for %v, expected %d", len(t.Data), t, want)
	}
	return nil
}

// Float64s returns the elements as float64. Integers beyond 2^53 are rounded.
func (t *Array) Float64s() []float64 {
	out := make([]float64, t.Len())
	decode(t.Dtype, out, t.Data)
	return out
}

// Float32s returns the elements as float32, rounded if necessary.
func (t *Array) Float32s() []float32 {
	out := make([]float32, t.Len())
	decode(t.Dtype, out, t.Data)
	return out
}

// chunk is the number of elements that summarize reads at a time.
const chunk = 1 << 14

// Stats returns the statistics of all elements.
func (t *Array) Stats() Stats {
	s, _, _ := summarize(bytes.NewReader(t.Data), t.Tensor(), 0)
	return s
}

// First returns the first n elements, or all if there are fewer.
func (t *Array) First(n int) []float64 {
	out := make([]float64, min(n, t.Len()))
	decode(t.Dtype, out, t.Data)
	return out
}

// decode converts little-endian elements to floats.
func decode[T float32 | float64](d Dtype, out []T, data []byte) {
	le := binary.LittleEndian
	switch d {
	case F64:
		for i := range out {
			out[i] = T(math.Float64frombits(le.Uint64(data[8*i:])))
		}
	case F32:
		for i := range out {
			out[i] = T(math.Float32frombits(le.Uint32(data[4*i:])))
		}
	case F16:
		for i := range out {
			out[i] = T(fromHalf(le.Uint16(data[2*i:])))
		}
	case BF16:
		for i := range out {
			out[i] = T(math.Float32frombits(uint32(le.Uint16(data[2*i:])) << 16))
		}
	case U64:
		for i := range out {
			out[i] = T(le.Uint64(data[8*i:]))
		}
	default:
		for i := range out {
			out[i] = T(integer(d, data, i))
		}
	}
}

// integer returns the i-th element of an integer or bool type.
func integer(d Dtype, data []byte, i int) int64 {
	le := binary.LittleEndian
	switch d {
	case I64, U64:
		return int64(le.Uint64(data[8*i:]))
	case I32:
		return int64(int32(le.Uint32(data[4*i:])))
	case U32:
		return int64(le.Uint32(data[4*i:]))
	case I16:
		return int64(int16(le.Uint16(data[2*i:])))
	case U16:
		return int64(le.Uint16(data[2*i:]))
	case I8:
		return int64(int8(data[i]))
	case Bool:
		return int64(min(data[i], 1)) // NumPy treats every byte but 0 as true
	}
	return int64(data[i])
}

// Cast converts the array to another dtype. Floats are rounded to the nearest;
// values out of range become infinite. A value that an integer type cannot
// represent is an error. If the array has the dtype already, Cast returns it
// unchanged.
func (t *Array) Cast(to Dtype) (*Array, error) {
	if to == t.Dtype {
		return t, nil
	}
	if !to.IsNumeric() {
		return nil, fmt.Errorf("tensor %s: cannot cast to %s", t.Name, to)
	}
	out := &Array{Name: t.Name, Dtype: to, Shape: t.Shape, Data: make([]byte, t.Len()*to.Size())}
	le := binary.LittleEndian
	if to.IsFloat() {
		for i, v := range t.Float64s() {
			switch to {
			case F64:
				le.PutUint64(out.Data[8*i:], math.Float64bits(v))
			case F32:
				le.PutUint32(out.Data[4*i:], math.Float32bits(float32(v)))
			case F16:
				le.PutUint16(out.Data[2*i:], toHalf(float32(v)))
			case BF16:
				le.PutUint16(out.Data[2*i:], toBFloat16(float32(v)))
			}
		}
		return out, nil
	}
	var values []float64
	if t.Dtype.IsFloat() {
		values = t.Float64s()
	}
	for i := range t.Len() {
		var v int64
		fits := true
		switch {
		case values != nil:
			v = int64(values[i])
			fits = math.Abs(values[i]) < 1<<63 && float64(v) == values[i]
		default:
			v = integer(t.Dtype, t.Data, i)
			fits = t.Dtype != U64 || v >= 0
		}
		switch to {
		case I64, U64:
			le.PutUint64(out.Data[8*i:], uint64(v))
		case I32, U32:
			le.PutUint32(out.Data[4*i:], uint32(v))
		case I16, U16:
			le.PutUint16(out.Data[2*i:], uint16(v))
		default:
			out.Data[i] = uint8(v)
		}
		if !fits || integer(to, out.Data, i) != v || to == U64 && v < 0 {
			return nil, fmt.Errorf("tensor %s: element %d cannot be cast from %s to %s", t.Name, i, t.Dtype, to)
		}
	}
	return out, nil
}
