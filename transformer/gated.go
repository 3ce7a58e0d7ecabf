package transformer

import (
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// gatedAttention is attention of one stream with grouped queries, norms of heads, and an output
// that is multiplied by the sigmoid of a projection of the input, as Krea2Attention has it.
// Consecutive heads of the queries share a head of keys and values.
type gatedAttention struct {
	nn.Module `in:"0 image_rotary_emb.0 image_rotary_emb.1"`
	ToQ       *nn.Linear   `w:"to_q"`
	ToK       *nn.Linear   `w:"to_k"`
	ToV       *nn.Linear   `w:"to_v"`
	ToGate    *nn.Linear   `w:"to_gate"`
	NormQ     *nn.RMSNorm  `w:"norm_q"`
	NormK     *nn.RMSNorm  `w:"norm_k"`
	ToOut     []*nn.Linear `w:"to_out"`

	QKVGate        nn.Stack
	heads, kvHeads int
}

// newGatedAttention declares the attention of a stream of dim features. norm declares the norm of
// a head.
func newGatedAttention(dim, heads, kvHeads int, norm func(dim int) *nn.RMSNorm) *gatedAttention {
	head := dim / heads
	a := &gatedAttention{
		ToQ: nn.NewLinear(dim, dim, false), ToK: nn.NewLinear(dim, kvHeads*head, false),
		ToV: nn.NewLinear(dim, kvHeads*head, false), ToGate: nn.NewLinear(dim, dim, false),
		NormQ: norm(head), NormK: norm(head), ToOut: []*nn.Linear{nn.NewLinear(dim, dim, false)},
		heads: heads, kvHeads: kvHeads,
	}
	a.QKVGate = nn.NewStack(a.ToQ, a.ToK, a.ToV, a.ToGate)
	return a
}

// Forward takes x [B, L, dim]. It rotates queries and keys unless j has no table. The result may be
// wide: see [nn.Linear.ForwardWide].
func (a *gatedAttention) Forward(x *mlx.Array, j joint) *mlx.Array {
	projected := a.QKVGate.Forward(x)
	h := a.NormRope(j.rope, a.heads, nn.NewQKV(projected, a.NormQ, a.NormK))
	if a.Observed() { // the reference repeats keys and values before its attention function
		n := a.heads / a.kvHeads
		h = nn.QKVHeads{Q: h.Q, K: repeatHeads(h.K, n), V: repeatHeads(h.V, n)}
	}
	gate := projected[3].Array().Sigmoid()
	y := nn.WidenFP16(j.attend(&a.Module, h)).Mul(nn.WidenFP16(gate))
	return a.Tap(a.ToOut[0].ForwardWide(y, x.Dtype()), x, j.emb[0], j.emb[1])
}

// repeatHeads repeats each head of x [B, L, H, D] n times.
func repeatHeads(x *mlx.Array, n int) *mlx.Array {
	if n == 1 {
		return x
	}
	b, l, h, d := x.Dim(0), x.Dim(1), x.Dim(2), x.Dim(3)
	return x.ExpandDims(3).BroadcastTo(b, l, h, n, d).Reshape(b, l, h*n, d)
}

// gatedFeedForward is a feed-forward down(silu(gate x)·up x), as Krea2SwiGLU has it.
type gatedFeedForward struct {
	nn.Module
	Gate *nn.Linear `w:"gate"`
	Up   *nn.Linear `w:"up"`
	Down *nn.Linear `w:"down"`
}

func newGatedFeedForward(dim, hidden int) *gatedFeedForward {
	return &gatedFeedForward{
		Gate: nn.NewLinear(dim, hidden, false), Up: nn.NewLinear(dim, hidden, false), Down: nn.NewLinear(hidden, dim, false),
	}
}

// Forward may return a wide result: see [nn.Linear.ForwardWide].
func (f *gatedFeedForward) Forward(x *mlx.Array) *mlx.Array {
	y := nn.WideSwiGLU(nil, mlx.AllColumns(f.Gate.Forward(x)), mlx.AllColumns(f.Up.Forward(x)))
	return f.Tap(f.Down.ForwardWide(y, x.Dtype()), x)
}
