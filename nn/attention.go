package nn

import (
	"math"

	"github.com/gomflux/gomflux/mlx"
)

// Heads takes [B, L, H·D] to [B, H, L, D].
func Heads(x *mlx.Array, heads int) *mlx.Array {
	return SplitHeads(x, heads).Transpose(0, 2, 1, 3)
}

// SplitHeads takes [B, L, H·D] to [B, L, H, D].
func SplitHeads(x *mlx.Array, heads int) *mlx.Array {
	s := x.Shape()
	return x.Reshape(s[0], s[1], heads, s[2]/heads)
}

// MergeHeads takes [B, H, L, D] to [B, L, H·D].
func MergeHeads(x *mlx.Array) *mlx.Array {
	s := x.Shape()
	return x.Transpose(0, 2, 1, 3).Reshape(s[0], s[2], s[1]*s[3])
}

// Attention is softmax(q·kᵀ/√D)·v over [B, H, L, D] without a mask.
func Attention(q, k, v *mlx.Array) *mlx.Array {
	return mlx.Attention(q, k, v, scale(q), nil)
}

// CausalAttention is [Attention] where no token sees a later one. k and v may
// have fewer heads, each shared by consecutive heads of q.
func CausalAttention(q, k, v *mlx.Array) *mlx.Array {
	return mlx.CausalAttention(q, k, v, scale(q))
}

func scale(q *mlx.Array) float32 { return float32(1 / math.Sqrt(float64(q.Dim(-1)))) }
