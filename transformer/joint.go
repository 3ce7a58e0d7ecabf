package transformer

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Parts of the transformers with joint attention over a text and an image
// stream (MM-DiT, Esser et al. 2024).

// timeProj is diffusers' Timesteps. Its work is done on the host, so that the
// time is an input of a compiled forward pass.
type timeProj struct{ nn.Module }

// Forward takes the sinusoids [1, 256] and returns them in dtype.
func (t *timeProj) Forward(sinusoids *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	return t.Tap(sinusoids).AsType(dtype)
}

// timestepEmbedding is TimestepEmbedding.
type timestepEmbedding struct {
	nn.Module
	Linear1 nn.Linear `w:"linear_1"`
	Act     *nn.SiLU  `w:"act"`
	Linear2 nn.Linear `w:"linear_2"`
}

func newTimestepEmbedding(in, dim int, bias bool) *timestepEmbedding {
	return &timestepEmbedding{Linear1: nn.NewLinear(in, dim, bias), Act: &nn.SiLU{}, Linear2: nn.NewLinear(dim, dim, bias)}
}

func (t *timestepEmbedding) Forward(x *mlx.Array) *mlx.Array {
	return t.Tap(t.Linear2.Forward(t.Act.Forward(t.Linear1.Forward(x))), x)
}

// textProjection is PixArtAlphaTextProjection, which is a TimestepEmbedding with
// another name for its activation.
type textProjection struct {
	nn.Module
	Linear1 nn.Linear `w:"linear_1"`
	Act1    *nn.SiLU  `w:"act_1"`
	Linear2 nn.Linear `w:"linear_2"`
}

func newTextProjection(in, dim int) *textProjection {
	return &textProjection{Linear1: nn.NewLinear(in, dim, true), Act1: &nn.SiLU{}, Linear2: nn.NewLinear(dim, dim, true)}
}

func (t *textProjection) Forward(x *mlx.Array) *mlx.Array {
	return t.Tap(t.Linear2.Forward(t.Act1.Forward(t.Linear1.Forward(x))), x)
}

// modulate is x·(1+scale) + shift, in the dtype of shift and scale.
func modulate(x, shift, scale *mlx.Array) *mlx.Array {
	return x.Mul(scale.Plus(1)).Add(shift).AsType(shift.Dtype())
}

// A modulation is that of one stream: shift, scale and gate, once or twice.
type modulation struct {
	raw        *mlx.Array // [B, parts·dim]
	references *mlx.Array // the same for tokens of references, nil if they have no other
	where      *mlx.Array // which those are, [1, L, 1]
}

// split gives the parts, [B, 1, dim] or, where references have others, [B, L, dim].
func (m modulation) split(parts int) []*mlx.Array {
	all := m.raw.ExpandDims(1).Split(parts, -1)
	if m.where != nil {
		for i, other := range m.references.ExpandDims(1).Split(parts, -1) {
			all[i] = mlx.Where(m.where, other, all[i])
		}
	}
	return all
}

// seen is the modulation as hooks see it.
func (m modulation) seen() *mlx.Array {
	if m.where == nil {
		return m.raw
	}
	return mlx.Where(m.where, m.references.ExpandDims(1), m.raw.ExpandDims(1))
}

// between is true for rows from start to stop of n: [1, n, 1].
func between(n, start, stop int) *mlx.Array {
	inside := make([]float32, n)
	for i := start; i < stop; i++ {
		inside[i] = 1
	}
	return mlx.FromFloat32(inside, 1, n, 1).Equal(mlx.Scalar(1, mlx.Float32))
}

// endBlock is the second half of a block over two streams, on one of them: it adds
// to x what attention made, and then what the feed-forward makes. The parts of the
// modulation are the gate of one, and shift, scale and gate of the other.
func endBlock(x, attention *mlx.Array, parts []*mlx.Array, norm *nn.LayerNorm, ff nn.Layer) *mlx.Array {
	gateMSA, shift, scale, gate := parts[0], parts[1], parts[2], parts[3]
	x = x.Add(gateMSA.Mul(attention))
	return x.Add(gate.Mul(ff.Forward(modulate(norm.Forward(x), shift, scale))))
}

