package mlx

import (
	"slices"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// A Quantization says how the elements of matrices are stored with few bits each.
type Quantization struct {
	// Mode is affine, or one of the block formats of floating-point numbers:
	// mxfp4, mxfp8 and nvfp4.
	Mode string
	// Bits is the size of an element: 2, 3, 4, 5, 6 or 8 for affine, and 4 or 8 as
	// the other modes' names say.
	Bits int
	// Group is how many elements of a row share a scale: 32, 64 or 128 for affine,
	// 32 for mxfp4 and mxfp8, 16 for nvfp4.
	Group int
}

// Blocks are the modes of floating-point blocks, each with the only bits and group
// that it has.
var Blocks = []Quantization{{"mxfp4", 4, 32}, {"mxfp8", 8, 32}, {"nvfp4", 4, 16}}

// Block is the one of Blocks with these bits and group, if there is one.
func Block(bits, group int) (q Quantization, ok bool) {
	i := slices.IndexFunc(Blocks, func(q Quantization) bool { return q.Bits == bits && q.Group == group })
	if i < 0 {
		return Quantization{}, false
	}
	return Blocks[i], true
}

// A Quantized matrix is [rows, columns] in form of Packed [rows,
// columns·Bits/32], uint32, with Scales [rows, columns/Group] and, for affine
// ones, Biases of their shape and dtype: an element is scale·q + bias. The scales
// of other modes are bytes.
type Quantized struct {
	Quantization
	Packed, Scales, Biases *Array
}

// Quantize packs a matrix, whose columns must be a multiple of q.Group.
func (a *Array) Quantize(q Quantization) *Quantized {
	var v uintptr
	check(mlxc.Quantize(&v, a.h(), someInt(q.Group), someInt(q.Bits), q.Mode, 0, stream))
	defer mlxc.VectorArrayFree(v)
	return q.Of(unpack(v))
}

// Of is the matrix that is in some arrays, as [Quantized.Arrays] gives them.
func (q Quantization) Of(arrays []*Array) *Quantized {
	out := &Quantized{Quantization: q, Packed: arrays[0], Scales: arrays[1]}
	if len(arrays) > 2 {
		out.Biases = arrays[2]
	}
	return out
}

// Dequantize unpacks the matrix. In float32 it computes in that, whatever the
// dtype of the scales.
func (q *Quantized) Dequantize(dtype Dtype) *Array {
	scales, biases := q.Scales, q.Biases
	if biases != nil && dtype == Float32 {
		scales, biases = scales.AsType(dtype), biases.AsType(dtype)
	}
	var r uintptr
	check(mlxc.Dequantize(&r, q.Packed.h(), scales.h(), handleOrNil(biases), someInt(q.Group), someInt(q.Bits), q.Mode, 0, someInt(int(dtype)), stream))
	return wrap(r)
}

// MatmulT is x·Qᵀ for x [..., columns].
func (q *Quantized) MatmulT(x *Array) *Array {
	var r uintptr
	check(mlxc.QuantizedMatmul(&r, x.h(), q.Packed.h(), q.Scales.h(), handleOrNil(q.Biases), true, someInt(q.Group), someInt(q.Bits), q.Mode, stream))
	return wrap(r)
}

// TakeRows selects rows of the matrix by number.
func (q *Quantized) TakeRows(rows []int32) *Quantized {
	out := &Quantized{Quantization: q.Quantization, Packed: q.Packed.TakeRows(rows), Scales: q.Scales.TakeRows(rows)}
	if q.Biases != nil {
		out.Biases = q.Biases.TakeRows(rows)
	}
	return out
}

// Arrays are those that the matrix is in.
func (q *Quantized) Arrays() []*Array {
	if q.Biases == nil {
		return []*Array{q.Packed, q.Scales}
	}
	return []*Array{q.Packed, q.Scales, q.Biases}
}

// FromFP8 reads bytes as floating-point numbers of 8 bits (E4M3).
func (a *Array) FromFP8(dtype Dtype) *Array {
	var r uintptr
	check(mlxc.FromFp8(&r, a.h(), int32(dtype), stream))
	return wrap(r)
}

// someInt is a C struct of an int and whether there is one, in one word.
func someInt(n int) uint64 { return uint64(uint32(n)) | 1<<32 }
