// Package tensors holds tensors in the host's memory and the files that carry
// them between programs: safetensors, and NumPy's .npy and .npz. No MLX.
package tensors

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
)

// A Dtype is the type of a tensor's elements, as safetensors spells it.
type Dtype string

// The dtypes that can be read as numbers.
const (
	F64  Dtype = "F64"
	F32  Dtype = "F32"
	F16  Dtype = "F16"
	BF16 Dtype = "BF16"
	I64  Dtype = "I64"
	I32  Dtype = "I32"
	I16  Dtype = "I16"
	I8   Dtype = "I8"
	U64  Dtype = "U64"
	U32  Dtype = "U32"
	U16  Dtype = "U16"
	U8   Dtype = "U8"
	Bool Dtype = "BOOL"
)

// dtypes has the size of an element in bytes, and the name that NumPy and
// PyTorch give the type.
var dtypes = map[Dtype]struct {
	size int
	long string
}{
	F64: {8, "float64"}, F32: {4, "float32"}, F16: {2, "float16"}, BF16: {2, "bfloat16"},
	I64: {8, "int64"}, I32: {4, "int32"}, I16: {2, "int16"}, I8: {1, "int8"},
	U64: {8, "uint64"}, U32: {4, "uint32"}, U16: {2, "uint16"}, U8: {1, "uint8"}, Bool: {1, "bool"},
}

// Size is that of an element in bytes, 0 for a type that cannot be read.
func (d Dtype) Size() int { return dtypes[d].size }

// Long is the name that NumPy and PyTorch give the type: bfloat16 for BF16.
func (d Dtype) Long() string {
	if long := dtypes[d].long; long != "" {
		return long
	}
	return strings.ToLower(string(d))
}

// IsFloat says whether d is a floating-point type.
func (d Dtype) IsFloat() bool { return d == F64 || d == F32 || d == F16 || d == BF16 }

// ParseDtype reads a dtype's name in any case: F32, fp32 or float32.
func ParseDtype(name string) (Dtype, error) {
	lower := strings.ToLower(name)
	for d, t := range dtypes {
		if lower == t.long || lower == strings.ToLower(string(d)) || d.IsFloat() && d != BF16 && lower == "fp"+string(d)[1:] {
			return d, nil
		}
	}
	return "", fmt.Errorf("unknown dtype %q (expected float32, bfloat16, int32 and so on)", name)
}

// An Info says what a tensor is, without its elements.
type Info struct {
	Name  string
	Dtype Dtype
	Shape []int // no axes for a scalar
}

// Len is the number of elements, which must fit an int.
func (i Info) Len() int {
	n := 1
	for _, d := range i.Shape {
		n *= d
	}
	return n
}

// Bytes is the size of the elements.
func (i Info) Bytes() int64 { return int64(i.Len()) * int64(i.Dtype.Size()) }

func (i Info) String() string { return fmt.Sprintf("%s %v", i.Dtype, i.Shape) }

// maxAxes bounds the axes of a tensor, as PyTorch and NumPy do.
const maxAxes = 64

// check makes sure that the shape is one and that its size in bytes fits 63
// bits.
func (i Info) check() error {
	n := int64(i.Dtype.Size())
	if n == 0 {
		return fmt.Errorf("dtype %s cannot be read as numbers", i.Dtype)
	}
	if len(i.Shape) > maxAxes {
		return fmt.Errorf("shape of %d axes, at most %d are possible", len(i.Shape), maxAxes)
	}
	for _, d := range i.Shape {
		if d < 0 {
			return fmt.Errorf("shape %v: an axis cannot be negative", i.Shape)
		}
		if d > 0 && n > math.MaxInt64/int64(d) {
			return fmt.Errorf("shape %v: its size overflows 63 bits", i.Shape)
		}
		n *= max(int64(d), 1)
	}
	return nil
}

// A Tensor is one tensor: its elements are in row-major order, little-endian.
type Tensor struct {
	Name  string
	Dtype Dtype
	Shape []int
	Data  []byte
}

// New makes a tensor of data, whose length must be what the shape needs.
func New(name string, dtype Dtype, shape []int, data []byte) (*Tensor, error) {
	t := &Tensor{name, dtype, slices.Clone(shape), data}
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("tensor %s: %w", name, err)
	}
	return t, nil
}

// FromFloat32 makes a tensor of float32 values.
func FromFloat32(name string, shape []int, values []float32) (*Tensor, error) {
	data := make([]byte, 0, 4*len(values))
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return New(name, F32, shape, data)
}

// Info is the tensor without its elements.
func (t *Tensor) Info() Info { return Info{t.Name, t.Dtype, t.Shape} }

// Len is the number of elements.
func (t *Tensor) Len() int { return t.Info().Len() }

func (t *Tensor) String() string { return t.Info().String() }

func (t *Tensor) check() error {
	i := t.Info()
	if err := i.check(); err != nil {
		return err
	}
	if want := i.Bytes(); int64(len(t.Data)) != want {
		return fmt.Errorf("%d bytes for %v, expected %d", len(t.Data), i, want)
	}
	return nil
}

// Float64s are the elements as float64. Integers beyond 2^53 are rounded.
func (t *Tensor) Float64s() []float64 {
	out := make([]float64, t.Len())
	decode(t.Dtype, out, t.Data)
	return out
}

// Float32s are the elements as float32, rounded where that is smaller.
func (t *Tensor) Float32s() []float32 {
	out := make([]float32, t.Len())
	decode(t.Dtype, out, t.Data)
	return out
}

// decode reads elements, little-endian, as floats.
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

// integer is the i-th element of a type that fits an int64.
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
		return int64(min(data[i], 1)) // NumPy takes every other byte for true
	}
	return int64(data[i])
}

// fromHalf is an IEEE half as float32, exactly.
func fromHalf(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0:
		v := float32(frac) / (1 << 24)
		return math.Float32frombits(sign | math.Float32bits(v))
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// toHalf rounds to the nearest half, ties to even; what is too large is
// infinite.
func toHalf(v float32) uint16 {
	b := math.Float32bits(v)
	sign, abs := uint16(b>>16&0x8000), b&0x7fffffff
	switch {
	case abs > 0x7f800000:
		return sign | 0x7e00
	case abs >= 0x477ff000: // 65520
		return sign | 0x7c00
	case abs < 0x38800000: // subnormal: a multiple of 2^-24
		scaled := math.RoundToEven(float64(math.Float32frombits(abs)) * (1 << 24))
		return sign | uint16(scaled)
	}
	abs += 0xfff + abs>>13&1
	return sign | uint16(abs>>13-112<<10)
}

// toBrain rounds to the nearest bfloat16, ties to even.
func toBrain(v float32) uint16 {
	b := math.Float32bits(v)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// Cast is the tensor in another dtype: floats are rounded to the nearest,
// what is too large for them is infinite. A value that an integer type does
// not have is an error. A tensor that has the dtype already is returned as it
// is.
func (t *Tensor) Cast(to Dtype) (*Tensor, error) {
	if to == t.Dtype {
		return t, nil
	}
	out := &Tensor{Name: t.Name, Dtype: to, Shape: t.Shape, Data: make([]byte, t.Len()*to.Size())}
	if to.Size() == 0 {
		return nil, fmt.Errorf("tensor %s: cannot cast to %s", t.Name, to)
	}
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
				le.PutUint16(out.Data[2*i:], toBrain(float32(v)))
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
