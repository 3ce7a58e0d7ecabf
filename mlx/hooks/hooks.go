// Package hooks is the contract between a model and those who look inside it
// while it runs: every module's output passes one call that can observe,
// replace or stop.
package hooks

import (
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/gomflux/gomflux/mlx"
)

// A Tap is one tensor at the moment it was made. Its arrays are lazy, in
// diffusers' layout (channels first) whatever the layout inside, and live
// until the hook returns.
type Tap struct {
	// Name is the module path that diffusers' named_modules() gives, after the
	// component's name (transformer.layers.3.attention.to_out.0), or the name
	// of a value of the pipeline (latents).
	Name string
	// Step is the 0-based evaluation of the denoising model, or -1 outside the
	// loop.
	Step int
	// Call counts the module's calls, from 0, within the step or, outside the
	// loop, within the run. Those for the negative prompt come after the others.
	Call int
	// Negative marks the pass for the negative prompt under guidance.
	Negative bool
	// Point is which tensor of the call this is.
	Point Point
	// Output is the tensor, whatever its point: what the module returned, or an
	// inner value. (Those whose Point is OnRequest cost nothing until they are
	// evaluated.)
	Output *mlx.Array
	// Inputs are what the module was called with, together with its output.
	Inputs []Arg
}

// An Arg is an input of a module, with the reference's key: its position in
// the call there, or its keyword.
type Arg struct {
	Key string
	*mlx.Array
}

// FullName is the tensor's name in files.
func (t Tap) FullName() string { return Name{t.Name, t.Step, t.Call, t.Point}.String() }

// All yields a tap for each input, and then the tap itself. Inputs can be
// looked at and not replaced.
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

// Entropy is the tap of the entropy of attention's weights, in nats, [B, H, L],
// of a tap of those weights, which it evaluates. No module passes it by itself.
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

// A Func looks at a tap, on the MLX thread. A returned array takes the
// output's place; it must have its shape and dtype. An error ends the run.
//
// A module's inner values come first, then its further outputs, and its first
// output, with its inputs, last: modules inside a module come before it.
type Func func(Tap) (replacement *mlx.Array, err error)

// Points is where one loaded pipeline asks for its hook. The zero value has
// none and costs a nil check per module.
type Points struct {
	Func     Func
	Step     int
	Negative bool

	calls map[string]calls
}

// calls are a module's finished calls within a step.
type calls struct{ step, n int }

// Active says whether a hook is looking, so that nothing may be compiled over.
func (p *Points) Active() bool { return p != nil && p.Func != nil }

// Value passes a value of the pipeline.
func (p *Points) Value(name string, x *mlx.Array) *mlx.Array {
	if !p.Active() {
		return x
	}
	return p.Pass(name, x, nil)
}

// Pass calls the hook, which must be active, at the end of a module's call. It
// returns the output or its replacement.
func (p *Points) Pass(name string, out *mlx.Array, in []Arg) *mlx.Array {
	call := p.call(name)
	if p.calls == nil {
		p.calls = map[string]calls{}
	}
	p.calls[name] = calls{p.Step, call + 1}
	return p.pass(Tap{Name: name, Step: p.Step, Call: call, Negative: p.Negative, Inputs: in, Output: out})
}

// Inner calls the hook, which must be active, with an inner value of a module
// whose call has not ended.
func (p *Points) Inner(name, key string, x *mlx.Array) *mlx.Array {
	return p.pass(Tap{Name: name, Step: p.Step, Call: p.call(name), Negative: p.Negative, Point: Point{Inner, key}, Output: x})
}

// Further calls the hook, which must be active, with an output of a module behind
// its first, whose call [Points.Pass] then ends. The key is its position.
func (p *Points) Further(name, key string, x *mlx.Array) *mlx.Array {
	return p.pass(Tap{Name: name, Step: p.Step, Call: p.call(name), Negative: p.Negative, Point: Point{Output, key}, Output: x})
}

// call is the number of the module's current call.
func (p *Points) call(name string) int {
	if c := p.calls[name]; c.step == p.Step {
		return c.n
	}
	return 0
}

func (p *Points) pass(t Tap) *mlx.Array {
	r, err := p.Func(t)
	if err != nil {
		mlx.Throw(fmt.Errorf("%s: %w", t.FullName(), err))
	}
	if r == nil {
		return t.Output
	}
	if !slices.Equal(r.Shape(), t.Output.Shape()) || r.Dtype() != t.Output.Dtype() {
		mlx.Throw(fmt.Errorf("%s: replacement is %v, expected %v", t.FullName(), r, t.Output))
	}
	return r
}
