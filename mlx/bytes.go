package mlx

import "unsafe"

// ItemSize is the size of an element in bytes.
func (d Dtype) ItemSize() int {
	switch d {
	case Bool, Uint8, Int8:
		return 1
	case Uint16, Int16, Float16, BFloat16:
		return 2
	case Uint64, Int64, Float64, Complex64:
		return 8
	}
	return 4
}

// Bytes evaluates the array and returns a copy of its elements' bytes, in row-major
// order whatever its strides.
func (a *Array) Bytes() []byte { return copyOut[byte](a, a.Dtype(), a.Dtype().ItemSize()*a.Size()) }

// FromBytes copies elements of a dtype, in the form that [Array.Bytes] returns, into
// an array.
func FromBytes(data []byte, dtype Dtype, shape ...int) *Array {
	if len(data)%dtype.ItemSize() != 0 {
		raise("%d bytes for elements of %d", len(data), dtype.ItemSize())
	}
	if shape == nil {
		shape = []int{len(data) / dtype.ItemSize()}
	}
	return fromData(unsafe.Pointer(unsafe.SliceData(data)), len(data)/dtype.ItemSize(), dtype, shape)
}
