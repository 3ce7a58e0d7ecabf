// Package hooks lets a function see the tensors inside a model while it runs: the
// outputs of all modules are passed to a hook, which can observe them, replace them or
// stop the run.
package hooks

import (
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/gomflux/gomflux/mlx"
)

// A Tap is a tensor that a model has just computed. Its arrays are lazy, in the layout
// of diffusers (channels first) whatever the model's layout is, and live until the hook
// returns.
type Tap struct {
	// Name is the component's name and the path of the module in diffusers'
	// named_modules() (transformer.layers.3.attention.to_out.0), or the name of a
	// value of the pipeline (latents).
	Name string
	// Class is the Go type of the module, or "" for a value of the pipeline.
	Class string
	// Step is the 0-based evaluation of the denoising model, or -1 outside the
	// loop.
	Step int
	// Call counts the module's calls, from 0, within the step or, outside the loop,
	// within the run. Calls for the negative prompt come after the others.
	Call int
	// Negative reports that the call is for the negative prompt.
	Negative bool
	// Point identifies the tensor within the call.
	Point Point
	// Output is the tensor: an output of the module or an inner value, depending on
	// Point. (A tensor whose Point is OnRequest costs nothing until it is evaluated.)
	Output *mlx.Array
	// Inputs are the inputs of the module. Only the tap of its first output has them.
	Inputs []Arg
	// Parameters lists the parameters of the module and of the modules inside it. It is nil if
	// they are not known.
	Parameters func() []Parameter
}

// A Parameter is a parameter of a module.
type Parameter struct {
	Path  string // from the module on, such as to_q.weight
	Shape []int  // as in the checkpoint
	Dtype mlx.Dtype
	// Quantization describes a parameter that is quantized in memory; nil for others.
	Quantization *mlx.Quantization
	// Array returns the parameter in the layout of diffusers, dequantized. It is nil for a
	// parameter that is not loaded.
	Array func() *mlx.Array
}

// An Arg is an input of a module. Key is its position or keyword in the reference's
// call.
type Arg struct {
	Key string
	*mlx.Array
}

// FullName returns the tensor's name in files.
func (t Tap) FullName() string { return Name{t.Name, t.Step, t.Call, t.Point}.String() }

// All yields a tap for each input, and then the tap itself. Inputs cannot be replaced.
func (t Tap) All() iter.Seq[Tap] {
	return func(yield func(Tap) bool) {
		for _, in := range t.Inputs {
			tap := t
			tap.Point, tap.Output, tap.Inputs = Point{Input, in.Key}, in.Array, nil
			if !yield(tap) {
				return
			}
		}
		yield(t)
	}
}

// Entropy returns a tap with the entropy in nats, [B, H, L], of the attention weights
// that t is a tap of. It evaluates the weights. No module passes the entropy itself.
func (t Tap) Entropy() Tap {
	s := t.Output.Shape()
	n := s[len(s)-1]
	weights := t.Output.Floats()
	rows := make([]float32, len(weights)/max(1, n))
	for i := range rows {
		sum := 0.0
		for _, w := range weights[i*n : (i+1)*n] {
			if w > 0 {
				sum -= float64(w) * math.Log(float64(w))
			}
		}
		rows[i] = float32(sum)
	}
	t.Point.Key, t.Output = Entropy, mlx.FromFloat32(rows, s[:len(s)-1]...)
	return t
}

// A Module is a module whose tensors are passed, or with only a Name a value of the
// pipeline. See [Tap] for the fields.
type Module struct{ Name, Class string }

// A Func is a hook. It is called on the MLX thread. An array that it returns replaces
// the output, whose shape and dtype it must have. An error ends the run.
//
// The inner values of a module come first, then its outputs after the first, and its
// first output, with the inputs, last. Modules inside a module come before it.
type Func func(Tap) (replacement *mlx.Array, err error)

// Chain returns a hook that calls several, in order. Each sees the output as the ones before have
// replaced it.
func Chain(all ...Func) Func {
	if len(all) == 1 {
		return all[0]
	}
	return func(t Tap) (replacement *mlx.Array, err error) {
		for _, f := range all {
			r, err := f(t)
			if err != nil {
				return nil, err
			}
			if r != nil {
				replacement, t.Output = r, r
			}
		}
		return replacement, nil
	}
}

