package transformer

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Flux3Config is transformer/config.json of diffusers' Flux3Transformer2DModel.
type Flux3Config struct {
	InChannels        int     `json:"in_channels" size:"1"`
	CondInChannels    int     `json:"cond_in_channels"`
	NumLayers         int     `json:"num_layers" layers:"0"`
	NumSingleLayers   int     `json:"num_single_layers" layers:"0"`
	AttentionHeadDim  int     `json:"attention_head_dim"`
	NumAttentionHeads int     `json:"num_attention_heads"`
	JointAttentionDim int     `json:"joint_attention_dim" size:"1"`
	TimestepChannels  int     `json:"timestep_channels" size:"2" multiple:"2"`
	MLPRatio          float64 `json:"mlp_ratio"`
	AxesDimsRope      []int   `json:"axes_dims_rope"`
	RopeTheta         float64 `json:"rope_theta" number:"positive"`
	Eps               float64 `json:"eps" number:"nonnegative"`
	FlowMap           bool    `json:"flow_map"`
}

// DefaultFlux3Config returns the values that diffusers uses for fields that a config lacks.
func DefaultFlux3Config() Flux3Config {
	return Flux3Config{
		InChannels: 128, CondInChannels: 128, NumLayers: 5, NumSingleLayers: 28, AttentionHeadDim: 128, NumAttentionHeads: 24,
		JointAttentionDim: 20480, TimestepChannels: 256, MLPRatio: 3, AxesDimsRope: []int{32, 32, 32, 32}, RopeTheta: 10000,
		Eps: 1e-6,
	}
}

// Validate returns an error if the model cannot be run with the config.
func (c *Flux3Config) Validate() error {
	switch {
	case c.CondInChannels != c.InChannels:
		return fmt.Errorf("cond_in_channels %d: expected in_channels, %d", c.CondInChannels, c.InChannels)
	case !(c.MLPRatio > 0 && c.MLPRatio <= 64):
		return fmt.Errorf("mlp_ratio %v: must be positive, and at most 64", c.MLPRatio)
	case c.NumAttentionHeads > 0 && c.AttentionHeadDim > 0 && c.hidden() < 1:
		return fmt.Errorf("mlp_ratio %v: the feed-forward has no features", c.MLPRatio)
	}
	return validateJoint(c, c.NumAttentionHeads, c.AttentionHeadDim, c.AxesDimsRope, 4)
}

func (c *Flux3Config) dim() int { return c.NumAttentionHeads * c.AttentionHeadDim }

// hidden is the width of the feed-forwards.
func (c *Flux3Config) hidden() int { return int(float64(c.dim()) * c.MLPRatio) }

// Flux3 is diffusers' Flux3Transformer2DModel.
type Flux3 struct {
	nn.Module `in:"hidden_states encoder_hidden_states img_ids txt_ids image_cond_hidden_states image_cond_ids"`
	staged

	PosEmbed         posEmbed           `w:"pos_embed"`
	TimeProj         timeProj           `w:"time_proj"`
	TimestepEmbedder *timestepEmbedding `w:"timestep_embedder"`
	TargetEmbedder   *timestepEmbedding `w:"target_timestep_embedder"` // nil unless the model is a flow map

	EarlyModulations  flux3Modulations `w:"early_stream_modulations"`
	SingleModulations flux3Modulations `w:"single_stream_modulations"`
	XEmbedders        struct {
		Image *nn.Linear `w:"image"`
		Cond  *nn.Linear `w:"image_cond"`
	} `w:"x_embedders"`
	ContextEmbedder *nn.Linear `w:"context_embedder"`
	ModeBlocks      struct {
		Image []*flux3ModeBlock `w:"image"`
		Cond  []*flux3ModeBlock `w:"image_cond"`
	} `w:"mode_blocks"`
	TxtModeBlocks []*flux3ModeBlock   `w:"txt_mode_blocks"`
	SingleBlocks  []*flux3SingleBlock `w:"single_transformer_blocks"`

	NormOut *adaLayerNormContinuous `w:"norm_out"`
	ProjOut *nn.Linear              `w:"proj_out"`

	Config Flux3Config
}

