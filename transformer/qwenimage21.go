package transformer

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// QwenImage21Config is transformer/config.json of diffusers' QwenImage21Transformer2DModel.
type QwenImage21Config struct {
	PatchSize         int     `json:"patch_size"`
	InChannels        int     `json:"in_channels" size:"1"`
	OutChannels       *int    `json:"out_channels"`
	NumLayers         int     `json:"num_layers" layers:"0"`
	AttentionHeadDim  int     `json:"attention_head_dim"`
	NumAttentionHeads int     `json:"num_attention_heads"`
	ContextInDim      int     `json:"context_in_dim" size:"1"`
	MLPRatio          int     `json:"mlp_ratio"`
	AxesDimsRope      []int   `json:"axes_dims_rope"`
	Eps               float64 `json:"eps"`
	CausalCondition   bool    `json:"causal_condition"`
}

// DefaultQwenImage21Config returns the values that diffusers uses for fields that a config lacks.
func DefaultQwenImage21Config() QwenImage21Config {
	return QwenImage21Config{
		PatchSize: 1, InChannels: 64, NumLayers: 32, AttentionHeadDim: 128, NumAttentionHeads: 32, ContextInDim: 4096,
		MLPRatio: 3, AxesDimsRope: []int{16, 56, 56}, Eps: 1e-6, CausalCondition: true,
	}
}

// Validate returns an error if the model cannot be run with the config.
func (c *QwenImage21Config) Validate() error {
	switch {
	case c.PatchSize != 1:
		return fmt.Errorf("patch_size %d: expected 1 (the pipeline does not pack latents)", c.PatchSize)
	case outChannels(c.OutChannels, c.InChannels) != c.InChannels:
		return fmt.Errorf("out_channels %d: expected in_channels, %d", *c.OutChannels, c.InChannels)
	case c.MLPRatio < 1 || c.MLPRatio > 64:
		return fmt.Errorf("mlp_ratio %d: expected 1 to 64", c.MLPRatio)
	case !(c.Eps >= 0 && c.Eps < 1):
		return fmt.Errorf("eps %v: expected 0 to 1", c.Eps)
	}
	return validateJoint(c, c.NumAttentionHeads, c.AttentionHeadDim, c.AxesDimsRope, 3)
}

// QwenImage21 is diffusers' QwenImage21Transformer2DModel. Its sequence is the prompt, with the
// latents of reference images in it, followed by the image's latents.
type QwenImage21 struct {
	nn.Module `in:"hidden_states encoder_hidden_states img_mask"`
	staged

	PosEmbed          qwenImage21PosEmbed    `w:"pos_embed"`
	TimeTextEmbed     *qwenImageTimeEmbed    `w:"time_text_embed"`
	TxtIn             *qwenImage21TextIn     `w:"txt_in"`
	ImgIn             *nn.Linear             `w:"img_in"`
	Modulation        *nn.Sequential         `w:"modulation"`
	TransformerBlocks []*qwenImage21Block    `w:"transformer_blocks"`
	NormOut           *qwenImage21OutputNorm `w:"norm_out"`
	ProjOut           *nn.Linear             `w:"proj_out"`

	Config QwenImage21Config
}

// NewQwenImage21 declares the model of a validated config.
func NewQwenImage21(c QwenImage21Config) *QwenImage21 {
	dim := c.NumAttentionHeads * c.AttentionHeadDim
	m := &QwenImage21{
		TimeTextEmbed: &qwenImageTimeEmbed{TimestepEmbedder: newTimestepEmbedding(timestepFeatures, dim, false)},
		TxtIn: &qwenImage21TextIn{
			TextNorm: nn.NewRMSNormMinusOne(c.ContextInDim, c.Eps),
			InLayer:  nn.NewLinear(c.ContextInDim, dim, false),
			Act:      &nn.Activation{Func: (*mlx.Array).GELUTanh},
			OutLayer: nn.NewLinear(dim, dim, false),
		},
		ImgIn:      nn.NewLinear(c.InChannels, dim, false),
		Modulation: nn.NewSequential(&nn.SiLU{}, nn.NewLinear(dim, 4*dim, false)),
		NormOut:    &qwenImage21OutputNorm{SiLU: &nn.SiLU{}, Linear: nn.NewLinear(dim, dim, false), Norm: nn.NewLayerNorm(c.Eps)},
		ProjOut:    nn.NewLinear(dim, c.InChannels, false),
		Config:     c,
	}
	for range c.NumLayers {
		m.TransformerBlocks = append(m.TransformerBlocks, newQwenImage21Block(c))
	}
	return m
}

