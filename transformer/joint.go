package transformer

import (
	"cmp"
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Parts of the transformers with joint attention over a text and an image
// stream (MM-DiT, Esser et al. 2024).

// timeProj is diffusers' Timesteps. The sinusoids are computed on the host, so that they
// are an input of a compiled forward pass.
type timeProj struct{ nn.Module }

// Forward takes the sinusoids [1, 256] and returns them in dtype.
func (t *timeProj) Forward(sinusoids *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	return t.Tap(sinusoids).AsType(dtype)
}

// timestepEmbedding is TimestepEmbedding or, with other names for its activation, PixArtAlphaTextProjection and
// CosmosTimestepEmbedding.
type timestepEmbedding struct {
	nn.Module
	Linear1    *nn.Linear `w:"linear_1"`
	Act        *nn.SiLU   `w:"act"`
	Act1       *nn.SiLU   `w:"act_1"`
	Activation *nn.SiLU   `w:"activation"`
	Linear2    *nn.Linear `w:"linear_2"`
}

func newTimestepEmbedding(in, dim int, bias bool) *timestepEmbedding {
	return &timestepEmbedding{Linear1: nn.NewLinear(in, dim, bias), Act: &nn.SiLU{}, Linear2: nn.NewLinear(dim, dim, bias)}
}

func (t *timestepEmbedding) Forward(x *mlx.Array) *mlx.Array {
	return t.Tap(t.Linear2.Forward(cmp.Or(t.Act, t.Act1, t.Activation).Forward(t.Linear1.Forward(x))), x)
}

// A modulation has the shift, scale and gate of adaptive layer norm: each is
// [B, 1, dim], or [B, L, dim] if tokens differ in them. The shift may be nil.
type modulation struct{ Shift, Scale, Gate *mlx.Array }

// A norm is nn.LayerNorm or nn.RMSNorm.
type norm interface {
	nn.Layer
	Plain(dtype mlx.Dtype, scale, shift *mlx.Array) mlx.Norm
	Fused(operation string, fused, modules func() *mlx.Array) *mlx.Array
	FusedAll(operation string, fused, modules func() []*mlx.Array) []*mlx.Array
}

// as returns the modulation in the dtype of a stream, which may be wider: see
// [nn.WidenFP16]. Fused operations take arrays of one dtype.
func (m modulation) as(dtype mlx.Dtype) modulation {
	for _, a := range []**mlx.Array{&m.Shift, &m.Scale, &m.Gate} {
		if *a != nil {
			*a = (*a).AsType(dtype)
		}
	}
	return m
}

// norm is n(x)·(1+scale) + shift, in the dtype of the modulation.
func (m modulation) norm(n norm, x *mlx.Array) *mlx.Array {
	dtype, m := m.Scale.Dtype(), m.as(x.Dtype())
	return n.Fused("modulation.norm",
		func() *mlx.Array { return n.Plain(x.Dtype(), m.Scale, m.Shift).Apply(x) },
		func() *mlx.Array { return mlx.Modulate(n.Forward(x), m.Scale, m.Shift) }).AsType(dtype)
}

// add is x + gate·dx, in the dtype of x.
func (m modulation) add(x, dx *mlx.Array) *mlx.Array {
	return mlx.GatedSum(x, m.Gate.AsType(x.Dtype()), dx)
}

// addThenNorm returns sum = x + gate·dx, and the norm of sum with another modulation.
func (m modulation) addThenNorm(x, dx *mlx.Array, n norm, next modulation) (sum, y *mlx.Array) {
	out := n.FusedAll("modulation.addThenNorm", func() []*mlx.Array {
		next := next.as(x.Dtype())
		sum, y := n.Plain(x.Dtype(), next.Scale, next.Shift).AddThenApply(x, m.Gate.AsType(x.Dtype()), dx)
		return []*mlx.Array{sum, y}
	}, func() []*mlx.Array {
		sum := m.add(x, dx)
		return []*mlx.Array{sum, next.norm(n, sum)}
	})
	return out[0], out[1].AsType(next.Scale.Dtype())
}

// normThenAdd is x + gate·n(dx).
func (m modulation) normThenAdd(x *mlx.Array, n norm, dx *mlx.Array) *mlx.Array {
	return n.Fused("modulation.normThenAdd",
		func() *mlx.Array { return n.Plain(dx.Dtype(), nil, nil).ApplyThenAdd(x, m.Gate.AsType(x.Dtype()), dx) },
		func() *mlx.Array { return m.add(x, n.Forward(dx)) })
}

// splitModulations splits a projection [B, 3n·dim] of a time embedding.
func splitModulations(x *mlx.Array, n int) []modulation {
	parts := x.ExpandDims(1).Split(3*n, -1)
	all := make([]modulation, n)
	for i := range all {
		all[i] = modulation{Shift: parts[3*i], Scale: parts[3*i+1], Gate: parts[3*i+2]}
	}
	return all
}

// A streamModulation is the projection of the time embedding for one stream. Tokens
// of reference images may have the projection of another time.
type streamModulation struct {
	all         *mlx.Array // [B, 3n·dim]
	references  *mlx.Array // for the tokens of reference images; nil if all is for these too
	isReference *mlx.Array // [1, L, 1], true for these tokens
	tapped      *mlx.Array // the projection in the form that diffusers' blocks get

	parts []modulation // what split returns, where all blocks have the same; else nil
}

// forAllBlocks splits the projection once for all blocks, which have n modulations each.
func (s streamModulation) forAllBlocks(n int) streamModulation {
	s.parts = s.split(n)
	return s
}

// withReferences sets another projection for the tokens where isReference is true.
func (s streamModulation) withReferences(references, isReference *mlx.Array, observed bool) streamModulation {
	s.references, s.isReference = references, isReference
	if observed {
		s.tapped = mlx.Where(isReference, references.ExpandDims(1), s.all.ExpandDims(1))
	}
	return s
}

// split returns the n modulations of a block.
func (s streamModulation) split(n int) []modulation {
	if s.parts != nil {
		return s.parts
	}
	all := splitModulations(s.all, n)
	if s.isReference == nil {
		return all
	}
	for i, r := range splitModulations(s.references, n) {
		where := func(r, other *mlx.Array) *mlx.Array { return mlx.Where(s.isReference, r, other) }
		all[i] = modulation{where(r.Shift, all[i].Shift), where(r.Scale, all[i].Scale), where(r.Gate, all[i].Gate)}
	}
	return all
}

// attentionAndMLP splits [B, 6·dim].
func (s streamModulation) attentionAndMLP() (attn, mlp modulation) {
	both := s.split(2)
	return both[0], both[1]
}

// between is true for rows from start to stop of n: [1, n, 1].
func between(n, start, stop int) *mlx.Array {
	inside := make([]float32, n)
	for i := start; i < stop; i++ {
		inside[i] = 1
	}
	return mlx.FromFloat32(inside, 1, n, 1).Equal(mlx.Scalar(1, mlx.Float32))
}

// adaLayerNormContinuous is AdaLayerNormContinuous with a layer norm, ErnieImageAdaLNContinuous, which has no activation, or
// Flux3AdaLayerNorm.
type adaLayerNormContinuous struct {
	nn.Module `in:"0 1"`
	SiLU      *nn.SiLU      `w:"silu"`
	Act       *nn.SiLU      `w:"act_fn"`
	Linear    *nn.Linear    `w:"linear"`
	Norm      *nn.LayerNorm `w:"norm"`
}

func newAdaLayerNormContinuous(dim int, eps float64, bias bool) *adaLayerNormContinuous {
	return &adaLayerNormContinuous{SiLU: &nn.SiLU{}, Linear: nn.NewLinear(dim, 2*dim, bias), Norm: nn.NewLayerNorm(eps)}
}

// Forward takes x [B, L, dim] and the time of the step, whose embedding may be that of each token, [B, L, dim].
func (n *adaLayerNormContinuous) Forward(x *mlx.Array, t stepTime) *mlx.Array {
	all := t.projectSiLU(cmp.Or(n.SiLU, n.Act), n.Linear)
	if all.Ndim() == 2 {
		all = all.ExpandDims(1)
	}
	parts := all.Split(2, -1)
	m := modulation{Scale: parts[0], Shift: parts[1]} // the scale first, unlike everywhere else
	return n.Tap(m.norm(n.Norm, x), x, t.temb)
}

// dropout is torch.nn.Dropout, which does nothing outside training.
type dropout struct{ nn.Module }

func (d *dropout) Forward(x *mlx.Array) *mlx.Array { return d.Tap(x, x) }

// feedForward is FeedForward with GELU. Its output may be wide: see [nn.Linear.ForwardWide].
type feedForward struct {
	nn.Module
	Net []nn.Layer `w:"net"`
}

// newFeedForward declares one with activation_fn "gelu-approximate".
func newFeedForward(dim, hidden int) *feedForward {
	return &feedForward{Net: []nn.Layer{&geluLinear{Proj: nn.NewLinear(dim, hidden, true)}, &dropout{}, nn.NewLinear(hidden, dim, true)}}
}

// newPlainFeedForward declares one with activation_fn "gelu" and without biases.
func newPlainFeedForward(dim, hidden int) *feedForward {
	return &feedForward{Net: []nn.Layer{
		&geluLinear{Proj: nn.NewLinear(dim, hidden, false), exact: true}, &dropout{}, nn.NewLinear(hidden, dim, false),
	}}
}

func (f *feedForward) Forward(x *mlx.Array) *mlx.Array {
	y, last := x, len(f.Net)-1
	for _, layer := range f.Net[:last] {
		y = layer.Forward(y)
	}
	return f.Tap(f.Net[last].(*nn.Linear).ForwardWide(y, x.Dtype()), x)
}

// geluLinear is diffusers' GELU, with approximate "tanh" unless it is exact.
type geluLinear struct {
	nn.Module
	Proj *nn.Linear `w:"proj"`

	exact bool
}

func (g *geluLinear) Forward(x *mlx.Array) *mlx.Array {
	y := g.Proj.Forward(x)
	if g.exact {
		return g.Tap(mlx.GEGLU(mlx.AllColumns(y), mlx.Columns{}), x)
	}
	return g.Tap(mlx.ConcatGELU(nil, mlx.AllColumns(y)), x)
}

// posEmbed is FluxPosEmbed or Flux2PosEmbed, whose tables are computed on the host.
type posEmbed struct{ nn.Module }

// Forward passes the table of positions [L, axes] through the hook.
func (p *posEmbed) Forward(rope nn.Rope, positions *mlx.Array) nn.Rope {
	if p.Observed() {
		l, half := rope.Cos.Dim(0), rope.Cos.Dim(1)
		once := func(x *mlx.Array) *mlx.Array { return x.Reshape(l, half, 2).Slice(2, 0, 1).Squeeze(2) }
		cos, sin := p.Tap2(repeatInterleave(rope.Cos), repeatInterleave(rope.Sin), positions)
		rope = nn.Rope{Cos: once(cos), Sin: once(sin)}
	}
	return rope
}

// repeatInterleave repeats each column of a table [L, D/2], as torch's
// repeat_interleave(2, dim=1) does: diffusers' tables are [L, D].
func repeatInterleave(x *mlx.Array) *mlx.Array {
	l, half := x.Dim(0), x.Dim(1)
	return x.ExpandDims(2).BroadcastTo(l, half, 2).Reshape(l, 2*half)
}

// A joint describes attention over the joint sequence [text, image], which all
// blocks of a pass share.
type joint struct {
	rope nn.Rope
	mask *mlx.Array // see nn.AttentionOptions; nil if every token sees all others
	// shares are those of the joint sequence, whose rows the table has; nil if this process has all.
	shares *nn.Shares
	joined *mlx.Array    // that of nn.QKVHeads, of the attention that is computed
	emb    [2]*mlx.Array // image_rotary_emb as the reference's blocks get it; nil unless observed

	kv    *flux2KV // the KV cache of FLUX.2's references, nil without one
	layer int      // the block's index in it
}

// newFluxJoint describes attention for FLUX.1 and FLUX.2, whose blocks get cos and
// sin. The module is any of the model.
func newFluxJoint(m *nn.Module, rope nn.Rope) joint {
	j := joint{rope: rope}
	if m.Observed() {
		j.emb = [2]*mlx.Array{repeatInterleave(rope.Cos), repeatInterleave(rope.Sin)}
	}
	return j
}

// over returns attention for the shares of a sequence, of all of which j is.
func (j joint) over(s *nn.Shares) joint {
	j.rope, j.shares = s.Rope(j.rope), s
	s.Keep(j.emb[:]...)
	return j
}

// shared has the group over which the tokens of a sequence are split.
type shared struct{ group *mlx.Group }

// SplitOver makes forward passes compute this process's share of the tokens, as all members of the group
// do at the same time. Their output is whole.
func (s *shared) SplitOver(g *mlx.Group) { s.group = g }

// shareOf returns this process's share of the hidden states of all tokens. The text is the first stream.
func (h Hidden) shareOf(s *nn.Shares) Hidden {
	return Hidden{Text: textOf(s).Share(1, h.Text), Image: imageOf(s).Share(1, h.Image)}
}

func textOf(s *nn.Shares) *nn.Shares  { return s.Streams(0, 1) }
func imageOf(s *nn.Shares) *nn.Shares { return s.Streams(1, s.Len()) }

// attend returns the attention [B, L, H·D] of a module with normed and rotated heads.
func (j joint) attend(m *nn.Module, h nn.QKVHeads) *mlx.Array {
	q, k, v := h.Q.Transpose(0, 2, 1, 3), h.K.Transpose(0, 2, 1, 3), h.V.Transpose(0, 2, 1, 3)
	j.joined = h.Joined
	if j.kv != nil {
		return nn.MergeHeads(j.kv.attend(m, j, q, k, v))
	}
	return nn.MergeHeads(m.Attend(j.options(), q, k, v))
}

func (j joint) options() nn.AttentionOptions {
	return nn.AttentionOptions{LengthFirst: true, Mask: j.mask, Shares: j.shares, Joined: j.joined}
}

// selfAttention has the parts of diffusers' Attention over one sequence, with norms of heads.
type selfAttention struct {
	ToQ   *nn.Linear  `w:"to_q"`
	ToK   *nn.Linear  `w:"to_k"`
	ToV   *nn.Linear  `w:"to_v"`
	NormQ *nn.RMSNorm `w:"norm_q"`
	NormK *nn.RMSNorm `w:"norm_k"`
	ToOut []nn.Layer  `w:"to_out"` // a linear layer and its dropout, if there is one; none where another layer follows

	QKV   nn.Stack
	heads int
}

// newSelfAttention declares attention without an output projection.
func newSelfAttention(heads, headDim int, bias bool, eps float64) selfAttention {
	linear := func() *nn.Linear { return nn.NewLinear(heads*headDim, heads*headDim, bias) }
	a := selfAttention{
		ToQ: linear(), ToK: linear(), ToV: linear(), NormQ: nn.NewRMSNorm(headDim, eps), NormK: nn.NewRMSNorm(headDim, eps), heads: heads,
	}
	a.QKV = nn.NewStack(a.ToQ, a.ToK, a.ToV)
	return a
}

// withOut adds an output projection, and other layers after it.
func (a selfAttention) withOut(bias bool, others ...nn.Layer) selfAttention {
	a.ToOut = append([]nn.Layer{nn.NewLinear(a.ToQ.Out(), a.ToQ.Out(), bias)}, others...)
	return a
}

// forward is the attention of module m to x [B, L, dim], whose projections are qkv. The result may be wide: see
// [nn.Linear.ForwardWide].
func (a *selfAttention) forward(m *nn.Module, x *mlx.Array, qkv []mlx.Columns, j joint) *mlx.Array {
	return a.out(j.attend(m, m.NormRope(j.rope, a.heads, nn.NewQKV(qkv, a.NormQ, a.NormK))), x.Dtype())
}

// out projects the output y of attention, if it has a projection, to a result that may be wide for dtype.
func (a *selfAttention) out(y *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	for i, layer := range a.ToOut {
		if i == 0 {
			y = layer.(*nn.Linear).ForwardWide(y, dtype)
		} else {
			y = layer.Forward(y)
		}
	}
	return y
}

// jointAttention is FluxAttention, Flux2Attention, and Attention with
// QwenDoubleStreamAttnProcessor2_0.
type jointAttention struct {
	nn.Module     `in:"hidden_states encoder_hidden_states image_rotary_emb.0 image_rotary_emb.1"`
	selfAttention `w:"."`
	AddQ          *nn.Linear  `w:"add_q_proj"`
	AddK          *nn.Linear  `w:"add_k_proj"`
	AddV          *nn.Linear  `w:"add_v_proj"`
	NormAddedQ    *nn.RMSNorm `w:"norm_added_q"`
	NormAddedK    *nn.RMSNorm `w:"norm_added_k"`
	ToAddOut      *nn.Linear  `w:"to_add_out"`

	AddQKV nn.Stack
}

func newJointAttention(heads, headDim int, bias bool, eps float64) *jointAttention {
	added := newSelfAttention(heads, headDim, bias, eps)
	return &jointAttention{
		selfAttention: newSelfAttention(heads, headDim, bias, eps).withOut(bias, &dropout{}),
		AddQ:          added.ToQ, AddK: added.ToK, AddV: added.ToV, NormAddedQ: added.NormQ, NormAddedK: added.NormK,
		ToAddOut: nn.NewLinear(heads*headDim, heads*headDim, bias), AddQKV: added.QKV,
	}
}

// Forward returns what attention over [c, x] adds to the image x [B, L, dim] and to
// the text c [B, T, dim]. Both may be wide: see [nn.Linear.ForwardWide].
func (a *jointAttention) Forward(x, c *mlx.Array, j joint) (dx, dc *mlx.Array) {
	h := a.NormRope(j.rope, a.heads,
		nn.NewQKV(a.AddQKV.Forward(c), a.NormAddedQ, a.NormAddedK), nn.NewQKV(a.QKV.Forward(x), a.NormQ, a.NormK))
	y := j.attend(&a.Module, h)
	t, l := c.Dim(1), y.Dim(1)
	dc = a.ToAddOut.ForwardWide(y.Slice(1, 0, t), c.Dtype())
	dx = a.out(y.Slice(1, t, l), x.Dtype())
	return a.Tap2(dx, dc, x, c, j.emb[0], j.emb[1])
}

// parallelAttention is FluxAttention and Flux3Attention over one stream, whose projections are computed together with
// those of a feed-forward.
type parallelAttention struct {
	nn.Module     `in:"hidden_states encoder_hidden_states image_rotary_emb.0 image_rotary_emb.1"`
	selfAttention `w:"."`
}

func newParallelAttention(a selfAttention) *parallelAttention {
	a.QKV = nn.Stack{} // the projections are in one with those of the feed-forward
	return &parallelAttention{selfAttention: a}
}

// Forward takes x [B, L, dim] and its projections qkv. The result may be wide: see [nn.Linear.ForwardWide].
func (a *parallelAttention) Forward(x *mlx.Array, qkv []mlx.Columns, j joint) *mlx.Array {
	return a.Tap(a.forward(&a.Module, x, qkv, j), x, nil, j.emb[0], j.emb[1])
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

// flatten takes latents [B, C, h, w] to tokens [B, h·w, C].
func flatten(x *mlx.Array) *mlx.Array {
	return x.Reshape(x.Dim(0), x.Dim(1), x.Dim(2)*x.Dim(3)).Transpose(0, 2, 1)
}

// unflatten is the inverse of flatten.
func unflatten(x *mlx.Array, h, w int) *mlx.Array {
	return x.Transpose(0, 2, 1).Reshape(x.Dim(0), x.Dim(2), h, w)
}

// toBatch broadcasts x [1, L, D] to a batch of n.
func toBatch(x *mlx.Array, n int) *mlx.Array {
	if x.Dim(0) == n {
		return x
	}
	return x.BroadcastTo(n, x.Dim(1), x.Dim(2))
}

// outChannels returns a config's out_channels, or in_channels if it is nil or 0.
func outChannels(out *int, in int) int {
	if out == nil || *out == 0 {
		return in
	}
	return *out
}

// validateJoint checks the ranges of a config's fields, and those that configs of joint transformers share.
func validateJoint(config any, heads, headDim int, axes []int, wantAxes int) error {
	if err := nn.CheckConfig(config); err != nil {
		return err
	}
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
	case len(axes) != wantAxes || sum != headDim:
		return fmt.Errorf("axes_dims_rope %v: %d axes must sum to attention_head_dim %d", axes, wantAxes, headDim)
	}
	return nil
}

// appendGrid appends the positions (first, y, x, 0, …) of an image of h×w tokens.
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

// positionArray returns positions as float32 [L, axes].
func positionArray(positions [][]int) *mlx.Array {
	var flat []float32
	for _, p := range positions {
		for _, v := range p {
			flat = append(flat, float32(v))
		}
	}
	return mlx.FromFloat32(flat, len(positions), len(flat)/max(1, len(positions)))
}
