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

// An entry is a tensor, or a quantized matrix, with its places.
type entry struct {
	key   string // its name in diffusers
	found nn.Found
	param *nn.Parameter               // nil if the model does not declare it
	like  *nn.Parameter               // of one that it does not, a layer of other numbers that it does
	pack  *mlx.Quantization           // how it is written; nil for plain numbers
	adapt func(*mlx.Array) *mlx.Array // nil: as it is
	form  func(*mlx.Array) *mlx.Array // of a part of its rows; nil: as it is
	dtype mlx.Dtype                   // of plain numbers, and of the scales that are affine
	slots []checkpoint.Tensor         // what is written of it
}

// kept reports whether a quantized matrix is written as it is stored.
func (e *entry) kept() bool { return e.pack != nil && e.pack == e.found.Quantized }

// bytes is the size of what is written.
func (e *entry) bytes() (n int64) {
	for _, s := range e.slots {
		n += s.Bytes()
	}
	return n
}

// layOut gives a tensor its places, under a name, in the form of a table's rule;
// of no table, in diffusers' form.
func (e *entry) layOut(name string, o *Options, table *layout.Table, rule layout.Rule) error {
	var err error
	if e.dtype, err = o.dtype(e.found); err != nil {
		return err
	}
	if e.pack != nil {
		e.layOutPacked(name)
		return nil
	}
	shape := e.shape()
	expanded := 0
	for _, op := range rule.Forms {
		if op != checkpoint.FormExpand {
			return fmt.Errorf("%s: tensor %s: cannot be brought to the form of %s", e.found.File, e.found.Name, table.Name)
		}
		expanded++
	}
	switch {
	case expanded > 0:
		shape = shape[:len(shape)-expanded]
		e.form = func(a *mlx.Array) *mlx.Array { return a.Reshape(a.Shape()[:a.Ndim()-expanded]...) }
	case table != nil && table.ChannelsLast && len(shape) > 3:
		shape = slices.Concat(shape[:1], shape[2:], shape[1:2])
		e.form = nn.ChannelsLast
	}
	e.slots = []checkpoint.Tensor{slot(name, e.dtype, shape...)}
	return nil
}

// layOutPacked is layOut of a matrix that is packed: its weights come before the
// scales, and, if it is affine, the biases.
func (e *entry) layOutPacked(name string) {
	shape := e.shape()
	scales := slot(component.Module(name)+".scales", e.dtype, shape[0], shape[1]/e.pack.Group)
	if e.kept() {
		scales.Dtype = e.found.Scales.Dtype
	} else if e.pack.Mode != "affine" {
		scales.Dtype = checkpoint.U8
	}
	e.slots = []checkpoint.Tensor{slot(name, mlx.Uint32, shape[0], shape[1]*e.pack.Bits/32), scales}
	if e.pack.Mode == "affine" {
		biases := scales
		biases.Name = component.Module(name) + ".biases"
		e.slots = append(e.slots, biases)
	}
}

// shape is that of the tensor when it is unpacked.
func (e *entry) shape() []int {
	shape := e.found.Shape
	if q := e.found.Quantized; q != nil {
		shape = []int{shape[0], shape[1] * 32 / q.Bits}
	}
	return shape
}

// slot describes a tensor that is to be written.
func slot(name string, dtype mlx.Dtype, shape ...int) checkpoint.Tensor {
	stored, _ := nn.FileDtype(dtype)
	return checkpoint.Tensor{Name: name, Dtype: stored, Shape: shape}
}

// under is the same tensor, to be written once more under another name.
func (e *entry) under(name string) *entry {
	other := *e
	other.slots = slices.Clone(e.slots)
	for i, slot := range other.slots {
		other.slots[i].Name = component.Module(name) + strings.TrimPrefix(slot.Name, component.Module(e.slots[0].Name))
	}
	return &other
}

// dtype is what a tensor is written in, if it is not packed.
func (o *Options) dtype(f nn.Found) (mlx.Dtype, error) {
	stored := f.Dtype
	if f.Quantized != nil {
		stored = f.Scales.Dtype
	}
	d, ok := readAs(stored)
	switch {
	case !ok:
		return 0, fmt.Errorf("%w: %s: tensor %s: dtype %s", errs.ErrUnsupported, f.File, f.Name, f.Dtype)
	case d.IsFloat() && o.KeepDtypes, !d.IsFloat() && f.Quantized == nil: // numbers that are no weights stay
		return d, nil
	case o.Dtype != nil:
		return *o.Dtype, nil
	}
	return mlx.BFloat16, nil
}

// readAs returns the dtype that tensors of a file's dtype have in memory, and
// reports whether they can be read.
func readAs(d checkpoint.Dtype) (mlx.Dtype, bool) {
	switch d {
	case checkpoint.F8E4M3:
		return mlx.BFloat16, true
	case checkpoint.F64: // no weights are
		return 0, false
	}
	return nn.DtypeOf(d)
}
