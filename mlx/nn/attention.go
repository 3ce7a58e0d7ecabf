package nn

import (
	"math"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
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

// PaddedCausalAttention is [CausalAttention] where only the first valid tokens
// are seen: those after them, which are padding, see all of them.
func PaddedCausalAttention(q, k, v *mlx.Array, valid int) *mlx.Array {
	n := q.Dim(2)
	if valid == n {
		return CausalAttention(q, k, v)
	}
	k, v = k.Slice(2, 0, valid), v.Slice(2, 0, valid)
	return mlx.Concat(2, CausalAttention(q.Slice(2, 0, valid), k, v), Attention(q.Slice(2, valid, n), k, v))
}

func scale(q *mlx.Array) float32 { return float32(1 / math.Sqrt(float64(q.Dim(-1)))) }

// An Entry says how a module's q, k and v enter attention, and how its
// reference sees that.
type Entry struct {
	Rotate      func(*mlx.Array) *mlx.Array // of q and k; nil if nothing is rotated
	LengthFirst bool                        // the reference's attention takes [B, L, H, D] (diffusers' dispatch_attention_fn)
	Causal      bool
	Keys        int        // how many keys are seen, 0 for all
	Scale       float64    // of q·kᵀ, 0 for 1/√D
	Bias        *mlx.Array // what is added to the scores, nil for nothing

	// Arrange takes the rotated q, k and v to those that the reference's attention
	// gets; nil if it gets them as they are.
	Arrange func(q, k, v *mlx.Array) (*mlx.Array, *mlx.Array, *mlx.Array)
}

// Enter rotates and arranges q, k and v [B, H, L, D], and passes them by the hook:
// before the rotation as q.unrotated and k.unrotated, at the end as q, k and v,
// and what attention will weigh v with as weights.
func (m *Module) Enter(e Entry, q, k, v *mlx.Array) (*mlx.Array, *mlx.Array, *mlx.Array) {
	if !m.points.Active() {
		if e.Rotate != nil {
			q, k = e.Rotate(q), e.Rotate(k)
		}
		if e.Arrange != nil {
			return e.Arrange(q, k, v)
		}
		return q, k, v
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
	if e.Arrange != nil {
		q, k, v = e.Arrange(q, k, v)
	}
	q, k, v = tap(hooks.Q, q), tap(hooks.K, k), tap(hooks.V, v)
	m.points.Inner(m.path, hooks.Weights, e.weights(q, k)) // replacing them would change nothing
	return q, k, v
}

// weights is softmax(q·kᵀ·scale + bias) [B, H, L, L] in float32, of q
// [B, H, L, D] and k [B, H/n, L, D].
func (e Entry) weights(q, k *mlx.Array) *mlx.Array {
	b, h, lq, d, kv, lk := q.Dim(0), q.Dim(1), q.Dim(2), q.Dim(3), k.Dim(1), k.Dim(2)
	if e.Scale == 0 {
		e.Scale = float64(scale(q))
	}
	q = q.AsType(mlx.Float32).Times(e.Scale).Reshape(b, kv, h/kv, lq, d)
	k = k.AsType(mlx.Float32).Reshape(b, kv, 1, lk, d)
	scores := q.Matmul(k.Transpose(0, 1, 2, 4, 3)).Reshape(b, h, lq, lk)
	if e.Bias != nil {
		scores = scores.Add(e.Bias.AsType(mlx.Float32))
	}
	index := func(n int) *mlx.Array { return mlx.Arange(0, float64(n), 1, mlx.Float32) }
	hidden := mlx.Scalar(math.Inf(-1), mlx.Float32)
	if e.Causal {
		scores = mlx.Where(index(lq).Reshape(lq, 1).GreaterEqual(index(lk)), scores, hidden)
	}
	if e.Keys > 0 {
		scores = mlx.Where(index(lk).Less(mlx.Scalar(float64(e.Keys), mlx.Float32)), scores, hidden)
	}
	return scores.Softmax()
}
