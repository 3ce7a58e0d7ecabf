package tuning

import (
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// A block computes what a block of a diffusion transformer does: attention and SwiGLU, each with an
// adaptive norm and a gate. In float16 its residual stream is wide, as theirs are: see
// [nn.Linear.ForwardWide].
type block struct {
	heads                 int
	dtype                 mlx.Dtype
	qkv, up               *mlx.Array // weights
	out, down             *nn.Linear
	scale, shift, gate    *mlx.Array // [1, 1, width], in the dtype of the residual stream
	normQ, normK          *mlx.Array // [headSize]
	cos, sin              *mlx.Array // [tokens, headSize/2]
	width, hidden, tokens int
}

func newBlock(d dimensions, dtype mlx.Dtype, tokens int) *block {
	b := &block{heads: d.width / d.headSize, dtype: dtype, width: d.width, hidden: d.hidden, tokens: tokens}
	b.qkv, b.up = weight(dtype, 3*d.width, d.width), weight(dtype, 2*d.hidden, d.width)
	b.out, b.down = linear(dtype, d.width, d.width), linear(dtype, d.width, d.hidden)
	wide := nn.WideDtype(dtype)
	b.scale, b.shift, b.gate = normal(wide, 0.1, 1, 1, d.width), normal(wide, 0.1, 1, 1, d.width), normal(wide, 0.1, 1, 1, d.width)
	b.normQ, b.normK = normal(dtype, 1, d.headSize), normal(dtype, 1, d.headSize)
	b.cos, b.sin = table(d, tokens)
	return b
}

func linear(dtype mlx.Dtype, out, in int) *nn.Linear {
	l := nn.NewLinear(in, out, false)
	l.Weight.Array = weight(dtype, out, in)
	return l
}

// table returns the table of a rotary embedding, float32 [tokens, headSize/2] each.
func table(d dimensions, tokens int) (cos, sin *mlx.Array) {
	angles := normal(mlx.Float32, 1, tokens, d.headSize/2)
	cos, sin = angles.Cos(), angles.Sin()
	mlx.Eval(cos, sin)
	return cos, sin
}

// forward takes [1, tokens, width].
func (b *block) forward(x *mlx.Array) *mlx.Array {
	norm := mlx.Norm{Eps: 1e-6, Center: true, Scale: b.scale, Shift: b.shift}
	w, x := b.width, nn.WidenFP16(x)
	qkv := norm.Apply(x).AsType(b.dtype).Matmul(b.qkv.T())
	q, k := mlx.NormRope(mlx.QK{}, mlx.QK{Q: mlx.Columns{X: qkv, Size: w}, K: mlx.Columns{X: qkv, From: w, Size: w},
		NormQ: b.normQ, NormK: b.normK, Eps: 1e-6}, b.heads, mlx.RopeTable{Cos: b.cos, Sin: b.sin})
	v := qkv.Slice(2, 2*w, 3*w).Reshape(1, b.tokens, b.heads, w/b.heads)
	heads := func(x *mlx.Array) *mlx.Array { return x.Transpose(0, 2, 1, 3) }
	y := mlx.Attention(heads(q), heads(k), heads(v), 0.1, nil)
	x, y = norm.AddThenApply(x, b.gate, b.out.ForwardWide(heads(y).Reshape(1, b.tokens, w), b.dtype))
	up := y.AsType(b.dtype).Matmul(b.up.T())
	inner := mlx.SwiGLU(nil, mlx.Columns{X: up, Size: b.hidden}, mlx.Columns{X: up, From: b.hidden, Size: b.hidden})
	return mlx.GatedSum(x, b.gate, b.down.ForwardWide(inner, b.dtype))
}

// A replacement is an operation of gomflux, or several that are only used together.
type replacement struct {
	names []string // for mlx.TurnOff
	// prepare makes inputs for a number of tokens, and returns the operation.
	prepare func(d dimensions, tokens int) func() []*mlx.Array
}

// replacements lists all operations of gomflux in place of MLX's.
var replacements = []replacement{
	{[]string{"norm_rope"}, func(d dimensions, tokens int) func() []*mlx.Array {
		w := d.width
		x, norm := normal(d.dtype, 1, 1, tokens, 3*w), normal(d.dtype, 1, d.headSize)
		cos, sin := table(d, tokens)
		qk := mlx.QK{Q: mlx.Columns{X: x, Size: w}, K: mlx.Columns{X: x, From: w, Size: w}, NormQ: norm, NormK: norm, Eps: 1e-6}
		return func() []*mlx.Array {
			q, k := mlx.NormRope(mlx.QK{}, qk, w/d.headSize, mlx.RopeTable{Cos: cos, Sin: sin})
			return []*mlx.Array{q, k}
		}
	}},
	{[]string{"modulated_norm"}, func(d dimensions, tokens int) func() []*mlx.Array {
		x, vector := normal(d.dtype, 1, 1, tokens, d.width), normal(d.dtype, 0.1, 1, 1, d.width)
		norm := mlx.Norm{Center: true, Eps: 1e-6, Scale: vector, Shift: vector}
		return func() []*mlx.Array { return []*mlx.Array{norm.Apply(x)} }
	}},
	{[]string{"gated_sum"}, func(d dimensions, tokens int) func() []*mlx.Array {
		x, gate := normal(d.dtype, 1, 1, tokens, d.width), normal(d.dtype, 0.1, 1, 1, d.width)
		return func() []*mlx.Array { return []*mlx.Array{mlx.GatedSum(x, gate, x)} }
	}},
	{[]string{"activation"}, swiGLU},
	{[]string{"group_apply", "group_factors", "group_statistics"}, groupNorm},
	{[]string{"bias_sum"}, func(d dimensions, tokens int) func() []*mlx.Array {
		x, bias := normal(d.dtype, 1, 1, tokens, d.width), normal(d.dtype, 1, d.width)
		return func() []*mlx.Array { return []*mlx.Array{mlx.AddBias(x, bias, x)} }
	}},
	{[]string{"upsample"}, func(d dimensions, tokens int) func() []*mlx.Array {
		x := normal(d.dtype, 1, 1, d.pixels, d.pixels*tokens/d.tokens[0]/2, d.channels)
		return func() []*mlx.Array { return []*mlx.Array{mlx.Upsample(x)} }
	}},
	{[]string{"dequantize"}, func(d dimensions, tokens int) func() []*mlx.Array {
		q := normal(d.dtype, 1, 3*tokens, d.width).Quantize(mlx.Quantization{Mode: "affine", Bits: 4, Group: 64})
		mlx.Eval(q.Arrays()...)
		return func() []*mlx.Array { return []*mlx.Array{q.Dequantize(d.dtype)} }
	}},
	{[]string{"token_attention"}, func(d dimensions, tokens int) func() []*mlx.Array {
		rows := func(n int) *mlx.Array { return normal(d.dtype, 1, 1, d.width/d.headSize, n, d.headSize) }
		x, cache := rows(1), mlx.TokenCache{Keys: rows(tokens), Values: rows(tokens), Position: mlx.NewPositions(tokens).Slice(0, 0, 1)}
		cache.Tail = mlx.NewTail(x)
		mlx.Eval(cache.Tail, cache.Position)
		return func() []*mlx.Array {
			y, tail := cache.Attend(x, x, x)
			return []*mlx.Array{y, tail}
		}
	}},
	{[]string{"row_product"}, func(d dimensions, _ int) func() []*mlx.Array {
		x, l := normal(d.dtype, 1, 1, 1, d.width), nn.NewLinear(d.width, d.hidden, false)
		l.Weight.Array = normal(d.dtype, 0.02, d.hidden, d.width)
		nn.Decodes(l)
		return func() []*mlx.Array { return []*mlx.Array{l.Forward(x)} }
	}},
	{[]string{"host_rope"}, func(d dimensions, tokens int) func() []*mlx.Array {
		x := normal(d.dtype, 1, 1, d.width/d.headSize, tokens, d.headSize)
		cos, sin := table(d, tokens)
		return func() []*mlx.Array { return []*mlx.Array{mlx.RotatePairs(x, cos, sin)} }
	}},
	{[]string{"host_norms"}, func(d dimensions, tokens int) func() []*mlx.Array {
		x, w := normal(d.dtype, 1, 1, tokens, d.width), normal(d.dtype, 1, d.width)
		return func() []*mlx.Array { return []*mlx.Array{x.RMSNorm(w, 1e-6), x.LayerNorm(nil, nil, 1e-6)} }
	}},
	{[]string{"host_activations"}, swiGLU},
	{[]string{"host_group_norms"}, groupNorm},
}

// groupNorm prepares the group norm of an autoencoder with SiLU after it.
func groupNorm(d dimensions, tokens int) func() []*mlx.Array {
	x := normal(d.dtype, 1, 1, d.pixels, d.pixels*tokens/d.tokens[0], d.channels)
	norm := nn.NewGroupNorm(32, d.channels, 1e-6)
	norm.Weight.Array, norm.Bias.Array = normal(d.dtype, 1, d.channels), normal(d.dtype, 1, d.channels)
	return func() []*mlx.Array { return []*mlx.Array{norm.SiLU(x, nil)} }
}

// swiGLU prepares the activation of a feed-forward layer.
func swiGLU(d dimensions, tokens int) func() []*mlx.Array {
	x := normal(d.dtype, 1, 1, tokens, 2*d.hidden)
	return func() []*mlx.Array {
		return []*mlx.Array{mlx.SwiGLU(nil, mlx.Columns{X: x, Size: d.hidden}, mlx.Columns{X: x, From: d.hidden, Size: d.hidden})}
	}
}
