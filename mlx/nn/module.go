// Package nn holds the parts that models are built of. A model is a tree of
// structs whose field tags are the checkpoint's names:
//
//	type FeedForward struct {
//		nn.Module
//		W1 nn.Linear `w:"w1"`
//		W2 nn.Linear `w:"w2"`
//	}
//
// One loader ([Load]) fills any such tree, and every module in it knows its
// own path, under which hooks see it.
package nn

import (
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// A Module is embedded in every part of a model that diffusers has as a
// torch.nn.Module. [Load] or [Bind] tells it where it is.
type Module struct {
	path   string
	points *hooks.Points
}

// Path is the module's name, from the component down
// (vae.decoder.mid_block.resnets.0).
func (m *Module) Path() string { return m.path }

func (m *Module) bind(path string, points *hooks.Points) { m.path, m.points = path, points }

// Observed says whether a hook is looking, for what is only made to be seen, and
// for modules whose outputs must then be computed by themselves.
func (m *Module) Observed() bool { return m.points.Active() }

// Tap passes a module's output by the hook, and returns it or what the hook
// put in its place. Every Forward ends in it. The inputs are those that the
// reference's module gets as its first positional ones.
func (m *Module) Tap(out *mlx.Array, in ...*mlx.Array) *mlx.Array {
	if !m.points.Active() {
		return out
	}
	return m.points.Pass(m.path, out, args("", in))
}

// TapKeys is Tap where the reference's module gets its inputs in other
// positions or as keywords: one key for each, with spaces between.
func (m *Module) TapKeys(keys string, out *mlx.Array, in ...*mlx.Array) *mlx.Array {
	if !m.points.Active() {
		return out
	}
	return m.points.Pass(m.path, out, args(keys, in))
}

// TapFurther passes an output behind a module's first by the hook, under its
// position. It comes before Tap.
func (m *Module) TapFurther(position string, out *mlx.Array) *mlx.Array {
	if !m.points.Active() {
		return out
	}
	return m.points.Further(m.path, position, out)
}

// TapImage is Tap for arrays with channels last ([N, H, W, C] or [N, L, C]),
// which hooks see with channels first, as in diffusers.
func (m *Module) TapImage(out *mlx.Array, in ...*mlx.Array) *mlx.Array {
	if !m.points.Active() {
		return out
	}
	inputs := args("", in)
	for i := range inputs {
		inputs[i].Array = ChannelsFirst(inputs[i].Array)
	}
	given := ChannelsFirst(out)
	r := m.points.Pass(m.path, given, inputs)
	if r == given {
		return out
	}
	return ChannelsLast(r)
}

// args gives inputs their keys, which are their positions where none are given.
func args(keys string, in []*mlx.Array) []hooks.Arg {
	words := strings.Fields(keys)
	out := make([]hooks.Arg, len(in)) // a copy, so that in stays off the heap
	for i, x := range in {
		out[i] = hooks.Arg{Key: strconv.Itoa(i), Array: x}
		if keys != "" {
			out[i].Key = words[i]
		}
	}
	return out
}

// ChannelsFirst moves the last axis behind the first: [N, H, W, C] to
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

// What a config may ask for. Real models stay far below; a damaged config must
// not make a program declare a model larger than memory.
const (
	MaxLayers = 1000
	MaxDim    = 1 << 20
)

// A Param is one tensor of a checkpoint. The array is nil until it is loaded.
type Param struct {
	*mlx.Array
	shape  []int
	other  string
	last   bool
	kind   Kind
	packed *mlx.Quantized // of which the array is a part; nil for one that is not quantized
}

// A Kind is what a parameter is to its module.
type Kind int

const (
	OtherParam      Kind = iota
	LinearWeight         // [out, in], of a linear layer
	EmbeddingWeight      // [n, dim], of which rows are taken
)

// NewParam declares a tensor with the shape that it has in the checkpoint.
// A Param without a shape (the zero Param) is one that the model does not have.
func NewParam(shape ...int) Param { return Param{shape: shape} }

// Or says under what other name, from the model's root, a checkpoint may have
// the tensor instead.
func (p Param) Or(name string) Param {
	p.other = name
	return p
}

// Last says that of the third axis only the last slice is kept, without the axis.
func (p Param) Last() Param {
	p.last = true
	return p
}

// of says what the parameter is to its module.
func (p Param) of(kind Kind) Param {
	p.kind = kind
	return p
}

// Quantization is how the parameter is stored in memory, nil for plain numbers.
func (p *Param) Quantization() *mlx.Quantization {
	if p.packed == nil {
		return nil
	}
	return &p.packed.Quantization
}

// Arrays are those that the parameter is in; none before it is loaded.
func (p *Param) Arrays() []*mlx.Array {
	switch {
	case p.Array == nil:
		return nil
	case p.packed != nil:
		return p.packed.Arrays()
	}
	return []*mlx.Array{p.Array}
}

// Free frees the parameter, which can be loaded again.
func (p *Param) Free() {
	for _, a := range p.Arrays() {
		a.Free()
	}
	p.Array, p.packed = nil, nil
}

// used tells the watcher.
func (p *Param) used() {
	if watcher != nil {
		watcher(p.Array)
	}
}

// As is the parameter in another dtype. Parameters stay in memory as small as
// they are stored, and are cast right before their use; those that are quantized
// are unpacked.
func (p *Param) As(dtype mlx.Dtype) *mlx.Array {
	p.used()
	if p.packed != nil {
		return p.packed.Dequantize(dtype)
	}
	return p.AsType(dtype)
}

// TakeRows selects rows of the parameter by number, in a dtype.
func (p *Param) TakeRows(rows []int32, dtype mlx.Dtype) *mlx.Array {
	p.used()
	if p.packed != nil {
		return p.packed.TakeRows(rows).Dequantize(dtype)
	}
	return p.Array.TakeRows(rows).AsType(dtype)
}

// watcher is told of the parameters that are used. It belongs to the MLX
// thread.
var watcher func(*mlx.Array)

// Watch calls f with every parameter that a forward pass uses, until stop. Both
// must be called on the MLX thread.
func Watch(f func(*mlx.Array)) (stop func()) {
	outer := watcher
	watcher = f
	return func() { watcher = outer }
}
