package mlx

import "github.com/gomflux/gomflux/mlx/internal/mlxc"

// Key makes a random key of a seed. Keys are always passed on: MLX's own
// hidden key differs from thread to thread.
func Key(seed uint64) *Array {
	var r uintptr
	check(mlxc.RandomKey(&r, seed))
	return wrap(r)
}

// Normal draws from the standard normal distribution.
func Normal(key *Array, dtype Dtype, shape ...int) *Array {
	var r uintptr
	dims, n := cInts(shape)
	check(mlxc.RandomNormal(&r, dims, n, int32(dtype), 0, 1, key.h(), stream))
	return wrap(r)
}
