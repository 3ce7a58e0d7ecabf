package nn

import (
	"math"

	"github.com/gomflux/gomflux/hooks"
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

// An Entry says how a module's q, k and v enter attention, and how its
// reference sees that.
type Entry struct {
	Rotate      func(*mlx.Array) *mlx.Array // of q and k; nil if nothing is rotated
	LengthFirst bool                        // the reference's attention takes [B, L, H, D] (diffusers' dispatch_attention_fn)
	Causal      bool
}

// Enter rotates q and k [B, H, L, D], and passes them and v by the hook: before
// the rotation as q.unrotated and k.unrotated, after it as q, k and v, and what
// attention will weigh v with as weights.
func (m *Module) Enter(e Entry, q, k, v *mlx.Array) (*mlx.Array, *mlx.Array, *mlx.Array) {
	if !m.points.Active() {
		if e.Rotate == nil {
			return q, k, v
		}
		return e.Rotate(q), e.Rotate(k), v
	}
	tap := func(key string, x *mlx.Array) *mlx.Array {
		if !e.LengthFirst {
			return m.points.Inner(m.path, key, x)
		}
		given := x.Transpose(0, 2, 1, 3)
		if r := m.points.Inner(m.path, key, given); r != given {
			return r.Transpose(0, 2, 1, 3)
		}
		return x
	}
	if e.Rotate != nil {
		q, k = e.Rotate(tap(hooks.QUnrotated, q)), e.Rotate(tap(hooks.KUnrotated, k))
	}
	q, k, v = tap(hooks.Q, q), tap(hooks.K, k), tap(hooks.V, v)
	m.points.Inner(m.path, hooks.Weights, attentionWeights(q, k, e.Causal)) // replacing them would change nothing
	return q, k, v
}

// attentionWeights is softmax(q·kᵀ/√D) [B, H, L, L] in float32, of q [B, H, L, D] and
// k [B, H/n, L, D].
func attentionWeights(q, k *mlx.Array, causal bool) *mlx.Array {
	b, h, lq, d, kv, lk := q.Dim(0), q.Dim(1), q.Dim(2), q.Dim(3), k.Dim(1), k.Dim(2)
	q = q.AsType(mlx.Float32).Times(float64(scale(q))).Reshape(b, kv, h/kv, lq, d)
	k = k.AsType(mlx.Float32).Reshape(b, kv, 1, lk, d)
	scores := q.Matmul(k.Transpose(0, 1, 2, 4, 3))
	if causal {
		from, to := mlx.Arange(0, float64(lq), 1, mlx.Float32).Reshape(lq, 1), mlx.Arange(0, float64(lk), 1, mlx.Float32).Reshape(1, lk)
		scores = mlx.Where(from.GreaterEqual(to), scores, mlx.Scalar(math.Inf(-1), mlx.Float32))
	}
	return scores.Softmax().Reshape(b, h, lq, lk)
}
