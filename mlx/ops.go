package mlx

import (
	"fmt"
	"math"
	"slices"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// stream is the default stream of the running job's device.
var stream uintptr

type (
	unaryOp  = func(res *uintptr, a, s uintptr) int32
	binaryOp = func(res *uintptr, a, b, s uintptr) int32
	intsOp   = func(res *uintptr, a uintptr, ints *int32, n, s uintptr) int32
)

// result returns the array that an operation makes.
func result(op func(r *uintptr) int32) *Array {
	var r uintptr
	check(op(&r))
	return wrap(r)
}

func (a *Array) unary(op unaryOp) *Array {
	return result(func(r *uintptr) int32 { return op(r, a.h(), stream) })
}

func (a *Array) binary(op binaryOp, b *Array) *Array {
	return result(func(r *uintptr) int32 { return op(r, a.h(), b.h(), stream) })
}

func (a *Array) withInts(op intsOp, ints []int) *Array {
	c, n := cInts(ints)
	return result(func(r *uintptr) int32 { return op(r, a.h(), c, n, stream) })
}

// Element by element, with broadcasting.

func (a *Array) Add(b *Array) *Array          { return a.binary(mlxc.Add, b) }
func (a *Array) Sub(b *Array) *Array          { return a.binary(mlxc.Subtract, b) }
func (a *Array) Mul(b *Array) *Array          { return a.binary(mlxc.Multiply, b) }
func (a *Array) Div(b *Array) *Array          { return a.binary(mlxc.Divide, b) }
func (a *Array) Maximum(b *Array) *Array      { return a.binary(mlxc.Maximum, b) }
func (a *Array) Minimum(b *Array) *Array      { return a.binary(mlxc.Minimum, b) }
func (a *Array) Equal(b *Array) *Array        { return a.binary(mlxc.Equal, b) }
func (a *Array) Less(b *Array) *Array         { return a.binary(mlxc.Less, b) }
func (a *Array) GreaterEqual(b *Array) *Array { return a.binary(mlxc.GreaterEqual, b) }
func (a *Array) Or(b *Array) *Array           { return a.binary(mlxc.LogicalOr, b) }
func (a *Array) And(b *Array) *Array          { return a.binary(mlxc.LogicalAnd, b) }
func (a *Array) Power(b *Array) *Array        { return a.binary(mlxc.Power, b) }
func (a *Array) FloorDivide(b *Array) *Array  { return a.binary(mlxc.FloorDivide, b) }
func (a *Array) Remainder(b *Array) *Array    { return a.binary(mlxc.Remainder, b) }

// Plus, Times and Over are Add, Mul and Div with a constant of a's dtype.
func (a *Array) Plus(c float64) *Array  { return a.Add(Scalar(c, a.Dtype())) }
func (a *Array) Times(c float64) *Array { return a.Mul(Scalar(c, a.Dtype())) }
func (a *Array) Over(c float64) *Array  { return a.Div(Scalar(c, a.Dtype())) }

func (a *Array) Neg() *Array     { return a.unary(mlxc.Negative) }
func (a *Array) Abs() *Array     { return a.unary(mlxc.Abs) }
func (a *Array) Exp() *Array     { return a.unary(mlxc.Exp) }
func (a *Array) Log() *Array     { return a.unary(mlxc.Log) }
func (a *Array) Not() *Array     { return a.unary(mlxc.LogicalNot) }
func (a *Array) Sin() *Array     { return a.unary(mlxc.Sin) }
func (a *Array) Cos() *Array     { return a.unary(mlxc.Cos) }
func (a *Array) Tanh() *Array    { return a.unary(mlxc.Tanh) }
func (a *Array) Sigmoid() *Array { return a.unary(mlxc.Sigmoid) }
func (a *Array) Erf() *Array     { return a.unary(mlxc.Erf) }
func (a *Array) Square() *Array  { return a.unary(mlxc.Square) }
func (a *Array) Sqrt() *Array    { return a.unary(mlxc.Sqrt) }
func (a *Array) Rsqrt() *Array   { return a.unary(mlxc.Rsqrt) }

// IsFinite is true where an element is neither NaN nor infinite.
func (a *Array) IsFinite() *Array { return a.unary(mlxc.Isfinite) }

// Softplus is log(1 + exp(x)).
func (a *Array) Softplus() *Array { return a.binary(mlxc.Logaddexp, Scalar(0, a.Dtype())) }

// SiLU is x·sigmoid(x).
func (a *Array) SiLU() *Array {
	if onHost(hostActivations, a) {
		return a.siluOnHost(1)
	}
	return a.Mul(a.Sigmoid())
}

// wideSiLU is [Array.SiLU] in float32 inside.
func (a *Array) wideSiLU() *Array { return a.AsType(Float32).SiLU().AsType(a.Dtype()) }

// GELU is x·Φ(x), with the normal distribution's Φ, in float32 inside.
func (a *Array) GELU() *Array {
	x := a.AsType(Float32)
	return x.Times(0.5).Mul(x.Times(math.Sqrt2 / 2).Erf().Plus(1)).AsType(a.Dtype())
}

// GELUTanh is [Array.GELU] with the approximation by tanh (gelu_new), in
// float32 inside.
func (a *Array) GELUTanh() *Array {
	if onHost(hostActivations, a) {
		return a.geluTanhOnHost()
	}
	x := a.AsType(Float32)
	u := x.Square().Mul(x).Times(0.044715).Add(x).Times(math.Sqrt(2 / math.Pi))
	return x.Times(0.5).Mul(u.Tanh().Plus(1)).AsType(a.Dtype())
}

// QuickGELU is x·sigmoid(1.702·x).
func (a *Array) QuickGELU() *Array {
	if onHost(hostActivations, a) {
		return a.siluOnHost(1.702)
	}
	return a.Mul(a.Times(1.702).Sigmoid())
}

// Round rounds half to even.
func (a *Array) Round() *Array {
	return result(func(r *uintptr) int32 { return mlxc.Round(r, a.h(), 0, stream) })
}

// Clip clamps every element to [lo, hi].
func (a *Array) Clip(lo, hi float64) *Array {
	return result(func(r *uintptr) int32 {
		return mlxc.Clip(r, a.h(), Scalar(lo, a.Dtype()).h(), Scalar(hi, a.Dtype()).h(), stream)
	})
}

// Where selects elements of x where cond is true, and of y elsewhere.
func Where(cond, x, y *Array) *Array {
	return result(func(r *uintptr) int32 { return mlxc.Where(r, cond.h(), x.h(), y.h(), stream) })
}

// AsType converts the elements to dtype. It returns a itself if that is its dtype.
func (a *Array) AsType(dtype Dtype) *Array {
	if a.Dtype() == dtype {
		return a
	}
	return result(func(r *uintptr) int32 { return mlxc.Astype(r, a.h(), int32(dtype), stream) })
}

// Products.

// Matmul is the matrix product over the last two axes.
func (a *Array) Matmul(b *Array) *Array { return a.binary(mlxc.Matmul, b) }

// Addmm is c + a·b.
func Addmm(c, a, b *Array) *Array {
	return result(func(r *uintptr) int32 { return mlxc.Addmm(r, c.h(), a.h(), b.h(), 1, 1, stream) })
}

// Conv2d convolves x [N, H, W, Cin] with weight [Cout, kH, kW, Cin], without
// bias.
func (a *Array) Conv2d(weight *Array, stride, padding int) *Array {
	if y := a.convOnHost(weight, nil, nil, stride, padding); y != nil {
		return y
	}
	s, p := int32(stride), int32(padding)
	return result(func(r *uintptr) int32 { return mlxc.Conv2d(r, a.h(), weight.h(), s, s, p, p, 1, 1, 1, stream) })
}

// BiasedConv2d is [Array.Conv2d] with a bias [Cout], which may be nil.
func (a *Array) BiasedConv2d(weight, bias *Array, stride, padding int) *Array {
	if bias == nil {
		return a.Conv2d(weight, stride, padding)
	}
	if y := a.convOnHost(weight, bias, nil, stride, padding); y != nil {
		return y
	}
	return AddBias(a.Conv2d(weight, stride, padding), bias, nil)
}

// LeakyConv2d is [Array.BiasedConv2d] in steps of 1, whose negative results are multiplied by slope [Cout]: a leaky
// or parametric ReLU.
func (a *Array) LeakyConv2d(weight, bias, slope *Array, padding int) *Array {
	if y := a.convOnHost(weight, bias, slope, 1, padding); y != nil {
		return y
	}
	return AddBiasLeaky(a.Conv2d(weight, 1, padding), bias, slope)
}

// Conv3d convolves x [N, D, H, W, Cin] with weight [Cout, kD, kH, kW, Cin] in steps
// of 1, without padding and bias.
func (a *Array) Conv3d(weight *Array) *Array {
	return result(func(r *uintptr) int32 { return mlxc.Conv3d(r, a.h(), weight.h(), 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, stream) })
}

// Reductions. MLX's CPU backend loses accuracy in reductions over many elements, so
// reduce one axis after the other.

type reduceOp = func(res *uintptr, a uintptr, axis int32, keepdims bool, s uintptr) int32

func (a *Array) reduce(op reduceOp, axis int) *Array {
	return result(func(r *uintptr) int32 { return op(r, a.h(), int32(a.axis(axis)), true, stream) })
}

// Mean, Sum and Max reduce one axis, which stays as size 1.
func (a *Array) Mean(axis int) *Array { return a.reduce(mlxc.MeanAxis, axis) }
func (a *Array) Sum(axis int) *Array  { return a.reduce(mlxc.SumAxis, axis) }
func (a *Array) Max(axis int) *Array  { return a.reduce(mlxc.MaxAxis, axis) }
func (a *Array) Min(axis int) *Array  { return a.reduce(mlxc.MinAxis, axis) }

// Argmax returns the indices of the largest elements of one axis, which stays as size 1.
func (a *Array) Argmax(axis int) *Array { return a.reduce(mlxc.ArgmaxAxis, axis) }

// Sort returns the elements of the last axis in ascending order.
func (a *Array) Sort() *Array {
	return result(func(r *uintptr) int32 { return mlxc.SortAxis(r, a.h(), -1, stream) })
}

// CumulativeSum returns the sums of each element of the last axis and those before it.
func (a *Array) CumulativeSum() *Array {
	const sameDtype = 0 // an optional without a value
	return result(func(r *uintptr) int32 { return mlxc.CumsumAxis(r, a.h(), -1, false, true, sameDtype, stream) })
}

// All is true if every element is.
func (a *Array) All() bool {
	return result(func(r *uintptr) int32 { return mlxc.All(r, a.h(), false, stream) }).Uint8s()[0] != 0
}

// AllFinite reports whether no element is NaN or infinite. It is true for dtypes of whole
// numbers.
func (a *Array) AllFinite() (ok bool) {
	if !a.Dtype().IsFloat() {
		return true
	}
	WithScope(func() { ok = a.IsFinite().All() })
	return ok
}

// Softmax normalises along the last axis, in float32 inside.
func (a *Array) Softmax() *Array {
	if onHost(hostActivations, a) && a.Ndim() > 0 {
		return a.softmaxOnHost()
	}
	return a.LazySoftmax()
}

// LazySoftmax is Softmax for results that are rarely needed: it computes nothing before the result
// is evaluated, on any device.
func (a *Array) LazySoftmax() *Array {
	return result(func(r *uintptr) int32 { return mlxc.SoftmaxAxis(r, a.h(), -1, true, stream) })
}

// Shapes.

// Reshape returns the elements in another shape. One size may be -1, to be inferred.
func (a *Array) Reshape(shape ...int) *Array { return a.withInts(mlxc.Reshape, shape) }

// Transpose permutes the axes.
func (a *Array) Transpose(axes ...int) *Array { return a.withInts(mlxc.TransposeAxes, axes) }

// T swaps the last two axes.
func (a *Array) T() *Array {
	return result(func(r *uintptr) int32 { return mlxc.Swapaxes(r, a.h(), -1, -2, stream) })
}

// ExpandDims inserts an axis of size 1 at axis.
func (a *Array) ExpandDims(axis int) *Array {
	return result(func(r *uintptr) int32 { return mlxc.ExpandDims(r, a.h(), int32(axis), stream) })
}

// Squeeze removes an axis of size 1.
func (a *Array) Squeeze(axis int) *Array {
	return result(func(r *uintptr) int32 { return mlxc.SqueezeAxis(r, a.h(), int32(a.axis(axis)), stream) })
}

// BroadcastTo repeats axes of size 1, without copying.
func (a *Array) BroadcastTo(shape ...int) *Array { return a.withInts(mlxc.BroadcastTo, shape) }

// Contiguous returns the array in row-major order in memory.
func (a *Array) Contiguous() *Array {
	return result(func(r *uintptr) int32 { return mlxc.Contiguous(r, a.h(), false, stream) })
}

// Slice returns [start, stop) of one axis. It checks the bounds, which MLX would clip
// silently.
func (a *Array) Slice(axis, start, stop int) *Array {
	lo, hi, step, n := a.bounds(axis, start, stop)
	return result(func(r *uintptr) int32 { return mlxc.Slice(r, a.h(), lo, n, hi, n, step, n, stream) })
}

// SliceUpdate replaces [start, start+size) of one axis by x, where size is that of x. MLX
// does it in place if nothing else refers to the array; for that, free the array before
// the result is evaluated.
func (a *Array) SliceUpdate(axis, start int, x *Array) *Array {
	lo, hi, step, n := a.bounds(axis, start, start+x.Dim(axis))
	return result(func(r *uintptr) int32 { return mlxc.SliceUpdate(r, a.h(), x.h(), lo, n, hi, n, step, n, stream) })
}

// bounds returns the corners and steps of a slice of one axis, which have n numbers.
func (a *Array) bounds(axis, start, stop int) (lo, hi, step *int32, n uintptr) {
	axis = a.axis(axis)
	shape := a.Shape()
	if start < 0 || stop < start || stop > shape[axis] {
		raise("slice [%d:%d] of axis %d of an array with shape %v", start, stop, axis, shape)
	}
	first := make([]int, len(shape))
	first[axis], shape[axis] = start, stop
	lo, n = cInts(first)
	hi, _ = cInts(shape)
	step, _ = cInts(slices.Repeat([]int{1}, len(shape)))
	return lo, hi, step, n
}

// Split splits an axis into n equal parts.
func (a *Array) Split(n, axis int) []*Array {
	var v uintptr
	check(mlxc.Split(&v, a.h(), int32(n), int32(a.axis(axis)), stream))
	defer mlxc.VectorArrayFree(v)
	return unpack(v)
}

// Concat joins arrays along an axis.
func Concat(axis int, arrays ...*Array) *Array {
	v := newVector(arrays)
	defer mlxc.VectorArrayFree(v)
	return result(func(r *uintptr) int32 { return mlxc.ConcatenateAxis(r, v, int32(axis), stream) })
}

// Pad adds constant elements at the start and end of each axis. low and high have their
// numbers, one per axis.
func (a *Array) Pad(low, high []int, value float64) *Array {
	if n := a.Ndim(); len(low) != n || len(high) != n {
		raise("pad of %d and %d numbers for an array with shape %v", len(low), len(high), a.Shape())
	}
	axes := make([]int, len(low))
	for i := range axes {
		axes[i] = i
	}
	ax, n := cInts(axes)
	lo, _ := cInts(low)
	hi, _ := cInts(high)
	return result(func(r *uintptr) int32 {
		return mlxc.Pad(r, a.h(), ax, n, lo, n, hi, n, Scalar(value, a.Dtype()).h(), "constant", stream)
	})
}

// TakeRows selects rows of the first axis by index.
func (a *Array) TakeRows(rows []int32) *Array { return a.Take(0, rows) }

// Take selects elements of an axis by index. It checks the indices on the host, since MLX would
// read beyond the array.
func (a *Array) Take(axis int, indices []int32) *Array {
	n := int32(a.Dim(axis))
	for i, index := range indices {
		if index < 0 || index >= n {
			what := fmt.Sprintf("index %d of axis %d", index, axis)
			if axis == 0 {
				what = fmt.Sprintf("row %d", index)
			}
			raise("%s (number %d asked for) of an array with shape %v", what, i, a.Shape())
		}
	}
	return result(func(r *uintptr) int32 {
		return mlxc.TakeAxis(r, a.h(), FromInt32(indices).h(), int32(a.axis(axis)), stream)
	})
}

// Gather selects rows of the first axis by an array of indices of any shape, whose axes replace the
// first one. It limits the indices to the rows that there are, since MLX would read beyond them.
func (a *Array) Gather(indices *Array) *Array {
	last := Scalar(float64(a.Dim(0)-1), indices.Dtype())
	safe := indices.Maximum(Scalar(0, indices.Dtype())).Minimum(last)
	return result(func(r *uintptr) int32 { return mlxc.TakeAxis(r, a.h(), safe.h(), 0, stream) })
}

// Making arrays.

// Full returns an array with the same value everywhere.
func Full(value float64, dtype Dtype, shape ...int) *Array {
	dims, n := cInts(shape)
	return result(func(r *uintptr) int32 { return mlxc.Full(r, dims, n, Scalar(value, dtype).h(), int32(dtype), stream) })
}

// Zeros returns an array of zeros.
func Zeros(dtype Dtype, shape ...int) *Array { return Full(0, dtype, shape...) }

// Arange returns start, start+step, … below stop.
func Arange(start, stop, step float64, dtype Dtype) *Array {
	return result(func(r *uintptr) int32 { return mlxc.Arange(r, start, stop, step, int32(dtype), stream) })
}
