package mlx

import (
	"slices"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// A Quantization describes how a quantized matrix is stored.
type Quantization struct {
	// Mode is affine, or one of the block formats of floating-point numbers: mxfp4, mxfp8
	// and nvfp4.
	Mode string
	// Bits is the size of an element: 2, 3, 4, 5, 6 or 8 for affine, 4 for mxfp4 and
	// nvfp4, and 8 for mxfp8.
	Bits int
	// Group is the number of elements of a row that share a scale: 32, 64 or 128 for
	// affine, 32 for mxfp4 and mxfp8, 16 for nvfp4.
	Group int
}

// Blocks lists the block formats, each of which has fixed bits and a fixed group.
var Blocks = []Quantization{{"mxfp4", 4, 32}, {"mxfp8", 8, 32}, {"nvfp4", 4, 16}}

// Block returns the block format with these bits and group, if there is one.
func Block(bits, group int) (q Quantization, ok bool) {
	i := slices.IndexFunc(Blocks, func(q Quantization) bool { return q.Bits == bits && q.Group == group })
	if i < 0 {
		return Quantization{}, false
	}
	return Blocks[i], true
}

// A Quantized is a quantized matrix [rows, columns]. Packed, uint32
// [rows, columns·Bits/32], has the quantized elements q, and Scales
// [rows, columns/Group] their scales. An affine matrix also has Biases, of the scales'
// shape and dtype: an element is scale·q + bias. The scales of other modes are bytes.
type Quantized struct {
	Quantization
	Packed, Scales, Biases *Array
}

// Quantize quantizes a matrix. Its number of columns must be a multiple of q.Group.
func (a *Array) Quantize(q Quantization) *Quantized {
	var v uintptr
	check(mlxc.Quantize(&v, a.h(), someInt(q.Group), someInt(q.Bits), q.Mode, 0, stream))
	defer mlxc.VectorArrayFree(v)
	return q.Of(unpack(v))
}

// Of returns the quantized matrix with arrays in the order of [Quantized.Arrays].
func (q Quantization) Of(arrays []*Array) *Quantized {
	out := &Quantized{Quantization: q, Packed: arrays[0], Scales: arrays[1]}
	if len(arrays) > 2 {
		out.Biases = arrays[2]
	}
	return out
}

// Dequantize returns the matrix in dtype. For float32 it also computes in float32,
// whatever the dtype of the scales.
func (q *Quantized) Dequantize(dtype Dtype) *Array {
	if y := q.dequantizeAffine(dtype); y != nil {
		return y
	}
	return q.dequantizeGraph(dtype)
}

func (q *Quantized) dequantizeGraph(dtype Dtype) *Array {
	scales, biases := q.Scales, q.Biases
	if biases != nil && dtype == Float32 {
		scales, biases = scales.AsType(dtype), biases.AsType(dtype)
	}
	return result(func(r *uintptr) int32 {
		return mlxc.Dequantize(r, q.Packed.h(), scales.h(), handleOrNil(biases), someInt(q.Group), someInt(q.Bits), q.Mode, 0,
			someInt(int(dtype)), stream)
	})
}

// MatmulT is x·Qᵀ for x [..., columns].
func (q *Quantized) MatmulT(x *Array) *Array {
	return result(func(r *uintptr) int32 {
		return mlxc.QuantizedMatmul(r, x.h(), q.Packed.h(), q.Scales.h(), handleOrNil(q.Biases), true, someInt(q.Group), someInt(q.Bits),
			q.Mode, stream)
	})
}

// TakeRows selects rows of the matrix by index.
func (q *Quantized) TakeRows(rows []int32) *Quantized {
	return q.rows(func(a *Array) *Array { return a.TakeRows(rows) })
}

// Gather selects rows of the matrix by an array of indices; see [Array.Gather].
func (q *Quantized) Gather(indices *Array) *Quantized {
	return q.rows(func(a *Array) *Array { return a.Gather(indices) })
}

func (q *Quantized) rows(of func(*Array) *Array) *Quantized {
	out := &Quantized{Quantization: q.Quantization, Packed: of(q.Packed), Scales: of(q.Scales)}
	if q.Biases != nil {
		out.Biases = of(q.Biases)
	}
	return out
}

// Arrays returns Packed, Scales and, for affine, Biases.
func (q *Quantized) Arrays() []*Array {
	if q.Biases == nil {
		return []*Array{q.Packed, q.Scales}
	}
	return []*Array{q.Packed, q.Scales, q.Biases}
}

// View reads the bytes of the elements as elements of another dtype. If its size differs, so does the
// length of the last axis.
func (a *Array) View(dtype Dtype) *Array {
	return result(func(r *uintptr) int32 { return mlxc.View(r, a.h(), int32(dtype), stream) })
}

// FromFP8 reads bytes as floating-point numbers of 8 bits (E4M3).
func (a *Array) FromFP8(dtype Dtype) *Array {
	return result(func(r *uintptr) int32 { return mlxc.FromFp8(r, a.h(), int32(dtype), stream) })
}

// someInt is mlx-c's optional int with a value, a struct that fits one word.
func someInt(n int) uint64 { return uint64(uint32(n)) | 1<<32 }
