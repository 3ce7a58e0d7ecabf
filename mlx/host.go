package mlx

import (
	"math"
	"runtime"
	"slices"
	"unsafe"

	"github.com/gomflux/gomflux/mlx/internal/host"
	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// On Linux CPUs, MLX computes exponentials one at a time on one thread, and norms, rotary embeddings
// and attention in many passes over memory. The operations below evaluate their inputs and compute
// on the arrays' memory with package host. On a Mac, MLX's own operations use vectors.

// useHost is false where MLX's operations are used on the CPU, too. Tests change it.
var useHost = runtime.GOOS == "linux"

// onHost reports whether an operation on arrays is computed by package host: on the CPU, in float32,
// unless it is turned off, and not within a function that MLX compiles, where arrays have no
// elements. Arrays may be nil.
func onHost(o hostOperation, arrays ...*Array) bool {
	if !useHost || hostOff[o] || device != CPU || thread.tracing > 0 {
		return false
	}
	return !slices.ContainsFunc(arrays, func(a *Array) bool { return a != nil && (a.Dtype() != Float32 || a.Size() == 0) })
}

// ConvolvesOnHost reports whether convolutions and attention on the CPU in float32 are computed by
// package host, and so take hardly more memory than their inputs and outputs.
func ConvolvesOnHost() bool { return useHost && host.Vector() }

// hostInputs evaluates arrays, of which some may be nil, and returns their elements in row-major
// order. They are valid as long as the arrays are, and those of copies as long as the scope is.
func hostInputs(arrays ...*Array) [][]float32 {
	data, given := make([][]float32, len(arrays)), slices.Clone(arrays)
	Eval(slices.DeleteFunc(given, func(a *Array) bool { return a == nil })...)
	for i, a := range arrays {
		if a != nil {
			data[i] = a.rowMajor()
		}
	}
	return data
}

// rowMajor returns the elements of an evaluated array in row-major order, of a copy if necessary.
func (a *Array) rowMajor() []float32 {
	data, strides := a.strided()
	next := 1
	for i, n := range slices.Backward(a.Shape()) {
		if n > 1 && strides[i] != next {
			row := a.Contiguous()
			Eval(row)
			data, _ = row.strided()
			return data
		}
		next *= n
	}
	return data
}

// hostOutput returns a new array, and its elements to write to. Nothing else may use the array
// before they are written.
func hostOutput(shape ...int) (*Array, []float32) {
	a := Zeros(Float32, shape...)
	Eval(a)
	return a, a.rowMajor()
}

// mapOnHost returns f of the inputs in the shape of the first of them.
func mapOnHost(f func(dst []float32, in [][]float32), inputs ...*Array) *Array {
	return Scope(func() *Array {
		defer watched()()
		in := hostInputs(inputs...)
		out, dst := hostOutput(inputs[0].Shape()...)
		f(dst, in)
		return out
	})
}

// maxHostRows is the largest number of rows of which [Array.RowsOnHost] returns the product: with more,
// a BLAS is faster.
const maxHostRows = 4

// RowsOnHost is a·wᵀ for few rows a [..., k] in float32 and w [n, k] in float32 or bfloat16, which a BLAS copies,
// and MLX casts, before the product. It is nil if MLX must compute it.
func (a *Array) RowsOnHost(w *Array) *Array {
	if !onHost(hostAlways, a) || w.Ndim() != 2 || a.Ndim() == 0 || a.Dim(-1) != w.Dim(1) || w.Dtype() != Float32 && w.Dtype() != BFloat16 {
		return nil
	}
	n, k := w.Dim(0), w.Dim(1)
	if a.Size() > maxHostRows*k || !host.RowsFit(n, k) {
		return nil
	}
	Eval(w)
	strides := unsafe.Slice((*int64)(mlxc.ArrayStrides(w.h())), 2)
	if strides[0] != int64(k) || strides[1] != 1 {
		return nil
	}
	return Scope(func() *Array {
		defer watched()()
		x := hostInputs(a)[0]
		out, dst := hostOutput(append(a.Shape()[:a.Ndim()-1], n)...)
		p := unsafe.Pointer(mlxc.ArrayDataUint8(w.h()))
		if w.Dtype() == Float32 {
			host.Rows(dst, x, unsafe.Slice((*float32)(p), n*k), n, k)
		} else {
			host.RowsBFloat16(dst, x, unsafe.Slice((*uint16)(p), n*k), n, k)
		}
		runtime.KeepAlive(w)
		return out
	})
}

func (a *Array) siluOnHost(factor float32) *Array {
	return mapOnHost(func(dst []float32, in [][]float32) { host.SiLU(dst, in[0], factor) }, a)
}

func (a *Array) geluTanhOnHost() *Array {
	return mapOnHost(func(dst []float32, in [][]float32) { host.GELUTanh(dst, in[0]) }, a)
}

func (a *Array) softmaxOnHost() *Array {
	n := a.Dim(-1)
	return mapOnHost(func(dst []float32, in [][]float32) { host.Softmax(dst, in[0], n) }, a)
}

// swiGLU is SiLU(gate)·x, with SiLU in float32.
func swiGLU(gate, x *Array) *Array {
	if !onHost(hostActivations, gate, x) || !slices.Equal(gate.Shape(), x.Shape()) {
		return gate.wideSiLU().Mul(x)
	}
	return mapOnHost(func(dst []float32, in [][]float32) { host.SwiGLU(dst, in[0], in[1]) }, gate, x)
}

func (a *Array) rmsNormOnHost(weight *Array, eps float32) *Array {
	if !onHost(hostNorms, a, weight) || !a.hasFeatures(weight) {
		return nil
	}
	n := a.Dim(-1)
	return mapOnHost(func(dst []float32, in [][]float32) { host.RMSNorm(dst, in[0], in[1], n, float64(eps)) }, a, weight)
}

func (a *Array) layerNormOnHost(weight, bias *Array, eps float32) *Array {
	if !onHost(hostNorms, a, weight, bias) || (weight == nil) != (bias == nil) || !a.hasFeatures(weight, bias) {
		return nil
	}
	n := a.Dim(-1)
	return mapOnHost(func(dst []float32, in [][]float32) {
		host.LayerNorm(dst, in[0], in[1], in[2], n, float64(eps))
	}, a, weight, bias)
}

// hasFeatures reports whether vectors, which may be nil, have an element for each feature of a.
func (a *Array) hasFeatures(vectors ...*Array) bool {
	return a.Ndim() > 0 && !slices.ContainsFunc(vectors, func(v *Array) bool {
		return v != nil && (v.Ndim() != 1 || v.Dim(0) != a.Dim(-1))
	})
}

// GroupStatisticsOnHost returns the mean of each channel's group in images [N, H, W, C], and the
// reciprocal of its standard deviation, [N, 1, 1, C], on a Linux CPU in float32, and nil elsewhere.
func (a *Array) GroupStatisticsOnHost(groups int, eps float64) (mean, rstd *Array) {
	if !onHost(hostGroupNorms, a) || a.Ndim() != 4 || groups < 1 || a.Dim(3)%groups != 0 {
		return nil, nil
	}
	out := Scopes(func() []*Array {
		defer watched()()
		n, c, data := a.Dim(0), a.Dim(3), hostInputs(a)[0]
		mean, rstd, size := make([]float32, n*c), make([]float32, n*c), len(data)/n
		for i := range n {
			host.GroupStatistics(mean[i*c:(i+1)*c], rstd[i*c:(i+1)*c], data[i*size:(i+1)*size], c, groups, eps)
		}
		return []*Array{FromFloat32(mean, n, 1, 1, c), FromFloat32(rstd, n, 1, 1, c)}
	})
	return out[0], out[1]
}

// NormalizeOnHost is (a-mean)·rstd·weight+bias for images [N, H, W, C] with statistics [N, 1, 1, C] and
// weight and bias [C], on a Linux CPU in float32, and nil elsewhere.
func (a *Array) NormalizeOnHost(mean, rstd, weight, bias *Array) *Array {
	if !onHost(hostGroupNorms, a, mean, rstd, weight, bias) || a.Ndim() != 4 || !a.hasFeatures(weight, bias) {
		return nil
	}
	n, c := a.Dim(0), a.Dim(3)
	if mean.Size() != n*c || rstd.Size() != n*c {
		return nil
	}
	return mapOnHost(func(dst []float32, in [][]float32) {
		x, mean, rstd, weight, bias := in[0], in[1], in[2], in[3], in[4]
		scale, size := make([]float32, c), len(x)/n
		for i := range n {
			for j := range scale {
				scale[j] = rstd[i*c+j] * weight[j]
			}
			host.Normalize(dst[i*size:(i+1)*size], x[i*size:(i+1)*size], mean[i*c:(i+1)*c], scale, bias)
		}
	}, a, mean, rstd, weight, bias)
}

// rotateOnHost applies a rotary embedding, cos and sin [L, D/2], to the pairs (2i, 2i+1) of a
// [B, H, L, D], on a Linux CPU in float32, and returns nil elsewhere.
func (a *Array) rotateOnHost(cos, sin *Array) *Array {
	if !onHost(hostRope, a, cos, sin) || a.Ndim() != 4 || a.Dim(3)%2 != 0 || cos.Size() != a.Dim(2)*a.Dim(3)/2 || sin.Size() != cos.Size() {
		return nil
	}
	heads, length, dim := a.Dim(1), a.Dim(2), a.Dim(3)
	y := mapOnHost(func(dst []float32, in [][]float32) {
		host.Rotate(dst, in[0], in[1], in[2], length, heads, dim)
	}, a.Transpose(0, 2, 1, 3), cos, sin) // the order in memory, of the product that computed it
	return y.Transpose(0, 2, 1, 3)
}

// UnrotateOnHost multiplies the integers in the rows of a [m, n], of 8 or of 4 bits, of which two are
// in an element, by the scale of their row, scale [m, 1] or [1, 1], and each group of them by the
// Hadamard matrix of its size (package hadamard). The result [m, n] or [m, 2n] is in bfloat16. It is
// nil if a is not on a Linux CPU.
func (a *Array) UnrotateOnHost(scale *Array, bits, group int) *Array {
	if !useHost || device != CPU || thread.tracing > 0 || a.Ndim() != 2 || a.Size() == 0 {
		return nil
	}
	return Scope(func() *Array {
		defer watched()()
		rows, n := a.Dim(0), a.Dim(1)*8/bits
		packed, out := a.Contiguous(), Zeros(BFloat16, rows, n)
		Eval(packed, out)
		src := unsafe.Slice((*byte)(unsafe.Pointer(mlxc.ArrayDataUint8(packed.h()))), a.Size())
		dst := unsafe.Slice((*uint16)(unsafe.Pointer(mlxc.ArrayDataUint8(out.h()))), rows*n)
		host.Unrotate(dst, src, scale.AsType(Float32).Floats(), n, bits, group)
		runtime.KeepAlive(packed)
		return out
	})
}

// convOnHost returns nil if a convolution must be computed by MLX. Negative results are multiplied by slope [Cout],
// which may be nil.
func (a *Array) convOnHost(weight, bias, slope *Array, stride, padding int) *Array {
	if !onHost(hostAlways, a, weight, bias, slope) || !host.Vector() || a.Ndim() != 4 || weight.Ndim() != 4 {
		return nil
	}
	c := &host.Conv{In: weight.Dim(3), Out: weight.Dim(0), Kernel: weight.Dim(1), Stride: stride, Padding: padding}
	n, h, w := a.Dim(0), a.Dim(1), a.Dim(2)
	if c.In != a.Dim(3) || c.Kernel != weight.Dim(2) || stride < 1 || padding < 0 || min(h, w)+2*padding < c.Kernel ||
		bias != nil && (bias.Ndim() != 1 || bias.Dim(0) != c.Out) {
		return nil
	}
	return Scope(func() *Array {
		defer watched()()
		in := hostInputs(a, weight, bias, slope)
		c.Weight, c.Bias, c.Slope = in[1], in[2], in[3]
		out, dst := hostOutput(n, c.Size(h), c.Size(w), c.Out)
		c.Run(dst, in[0], n, h, w)
		return out
	})
}

// attentionOnHost returns nil if attention must be computed by MLX. In 16 bits it is computed in
// float32 and rounded at the end, as kernels of GPUs do: MLX would round the scores on the CPU.
func attentionOnHost(q, k, v *Array, scale float32, mask *Array, causal bool) *Array {
	if dtype := q.Dtype(); onHost(hostAlways) && (dtype == Float16 || dtype == BFloat16) && k.Dtype() == dtype && v.Dtype() == dtype {
		if mask != nil && mask.Dtype() == dtype {
			mask = mask.AsType(Float32)
		}
		if y := attentionOnHost(q.AsType(Float32), k.AsType(Float32), v.AsType(Float32), scale, mask, causal); y != nil {
			return y.AsType(dtype)
		}
		return nil
	}
	if !onHost(hostAlways, q, k, v) || !host.Vector() || !(scale > 0) || q.Ndim() != 4 || k.Ndim() != 4 || v.Ndim() != 4 {
		return nil
	}
	b, heads, lq, lk := q.Dim(0), q.Dim(1), q.Dim(2), k.Dim(2)
	if !slices.Equal(k.Shape()[:3], v.Shape()[:3]) || k.Dim(0) != b || k.Dim(3) != q.Dim(3) || heads%k.Dim(1) != 0 || causal && lq > lk {
		return nil
	}
	if mask != nil && (mask.Dtype() != Bool && mask.Dtype() != Float32 || mask.Ndim() > 4) {
		return nil
	}
	return Scope(func() *Array {
		defer watched()()
		if mask != nil && mask.Dtype() == Bool { // as MLX hides keys
			mask = Where(mask, Scalar(0, Float32), Scalar(-math.MaxFloat32, Float32))
		}
		if mask != nil {
			mask = mask.BroadcastTo(b, heads, lq, lk)
		}
		in := []host.Heads{hostHeads(q), hostHeads(k), hostHeads(v)}
		out, dst := hostOutput(b, lq, heads, v.Dim(3))
		result := host.Heads{Data: dst, Batch: b, Heads: heads, Len: lq, Dim: v.Dim(3),
			BatchStride: lq * heads * v.Dim(3), Stride: v.Dim(3), Row: heads * v.Dim(3)}
		host.Attention(result, in[0], in[1], in[2], scale, hostMask(mask), causal)
		return out.Transpose(0, 2, 1, 3)
	})
}

// hostHeads evaluates a [B, H, L, D], in its order in memory if its last axis is contiguous.
func hostHeads(a *Array) host.Heads {
	Eval(a)
	data, strides := a.strided()
	if strides[3] != 1 && a.Dim(3) > 1 {
		a = a.Contiguous()
		Eval(a)
		data, strides = a.strided()
	}
	return host.Heads{Data: data, Batch: a.Dim(0), Heads: a.Dim(1), Len: a.Dim(2), Dim: a.Dim(3),
		BatchStride: strides[0], Stride: strides[1], Row: strides[2]}
}

func hostMask(a *Array) *host.Mask {
	if a == nil {
		return nil
	}
	Eval(a)
	m := &host.Mask{}
	var strides []int
	m.Data, strides = a.strided()
	copy(m.Strides[:], strides)
	return m
}

// strided returns the memory of an evaluated array from its first element to its last, and the
// strides of its axes, in elements. It makes the array contiguous if a stride is negative.
func (a *Array) strided() (data []float32, strides []int) {
	shape := a.Shape()
	last := 0
	for i, s := range unsafe.Slice((*int64)(mlxc.ArrayStrides(a.h())), len(shape)) {
		if s < 0 {
			a = a.Contiguous()
			Eval(a)
			return a.strided()
		}
		strides = append(strides, int(s))
		last += (shape[i] - 1) * int(s)
	}
	return unsafe.Slice((*float32)(mlxc.ArrayDataUint8(a.h())), last+1), strides
}