// Points has the hook of a loaded pipeline. The zero value has no hook and costs a nil
// check for each module.
type Points struct {
	Func     Func
	Step     int
	Negative bool
	// Elsewhere reports that another process computes the pass for the prompt, in which each module has one call.
	Elsewhere bool
	// Parameters lists the parameters of the module with a name; see [Tap]. It may be nil.
	Parameters func(module string) []Parameter
	// Forked is called with the results of each operation that has a fused form, while there is a
	// hook. It may be nil.
	Forked func(Fork)
	// Split is set while a model computes tensors of which this process has only a part.
	Split Split

	calls map[string]calls
}

// A Split returns the whole of a tensor of which this process has a part, for a hook, and takes a
// replacement of it back to the part. It returns other tensors as they are.
type Split interface {
	Observe(p Point, x *mlx.Array) (whole *mlx.Array, part func(whole *mlx.Array) *mlx.Array)
}

// A Fork is an operation that was computed in both of its forms: fused, as without a hook, and module
// by module. Its arrays are lazy, and live until the function that gets it returns.
type Fork struct {
	Module
	Operation      string // the function that has both forms
	Step, Call     int    // of the module; see [Tap]
	Fused, Modules []*mlx.Array
}

// calls has the number of a module's finished calls within a step.
type calls struct{ step, n int }

// Active reports whether there is a hook, so that nothing may be compiled.
func (p *Points) Active() bool { return p != nil && p.Func != nil }

// Fork returns what modules returns, which pass their tensors to the hook, which must be active.
// Forked sees it with what fused returns, whose modules do not pass theirs.
func (p *Points) Fork(m Module, operation string, fused, modules func() []*mlx.Array) []*mlx.Array {
	call := p.call(m)
	out := modules()
	if p.Forked != nil {
		hook := p.Func
		defer func() { p.Func = hook }()
		p.Func = nil
		p.Forked(Fork{m, operation, p.Step, call, fused(), out})
	}
	return out
}

// Value passes a value of the pipeline, such as the latents.
func (p *Points) Value(name string, x *mlx.Array) *mlx.Array {
	if !p.Active() {
		return x
	}
	return p.Pass(Module{Name: name}, x, nil)
}

// Pass calls the hook, which must be active, with the first output of a module, which
// ends its call. It returns the output or its replacement.
func (p *Points) Pass(m Module, out *mlx.Array, in []Arg) *mlx.Array {
	call := p.call(m)
	if p.calls == nil {
		p.calls = map[string]calls{}
	}
	p.calls[m.Name] = calls{p.Step, call + 1}
	return p.pass(m, Tap{Call: call, Inputs: in, Output: out})
}

// Inner calls the hook, which must be active, with an inner value of a module before
// its call ends.
func (p *Points) Inner(m Module, key string, x *mlx.Array) *mlx.Array {
	return p.pass(m, Tap{Call: p.call(m), Point: Point{Inner, key}, Output: x})
}

// Further calls the hook, which must be active, with an output of a module after the
// first. [Points.Pass] then ends the call. The key is the position or name.
func (p *Points) Further(m Module, key string, x *mlx.Array) *mlx.Array {
	return p.pass(m, Tap{Call: p.call(m), Point: Point{Output, key}, Output: x})
}

// call returns the number of the module's current call.
func (p *Points) call(m Module) int {
	if c, ok := p.calls[m.Name]; ok && c.step == p.Step {
		return c.n
	}
	if p.Negative && p.Elsewhere && m.Class != "" {
		return 1
	}
	return 0
}

func (p *Points) pass(m Module, t Tap) *mlx.Array {
	t.Name, t.Class, t.Step, t.Negative = m.Name, m.Class, p.Step, p.Negative
	if p.Parameters != nil && m.Class != "" {
		t.Parameters = func() []Parameter { return p.Parameters(m.Name) }
	}
	out, part := t.Output, func(x *mlx.Array) *mlx.Array { return x }
	if p.Split != nil {
		for i, in := range t.Inputs {
			t.Inputs[i].Array, _ = p.Split.Observe(Point{Input, in.Key}, in.Array)
		}
		t.Output, part = p.Split.Observe(t.Point, t.Output)
	}
	r, err := p.Func(t)
	if err != nil {
		mlx.Throw(fmt.Errorf("%s: %w", t.FullName(), err))
	}
	if r == nil {
		return out
	}
	if !slices.Equal(r.Shape(), t.Output.Shape()) || r.Dtype() != t.Output.Dtype() {
		mlx.Throw(fmt.Errorf("%s: replacement is %v, expected %v", t.FullName(), r, t.Output))
	}
	return part(r)
}
