package mlx

import "github.com/gomflux/gomflux/mlx/internal/mlxc"

// Key returns a random key for a seed. Keys are passed explicitly, since MLX's own global
// key differs from thread to thread.
func Key(seed uint64) *Array {
	return result(func(r *uintptr) int32 { return mlxc.RandomKey(r, seed) })
}

// Normal draws from the standard normal distribution.
func Normal(key *Array, dtype Dtype, shape ...int) *Array {
	dims, n := cInts(shape)
	return result(func(r *uintptr) int32 { return mlxc.RandomNormal(r, dims, n, int32(dtype), 0, 1, key.h(), stream) })
}

// Categorical draws an index of the last axis, which is removed, with probabilities softmax(a). Of a
// key, it is always the same.
func (a *Array) Categorical(key *Array) *Array {
	return result(func(r *uintptr) int32 { return mlxc.RandomCategorical(r, a.h(), -1, key.h(), stream) })
}
