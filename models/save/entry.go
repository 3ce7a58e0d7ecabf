package save

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
)

// An entry is a tensor to write, or a quantized matrix with its scales and biases.
type entry struct {
	key        string                      // its name in diffusers
	found      nn.Found                    // the tensor in the source
	param      *nn.Parameter               // nil if the model does not declare it
	similar    *nn.Parameter               // if the model does not declare it: the parameter in another layer
	quantize   *mlx.Quantization           // the quantization in the output, nil for none
	applyLoRAs func(*mlx.Array) *mlx.Array // nil if no LoRA changes it
	transform  func(*mlx.Array) *mlx.Array // converts rows to the layout's form; nil if that is the same
	dtype      mlx.Dtype                   // the dtype if it is not quantized, and that of affine scales
	slots      []checkpoint.Tensor         // the tensors in the output
}

// kept reports whether a quantized matrix is written as it is stored.
func (e *entry) kept() bool { return e.quantize != nil && e.quantize == e.found.Quantized }

// bytes returns the size in the output.
func (e *entry) bytes() (n int64) {
	for _, s := range e.slots {
		n += s.Bytes()
	}
	return n
}

// layOut sets the slots of a tensor with a name in the output, in the form given by a
// table's rule. Without a table that is diffusers' form.
func (e *entry) layOut(name string, o *Options, table *layout.Table, rule layout.Rule) error {
	var err error
	if e.dtype, err = o.dtype(e.found); err != nil {
		return err
	}
	if e.quantize != nil {
		e.layOutQuantized(name)
		return nil
	}
	shape := e.shape()
	expanded := 0 // axes that diffusers has in addition
	for _, op := range rule.Transforms {
		if op == checkpoint.TransformSixRows {
			shape = []int{shape[0] * shape[1]}
			e.transform = func(a *mlx.Array) *mlx.Array { return a.Reshape(-1) }
			continue
		}
		if op != checkpoint.TransformExpand {
			return fmt.Errorf("%s: tensor %s: cannot be converted to the layout of %s", e.found.File, e.found.Name, table.Name)
		}
		expanded++
	}
	switch {
	case expanded > 0:
		shape = shape[:len(shape)-expanded]
		e.transform = func(a *mlx.Array) *mlx.Array { return a.Reshape(a.Shape()[:a.Ndim()-expanded]...) }
	case table != nil && table.ChannelsLast && len(shape) > 3:
		shape = slices.Concat(shape[:1], shape[2:], shape[1:2])
		e.transform = nn.ChannelsLast
	}
	e.slots = []checkpoint.Tensor{slot(name, e.dtype, shape...)}
	return nil
}

// layOutQuantized is layOut for a quantized matrix: its slots are the weights, the
// scales and, for affine quantization, the biases.
func (e *entry) layOutQuantized(name string) {
	shape := e.shape()
	scales := slot(component.Module(name)+".scales", e.dtype, shape[0], shape[1]/e.quantize.Group)
	if e.kept() {
		scales.Dtype = e.found.Scales.Dtype
	} else if e.quantize.Mode != "affine" {
		scales.Dtype = checkpoint.U8
	}
	e.slots = []checkpoint.Tensor{slot(name, mlx.Uint32, shape[0], shape[1]*e.quantize.Bits/32), scales}
	if e.quantize.Mode == "affine" {
		biases := scales
		biases.Name = component.Module(name) + ".biases"
		e.slots = append(e.slots, biases)
	}
}

// shape returns the shape of the tensor, dequantized.
func (e *entry) shape() []int {
	shape := e.found.Shape
	if q := e.found.Quantized; q != nil {
		shape = []int{shape[0], shape[1] * 32 / q.Bits}
	}
	return shape
}

// slot describes a tensor in the output.
func slot(name string, dtype mlx.Dtype, shape ...int) checkpoint.Tensor {
	stored, _ := nn.FileDtype(dtype)
	return checkpoint.Tensor{Name: name, Dtype: stored, Shape: shape}
}

// renamed returns a copy of the entry that is written under another name.
func (e *entry) renamed(name string) *entry {
	other := *e
	other.slots = slices.Clone(e.slots)
	for i, slot := range other.slots {
		other.slots[i].Name = component.Module(name) + strings.TrimPrefix(slot.Name, component.Module(e.slots[0].Name))
	}
	return &other
}

// dtype returns the dtype of a tensor in the output, if it is not quantized there.
func (o *Options) dtype(f nn.Found) (mlx.Dtype, error) {
	stored := f.Dtype
	if f.Quantized != nil {
		stored = f.Scales.Dtype
	}
	d, ok := memoryDtype(stored)
	if f.Packing != nil {
		d, ok = mlx.BFloat16, true
	}
	switch {
	case !ok:
		return 0, fmt.Errorf("%w: %s: tensor %s: dtype %s", errs.ErrUnsupported, f.File, f.Name, f.Dtype)
	case d.IsFloat() && o.KeepDtypes, !d.IsFloat() && f.Quantized == nil: // integers are not weights
		return d, nil
	case o.Dtype != nil:
		return *o.Dtype, nil
	}
	return mlx.BFloat16, nil
}

// memoryDtype returns the dtype in memory of tensors with a dtype in files, and reports
// whether they can be read.
func memoryDtype(d checkpoint.Dtype) (mlx.Dtype, bool) {
	switch d {
	case checkpoint.F8E4M3:
		return mlx.BFloat16, true
	case checkpoint.F64: // never the dtype of weights
		return 0, false
	}
	return nn.DtypeOf(d)
}
