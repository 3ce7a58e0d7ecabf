package checkpoint

import (
	"fmt"
	"math"
)

// A Tensor describes one tensor: as a safetensors file has it, or, with a name, a
// dtype and a shape only, one of another file or an [Array].
type Tensor struct {
	Name  string
	Dtype Dtype
	// Shape has no axes for a scalar. Each axis fits in 32 bits signed, which
	// is what MLX keeps, and the element count in 63.
	Shape []int
	// Begin and End bound the tensor's bytes, counted from Header.DataOffset.
	Begin, End int64
	// File is the Name of the File that holds the tensor; ParseHeader leaves it empty.
	File string
	// Forms lead from the stored tensor to one of Shape; none for a tensor as it is
	// stored. Then Name, Begin and End are still those of the stored one, and Stored is
	// its shape. ParseHeader leaves both empty.
	Forms  []Form
	Stored []int
}

// maxAxes bounds the axes of a tensor, as PyTorch and NumPy do.
const maxAxes = 64

// Type returns the tensor's dtype and shape as messages have them: F32 [2 3].
func (t Tensor) Type() string { return fmt.Sprintf("%s %v", t.Dtype, t.Shape) }

// ID tells the tensors of a checkpoint apart, and the parts of a stored one that
// several are made of.
func (t Tensor) ID() string { return fmt.Sprint(t.File, "\n", t.Name, "\n", t.Forms) }

// Len returns the number of elements, which must fit an int.
func (t Tensor) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Bytes returns the size of the tensor in Shape.
func (t Tensor) Bytes() int64 {
	n, bits := int64(t.Len()), int64(t.Dtype.Bits())
	return n*(bits/8) + n*(bits%8)/8 // the number of bits may not fit
}

// checkNumeric makes sure that an [Array] can have the dtype, and that the shape
// is one whose size in bytes fits 63 bits.
func (t Tensor) checkNumeric() error {
	if !t.Dtype.IsNumeric() {
		return fmt.Errorf("dtype %s cannot be read as numbers", t.Dtype)
	}
	if len(t.Shape) > maxAxes {
		return fmt.Errorf("shape of %d axes, at most %d are possible", len(t.Shape), maxAxes)
	}
	n := int64(t.Dtype.Size())
	for _, d := range t.Shape {
		if d < 0 {
			return fmt.Errorf("shape %v: an axis cannot be negative", t.Shape)
		}
		if d > 0 && n > math.MaxInt64/int64(d) {
			return fmt.Errorf("shape %v: its size overflows 63 bits", t.Shape)
		}
		n *= max(int64(d), 1)
	}
	return nil
}
