package gomflux

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
)

// A Tensor is an array of a run, or one that takes the place of one. Those of a [Tap]
// are computed when their elements are asked for, and are good until the hook
// returns.
type Tensor interface {
	Shape() []int
	Dtype() Dtype
	// Float32s are the elements, converted to float32.
	Float32s() []float32
}

// NewTensor returns a tensor with elements of a dtype, converted from float32.
func NewTensor(dtype Dtype, shape []int, elements []float32) Tensor {
	return hostTensor{dtype, shape, elements}
}

// A hostTensor has its elements in the program's own memory.
type hostTensor struct {
	dtype    Dtype
	shape    []int
	elements []float32
}

func (t hostTensor) Shape() []int        { return t.shape }
func (t hostTensor) Dtype() Dtype        { return t.dtype }
func (t hostTensor) Float32s() []float32 { return t.elements }

// An arrayTensor is an array of MLX. Array is for this module's own command, which
// saves tensors without converting them.
type arrayTensor struct{ a *mlx.Array }

func (t arrayTensor) Shape() []int      { return t.a.Shape() }
func (t arrayTensor) Dtype() Dtype      { return Dtype(t.a.Dtype().String()) }
func (t arrayTensor) Array() *mlx.Array { return t.a }

func (t arrayTensor) Float32s() (elements []float32) {
	mlx.Scope(func() *mlx.Array {
		elements = t.a.AsType(mlx.Float32).Floats()
		return nil
	})
	return elements
}

// array is a tensor as MLX has it. It must run on the MLX thread.
func array(t Tensor) (*mlx.Array, error) {
	if own, ok := t.(interface{ Array() *mlx.Array }); ok {
		return own.Array(), nil
	}
	dtype, err := mlx.ParseDtype(string(t.Dtype()))
	if err != nil {
		return nil, err
	}
	n := 1
	for _, d := range t.Shape() {
		n *= d
	}
	elements := t.Float32s()
	if n != len(elements) {
		return nil, fmt.Errorf("%d elements for a tensor of shape %v, expected %d", len(elements), t.Shape(), n)
	}
	return mlx.FromFloat32(elements, t.Shape()...).AsType(dtype), nil
}

// A TapKind is what a [Tap] is of a module.
type TapKind string

const (
	OutputTap TapKind = "output" // what the module returned
	InnerTap  TapKind = "inner"  // a value inside of it, such as the queries of attention
)

// A Tap is one tensor at the moment it was made, in diffusers' layout.
type Tap struct {
	// Name is the module path that diffusers' named_modules() gives, after the
	// component's name (transformer.layers.3.attention.to_out.0), or the name of a
	// value of the pipeline (latents).
	Name string
	// Step is the evaluation of the denoising model, from 0, or -1 outside the loop.
	Step int
	// Call counts the module's calls, from 0, within the step or, outside the loop,
	// within the run. Those for the negative prompt come after the others.
	Call int
	// Negative marks the pass for the negative prompt under guidance.
	Negative bool
	// Kind is which tensor of the call this is, with its Key: of an inner value its
	// name, and of an output its position, "" for the first.
	Kind TapKind
	Key  string
	// FullName is the tensor's name in files.
	FullName string

	Output Tensor
	// Inputs are what the module was called with, together with its first output.
	Inputs []TapInput
}

// A TapInput is an input of a module, with the reference's key: its position in the
// call there, or its keyword.
type TapInput struct {
	Key string
	Tensor
}

// A Hook sees every module's output and may replace it: a tensor that it returns
// takes the output's place, and must have its shape and dtype. nil leaves it as it
// is. An error ends the run and is returned. A hook runs on the thread of MLX and
// must not use the model.
type Hook func(Tap) (Tensor, error)

// internal makes a hook one of the engine's.
func (h Hook) internal() hooks.Func {
	if h == nil {
		return nil
	}
	return func(t hooks.Tap) (*mlx.Array, error) {
		replaced, err := h(newTap(t))
		if err != nil || replaced == nil {
			return nil, err
		}
		return array(replaced)
	}
}

func newTap(t hooks.Tap) Tap {
	tap := Tap{
		Name: t.Name, Step: t.Step, Call: t.Call, Negative: t.Negative, Kind: OutputTap, Key: t.Point.Key,
		FullName: t.FullName(), Output: arrayTensor{t.Output},
	}
	if t.Point.Kind == hooks.Inner {
		tap.Kind = InnerTap
	}
	for _, in := range t.Inputs {
		tap.Inputs = append(tap.Inputs, TapInput{in.Key, arrayTensor{in.Array}})
	}
	return tap
}

// Values are values of a run that are known before it. They take the place of what
// would be computed, and what only leads to those is neither run nor loaded. Their
// names are prompt.input_ids, prompt.embeds and so on, negative.*, sigmas, timesteps,
// latents.init, latents.start, latents.image, noise_pred, latents and vae.decode.in.
type Values interface {
	// Has reports whether a value is given, at an evaluation of the model for
	// noise_pred and latents, and at -1 for the others.
	Has(name string, step int) bool
	// Tensor is the value, with the shape and dtype that a hook sees it with. Latents
	// may also have the shape that diffusers' pipeline takes as its argument latents.
	Tensor(name string, step int) (Tensor, error)
}

// given makes values those of the engine.
type given struct{ Values }

func givenOf(v Values) models.Given {
	if v == nil {
		return nil
	}
	return given{v}
}

func (g given) Array(name string, step int) (*mlx.Array, error) {
	t, err := g.Values.Tensor(name, step)
	if err != nil {
		return nil, err
	}
	return array(t)
}

// Unpacked tells values that want to know which of them had the shape of diffusers'
// argument.
func (g given) Unpacked(name string, step int) {
	if u, ok := g.Values.(models.Unpacker); ok {
		u.Unpacked(name, step)
	}
}