// Timestep is the sinusoidal embedding [1, 256] that Forward takes, for a time t from 0 to 1 (pure
// noise).
func (m *QwenImage21) Timestep(t float32) *mlx.Array {
	return nn.TimestepEmbedding(1000*t, timestepFeatures)
}

// Pass returns the forward pass, whose output is the velocity [B, C, h, w] of latents. Text has the slots of the
// sequence. It computes in the dtype of the latents, in float16 with float32 residual streams, which diffusers clips
// instead, and without rounding the text before its norm.
func (m *QwenImage21) Pass(in Inputs, s *QwenImage21Sequence) Pass {
	return m.pass(in, s, blockCausal{})
}

// Extract runs the pass of a model with causal_condition. It also returns keys and values of the
// prompt and the reference images, for [QwenImage21.CachedPass].
func (m *QwenImage21) Extract(in Inputs, s *QwenImage21Sequence) (*mlx.Array, KVCache) {
	cache := newKVCache(len(m.TransformerBlocks))
	return Run(m.pass(in, s, blockCausal{cache: cache, fill: true})), cache
}

// CachedPass is a later step than [QwenImage21.Extract]: the pass of the latents alone. Text and
// references are used only for hooks, since the reference embeds them at every step.
func (m *QwenImage21) CachedPass(in Inputs, s *QwenImage21Sequence) Pass {
	in.Cache.check(len(m.TransformerBlocks))
	return m.pass(in, s, blockCausal{cache: in.Cache, read: true})
}

func (m *QwenImage21) pass(in Inputs, s *QwenImage21Sequence, b blockCausal) Pass {
	dtype, target, timestep := in.Latents.Dtype(), flatten(in.Latents), in.Timestep
	p := &qwenImage21Pass{QwenImage21: m, QwenImage21Sequence: s, tokens: target, textTokens: in.Text.AsType(nn.WideDtype(dtype))}
	if in.References != nil && (!b.read || m.Observed()) {
		p.tokens = mlx.Concat(1, toBatch(in.References.AsType(dtype), target.Dim(0)), target)
	}
	x := m.ImgIn.Forward(p.tokens)
	var c *mlx.Array
	if !b.read || m.Observed() {
		c = toBatch(m.TxtIn.Forward(p.textTokens, dtype), x.Dim(0))
	}
	p.attention, p.embedded = &b, nn.WidenFP16(x)
	b.segments = s.segments
	p.rope = m.PosEmbed.Forward(s)
	if b.read {
		p.rope = nn.Rope{Cos: rows(p.rope.Cos, s.prefix()), Sin: rows(p.rope.Sin, s.prefix())}
		p.embedded = p.embedded.Slice(1, x.Dim(1)-s.h*s.w, x.Dim(1))
	} else {
		p.embedded = s.join(nn.WidenFP16(c), p.embedded)
	}
	p.shares = nn.NewShares(s.group, p.embedded.Dim(1))
	b.options = nn.AttentionOptions{LengthFirst: true, Shares: p.shares}
	if m.Config.CausalCondition {
		timestep = mlx.Concat(0, timestep, m.Timestep(0))
	}
	p.temb = m.TimeTextEmbed.Forward(timestep, x)
	p.modulate(m.Modulation.Forward(p.temb))
	p.embedded, p.rope = p.shares.Share(1, p.embedded), p.shares.Rope(p.rope)
	return m.inStages(p)
}

// rows returns the rows of x [L, D] from start on.
func rows(x *mlx.Array, start int) *mlx.Array { return x.Slice(0, start, x.Dim(0)) }

type qwenImage21Pass struct {
	*QwenImage21
	*QwenImage21Sequence
	tokens, textTokens, temb *mlx.Array
	embedded                 *mlx.Array
	attention                *blockCausal
	rope                     nn.Rope
	shares                   *nn.Shares

	attn, mlp modulation // of all blocks
	// isTarget [1, L, 1] is true for the image's tokens, the only ones at the step's time; nil if all are.
	isTarget *mlx.Array
	tapped   qwenImage21Tapped
}

// qwenImage21Tapped has inputs as the reference's modules get them, nil unless observed.
type qwenImage21Tapped struct{ modulation, rope, isTarget *mlx.Array }