// adaLayerNormContinuous is AdaLayerNormContinuous with a layer norm.
type adaLayerNormContinuous struct {
	nn.Module
	SiLU   *nn.SiLU      `w:"silu"`
	Linear nn.Linear     `w:"linear"`
	Norm   *nn.LayerNorm `w:"norm"`
}

func newAdaLayerNormContinuous(dim int, eps float64, bias bool) *adaLayerNormContinuous {
	return &adaLayerNormContinuous{SiLU: &nn.SiLU{}, Linear: nn.NewLinear(dim, 2*dim, bias), Norm: nn.NewLayerNorm(eps)}
}

// Forward takes x [B, L, dim] and temb [B, dim].
func (n *adaLayerNormContinuous) Forward(x, temb *mlx.Array) *mlx.Array {
	// scale first, unlike everywhere else
	m := n.Linear.Forward(n.SiLU.Forward(temb)).ExpandDims(1).Split(2, -1)
	return n.Tap(modulate(n.Norm.Forward(x), m[1], m[0]), x, temb)
}

// dropout is torch.nn.Dropout, which does nothing outside training.
type dropout struct{ nn.Module }

func (d *dropout) Forward(x *mlx.Array) *mlx.Array { return d.Tap(x, x) }

// feedForward is FeedForward with activation_fn "gelu-approximate".
type feedForward struct {
	nn.Module
	Net []nn.Layer `w:"net"`

	wide bool // see nn.Widen
}

func newFeedForward(dim, hidden int) *feedForward {
	return &feedForward{Net: []nn.Layer{&geluLinear{Proj: nn.NewLinear(dim, hidden, true)}, &dropout{}, nn.NewLinear(hidden, dim, true)}}
}

func (f *feedForward) Forward(x *mlx.Array) *mlx.Array {
	y := x
	for i, layer := range f.Net {
		if f.wide && i == len(f.Net)-1 {
			y = nn.Widen(y)
		}
		y = layer.Forward(y)
	}
	return f.Tap(y, x)
}

// geluLinear is diffusers' GELU with approximate "tanh".
type geluLinear struct {
	nn.Module
	Proj nn.Linear `w:"proj"`
}

func (g *geluLinear) Forward(x *mlx.Array) *mlx.Array {
	return g.Tap(g.Proj.Forward(x).GELUTanh(), x)
}

// posEmbed is FluxPosEmbed or Flux2PosEmbed, whose tables are computed on the
// host.
type posEmbed struct{ nn.Module }

// Forward passes the table of positions [L, axes] by the hook.
func (p *posEmbed) Forward(rope nn.Rope, positions *mlx.Array) nn.Rope {
	if p.Observed() {
		l, half := rope.Cos.Dim(0), rope.Cos.Dim(1)
		once := func(x *mlx.Array) *mlx.Array { return x.Reshape(l, half, 2).Slice(2, 0, 1).Squeeze(2) }
		rope.Sin = once(p.TapFurther("1", twice(rope.Sin)))
		rope.Cos = once(p.Tap(twice(rope.Cos), positions))
	}
	return rope
}

// twice repeats the columns of a table [L, D/2] one by one, as diffusers' tables
// have them.
func twice(x *mlx.Array) *mlx.Array {
	l, half := x.Dim(0), x.Dim(1)
	return x.ExpandDims(2).BroadcastTo(l, half, 2).Reshape(l, 2*half)
}

// A joint is what the blocks of one pass share: the positions of the joint
// sequence, and how attention goes over it.
type joint struct {
	rope nn.Rope
	emb  [2]*mlx.Array // image_rotary_emb as hooks see it, nil without one
	// attend takes normed q, k and v [B, H, L, D] of a module to [B, H, L, D].
	attend func(m *nn.Module, q, k, v *mlx.Array) *mlx.Array
}

// newJoint is the joint of a sequence in which all see all.
func newJoint(rope nn.Rope) joint {
	return joint{rope: rope, attend: func(m *nn.Module, q, k, v *mlx.Array) *mlx.Array {
		return nn.Attention(m.Enter(rotation(rope), q, k, v))
	}}
}

