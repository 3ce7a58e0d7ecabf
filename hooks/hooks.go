// Package hooks is the contract between a model and those who look inside it
// while it runs: every module's output passes one call that can observe,
// replace or stop.
package hooks

import (
	"fmt"
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
	// Step is the 0-based denoising step, or -1 outside the loop.
	Step int
	// Negative marks the pass for the negative prompt under guidance.
	Negative bool
	// Inputs are the arrays that the module was called with, Output what it
	// returned.
	Inputs []*mlx.Array
	Output *mlx.Array
}

// A Func looks at a tap, on the MLX thread. A returned array takes the
// output's place; it must have its shape and dtype. An error ends the run.
type Func func(Tap) (replacement *mlx.Array, err error)

// Points is where one loaded pipeline asks for its hook. The zero value has
// none and costs a nil check per module.
type Points struct {
	Func     Func
	Step     int
	Negative bool
}

// Active says whether a hook is looking, so that nothing may be compiled over.
func (p *Points) Active() bool { return p != nil && p.Func != nil }

// Value passes a value of the pipeline.
func (p *Points) Value(name string, x *mlx.Array) *mlx.Array {
	if !p.Active() {
		return x
	}
	return p.Pass(name, x, nil)
}

// Pass calls the hook, which must be active, and returns the output or its
// replacement.
func (p *Points) Pass(name string, out *mlx.Array, in []*mlx.Array) *mlx.Array {
	r, err := p.Func(Tap{Name: name, Step: p.Step, Negative: p.Negative, Inputs: in, Output: out})
	if err != nil {
		mlx.Throw(fmt.Errorf("%s: %w", name, err))
	}
	if r == nil {
		return out
	}
	if !slices.Equal(r.Shape(), out.Shape()) || r.Dtype() != out.Dtype() {
		mlx.Throw(fmt.Errorf("%s: replacement is %v, expected %v", name, r, out))
	}
	return r
}
