package gomflux

import (
	"fmt"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
)

// A Tensor is an array of a run, or one that replaces it. The tensors of a [Tap] are
// computed when Float32s is called, and are valid until the hook returns.
type Tensor interface {
	// Shape returns the size of each axis.
	Shape() []int
	// Dtype returns the type of the elements.
	Dtype() Dtype
	// Float32s returns the elements, converted to float32.
	Float32s() []float32
}

// NewTensor returns a tensor with elements that are converted from float32 to a dtype.
func NewTensor(dtype Dtype, shape []int, elements []float32) Tensor {
	return hostTensor{dtype, shape, elements}
}

// A hostTensor has its elements in a slice.
type hostTensor struct {
	dtype    Dtype
	shape    []int
	elements []float32
}

func (t hostTensor) Shape() []int        { return t.shape }
func (t hostTensor) Dtype() Dtype        { return t.dtype }
func (t hostTensor) Float32s() []float32 { return t.elements }

// An arrayTensor is an MLX array.
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

// An outputTensor is the output of a tap. The method Tap is for this module's command, whose hooks are the engine's.
type outputTensor struct {
	arrayTensor
	tap hooks.Tap
}

func (t outputTensor) Tap() hooks.Tap { return t.tap }

// array returns a tensor as an MLX array. It must run on the MLX thread.
func array(t Tensor) (*mlx.Array, error) {
	if own, ok := t.(interface{ Array() *mlx.Array }); ok {
		return own.Array(), nil
	}
	dtype, err := mlx.ParseDtype(string(t.Dtype()))
	if err != nil {
		return nil, err
	}
	n, elements := checkpoint.Len(t.Shape()), t.Float32s()
	if n != len(elements) {
		return nil, fmt.Errorf("tensor of shape %v: expected %d elements, found %d", t.Shape(), n, len(elements))
	}
	return mlx.FromFloat32(elements, t.Shape()...).AsType(dtype), nil
}

// A TapKind is the kind of a [Tap].
type TapKind string

const (
	OutputTap TapKind = "output" // an output of a module
	InnerTap  TapKind = "inner"  // a value inside a module, such as the queries of attention
)

// A Tap is an output of a module, or a value inside it, in diffusers' layout.
type Tap struct {
	// Name is the name of the component followed by the path of the module in diffusers'
	// named_modules(), such as transformer.layers.3.attention.to_out.0, or the name of a
	// value of the pipeline, such as latents.
	Name string
	// Class is the Go type of the module, or "" for a value of the pipeline.
	Class string
	// Step is the number of the evaluation of the denoising model, from 0. It is -1
	// outside the denoising loop.
	Step int
	// Call is the number of the module's call, from 0, within the step or, outside the
	// denoising loop, within the run. Calls for the negative prompt come last.
	Call int
	// Negative marks the pass for the negative prompt under classifier-free guidance.
	Negative bool
	// Kind is the kind of the tensor.
	Kind TapKind
	// Key is the name of an inner value. For an output it is the position among the
	// outputs, "" for the first.
	Key string
	// FullName is the tensor's name in dumps.
	FullName string

	// Output is the tensor.
	Output Tensor
	// Inputs are the inputs of the module. They are set for its first output.
	Inputs []TapInput

	parameters func() []hooks.Parameter
}

// A TapParameter is a parameter of a module, as checkpoints have it, dequantized.
type TapParameter struct {
	// Path is the name from the module on, such as to_q.weight.
	Path string
	// Bits and GroupSize describe how the parameter is quantized in memory. Bits is 0 for
	// one that is not quantized.
	Bits, GroupSize int
	// Tensor is nil for a parameter that is not in memory.
	Tensor
}

// Parameters returns the parameters of the module and of the modules inside it.
func (t Tap) Parameters() (all []TapParameter) {
	if t.parameters == nil {
		return nil
	}
	for _, p := range t.parameters() {
		param := TapParameter{Path: p.Path}
		if q := p.Quantization; q != nil {
			param.Bits, param.GroupSize = q.Bits, q.Group
		}
		if p.Array != nil {
			param.Tensor = parameterTensor{p}
		}
		all = append(all, param)
	}
	return all
}

// A parameterTensor is a parameter as a tensor.
type parameterTensor struct{ p hooks.Parameter }

func (t parameterTensor) Shape() []int        { return t.p.Shape }
func (t parameterTensor) Dtype() Dtype        { return Dtype(t.p.Dtype.String()) }
func (t parameterTensor) Float32s() []float32 { return arrayTensor{t.p.Array()}.Float32s() }

// A TapInput is an input of a module.
type TapInput struct {
	// Key is the position or the keyword of the argument in the reference's call.
	Key string
	Tensor
}

// A Hook is called with the output of every module. It may return a tensor, which
// replaces the output and must have its shape and dtype, or nil. An error ends the run
// and is returned. A hook runs on the MLX thread and must not use the model.
type Hook func(Tap) (Tensor, error)

// internal converts the hook to one of the engine.
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
		Name: t.Name, Class: t.Class, Step: t.Step, Call: t.Call, Negative: t.Negative, Kind: OutputTap, Key: t.Point.Key,
		FullName: t.FullName(), Output: outputTensor{arrayTensor{t.Output}, t}, parameters: t.Parameters,
	}
	if t.Point.Kind == hooks.Inner {
		tap.Kind = InnerTap
	}
	for _, in := range t.Inputs {
		tap.Inputs = append(tap.Inputs, TapInput{in.Key, arrayTensor{in.Array}})
	}
	return tap
}

// Values are tensors that override computed tensors of a run. Computations whose results
// are not needed then are skipped, and components that only they use are not loaded. The
// names of values are prompt.input_ids, prompt.embeds and so on, negative.*, sigmas,
// timesteps, latents.init, latents.start, latents.image, latents.mask, latents.masked,
// fill.mask, noise_pred, latents and vae.decode.in.
type Values interface {
	// Has reports whether there is a value with a name. step is the number of the
	// evaluation of the model for noise_pred and latents, and -1 for the others.
	Has(name string, step int) bool
	// Tensor returns a value, in the shape and dtype that hooks see. Latents may also
	// have the shape of the argument latents of diffusers' pipeline.
	Tensor(name string, step int) (Tensor, error)
}

// overrides converts Values to those of the engine.
type overrides struct{ Values }

func overridesOf(v Values) models.Overrides {
	if v == nil {
		return nil
	}
	return overrides{v}
}

func (o overrides) Array(name string, step int) (*mlx.Array, error) {
	t, err := o.Values.Tensor(name, step)
	if err != nil {
		return nil, err
	}
	return array(t)
}

// Unpacked reports to Values that implement models.UnpackObserver which of them had the
// shape of diffusers' argument latents.
func (o overrides) Unpacked(name string, step int) {
	if u, ok := o.Values.(models.UnpackObserver); ok {
		u.Unpacked(name, step)
	}
}