// NewFlux3 declares the model of a validated config.
func NewFlux3(c Flux3Config) *Flux3 {
	dim := c.dim()
	m := &Flux3{
		TimestepEmbedder: newTimestepEmbedding(c.TimestepChannels, dim, false),
		EarlyModulations: newFlux3Modulations(dim), SingleModulations: newFlux3Modulations(dim),
		ContextEmbedder: nn.NewLinear(c.JointAttentionDim, dim, false),
		NormOut:         &adaLayerNormContinuous{Act: &nn.SiLU{}, Linear: nn.NewLinear(dim, 2*dim, false), Norm: nn.NewLayerNorm(c.Eps)},
		ProjOut:         nn.NewLinear(dim, c.InChannels, false),
		Config:          c,
	}
	if c.FlowMap {
		m.TargetEmbedder = newTimestepEmbedding(c.TimestepChannels, dim, false)
	}
	m.XEmbedders.Image = nn.NewLinear(c.InChannels, dim, false)
	m.XEmbedders.Cond = nn.NewLinear(c.CondInChannels, dim, false)
	for range c.NumLayers {
		m.ModeBlocks.Image = append(m.ModeBlocks.Image, &flux3ModeBlock{flux3Layer: newFlux3Layer(c)})
		m.ModeBlocks.Cond = append(m.ModeBlocks.Cond, &flux3ModeBlock{flux3Layer: newFlux3Layer(c)})
		m.TxtModeBlocks = append(m.TxtModeBlocks, &flux3ModeBlock{flux3Layer: newFlux3Layer(c)})
	}
	for range c.NumSingleLayers {
		m.SingleBlocks = append(m.SingleBlocks, &flux3SingleBlock{flux3Layer: newFlux3Layer(c)})
	}
	return m
}

// Sequence lays out latents of height×width with a text of the given number of tokens and references of the given
// heights and widths, all in the autoencoder's patches. Text token k is at (0, 0, 0, k), the latent in row y and column
// x at (0, y/2, x/2, 0), and that of reference r, from 0, at (0, y/2, x/2, -1-r).
func (m *Flux3) Sequence(height, width, text int, references ...[2]int) (*Flux2Sequence, error) {
	return newFlux2Sequence(height, width, text, references, func(k int) []int { return []int{0, 0, 0, 2 * k} },
		func(p []int, r int) { p[3] = -2 * (1 + r) }, func(halves [][]int) flux2Positions { // positions are counted in halves
			return flux2Positions{len(halves), positionArray(halves).Times(0.5),
				nn.NewHalvedFluxRope(halves, m.Config.AxesDimsRope, m.Config.RopeTheta)}
		})
}

// Timestep is the sinusoidal embedding [1, timestep_channels] that a pass takes, for a time t from 0 to 1 (pure noise).
func (m *Flux3) Timestep(t float32) *mlx.Array {
	return nn.TimestepEmbedding(t*1000, m.Config.TimestepChannels)
}

// Pass returns the forward pass, whose output is the velocity [B, C, h, w]. Target is nil unless the model is a flow map.
// The number of its blocks is that of the blocks of a mode and of the joint ones.
func (m *Flux3) Pass(in Inputs, s *Flux2Sequence) Pass {
	dtype, batch := in.Latents.Dtype(), in.Latents.Dim(0)
	p := &flux3Pass{Flux3: m, Flux2Sequence: s, tokens: flatten(in.Latents), textTokens: in.Text.AsType(nn.WideDtype(dtype))}
	image := m.TimestepEmbedder.Forward(m.TimeProj.Forward(in.Timestep, dtype))
	clean := m.TimestepEmbedder.Forward(m.TimeProj.Forward(m.Timestep(0), dtype))
	if m.TargetEmbedder != nil {
		target := m.TargetEmbedder.Forward(m.TimeProj.Forward(in.Target, dtype))
		image, clean = image.Add(target), clean.Add(target)
	}
	p.shares = nn.NewShares(s.group, s.text.n, s.target.n, s.references.n)
	ofText, ofImage, ofCond := p.shares.Streams(0, 1), p.shares.Streams(1, 2), p.shares.Streams(2, 3)
	if s.references.n == 0 {
		p.shares = p.shares.Streams(0, 2)
	}
	p.temb = shareTokens(ofImage, m.perToken(image, s.target.n, batch))
	clean = clean.SiLU()
	active := image.SiLU()

	textTemb := m.perToken(clean, s.text.n, batch)
	p.early.text, p.single.text = m.EarlyModulations.Txt.Forward(textTemb, ofText), m.SingleModulations.Txt.Forward(textTemb, ofText)
	h := Hidden{Text: toBatch(m.ContextEmbedder.ForwardWide(p.textTokens, dtype), batch)}
	text := m.PosEmbed.Forward(s.text.rope, s.text.at)

	imageTemb := m.perToken(active, s.target.n, batch)
	p.early.image = m.EarlyModulations.Image.Forward(imageTemb, ofImage)
	p.single.image = m.SingleModulations.Image.Forward(imageTemb, ofImage)
	h.Image = nn.WidenFP16(m.XEmbedders.Image.Forward(p.tokens))
	target := m.PosEmbed.Forward(s.target.rope, s.target.at)

	p.text, p.image = newFluxJoint(&m.Module, text).over(ofText), newFluxJoint(&m.Module, target).over(ofImage)
	all := text.Concat(target)
	if in.References != nil {
		p.references = toBatch(in.References.AsType(dtype), batch)
		temb := m.perToken(clean, s.references.n, batch)
		p.early.cond, p.single.cond = m.EarlyModulations.Cond.Forward(temb, ofCond), m.SingleModulations.Cond.Forward(temb, ofCond)
		h.Image = mlx.Concat(1, h.Image, nn.WidenFP16(m.XEmbedders.Cond.Forward(p.references)))
		rope := m.PosEmbed.Forward(s.references.rope, s.references.at)
		p.cond, all = newFluxJoint(&m.Module, rope).over(ofCond), all.Concat(rope)
		p.content = p.single.image.then(p.single.cond, ofImage.Count(0), ofCond.Count(0))
	} else {
		p.content = p.single.image
	}
	p.joint = newFluxJoint(&m.Module, all).over(p.shares)
	p.embedded = h.shareOf(p.shares)
	return m.inStages(p)
}

