package textenc

import (
	"math"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// gatedDeltaNet is Qwen3_5GatedDeltaNet, linear attention by the gated delta rule (Gated Delta Networks,
// arXiv 2412.06464). A head has a matrix S instead of keys and values: token t, with decay α and
// learning rate β, replaces what S has for its key, and the query reads S:
//
//	S ← α·S;  S ← S + k⊗β(v - kᵀS);  y = qᵀS
type gatedDeltaNet struct {
	nn.Module `in:"hidden_states"`

	InProjQKV *nn.Linear    `w:"in_proj_qkv"`
	InProjZ   *nn.Linear    `w:"in_proj_z"`
	InProjB   *nn.Linear    `w:"in_proj_b"`
	InProjA   *nn.Linear    `w:"in_proj_a"`
	Conv      nn.Param      `w:"conv1d.weight"` // [channels, 1, kernel]
	DtBias    nn.Param      `w:"dt_bias"`
	ALog      nn.Param      `w:"A_log"`
	Norm      *gatedRMSNorm `w:"norm"`
	OutProj   *nn.Linear    `w:"out_proj"`

	keyHeads, valueHeads, keyDim, valueDim, kernel int
	layer                                          int // number in the cache
}

func newGatedDeltaNet(c *Qwen35TextConfig, index int) *gatedDeltaNet {
	d := &gatedDeltaNet{
		keyHeads: c.LinearNumKeyHeads, valueHeads: c.LinearNumValueHeads, keyDim: c.LinearKeyHeadDim, valueDim: c.LinearValueHeadDim,
		kernel: c.LinearConvKernelDim, layer: index,
	}
	values := d.valueHeads * d.valueDim
	channels := 2*d.keyHeads*d.keyDim + values
	d.InProjQKV, d.InProjZ = nn.NewLinear(c.HiddenSize, channels, false), nn.NewLinear(c.HiddenSize, values, false)
	d.InProjB, d.InProjA = nn.NewLinear(c.HiddenSize, d.valueHeads, false), nn.NewLinear(c.HiddenSize, d.valueHeads, false)
	d.Conv, d.DtBias, d.ALog = nn.NewParam(channels, 1, d.kernel), nn.NewParam(d.valueHeads), nn.NewParam(d.valueHeads)
	d.Norm = &gatedRMSNorm{Weight: nn.NewParam(d.valueDim), eps: c.RMSNormEps}
	d.OutProj = nn.NewLinear(values, c.HiddenSize, false)
	return d
}

func (d *gatedDeltaNet) Forward(x *mlx.Array, p *pass) *mlx.Array {
	in := x
	if p.real != nil {
		x = x.Mul(p.real.AsType(x.Dtype()))
	}
	b, t, dtype := x.Dim(0), x.Dim(1), x.Dtype()
	var before keptArrays
	if len(p.cache.layers) > 0 {
		before = p.cache.layers[d.layer]
	}
	mixed, inputs := d.convolve(d.InProjQKV.Forward(x), before[0])

	// queries and keys of unit length, each for some consecutive heads of values, [B, heads, T, D] in float32
	keys := d.keyHeads * d.keyDim
	part := func(from, to, heads int) *mlx.Array {
		return nn.Heads(mixed.Slice(2, from, to), heads).AsType(mlx.Float32)
	}
	unit := func(x *mlx.Array) *mlx.Array {
		x = x.Mul(x.Square().Sum(-1).Plus(1e-6).Rsqrt())
		shared := d.valueHeads / d.keyHeads
		return x.ExpandDims(2).BroadcastTo(b, d.keyHeads, shared, t, d.keyDim).Reshape(b, d.valueHeads, t, d.keyDim)
	}
	perToken := func(x *mlx.Array) *mlx.Array { return x.Transpose(0, 2, 1).ExpandDims(3) } // [B, T, heads] to [B, heads, T, 1]
	r := deltaRule{
		q: unit(part(0, keys, d.keyHeads)).Times(1 / math.Sqrt(float64(d.keyDim))),
		k: unit(part(keys, 2*keys, d.keyHeads)),
		v: part(2*keys, mixed.Dim(2), d.valueHeads),
		// the logarithm of the decay, -exp(A)·softplus(a + bias)
		decay: perToken(d.InProjA.Forward(x).AsType(mlx.Float32).Add(d.DtBias.As(mlx.Float32)).Softplus().
			Mul(d.ALog.As(mlx.Float32).Exp().Neg())),
		rate:  perToken(d.InProjB.Forward(x).Sigmoid().AsType(mlx.Float32)),
		state: before[1],
	}
	if r.state == nil {
		r.state = mlx.Zeros(mlx.Float32, b, d.valueHeads, d.keyDim, d.valueDim)
	}
	y := r.run()
	if len(p.cache.layers) > 0 {
		p.cache.layers[d.layer].set(0, inputs, r.state)
		if t > 1 { // or what they are computed from would stay in memory
			mlx.AsyncEval(inputs, r.state)
		}
	}
	y = y.AsType(dtype).Transpose(0, 2, 1, 3).Reshape(-1, d.valueDim)
	y = d.Norm.Forward(y, d.InProjZ.Forward(x).Reshape(-1, d.valueDim))
	return d.Tap(d.OutProj.ForwardWide(y.Reshape(b, t, -1), dtype), in)
}

// stateBytes returns the size of what the cache has of the layer, in a dtype of some bytes.
func (d *gatedDeltaNet) stateBytes(size int) int64 {
	channels := 2*d.keyHeads*d.keyDim + d.valueHeads*d.valueDim
	return int64((d.kernel-1)*channels*size + 4*d.valueHeads*d.keyDim*d.valueDim)
}

// convolve returns the causal convolution of each channel of x [B, T, channels], followed by SiLU, and the
// inputs that the next tokens need, [B, kernel-1, channels]. before has those of earlier tokens, or is nil.
func (d *gatedDeltaNet) convolve(x, before *mlx.Array) (y, inputs *mlx.Array) {
	b, t, channels := x.Dim(0), x.Dim(1), x.Dim(2)
	if before == nil {
		before = mlx.Zeros(x.Dtype(), b, d.kernel-1, channels)
	}
	all := mlx.Concat(1, before, x)
	weight := d.Conv.As(mlx.Float32)
	for i := range d.kernel {
		product := all.Slice(1, i, i+t).AsType(mlx.Float32).Mul(weight.Slice(2, i, i+1).Reshape(channels))
		if i > 0 {
			product = y.Add(product)
		}
		y = product
	}
	return y.SiLU().AsType(x.Dtype()), all.Slice(1, t, t+d.kernel-1).Contiguous()
}

// A deltaRule has the operands of the gated delta rule: q and k [B, heads, T, K], v [B, heads, T, V], the
// logarithm of the decay and the rate [B, heads, T, 1], and the state [B, heads, K, V], which run replaces.
type deltaRule struct{ q, k, v, decay, rate, state *mlx.Array }

// deltaChunk is how many tokens are computed at once.
const deltaChunk = 64

// run returns y [B, heads, T, V] of all tokens.
func (r *deltaRule) run() *mlx.Array {
	t := r.q.Dim(2)
	if t == 1 {
		return r.one()
	}
	var parts []*mlx.Array
	for from := 0; from < t; from += deltaChunk {
		part := func(x *mlx.Array) *mlx.Array { return x.Slice(2, from, min(from+deltaChunk, t)) }
		chunk := deltaRule{part(r.q), part(r.k), part(r.v), part(r.decay), part(r.rate), r.state}
		parts = append(parts, chunk.many())
		r.state = chunk.state
	}
	return mlx.Concat(2, parts...)
}

// one computes a single token.
func (r *deltaRule) one() *mlx.Array {
	s := r.state.Mul(r.decay.Exp())
	delta := r.v.Sub(r.k.Matmul(s)).Mul(r.rate)
	r.state = s.Add(r.k.Transpose(0, 1, 3, 2).Mul(delta))
	return r.q.Matmul(r.state)
}

// many computes a chunk of n tokens with products of matrices (Parallelizing Linear Transformers with the
// Delta Rule, arXiv 2406.06484). The differences δ that the tokens write solve (I + A)·δ = β(v - e^G·kᵀS),
// where G is the cumulative decay, and A has what each token reads of what earlier ones wrote.
func (r *deltaRule) many() *mlx.Array {
	n := r.q.Dim(2)
	index := mlx.Arange(0, float64(n), 1, mlx.Int32)
	row, column := index.Reshape(n, 1), index.Reshape(1, n)
	lower, zero := row.GreaterEqual(column), mlx.Scalar(0, mlx.Float32)

	g := lower.AsType(mlx.Float32).Matmul(r.decay) // [B, heads, n, 1]
	between := g.Sub(g.Transpose(0, 1, 3, 2))
	decay := mlx.Where(lower, between, mlx.Scalar(math.Inf(-1), mlx.Float32)).Exp()
	transposed := r.k.Transpose(0, 1, 3, 2)
	a := mlx.Where(row.Equal(column), zero, r.k.Mul(r.rate).Matmul(transposed).Mul(decay))
	since := g.Exp()
	delta := unitInverse(a, row, column).Matmul(r.v.Sub(r.k.Mul(since).Matmul(r.state)).Mul(r.rate))
	y := r.q.Mul(since).Matmul(r.state).Add(r.q.Matmul(transposed).Mul(decay).Matmul(delta))
	end := g.Slice(2, n-1, n)
	r.state = r.state.Mul(end.Exp()).Add(r.k.Mul(end.Sub(g).Exp()).Transpose(0, 1, 3, 2).Matmul(delta))
	return y
}

// unitInverse is the inverse of I + a, where a is strictly lower triangular. Blocks on the diagonal are
// inverted one size after the other: [1 0; c 1]⁻¹ = [1 0; -c 1]. row and column are the indices of both axes.
func unitInverse(a, row, column *mlx.Array) *mlx.Array {
	n := a.Dim(-1)
	inverse := row.Equal(column).AsType(mlx.Float32)
	for size := 1; size < n; size *= 2 {
		whole, half := mlx.Scalar(float64(2*size), mlx.Int32), mlx.Scalar(float64(size), mlx.Int32)
		blocks := row.FloorDivide(whole).Equal(column.FloorDivide(whole)).
			And(row.Remainder(whole).GreaterEqual(half)).And(column.Remainder(whole).Less(half))
		c := mlx.Where(blocks, a, mlx.Scalar(0, mlx.Float32))
		inverse = inverse.Sub(inverse.Matmul(c).Matmul(inverse))
	}
	return inverse
}

// gatedRMSNorm is Qwen3_5RMSNormGated: norm(x)·silu(z).
type gatedRMSNorm struct {
	nn.Module `in:"0 1"`
	Weight    nn.Param `w:"weight"`

	eps float64
}

func (n *gatedRMSNorm) Forward(x, z *mlx.Array) *mlx.Array {
	y := x.RMSNorm(n.Weight.As(x.Dtype()), float32(n.eps)).AsType(mlx.Float32).Mul(z.AsType(mlx.Float32).SiLU())
	return n.Tap(y.AsType(x.Dtype()), x, z)
}
