package debug

import (
	"fmt"

	"github.com/gomflux/gomflux/internal/tensors"
	"github.com/gomflux/gomflux/mlx"
)

// dtypes are MLX's types under the names of files.
var dtypes = map[mlx.Dtype]tensors.Dtype{
	mlx.Float64: tensors.F64, mlx.Float32: tensors.F32, mlx.Float16: tensors.F16, mlx.BFloat16: tensors.BF16,
	mlx.Int64: tensors.I64, mlx.Int32: tensors.I32, mlx.Int16: tensors.I16, mlx.Int8: tensors.I8,
	mlx.Uint64: tensors.U64, mlx.Uint32: tensors.U32, mlx.Uint16: tensors.U16, mlx.Uint8: tensors.U8, mlx.Bool: tensors.Bool,
}

// FromArray evaluates an array and copies it to the host as it is. It must run
// on the MLX thread.
func FromArray(name string, a *mlx.Array) (*tensors.Tensor, error) {
	d, ok := dtypes[a.Dtype()]
	if !ok {
		return nil, fmt.Errorf("tensor %s: %v cannot be saved", name, a.Dtype())
	}
	return tensors.New(name, d, a.Shape(), a.Bytes())
}

// ToArray copies a tensor to MLX as it is. It must run on the MLX thread.
func ToArray(t *tensors.Tensor) (*mlx.Array, error) {
	for m, d := range dtypes {
		if d == t.Dtype {
			return mlx.FromBytes(t.Data, m, append([]int{}, t.Shape...)...), nil
		}
	}
	return nil, fmt.Errorf("tensor %s: MLX has no dtype %s", t.Name, t.Dtype)
}
