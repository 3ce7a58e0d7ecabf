package checkpoint

import (
	"fmt"
	"slices"
)

// A Tensor describes a tensor of a safetensors file. For a tensor of another
// format and for an [Array] it has only name, dtype and shape.
type Tensor struct {
	Name  string
	Dtype Dtype
	// Shape has no axes for a scalar. Each axis fits in a signed 32-bit integer, as
	// MLX requires, and the number of elements in 63 bits.
	Shape []int
	// Begin and End bound the tensor's bytes, counted from Header.DataOffset.
	Begin, End int64
	// File is the Name of the tensor's File. ParseHeader leaves it empty.
	File string
	// Transforms convert the stored tensor, of shape Stored, to one of shape Shape. Name,
	// Begin and End remain those of the stored tensor. Without conversion both are
	// empty, as after ParseHeader.
	Transforms []Transform
	Stored     []int
	// Packing is set for a quantized matrix of ComfyUI, by [OpenCheckpoint] and [NewCheckpoint].
	Packing *Packing
}

// maxAxes limits the number of axes, as in PyTorch and NumPy.
const maxAxes = 64

// Type returns dtype and shape for messages: F32 [2 3].
func (t Tensor) Type() string { return fmt.Sprintf("%s %v", t.Dtype, t.Shape) }

// ID identifies a tensor in a checkpoint. Tensors that are different parts of one
// stored tensor have different IDs.
func (t Tensor) ID() string { return fmt.Sprint(t.File, "\n", t.Name, "\n", t.Transforms) }

// Len returns the number of elements, which must fit an int.
func (t Tensor) Len() int { return Len(t.Shape) }

// Len returns the number of elements of a shape, which must fit an int.
func Len(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// Bytes returns the size of the tensor of shape Shape.
func (t Tensor) Bytes() int64 {
	n, bits := int64(t.Len()), int64(t.Dtype.Bits())
	return n*(bits/8) + n*(bits%8)/8 // n*bits could overflow
}

// checkNumeric checks that an [Array] can have the dtype, and that the size in
// bits fits 63 bits.
func (t Tensor) checkNumeric() error {
	if !t.Dtype.IsNumeric() {
		return fmt.Errorf("dtype %s is not a supported number type", t.Dtype)
	}
	if len(t.Shape) > maxAxes {
		return fmt.Errorf("shape with %d axes, expected at most %d", len(t.Shape), maxAxes)
	}
	if slices.ContainsFunc(t.Shape, func(axis int) bool { return axis < 0 }) {
		return fmt.Errorf("shape %v: axes must not be negative", t.Shape)
	}
	_, err := t.size()
	return err
}