// newFluxJoint is newJoint for FLUX.1 and FLUX.2, whose blocks are given cos and
// sin. The module is any of the model.
func newFluxJoint(m *nn.Module, rope nn.Rope) joint {
	j := newJoint(rope)
	if m.Observed() {
		j.emb = [2]*mlx.Array{twice(rope.Cos), twice(rope.Sin)}
	}
	return j
}

// rotation is how q and k enter attention.
func rotation(rope nn.Rope) nn.Entry { return nn.Entry{Rotate: rope.Interleaved, LengthFirst: true} }

// jointAttention is FluxAttention, Flux2Attention, and Attention with
// QwenDoubleStreamAttnProcessor2_0. That of a single stream has no projections of
// the text and none of its output.
type jointAttention struct {
	nn.Module
	ToQ        nn.Linear   `w:"to_q"`
	ToK        nn.Linear   `w:"to_k"`
	ToV        nn.Linear   `w:"to_v"`
	NormQ      *nn.RMSNorm `w:"norm_q"`
	NormK      *nn.RMSNorm `w:"norm_k"`
	ToOut      []nn.Layer  `w:"to_out"`
	AddQ       nn.Linear   `w:"add_q_proj"`
	AddK       nn.Linear   `w:"add_k_proj"`
	AddV       nn.Linear   `w:"add_v_proj"`
	NormAddedQ *nn.RMSNorm `w:"norm_added_q"`
	NormAddedK *nn.RMSNorm `w:"norm_added_k"`
	ToAddOut   nn.Linear   `w:"to_add_out"`

	heads int
	wide  bool // see nn.Widen
}

func newSelfAttention(heads, headDim int, bias bool, eps float64) *jointAttention {
	dim := heads * headDim
	return &jointAttention{
		ToQ: nn.NewLinear(dim, dim, bias), ToK: nn.NewLinear(dim, dim, bias), ToV: nn.NewLinear(dim, dim, bias),
		NormQ: nn.NewRMSNorm(headDim, eps), NormK: nn.NewRMSNorm(headDim, eps), heads: heads,
	}
}

func newJointAttention(heads, headDim int, bias bool, eps float64) *jointAttention {
	dim := heads * headDim
	a := newSelfAttention(heads, headDim, bias, eps)
	a.ToOut = []nn.Layer{nn.NewLinear(dim, dim, bias), &dropout{}}
	a.AddQ, a.AddK, a.AddV = nn.NewLinear(dim, dim, bias), nn.NewLinear(dim, dim, bias), nn.NewLinear(dim, dim, bias)
	a.NormAddedQ, a.NormAddedK = nn.NewRMSNorm(headDim, eps), nn.NewRMSNorm(headDim, eps)
	a.ToAddOut = nn.NewLinear(dim, dim, bias)
	return a
}

// Forward takes the image x [B, L, dim] and the text c [B, T, dim] to what
// attention over [c, x] adds to each.
func (a *jointAttention) Forward(x, c *mlx.Array, j joint) (dx, dc *mlx.Array) {
	heads := func(l nn.Linear, x *mlx.Array) *mlx.Array { return nn.SplitHeads(l.Forward(x), a.heads) }
	y := attend(&a.Module, j,
		mlx.Concat(1, a.NormAddedQ.Forward(heads(a.AddQ, c)), a.NormQ.Forward(heads(a.ToQ, x))),
		mlx.Concat(1, a.NormAddedK.Forward(heads(a.AddK, c)), a.NormK.Forward(heads(a.ToK, x))),
		mlx.Concat(1, heads(a.AddV, c), heads(a.ToV, x)))
	if a.wide {
		y = nn.Widen(y)
	}
	t, l := c.Dim(1), y.Dim(1)
	dc = a.TapFurther("1", a.ToAddOut.Forward(y.Slice(1, 0, t)))
	dx = y.Slice(1, t, l)
	for _, layer := range a.ToOut {
		dx = layer.Forward(dx)
	}
	dx = a.TapKeys("hidden_states encoder_hidden_states image_rotary_emb.0 image_rotary_emb.1", dx, x, c, j.emb[0], j.emb[1])
	return dx, dc
}

