// Package nn has the layers that models consist of. A model is a tree of structs
// whose field tags are the names in the checkpoint:
//
//	type FeedForward struct {
//		nn.Module
//		W1 *nn.Linear `w:"w1"`
//		W2 *nn.Linear `w:"w2"`
//	}
//
// [Load] fills any such tree. Every module in it knows its path, which is its name
// for hooks.
package nn

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// A Module is embedded in every part of a model that diffusers has as a
// torch.nn.Module. [Load] or [Bind] tells it its path.
//
// A tag of the embedded field declares the parameters of the reference's forward
// method that [Module.Tap] is called with: the keyword, or the position if the
// reference is called with positional arguments, and .INDEX for an element of a
// list. Without a tag a module has one, "0".
//
//	type fluxBlock struct {
//		nn.Module `in:"hidden_states encoder_hidden_states temb"`
//
// The tag out declares the keys of the outputs after the first, which are their
// positions ("1", "2") without it.
//
// A tag module of another field is the name of its module, if it differs from that in w.
type Module struct {
	id      hooks.Module // path and class
	points  *hooks.Points
	in, out string // the tags
}

// Path is the module's name, from the component down
// (vae.decoder.mid_block.resnets.0).
func (m *Module) Path() string { return m.id.Name }

func (m *Module) bind(id hooks.Module, points *hooks.Points, tag reflect.StructTag) {
	*m = Module{id: id, points: points, in: tag.Get("in"), out: tag.Get("out")}
}

// Observed reports whether a hook sees the module's tensors. Code that is needed
// only for hooks depends on it.
func (m *Module) Observed() bool { return m.points.Active() }

// Fused returns the result of an operation of the module: of its fused form or, while a hook looks, of
// the modules that it stands for, which pass their tensors by the hook. Both compute the same, up to
// rounding; see [hooks.Points].Forked. The operation is the name of the function that has both.
func (m *Module) Fused(operation string, fused, modules func() *mlx.Array) *mlx.Array {
	one := func(f func() *mlx.Array) func() []*mlx.Array {
		return func() []*mlx.Array { return []*mlx.Array{f()} }
	}
	return m.FusedAll(operation, one(fused), one(modules))[0]
}

// FusedAll is [Module.Fused] for an operation with several results.
func (m *Module) FusedAll(operation string, fused, modules func() []*mlx.Array) []*mlx.Array {
	if !m.points.Active() {
		return fused()
	}
	return m.points.Fork(m.id, operation, fused, modules)
}

// Tap passes the output of a module by the hook, and returns it or the array that
// the hook replaces it with. Every Forward ends with it. The inputs are those that
// the module's tag declares; an input is nil if this call does not have it.
func (m *Module) Tap(out *mlx.Array, in ...*mlx.Array) *mlx.Array {
	if !m.points.Active() {
		return out
	}
	return m.points.Pass(m.id, out, m.args(in))
}

// Tap2 is [Module.Tap] for a module with two outputs, in the order in which the
// reference returns them.
func (m *Module) Tap2(out, second *mlx.Array, in ...*mlx.Array) (*mlx.Array, *mlx.Array) {
	if !m.points.Active() {
		return out, second
	}
	outputs := m.TapAll([]*mlx.Array{out, second}, in...)
	return outputs[0], outputs[1]
}

// TapAll is [Module.Tap] for any number of outputs. The tag out may end with a key LIST.*
// for the elements of a list.
func (m *Module) TapAll(out []*mlx.Array, in ...*mlx.Array) []*mlx.Array {
	if !m.points.Active() {
		return out
	}
	passed := slices.Clone(out)
	keys := strings.Fields(m.out)
	for i := 1; i < len(out); i++ { // the first output ends the call
		passed[i] = m.points.Further(m.id, outputKey(keys, i), out[i])
	}
	passed[0] = m.points.Pass(m.id, out[0], m.args(in))
	return passed
}

// outputKey returns the key of the i-th output, which is not the first, from the keys in the
// tag out.
func outputKey(keys []string, i int) string {
	if len(keys) == 0 {
		return strconv.Itoa(i)
	}
	last := len(keys) - 1
	if list, ok := strings.CutSuffix(keys[last], ".*"); ok && i > last {
		return list + "." + strconv.Itoa(i-1-last)
	}
	return keys[i-1]
}

// TapImage is Tap for arrays with channels last ([N, H, W, C] or [N, L, C]),
// which hooks see with channels first, as in diffusers.
func (m *Module) TapImage(out *mlx.Array, in ...*mlx.Array) *mlx.Array {
	if !m.points.Active() {
		return out
	}
	inputs := m.args(in)
	for i := range inputs {
		inputs[i].Array = ChannelsFirst(inputs[i].Array)
	}
	given := ChannelsFirst(out)
	r := m.points.Pass(m.id, given, inputs)
	if r == given {
		return out
	}
	return ChannelsLast(r)
}