// modulate sets the modulations of all blocks from their projection all [n, 4·dim].
func (p *qwenImage21Pass) modulate(all *mlx.Array) {
	n := p.embedded.Dim(1)
	causal := p.Config.CausalCondition
	if causal && !p.attention.read {
		p.isTarget = p.shares.Share(1, between(n, p.prefix(), n))
	}
	if p.Observed() {
		p.tapped = qwenImage21Tapped{modulation: all, rope: complexTable(p.rope)}
		p.shares.Keep(p.tapped.rope)
		if causal {
			p.tapped.isTarget = between(n, n-p.h*p.w, n).Reshape(n).AsType(mlx.Float32)
		}
	}
	parts := all.Split(4, -1)
	p.attn = modulation{Scale: p.ofTokens(parts[0]), Gate: p.ofTokens(parts[1].Tanh())}
	p.mlp = modulation{Scale: p.ofTokens(parts[2]), Gate: p.ofTokens(parts[3].Tanh())}
}

// ofTokens returns the row of x [n, D] for each token: the first at the step's time, else the second.
func (p *qwenImage21Pass) ofTokens(x *mlx.Array) *mlx.Array {
	now := x.Slice(0, 0, 1).ExpandDims(1)
	if p.isTarget == nil {
		return now
	}
	return mlx.Where(p.isTarget, now, x.Slice(0, 1, 2).ExpandDims(1))
}

func (p *qwenImage21Pass) Embed() Hidden { return Hidden{Image: p.embedded} }

func (p *qwenImage21Pass) Len() int { return len(p.TransformerBlocks) }

func (p *qwenImage21Pass) Blocks(h Hidden, first, end int) Hidden {
	defer p.Sharing(p.shares)()
	x := h.Image
	for i, b := range mlx.Layers(p.TransformerBlocks[first:end], p.attention.state(&x)...) {
		x = b.Forward(x, first+i, p)
	}
	return Hidden{Image: x}
}

// Output returns the velocity. The reference computes it for all tokens, which hooks see.
func (p *qwenImage21Pass) Output(x *mlx.Array) *mlx.Array {
	target := func(x *mlx.Array) *mlx.Array { return x.Slice(1, x.Dim(1)-p.h*p.w, x.Dim(1)) }
	if !p.Observed() && p.shares.Alone() {
		x, p.isTarget = target(x), nil
	}
	out := p.shares.Output(&p.Module, func() *mlx.Array { return p.ProjOut.Forward(p.NormOut.Forward(x, p)) })
	if p.Observed() {
		slots := mlx.FromFloat32(p.slots, 1, len(p.slots)).BroadcastTo(out.Dim(0), len(p.slots))
		out = p.Tap(out, p.tokens, p.textTokens, slots)
	}
	return unflatten(target(out), p.h, p.w)
}

// qwenImage21PosEmbed is QwenImage21Rope, whose tables are computed on the host.
type qwenImage21PosEmbed struct {
	nn.Module `in:"1"`
}

// Forward passes the table of a sequence through the hook, as complex numbers [L, D/2, 2].
func (p *qwenImage21PosEmbed) Forward(s *QwenImage21Sequence) nn.Rope {
	if !p.Observed() {
		return s.rope
	}
	parts := p.Tap(complexTable(s.rope), mlx.FromFloat32(s.image, len(s.image))).Split(2, 2)
	return nn.Rope{Cos: parts[0].Squeeze(2), Sin: parts[1].Squeeze(2)}
}

// complexTable returns a table as complex numbers [L, D/2, (real, imaginary)].
func complexTable(r nn.Rope) *mlx.Array {
	return mlx.Concat(2, r.Cos.ExpandDims(2), r.Sin.ExpandDims(2))
}

// qwenImage21TextIn is QwenImage21TextProjection.
type qwenImage21TextIn struct {
	nn.Module
	TextNorm *nn.RMSNorm    `w:"text_norm"`
	InLayer  *nn.Linear     `w:"in_layer"`
	Act      *nn.Activation `w:"act"`
	OutLayer *nn.Linear     `w:"out_layer"`
}

// Forward takes embeddings [B, T, context_in_dim], which may be wider than dtype.
func (t *qwenImage21TextIn) Forward(x *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	y := t.Act.Forward(t.InLayer.Forward(t.TextNorm.Forward(x).AsType(dtype)))
	return t.Tap(t.OutLayer.Forward(y), x)
}

