package mlx

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// A Dtype is the type of an array's elements.
type Dtype int32

// The dtypes of MLX. There is no 8-bit float: MLX reads such weights as bytes.
const (
	Bool Dtype = iota
	Uint8
	Uint16
	Uint32
	Uint64
	Int8
	Int16
	Int32
	Int64
	Float16
	Float32
	Float64
	BFloat16
	Complex64
)

var dtypeNames = [...]string{"bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
	"float16", "float32", "float64", "bfloat16", "complex64"}

func (d Dtype) String() string {
	if d < 0 || int(d) >= len(dtypeNames) {
		return fmt.Sprintf("dtype(%d)", int32(d))
	}
	return dtypeNames[d]
}

// ParseDtype reads a dtype's name, long (bfloat16) or short (bf16).
func ParseDtype(name string) (Dtype, error) {
	short := map[string]Dtype{"bf16": BFloat16, "fp16": Float16, "f16": Float16, "fp32": Float32, "f32": Float32}
	if d, ok := short[name]; ok {
		return d, nil
	}
	if i := slices.Index(dtypeNames[:], name); i >= 0 {
		return Dtype(i), nil
	}
	return 0, fmt.Errorf("unknown dtype %q", name)
}

// IsFloat reports whether d is a real floating-point type.
func (d Dtype) IsFloat() bool {
	return d == Float16 || d == Float32 || d == Float64 || d == BFloat16
}

// An Array is an n-dimensional array, or the graph of one that is not evaluated
// yet. Its methods must be called on the MLX thread.
type Array struct {
	handle  uintptr
	scope   *scope
	cleanup *runtime.Cleanup

	// what MLX was asked before: a call takes most of the time of building a graph
	shape []int // nil until it is known
	dtype Dtype // -1 until it is known
}

// made counts the arrays. It belongs to the MLX thread.
var made int

// Made returns the number of arrays that were made so far, including those of functions while they
// are traced. The difference of two numbers is about the size of the graph between them.
func Made() int { return made }

// wrap returns an Array for a new handle.
func wrap(handle uintptr) *Array {
	a := &Array{handle: handle, dtype: -1}
	made++
	adopt(a)
	return a
}

// h returns the handle of a, which must not have been freed.
func (a *Array) h() uintptr {
	if a.handle == 0 {
		raise("array used after its scope ended (return it from the scope, or Keep it)")
	}
	return a.handle
}

// Shape is the size of each axis.
func (a *Array) Shape() []int { return slices.Clone(a.dims()) }

// dims is Shape without a copy. The caller must not change it.
func (a *Array) dims() []int {
	h := a.h()
	if a.shape == nil {
		n := int(mlxc.ArrayNdim(h))
		a.shape = make([]int, n)
		if n > 0 {
			for i, d := range unsafe.Slice((*int32)(mlxc.ArrayShape(h)), n) {
				a.shape[i] = int(d)
			}
		}
	}
	return a.shape
}

// Dim is the size of one axis; a negative axis counts from the end.
func (a *Array) Dim(axis int) int { return a.dims()[a.axis(axis)] }

// Ndim is the number of axes.
func (a *Array) Ndim() int { return len(a.dims()) }

// Size is the number of elements.
func (a *Array) Size() int { return product(a.dims()) }

// Nbytes is the size of the elements in bytes.
func (a *Array) Nbytes() int { return int(mlxc.ArrayNbytes(a.h())) }

// Dtype is the type of the elements.
func (a *Array) Dtype() Dtype {
	h := a.h()
	if a.dtype < 0 {
		a.dtype = Dtype(mlxc.ArrayDtype(h))
	}
	return a.dtype
}

// axis checks an axis and returns it counted from the start.
func (a *Array) axis(axis int) int {
	n := a.Ndim()
	if axis < -n || axis >= n {
		raise("axis %d of an array with shape %v", axis, a.Shape())
	}
	if axis < 0 {
		axis += n
	}
	return axis
}

// String returns dtype and shape, without the elements.
func (a *Array) String() string {
	if a == nil || a.handle == 0 {
		return "array(freed)"
	}
	return fmt.Sprintf("%v%v", a.Dtype(), a.Shape())
}

// FromFloat32 copies data into an array.
func FromFloat32(data []float32, shape ...int) *Array {
	return fromData(unsafe.Pointer(unsafe.SliceData(data)), len(data), Float32, shape)
}

// FromInt32 copies data into an array.
func FromInt32(data []int32, shape ...int) *Array {
	return fromData(unsafe.Pointer(unsafe.SliceData(data)), len(data), Int32, shape)
}

// FromUint8 copies data into an array.
func FromUint8(data []uint8, shape ...int) *Array {
	return fromData(unsafe.Pointer(unsafe.SliceData(data)), len(data), Uint8, shape)
}

func fromData(p unsafe.Pointer, n int, dtype Dtype, shape []int) *Array {
	if shape == nil {
		shape = []int{n}
	}
	if product(shape) != n || slices.ContainsFunc(shape, func(d int) bool { return d < 0 }) {
		raise("%d elements for shape %v", n, shape)
	}
	if n == 0 {
		p = unsafe.Pointer(new(uint64)) // MLX reads the address even if there are no elements
	}
	dims, ndim := cInts(shape)
	return wrap(mlxc.ArrayNewData(p, dims, int32(ndim), int32(dtype)))
}

