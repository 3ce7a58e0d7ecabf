package runs

import (
	"fmt"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// FromArray evaluates an array and copies it to the host, with its dtype. It must run on the MLX
// thread.
func FromArray(name string, a *mlx.Array) (*checkpoint.Array, error) {
	d, ok := nn.FileDtype(a.Dtype())
	if !ok {
		return nil, fmt.Errorf("tensor %s: %v cannot be saved", name, a.Dtype())
	}
	return checkpoint.NewArray(name, d, a.Shape(), a.Bytes())
}

// ToArray copies a tensor to MLX, with its dtype. It must run on the MLX thread.
func ToArray(t *checkpoint.Array) (*mlx.Array, error) {
	if d, ok := nn.DtypeOf(t.Dtype); ok {
		return mlx.FromBytes(t.Data, d, append([]int{}, t.Shape...)...), nil
	}
	return nil, fmt.Errorf("tensor %s: MLX has no dtype %s", t.Name, t.Dtype)
}