// qwenImage21OutputNorm is QwenImage21AdaLayerNormContinuous.
type qwenImage21OutputNorm struct {
	nn.Module `in:"0 1 2"`
	SiLU      *nn.SiLU      `w:"silu"`
	Linear    *nn.Linear    `w:"linear"`
	Norm      *nn.LayerNorm `w:"norm"`
}

func (n *qwenImage21OutputNorm) Forward(x *mlx.Array, p *qwenImage21Pass) *mlx.Array {
	m := modulation{Scale: p.ofTokens(n.Linear.Forward(n.SiLU.Forward(p.temb)))}
	return n.Tap(m.norm(n.Norm, x), x, p.temb, p.tapped.isTarget)
}

// qwenImage21Block is QwenImage21TransformerBlock.
type qwenImage21Block struct {
	nn.Module `in:"hidden_states modulation rotary_emb target_token_mask"`

	ImgNorm1 *nn.LayerNorm           `w:"img_norm1"`
	Attn     *qwenImage21Attention   `w:"attn"`
	ImgNorm2 *nn.LayerNorm           `w:"img_norm2"`
	ImgMLP   *qwenImage21FeedForward `w:"img_mlp"`
}

func newQwenImage21Block(c QwenImage21Config) *qwenImage21Block {
	dim := c.NumAttentionHeads * c.AttentionHeadDim
	linear := func(in, out int) *nn.Linear { return nn.NewLinear(in, out, false) }
	b := &qwenImage21Block{
		ImgNorm1: nn.NewLayerNorm(c.Eps), ImgNorm2: nn.NewLayerNorm(c.Eps),
		Attn: &qwenImage21Attention{
			selfAttention: newSelfAttention(c.NumAttentionHeads, c.AttentionHeadDim, false, c.Eps).withOut(false, &dropout{}),
		},
		ImgMLP: &qwenImage21FeedForward{
			GateLayer: linear(dim, c.MLPRatio*dim), ActivationFn: &nn.SiLU{},
			Proj: linear(dim, c.MLPRatio*dim), Out: linear(c.MLPRatio*dim, dim),
		},
	}
	b.ImgMLP.Inner = nn.NewStack(b.ImgMLP.GateLayer, b.ImgMLP.Proj)
	return b
}

// Forward takes the tokens x [B, L, dim] of a pass. layer is the block's number.
func (b *qwenImage21Block) Forward(x *mlx.Array, layer int, p *qwenImage21Pass) *mlx.Array {
	dx := b.Attn.Forward(p.attn.norm(b.ImgNorm1, x), layer, p)
	y, normed := p.attn.addThenNorm(x, dx, b.ImgNorm2, p.mlp)
	y = p.mlp.add(y, b.ImgMLP.Forward(normed))
	return b.Tap(y, x, p.tapped.modulation, p.tapped.rope, p.tapped.isTarget)
}

// qwenImage21Attention is QwenImage21Attention with QwenImage21AttnProcessor. Its output may be
// wide: see [nn.Linear.ForwardWide].
type qwenImage21Attention struct {
	nn.Module     `in:"hidden_states rotary_emb"`
	selfAttention `w:"."`
}

func (a *qwenImage21Attention) Forward(x *mlx.Array, layer int, p *qwenImage21Pass) *mlx.Array {
	y := p.attention.attend(&a.Module, layer, a.NormRope(p.rope, a.heads, nn.NewQKV(a.QKV.Forward(x), a.NormQ, a.NormK)))
	return a.Tap(a.out(nn.MergeHeads(y), x.Dtype()), x, p.tapped.rope)
}

// qwenImage21FeedForward is QwenImage21SwiGLUFeedForward. Its output may be wide: see
// [nn.Linear.ForwardWide].
type qwenImage21FeedForward struct {
	nn.Module
	Proj         *nn.Linear `w:"proj"`
	Out          *nn.Linear `w:"out"`
	GateLayer    *nn.Linear `w:"gate_layer"`
	ActivationFn *nn.SiLU   `w:"activation_fn"`

	Inner nn.Stack
}

func (f *qwenImage21FeedForward) Forward(x *mlx.Array) *mlx.Array {
	in := f.Inner.Forward(x)
	y := f.Fused("qwenImage21FeedForward.Forward", func() *mlx.Array { return nn.WideSwiGLU(nil, in[0], in[1]) }, func() *mlx.Array {
		return nn.WidenFP16(f.ActivationFn.Forward(in[0].Array())).Mul(nn.WidenFP16(in[1].Array()))
	})
	return f.Tap(f.Out.ForwardWide(y, x.Dtype()), x)
}