// Scalar is a constant without axes.
func Scalar(v float64, dtype Dtype) *Array {
	switch {
	case dtype == Float64:
		return fromData(unsafe.Pointer(&v), 1, Float64, []int{})
	case dtype.IsFloat(), dtype == Complex64:
		return wrap(mlxc.ArrayNewFloat32(float32(v))).AsType(dtype)
	}
	n := int64(v) // exact for whole numbers that float32 would round
	return fromData(unsafe.Pointer(&n), 1, Int64, []int{}).AsType(dtype)
}

// Eval computes arrays in one evaluation.
func Eval(arrays ...*Array) {
	if len(arrays) == 0 {
		return
	}
	defer watched()()
	v := newVector(arrays)
	defer mlxc.VectorArrayFree(v)
	check(mlxc.Eval(v))
}

// AsyncEval begins to compute the arrays and does not wait for the results. [Eval] waits for them.
func AsyncEval(arrays ...*Array) {
	v := newVector(arrays)
	defer mlxc.VectorArrayFree(v)
	check(mlxc.AsyncEval(v))
}

// Drain waits for the work that was begun, and drops its errors. MLX reports an error of a stream
// at every later evaluation, also in other jobs, until somebody waits for the stream.
func Drain() {
	for _, s := range streams {
		if s != 0 && mlxc.Synchronize(s) != 0 {
			takeMessage()
		}
	}
}

// Floats evaluates the array and copies its elements as float32, in row-major
// order whatever its strides.
func (a *Array) Floats() []float32 {
	return copyOut[float32](a, Float32, a.Size())
}

// Int32s is [Array.Floats] for int32.
func (a *Array) Int32s() []int32 {
	return copyOut[int32](a, Int32, a.Size())
}

// Uint8s is [Array.Floats] for uint8.
func (a *Array) Uint8s() []uint8 {
	return copyOut[uint8](a, Uint8, a.Size())
}

// ReadUint8s copies the elements of an array in row-major order that is not empty to dst, which has room for them, and
// returns their number. Unlike [Array.Uint8s] it waits only for the array, not for what a GPU was given to do later.
func (a *Array) ReadUint8s(dst []uint8) int {
	if ordered := a.settle(); a.Dtype() != Uint8 || !ordered {
		raise("%v is not uint8 in order", a)
	}
	return copy(dst, unsafe.Slice((*uint8)(mlxc.ArrayDataUint8(a.h())), a.Size()))
}

// Item returns the only element of an array of size 1.
func (a *Array) Item() float32 {
	if a.Size() != 1 {
		raise("Item of an array with shape %v", a.Shape())
	}
	return a.Floats()[0]
}

// copyOut copies the elements in a dtype, as n values of T.
func copyOut[T any](a *Array, dtype Dtype, n int) []T {
	out := make([]T, n)
	if len(out) == 0 { // MLX's CUDA build crashes in Contiguous without elements
		Eval(a)
		return out
	}
	pushScope()
	row := a.AsType(dtype).inOrder()
	// mlx-c's typed accessors ignore the dtype, so one works for all
	copy(out, unsafe.Slice((*T)(mlxc.ArrayDataUint8(row.h())), len(out)))
	popScope()
	return out
}

// settle evaluates the array, and reports whether its elements are in row-major order in memory. Unlike [Eval] it does not
// wait for what a GPU was given to do later.
func (a *Array) settle() (ordered bool) {
	defer watched()()
	check(mlxc.ArrayEval(a.h()))
	check(mlxc.ArrayIsRowContiguous(&ordered, a.h()))
	return ordered
}

// inOrder returns the array, evaluated, with its elements in row-major order in memory, unlike those of a view.
func (a *Array) inOrder() *Array {
	const shared = 8 // bytes of arrays that MLX for CUDA has in memory of both host and GPU; others it would move
	if a.Nbytes() <= shared && a.settle() {
		return a
	}
	a = a.Contiguous()
	Eval(a)
	return a
}

// newVector returns a vector of arrays, which the caller frees.
func newVector(arrays []*Array) uintptr {
	handles := make([]uintptr, len(arrays)+1)
	for i, a := range arrays {
		handles[i] = a.h()
	}
	return mlxc.VectorArrayNewData(&handles[0], uintptr(len(arrays)))
}

// unpack returns the arrays in a vector.
func unpack(v uintptr) []*Array {
	arrays := make([]*Array, mlxc.VectorArraySize(v))
	for i := range arrays {
		var h uintptr
		check(mlxc.VectorArrayGet(&h, v, uintptr(i)))
		arrays[i] = wrap(h)
	}
	return arrays
}

// cInts returns ints as a C array and its length.
func cInts(ints []int) (*int32, uintptr) {
	c := make([]int32, len(ints)+1) // never empty, so that it has an address
	for i, n := range ints {
		if int(int32(n)) != n {
			raise("%d does not fit MLX's 32-bit sizes", n)
		}
		c[i] = int32(n)
	}
	return &c[0], uintptr(len(ints))
}

func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}