// shareTokens returns this process's share of x [B, L, D], or x if it is [B, 1, D], for all tokens.
func shareTokens(s *nn.Shares, x *mlx.Array) *mlx.Array {
	if x.Dim(1) == 1 {
		return x
	}
	return s.Share(1, x)
}

// perToken returns an embedding [1, dim] of time as [1, 1, dim] or, if hooks look at it, for each of n tokens, as the
// reference has it.
func (m *Flux3) perToken(temb *mlx.Array, n, batch int) *mlx.Array {
	temb = temb.ExpandDims(1)
	if m.Observed() {
		temb = temb.BroadcastTo(batch, n, temb.Dim(2))
	}
	return temb
}

type flux3Pass struct {
	*Flux3
	*Flux2Sequence
	tokens, textTokens, references, temb *mlx.Array
	embedded                             Hidden
	early, single                        struct{ text, image, cond flux3Modulated }
	content                              flux3Modulated // of image and references in the joint blocks
	shares                               *nn.Shares     // of text, image and, if there are any, references
	text, image, cond, joint             joint
}

func (p *flux3Pass) Embed() Hidden { return p.embedded }

func (p *flux3Pass) Len() int { return len(p.TxtModeBlocks) + len(p.SingleBlocks) }

func (p *flux3Pass) Blocks(h Hidden, first, end int) Hidden {
	defer p.Sharing(p.shares)()
	c, x := h.Text, h.Image
	mode, single := cut(p.TxtModeBlocks, p.SingleBlocks, first, end)
	for i, b := range mlx.Layers(mode, &c, &x) {
		c = b.Forward(c, p.early.text, p.text)
		if !p.shares.Alone() {
			x = x.After(c)
		}
		image, n := x, p.shares.Count(1)
		if p.references != nil {
			image = x.Slice(1, 0, n)
		}
		next := p.ModeBlocks.Image[first+i].Forward(image, p.early.image, p.image)
		if p.references != nil {
			references := x.Slice(1, n, x.Dim(1))
			if !p.shares.Alone() {
				references = references.After(next)
			}
			next = mlx.Concat(1, next, p.ModeBlocks.Cond[first+i].Forward(references, p.early.cond, p.cond))
		}
		x = next
	}
	for _, b := range mlx.Layers(single, &c, &x) {
		c, x = b.Forward(c, x, p.content, p.single.text, p.joint)
	}
	if end == p.Len() {
		c = nil
	}
	return Hidden{Text: c, Image: x}
}

// Output returns the velocity. image has the target first.
func (p *flux3Pass) Output(image *mlx.Array) *mlx.Array {
	if n := p.shares.Count(1); image.Dim(1) > n {
		image = image.Slice(1, 0, n)
	}
	out := p.shares.Streams(1, 2).Output(&p.Module, func() *mlx.Array {
		return p.ProjOut.Forward(p.NormOut.Forward(image, stepTime{temb: p.temb}))
	})
	s := p.Flux2Sequence
	out = p.Tap(out, p.tokens, p.textTokens, s.target.at, s.text.at, p.references, s.references.at)
	return unflatten(out, p.h, p.w)
}

// flux3Modulations are the layers that modulate the tokens of each mode.
type flux3Modulations struct {
	Image *flux3Modulation `w:"image"`
	Cond  *flux3Modulation `w:"image_cond"`
	Txt   *flux3Modulation `w:"txt"`
}