// args are the inputs that are not nil, with their keys.
func (m *Module) args(in []*mlx.Array) []hooks.Arg {
	keys := strings.Fields(cmp.Or(m.in, "0"))
	if len(in) > len(keys) || m.in != "" && len(in) < len(keys) {
		panic(fmt.Sprintf("nn: module %s is tapped with %d inputs, but declares %d: %q", m.id.Name, len(in), len(keys), keys))
	}
	out := make([]hooks.Arg, 0, len(in)) // a copy, so that in stays off the heap
	for i, x := range in {
		if x != nil {
			out = append(out, hooks.Arg{Key: keys[i], Array: x})
		}
	}
	return out
}

// ChannelsFirst moves the last axis to the second place: [N, H, W, C] to
// [N, C, H, W].
func ChannelsFirst(x *mlx.Array) *mlx.Array {
	axes := []int{0, x.Ndim() - 1}
	for i := 1; i < x.Ndim()-1; i++ {
		axes = append(axes, i)
	}
	return x.Transpose(axes...)
}

// ChannelsLast is the inverse of [ChannelsFirst].
func ChannelsLast(x *mlx.Array) *mlx.Array {
	axes := []int{0}
	for i := 2; i < x.Ndim(); i++ {
		axes = append(axes, i)
	}
	return x.Transpose(append(axes, 1)...)
}

// A Param is one tensor of a checkpoint. The array is nil until it is loaded.
type Param struct {
	*mlx.Array
	shape  []int
	other  string // another name in checkpoints
	frames string // see Last and Sum
	kind   Kind
	packed *mlx.Quantized // with the array and its scales, nil if it is not quantized

	decodes bool // see Decodes
}

// A Kind is the role of a parameter in its module.
type Kind int

const (
	OtherParam      Kind = iota
	LinearWeight         // [out, in], of a linear layer
	EmbeddingWeight      // [n, dim], a table of rows
)

// NewParam declares a tensor with its shape in the checkpoint. The zero Param, which
// has no shape, is one that the model does not have.
func NewParam(shape ...int) Param { return Param{shape: shape} }

// Or adds another name, from the model's root, that a checkpoint may have the tensor
// under.
func (p Param) Or(name string) Param {
	p.other = name
	return p
}

// Last keeps only the last slice of the third axis, without the axis.
func (p Param) Last() Param {
	p.frames = "last"
	return p
}

// Sum keeps only the sum of the slices of the third axis, without the axis, in the dtype of the computations: it has more
// bits than the slices. It is the weight of a causal 3-D convolution of a single frame before which there are copies of it.
func (p Param) Sum() Param {
	p.frames = "sum"
	return p
}

// of sets the kind of the parameter.
func (p Param) of(kind Kind) Param {
	p.kind = kind
	return p
}

// Quantization returns how the parameter is quantized in memory, nil if it is not.
func (p *Param) Quantization() *mlx.Quantization {
	if p.packed == nil {
		return nil
	}
	return &p.packed.Quantization
}

// Arrays returns the arrays of the parameter: nil before it is loaded, several if it
// is quantized.
func (p *Param) Arrays() []*mlx.Array {
	switch {
	case p.Array == nil:
		return nil
	case p.packed != nil:
		return p.packed.Arrays()
	}
	return []*mlx.Array{p.Array}
}

// Free frees the parameter's memory. It can be loaded again.
func (p *Param) Free() {
	for _, a := range p.Arrays() {
		a.Free()
	}
	p.Array, p.packed = nil, nil
}

// used reports the use of the parameter to the watcher.
func (p *Param) used() {
	if watcher != nil && p.Array != nil {
		watcher(p.Array)
	}
}

// As returns the parameter in another dtype. Parameters stay in memory in the dtype
// that they are stored in if it is smaller, and are cast, or dequantized, right
// before their use.
func (p *Param) As(dtype mlx.Dtype) *mlx.Array {
	p.used()
	if p.packed != nil {
		return p.packed.Dequantize(dtype)
	}
	return p.AsType(dtype)
}

// TakeRows returns rows of the parameter in a dtype.
func (p *Param) TakeRows(rows []int32, dtype mlx.Dtype) *mlx.Array {
	p.used()
	if p.packed != nil {
		return p.packed.TakeRows(rows).Dequantize(dtype)
	}
	return p.Array.TakeRows(rows).AsType(dtype)
}

// Gather returns rows of the parameter in a dtype; see [mlx.Array.Gather].
func (p *Param) Gather(indices *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	p.used()
	if p.packed != nil {
		return p.packed.Gather(indices).Dequantize(dtype)
	}
	return p.Array.Gather(indices).AsType(dtype)
}

// watcher is called with each parameter that is used. It belongs to the MLX thread.
var watcher func(*mlx.Array)

// Watch calls f with every parameter that a forward pass uses, until stop. Both
// must be called on the MLX thread.
func Watch(f func(*mlx.Array)) (stop func()) {
	outer := watcher
	watcher = f
	return func() { watcher = outer }
}
