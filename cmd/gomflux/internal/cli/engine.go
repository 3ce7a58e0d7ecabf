package cli

import (
	"fmt"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
)

// An engineTensor is an MLX array as a tensor of gomflux, without a copy.
type engineTensor struct{ array *mlx.Array }

func (t engineTensor) Shape() []int         { return t.array.Shape() }
func (t engineTensor) Dtype() gomflux.Dtype { return gomflux.Dtype(t.array.Dtype().String()) }
func (t engineTensor) Array() *mlx.Array    { return t.array }

func (t engineTensor) Float32s() (elements []float32) {
	mlx.Scope(func() *mlx.Array {
		elements = t.array.AsType(mlx.Float32).Floats()
		return nil
	})
	return elements
}

// arrayOf returns the array of a tensor that a hook gets.
func arrayOf(t gomflux.Tensor) (*mlx.Array, error) {
	if has, ok := t.(interface{ Array() *mlx.Array }); ok {
		return has.Array(), nil
	}
	return nil, fmt.Errorf("tensor of shape %v is not an MLX array", t.Shape())
}

// HookOf converts a hook of the engine to one of gomflux.
func HookOf(f hooks.Func) gomflux.Hook {
	return func(t gomflux.Tap) (gomflux.Tensor, error) {
		tap, err := engineTap(t)
		if err != nil {
			return nil, err
		}
		replaced, err := f(tap)
		if err != nil || replaced == nil {
			return nil, err
		}
		return engineTensor{replaced}, nil
	}
}

// engineTap converts a tap of gomflux to one of the engine.
func engineTap(t gomflux.Tap) (tap hooks.Tap, err error) {
	tap = hooks.Tap{
		Name: t.Name, Class: t.Class, Step: t.Step, Call: t.Call, Negative: t.Negative, Point: hooks.Point{Key: t.Key},
	}
	if t.Kind == gomflux.InnerTap {
		tap.Point.Kind = hooks.Inner
	}
	tap.Parameters = func() (all []hooks.Parameter) {
		for _, p := range t.Parameters() {
			found := hooks.Parameter{Path: p.Path}
			if has, ok := p.Tensor.(interface{ Parameter() hooks.Parameter }); ok {
				found = has.Parameter()
			}
			all = append(all, found)
		}
		return all
	}
	if tap.Output, err = arrayOf(t.Output); err != nil {
		return tap, err
	}
	for _, in := range t.Inputs {
		a, err := arrayOf(in.Tensor)
		if err != nil {
			return tap, err
		}
		tap.Inputs = append(tap.Inputs, hooks.Arg{Key: in.Key, Array: a})
	}
	return tap, nil
}

// EngineValues are replacement values of the engine, as gomflux takes them.
type EngineValues struct{ models.Overrides }

func (v EngineValues) Tensor(name string, step int) (gomflux.Tensor, error) {
	a, err := v.Array(name, step)
	if err != nil {
		return nil, err
	}
	return engineTensor{a}, nil
}

func (v EngineValues) Unpacked(name string, step int) {
	if u, ok := v.Overrides.(models.UnpackObserver); ok {
		u.Unpacked(name, step)
	}
}
