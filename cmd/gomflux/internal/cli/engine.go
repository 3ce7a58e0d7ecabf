package cli

import (
	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
)

// An engineTensor is an MLX array that replaces a tensor of a run. Of a tensor with Array gomflux uses nothing else.
type engineTensor struct {
	gomflux.Tensor // nil
	array          *mlx.Array
}

func (t engineTensor) Array() *mlx.Array { return t.array }

// HookOf converts a hook of the engine to one of gomflux.
func HookOf(f hooks.Func) gomflux.Hook {
	return func(t gomflux.Tap) (gomflux.Tensor, error) {
		replaced, err := f(t.Output.(interface{ Tap() hooks.Tap }).Tap())
		if err != nil || replaced == nil {
			return nil, err
		}
		return engineTensor{array: replaced}, nil
	}
}

// EngineValues are replacement values of the engine, as gomflux takes them.
type EngineValues struct{ models.Overrides }

func (v EngineValues) Tensor(name string, step int) (gomflux.Tensor, error) {
	a, err := v.Array(name, step)
	if err != nil {
		return nil, err
	}
	return engineTensor{array: a}, nil
}

func (v EngineValues) Unpacked(name string, step int) {
	if u, ok := v.Overrides.(models.UnpackObserver); ok {
		u.Unpacked(name, step)
	}
}