// ForwardSelf takes one stream [B, L, dim], without an output projection.
func (a *jointAttention) ForwardSelf(x *mlx.Array, j joint) *mlx.Array {
	heads := func(l nn.Linear) *mlx.Array { return nn.SplitHeads(l.Forward(x), a.heads) }
	y := attend(&a.Module, j, a.NormQ.Forward(heads(a.ToQ)), a.NormK.Forward(heads(a.ToK)), heads(a.ToV))
	return a.TapKeys("hidden_states image_rotary_emb.0 image_rotary_emb.1", y, x, j.emb[0], j.emb[1])
}

// attend takes q, k and v [B, L, H, D] of a module to [B, L, H·D].
func attend(m *nn.Module, j joint, q, k, v *mlx.Array) *mlx.Array {
	return nn.MergeHeads(j.attend(m, q.Transpose(0, 2, 1, 3), k.Transpose(0, 2, 1, 3), v.Transpose(0, 2, 1, 3)))
}

// Pack takes latents [B, C, H, W] to tokens [B, H/2·W/2, 4C], one for each 2×2
// patch, with the feature index c·4 + dy·2 + dx.
func Pack(x *mlx.Array) *mlx.Array {
	b, c, h, w := x.Dim(0), x.Dim(1), x.Dim(2)/2, x.Dim(3)/2
	return x.Reshape(b, c, h, 2, w, 2).Transpose(0, 2, 4, 1, 3, 5).Reshape(b, h*w, 4*c)
}

// Unpack is the inverse of [Pack] for h×w patches.
func Unpack(x *mlx.Array, h, w int) *mlx.Array {
	b, c := x.Dim(0), x.Dim(2)/4
	return x.Reshape(b, h, w, c, 2, 2).Transpose(0, 3, 1, 4, 2, 5).Reshape(b, c, 2*h, 2*w)
}

// toBatch repeats x [1, L, D] for a batch of n.
func toBatch(x *mlx.Array, n int) *mlx.Array {
	if x.Dim(0) == n {
		return x
	}
	return x.BroadcastTo(n, x.Dim(1), x.Dim(2))
}

// limitHalf keeps a residual stream in float16 finite, as diffusers does.
func limitHalf(x *mlx.Array) *mlx.Array {
	if x.Dtype() != mlx.Float16 {
		return x
	}
	return x.Clip(-65504, 65504)
}

// outChannels is a config's out_channels, which without one, or as 0, are as many
// as go in.
func outChannels(out *int, in int) int {
	if out == nil || *out == 0 {
		return in
	}
	return *out
}

// validateJoint says what of a joint transformer's config cannot be run.
func validateJoint(heads, headDim, layers, singleLayers int, axes []int, wantAxes int) error {
	sum := 0
	for _, d := range axes {
		if d <= 0 || d%2 != 0 || d > nn.MaxDim {
			return fmt.Errorf("axes_dims_rope %v: must be positive and even", axes)
		}
		sum += d
	}
	switch {
	case heads < 1 || headDim < 1 || heads > nn.MaxDim || headDim > nn.MaxDim || heads*headDim > nn.MaxDim:
		return fmt.Errorf("num_attention_heads %d of attention_head_dim %d: expected a width of 1 to %d", heads, headDim, nn.MaxDim)
	case layers < 0 || layers > nn.MaxLayers || singleLayers < 0 || singleLayers > nn.MaxLayers:
		return fmt.Errorf("num_layers %d and num_single_layers %d: expected 0 to %d", layers, singleLayers, nn.MaxLayers)
	case len(axes) != wantAxes || sum != headDim:
		return fmt.Errorf("axes_dims_rope %v: %d axes must sum to attention_head_dim %d", axes, wantAxes, headDim)
	}
	return nil
}

// appendGrid appends the positions (first, y, x, 0 …) of an image of h×w tokens on
// the given number of axes.
func appendGrid(positions [][]int, h, w, first, axes int) [][]int {
	for y := range h {
		for x := range w {
			p := make([]int, axes)
			p[0], p[1], p[2] = first, y, x
			positions = append(positions, p)
		}
	}
	return positions
}

// positionArray is positions [L, axes] as float32.
func positionArray(positions [][]int) *mlx.Array {
	var flat []float32
	for _, p := range positions {
		for _, v := range p {
			flat = append(flat, float32(v))
		}
	}
	return mlx.FromFloat32(flat, len(positions), len(flat)/max(1, len(positions)))
}