func newFlux3Modulations(dim int) flux3Modulations {
	layer := func() *flux3Modulation { return &flux3Modulation{Linear: nn.NewLinear(dim, 3*dim, false)} }
	return flux3Modulations{layer(), layer(), layer()}
}

// flux3Modulation is Flux3Modulation.
type flux3Modulation struct {
	nn.Module
	Linear *nn.Linear `w:"linear"`
}

// Forward takes the activated embedding of time [B, 1 or L, dim]. The result is for a share of the L tokens.
func (m *flux3Modulation) Forward(temb *mlx.Array, s *nn.Shares) flux3Modulated {
	out := shareTokens(s, m.Tap(m.Linear.Forward(temb), temb))
	parts := out.Split(3, -1)
	return flux3Modulated{modulation{Shift: parts[0], Scale: parts[1], Gate: parts[2]}, out}
}

// A flux3Modulated is a modulation of tokens, and the projection that it was split from, as the reference's blocks get it.
type flux3Modulated struct {
	modulation
	tapped *mlx.Array // [B, 1 or L, 3·dim]
}

// then returns the modulation of n tokens followed by that of another m.
func (f flux3Modulated) then(next flux3Modulated, n, m int) flux3Modulated {
	join := func(a, b *mlx.Array) *mlx.Array {
		return mlx.Concat(1, a.BroadcastTo(a.Dim(0), n, a.Dim(2)), b.BroadcastTo(b.Dim(0), m, b.Dim(2)))
	}
	return flux3Modulated{modulation{join(f.Shift, next.Shift), join(f.Scale, next.Scale), join(f.Gate, next.Gate)},
		join(f.tapped, next.tapped)}
}

// flux3Layer is what the blocks of both kinds have: attention and feed-forward of the same input.
type flux3Layer struct {
	Norm *nn.LayerNorm      `w:"norm"`
	Attn *parallelAttention `w:"attn"`
	FF   *flux2FeedForward  `w:"ff"`

	QKVFF nn.Stack
}

func newFlux3Layer(c Flux3Config) flux3Layer {
	dim, hidden := c.dim(), c.hidden()
	l := flux3Layer{
		Norm: nn.NewLayerNorm(c.Eps),
		Attn: newParallelAttention(newSelfAttention(c.NumAttentionHeads, c.AttentionHeadDim, false, c.Eps).withOut(false, &dropout{})),
		FF: &flux2FeedForward{LinearIn: nn.NewLinear(dim, 2*hidden, false), Act: newSwiGLU(),
			LinearOut: nn.NewLinear(hidden, dim, false)},
	}
	l.QKVFF = nn.NewStack(l.Attn.ToQ, l.Attn.ToK, l.Attn.ToV, l.FF.LinearIn)
	return l
}

// add returns what attention and feed-forward add to tokens whose norm is x [B, L, dim].
func (l *flux3Layer) add(x *mlx.Array, j joint) *mlx.Array {
	projected := l.QKVFF.Forward(x)
	return l.Attn.Forward(x, projected[:3], j).Add(l.FF.after(x, projected[3]))
}

// flux3ModeBlock is Flux3ModeTransformerBlock.
type flux3ModeBlock struct {
	nn.Module  `in:"0 1 2.0 2.1"`
	flux3Layer `w:"."`
}

// Forward takes the tokens x [B, L, dim] of one mode.
func (b *flux3ModeBlock) Forward(x *mlx.Array, m flux3Modulated, j joint) *mlx.Array {
	y := m.add(x, b.flux3Layer.add(m.norm(b.Norm, x), j))
	return b.Tap(y, x, m.tapped, j.emb[0], j.emb[1])
}

// flux3SingleBlock is Flux3SingleTransformerBlock.
type flux3SingleBlock struct {
	nn.Module  `in:"hidden_states encoder_hidden_states temb_mod temb_mod_context image_rotary_emb.0 image_rotary_emb.1"`
	flux3Layer `w:"."`
}

// Forward takes the text c [B, T, dim], and the image with its references x [B, L, dim].
func (b *flux3SingleBlock) Forward(c, x *mlx.Array, ofContent, ofText flux3Modulated, j joint) (nextC, nextX *mlx.Array) {
	content := ofContent.norm(b.Norm, x)
	y := b.add(mlx.Concat(1, ofText.norm(b.Norm, c), content), j)
	t := c.Dim(1)
	nextC, nextX = ofText.add(c, y.Slice(1, 0, t)), ofContent.add(x, y.Slice(1, t, y.Dim(1)))
	return b.Tap2(nextC, nextX, x, c, ofContent.tapped, ofText.tapped, j.emb[0], j.emb[1])
}
