package nn

import (
	"cmp"
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
// are seen. The tokens after them, which are padding, see all valid tokens.
func PaddedCausalAttention(q, k, v *mlx.Array, valid int) *mlx.Array {
	n := q.Dim(2)
	if valid == n {
		return CausalAttention(q, k, v)
	}
	k, v = k.Slice(2, 0, valid), v.Slice(2, 0, valid)
	return mlx.Concat(2, CausalAttention(q.Slice(2, 0, valid), k, v), Attention(q.Slice(2, valid, n), k, v))
}

func scale(q *mlx.Array) float32 { return float32(1 / math.Sqrt(float64(q.Dim(-1)))) }

// AttentionOptions describe the attention of a module. The zero value is
// [Attention].
type AttentionOptions struct {
	// Rotate applies the rotary embedding to q and k, [B, H, L, D].
	Rotate func(*mlx.Array) *mlx.Array
	// RotateK, if it is set, applies the rotary embedding to k in place of Rotate.
	RotateK func(*mlx.Array) *mlx.Array
	// Queries, if it is set, multiplies the rotated queries.
	Queries *mlx.Array
	// Scale is the factor of q·kᵀ, 1/√D if it is 0.
	Scale float64
	// Mask, if not nil, is broadcast to the scores [B, H, Lq, Lk]. A boolean mask is
	// true where a query may see a key; any other is added to the scores.
	Mask *mlx.Array
	// Causal hides later keys from queries, which are the last ones, and takes neither Scale nor Mask. Valid limits it to the
	// first keys (see [PaddedCausalAttention]); 0 is no limit.
	Causal bool
	Valid  int
	// First, with Causal, is the number of rows at the start that are padding: no query sees their keys, and
	// their own attention is zero.
	First int
	// Cache, if it is set, gets the rotated keys and the values, and returns those that queries see:
	// the last of them, and more before.
	Cache func(k, v *mlx.Array) (*mlx.Array, *mlx.Array)
	// Shares are those of the tokens: queries are this process's, and see the keys of all. Nil if it has all.
	Shares *Shares
	// Joined, if it is set, is that of [QKVHeads].
	Joined *mlx.Array
	// LengthFirst reports that the reference's attention function takes [B, L, H, D]
	// (diffusers' dispatch_attention_fn), as hooks then see q, k and v.
	LengthFirst bool
}

// A QKV has the projections of some tokens to queries, keys and values, and the norms of the heads of
// the first two.
type QKV struct {
	columns []mlx.Columns
	norms   [2]*RMSNorm
	// HeadsFirst reports that the reference's norms get [B, H, L, D], not [B, L, H, D].
	HeadsFirst bool
}

// NewQKV takes the outputs of a [Stack], [B, L, H·D] each, or fewer heads of keys and values. Without
// rotation, keys and values may be of other tokens than queries.
func NewQKV(columns []mlx.Columns, normQ, normK *RMSNorm) QKV {
	return QKV{columns: columns, norms: [2]*RMSNorm{normQ, normK}}
}

// plain describes queries and keys for [mlx.NormRope], and values for [mlx.NormRopeKV].
func (p QKV) plain() mlx.QK {
	q, k, dtype := p.norms[0], p.norms[1], p.columns[0].X.Dtype()
	return mlx.QK{Q: p.columns[0], K: p.columns[1], V: p.columns[2], NormQ: q.factor(dtype), NormK: k.factor(dtype), Eps: float32(q.Eps)}
}

// QKVHeads are the queries, keys and values of attention, [B, L, H, D], or fewer heads of the latter two.
type QKVHeads struct {
	Q, K, V *mlx.Array
	Joined  *mlx.Array // [B, L, 2·H, D], of which K and V are views; nil if they are no views of one
}

// NormRope returns the heads of a stream, or of two, of which the second follows the first. Queries and keys are normed,
// and rotated by pairs unless the table is empty. A hook sees them as those of m before and after, as diffusers'
// dispatch_attention_fn gets them.
func (m *Module) NormRope(rope Rope, heads int, streams ...QKV) QKVHeads {
	project := func(i int) *mlx.Array {
		parts := make([]*mlx.Array, len(streams))
		for n, s := range streams {
			parts[n] = SplitHeads(s.columns[i].Array(), heads*s.columns[i].Size/s.columns[0].Size)
			switch {
			case i >= len(s.norms):
			case s.HeadsFirst && m.Observed():
				parts[n] = s.norms[i].Forward(parts[n].Transpose(0, 2, 1, 3)).Transpose(0, 2, 1, 3)
			default:
				parts[n] = s.norms[i].Forward(parts[n])
			}
		}
		return mlx.Concat(1, parts...)
	}
	modules := func() []*mlx.Array {
		q, k := project(0).Transpose(0, 2, 1, 3), project(1).Transpose(0, 2, 1, 3)
		if rope.Cos != nil {
			q, k = m.RotateQK(AttentionOptions{Rotate: rope.Interleaved, LengthFirst: true}, q, k)
		}
		return []*mlx.Array{q.Transpose(0, 2, 1, 3), k.Transpose(0, 2, 1, 3)}
	}
	if rope.Cos == nil {
		qk := modules()
		return QKVHeads{Q: qk[0], K: qk[1], V: project(2)}
	}
	normRope := func(f func(text, image mlx.QK, heads int, table mlx.RopeTable) (*mlx.Array, *mlx.Array)) []*mlx.Array {
		var text mlx.QK
		if len(streams) == 2 {
			text = streams[0].plain()
		}
		q, k := f(text, streams[len(streams)-1].plain(), heads, rope.table())
		return []*mlx.Array{q, k}
	}
	if !rope.Shared {
		qk := m.FusedAll("nn.Module.NormRope", func() []*mlx.Array { return normRope(mlx.NormRope) }, modules)
		return QKVHeads{Q: qk[0], K: qk[1], V: project(2)}
	}
	// keys and values in one array, which goes to the other processes as it is
	both := m.FusedAll("nn.Module.NormRope", func() []*mlx.Array { return normRope(mlx.NormRopeKV) }, func() []*mlx.Array {
		qk := modules()
		return []*mlx.Array{qk[0], mlx.Concat(2, qk[1], project(2))}
	})
	kv := both[1].Split(2, 2)
	return QKVHeads{Q: both[0], K: kv[0], V: kv[1], Joined: both[1]}
}

// Attend rotates q and k [B, H, L, D], passes q, k and v by the hook, and returns
// the module's attention [B, H, L, D].
func (m *Module) Attend(o AttentionOptions, q, k, v *mlx.Array) *mlx.Array {
	q, k = m.RotateQK(o, q, k)
	if o.Queries != nil {
		q = q.Mul(o.Queries.AsType(q.Dtype()))
	}
	if o.Cache != nil {
		k, v = o.Cache(k, v)
	}
	if !o.Shares.Alone() {
		if o.Mask != nil && o.Mask.Dim(-2) > 1 {
			o.Mask = o.Shares.Share(-2, o.Mask)
		}
		k, v = o.Shares.KV(k, v, o.Joined, o.Mask != nil || m.Observed())
	}
	return o.attention(m.TapQKV(o, q, k, v))
}

func (o AttentionOptions) attention(q, k, v *mlx.Array) *mlx.Array {
	switch {
	case o.Causal && o.First > 0:
		rest := AttentionOptions{Causal: true, Valid: max(0, o.Valid-o.First)}
		after := func(x *mlx.Array) *mlx.Array { return x.Slice(2, o.First, x.Dim(2)) }
		b, h, d := q.Dim(0), q.Dim(1), v.Dim(3)
		return mlx.Concat(2, mlx.Zeros(q.Dtype(), b, h, o.First, d), rest.attention(after(q), after(k), after(v)))
	case o.Causal && o.Valid > 0:
		return PaddedCausalAttention(q, k, v, o.Valid)
	case o.Causal:
		return CausalAttention(q, k, v)
	}
	mask := o.Mask
	if mask != nil && mask.Dtype() != mlx.Bool {
		mask = mask.AsType(q.Dtype())
	}
	return mlx.Attention(q, k, v, o.scale(q), mask)
}

func (o AttentionOptions) scale(q *mlx.Array) float32 {
	if o.Scale == 0 {
		return scale(q)
	}
	return float32(o.Scale)
}

// RotateQK applies o.Rotate, if it is set, to q and k [B, H, L, D]. The hook sees
// them before as q.unrotated and k.unrotated. [Module.Attend] begins with it.
func (m *Module) RotateQK(o AttentionOptions, q, k *mlx.Array) (*mlx.Array, *mlx.Array) {
	if o.Rotate == nil {
		return q, k
	}
	rotateK := o.Rotate
	if o.RotateK != nil {
		rotateK = o.RotateK
	}
	return o.Rotate(m.tapInner(o, hooks.QUnrotated, q)), rotateK(m.tapInner(o, hooks.KUnrotated, k))
}

// TapQKV passes q, k and v [B, H, L, D] by the hook as attention gets them, and the
// weights that attention will compute from them.
func (m *Module) TapQKV(o AttentionOptions, q, k, v *mlx.Array) (*mlx.Array, *mlx.Array, *mlx.Array) {
	if m.Observed() {
		q, k, v = m.tapInner(o, hooks.Q, q), m.tapInner(o, hooks.K, k), m.tapInner(o, hooks.V, v)
		m.points.Inner(m.id, hooks.Weights, o.weights(q, k)) // replacing them would change nothing
	}
	return q, k, v
}

// tapInner passes x [B, H, L, D] by the hook in the layout of the reference.
func (m *Module) tapInner(o AttentionOptions, key string, x *mlx.Array) *mlx.Array {
	switch {
	case !m.Observed():
		return x
	case !o.LengthFirst:
		return m.points.Inner(m.id, key, x)
	}
	given := x.Transpose(0, 2, 1, 3)
	if r := m.points.Inner(m.id, key, given); r != given {
		return r.Transpose(0, 2, 1, 3)
	}
	return x
}

// weights is softmax(q·kᵀ·scale + mask) [B, H, L, L] in float32, of q
// [B, H, L, D] and k [B, H/n, L, D].
func (o AttentionOptions) weights(q, k *mlx.Array) *mlx.Array {
	b, h, lq, d, kv, lk := q.Dim(0), q.Dim(1), q.Dim(2), q.Dim(3), k.Dim(1), k.Dim(2)
	factor := cmp.Or(o.Scale, float64(scale(q)))
	q = q.AsType(mlx.Float32).Times(factor).Reshape(b, kv, h/kv, lq, d)
	k = k.AsType(mlx.Float32).Reshape(b, kv, 1, lk, d)
	scores := q.Matmul(k.Transpose(0, 1, 2, 4, 3)).Reshape(b, h, lq, lk)
	index := func(n int) *mlx.Array { return mlx.Arange(0, float64(n), 1, mlx.Float32) }
	hidden := mlx.Scalar(math.Inf(-1), mlx.Float32)
	switch {
	case o.Mask == nil:
	case o.Mask.Dtype() == mlx.Bool:
		scores = mlx.Where(o.Mask, scores, hidden)
	default:
		scores = scores.Add(o.Mask.AsType(mlx.Float32))
	}
	if o.Causal {
		scores = mlx.Where(index(lq).Plus(float64(lk-lq)).Reshape(lq, 1).GreaterEqual(index(lk)), scores, hidden)
	}
	if o.Valid > 0 {
		scores = mlx.Where(index(lk).Less(mlx.Scalar(float64(o.Valid), mlx.Float32)), scores, hidden)
	}
	if o.First > 0 {
		keys := index(lk).GreaterEqual(mlx.Scalar(float64(o.First), mlx.Float32))
		none := index(lq).Less(mlx.Scalar(float64(o.First), mlx.Float32)).Reshape(lq, 1)
		seen := mlx.Where(keys.Or(none), scores, hidden).LazySoftmax() // a softmax of nothing is no number
		return mlx.Where(none, mlx.Scalar(0, mlx.Float32), seen)
	}
	return scores.LazySoftmax()
}
