package transformer

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// FluxConfig is transformer/config.json of diffusers' FluxTransformer2DModel.
type FluxConfig struct {
	PatchSize           int   `json:"patch_size"`
	InChannels          int   `json:"in_channels"`
	OutChannels         *int  `json:"out_channels"`
	NumLayers           int   `json:"num_layers" layers:"0"`
	NumSingleLayers     int   `json:"num_single_layers" layers:"0"`
	AttentionHeadDim    int   `json:"attention_head_dim"`
	NumAttentionHeads   int   `json:"num_attention_heads"`
	JointAttentionDim   int   `json:"joint_attention_dim" size:"1"`
	PooledProjectionDim int   `json:"pooled_projection_dim" size:"1"`
	GuidanceEmbeds      bool  `json:"guidance_embeds"`
	AxesDimsRope        []int `json:"axes_dims_rope"`
}

// DefaultFluxConfig returns the values that diffusers uses for fields that a config lacks.
func DefaultFluxConfig() FluxConfig {
	return FluxConfig{
		PatchSize: 1, InChannels: 64, NumLayers: 19, NumSingleLayers: 38, AttentionHeadDim: 128, NumAttentionHeads: 24,
		JointAttentionDim: 4096, PooledProjectionDim: 768, AxesDimsRope: []int{16, 56, 56},
	}
}

// Validate returns an error if the model cannot be run with the config.
func (c *FluxConfig) Validate() error {
	switch {
	case c.PatchSize != 1:
		return fmt.Errorf("patch_size %d: expected 1 (the pipeline packs 2×2 patches)", c.PatchSize)
	case c.InChannels < 4 || c.InChannels%4 != 0 || c.InChannels > nn.MaxDim:
		return fmt.Errorf("in_channels %d: expected 4 for each channel of the latents", c.InChannels)
	case c.Predicted() < 4 || c.Predicted()%4 != 0 || c.Predicted() > c.InChannels:
		return fmt.Errorf("out_channels %d: expected 4 for each channel of the latents, and at most in_channels, %d",
			*c.OutChannels, c.InChannels)
	}
	return validateJoint(c, c.NumAttentionHeads, c.AttentionHeadDim, c.AxesDimsRope, 3)
}

// Predicted returns the number of channels of a token's prediction: in_channels, or fewer if the
// transformer sees more than the latents, as for filling a mask.
func (c *FluxConfig) Predicted() int { return outChannels(c.OutChannels, c.InChannels) }

// Flux is diffusers' FluxTransformer2DModel.
type Flux struct {
	nn.Module `in:"hidden_states encoder_hidden_states pooled_projections txt_ids img_ids"`
	staged

	PosEmbed                posEmbed           `w:"pos_embed"`
	TimeTextEmbed           *fluxTimeTextEmbed `w:"time_text_embed"`
	ContextEmbedder         *nn.Linear         `w:"context_embedder"`
	XEmbedder               *nn.Linear         `w:"x_embedder"`
	TransformerBlocks       []*fluxBlock       `w:"transformer_blocks"`
	SingleTransformerBlocks []*fluxSingleBlock `w:"single_transformer_blocks"`

	NormOut *adaLayerNormContinuous `w:"norm_out"`
	ProjOut *nn.Linear              `w:"proj_out"`

	Config FluxConfig

	ofTime TimeLayers
}

// NewFlux declares the model of a validated config.
func NewFlux(c FluxConfig) *Flux {
	dim := c.NumAttentionHeads * c.AttentionHeadDim
	m := &Flux{
		TimeTextEmbed:   newFluxTimeTextEmbed(dim, c.PooledProjectionDim, c.GuidanceEmbeds),
		ContextEmbedder: nn.NewLinear(c.JointAttentionDim, dim, true),
		XEmbedder:       nn.NewLinear(c.InChannels, dim, true),
		NormOut:         newAdaLayerNormContinuous(dim, 1e-6, true),
		ProjOut:         nn.NewLinear(dim, c.Predicted(), true),
		Config:          c,
	}
	for range c.NumLayers {
		m.TransformerBlocks = append(m.TransformerBlocks, newFluxBlock(c))
	}
	for range c.NumSingleLayers {
		m.SingleTransformerBlocks = append(m.SingleTransformerBlocks, newFluxSingleBlock(c))
	}
	m.ofTime.embedding = m.TimeTextEmbed
	for _, b := range m.TransformerBlocks {
		m.ofTime.add(b.Norm1.Linear, b.Norm1Context.Linear)
	}
	for _, b := range m.SingleTransformerBlocks {
		m.ofTime.add(b.Norm.Linear)
	}
	m.ofTime.add(m.NormOut.Linear)
	return m
}

// FluxSequence is the layout of an image size with a number of text tokens and some
// reference images. It is the same for all steps.
type FluxSequence struct {
	shared
	h, w, text int        // size in patches, and text tokens
	positions  *mlx.Array // [text + h·w + references' patches, 3]
	rope       nn.Rope
}

// Sequence lays out latents of height×width with a text of the given number of
// tokens and reference latents of the given heights and widths. All sides must be
// even. The text is at (0, 0, 0), the patch in row y and column x at (0, y, x), and
// that of reference r, from 0, at (1+r, y, x).
func (m *Flux) Sequence(height, width, text int, references ...[2]int) (*FluxSequence, error) {
	return newFluxSequence(height, width, text, references, m.Config.AxesDimsRope, fluxTheta)
}

func newFluxSequence(height, width, text int, references [][2]int, axes []int, theta float64) (*FluxSequence, error) {
	s := &FluxSequence{h: height / 2, w: width / 2, text: text}
	positions := make([][]int, text)
	for i := range positions {
		positions[i] = make([]int, 3)
	}
	for i, size := range append([][2]int{{height, width}}, references...) {
		if size[0] < 2 || size[1] < 2 || size[0]%2 != 0 || size[1]%2 != 0 {
			return nil, fmt.Errorf("latents of %d×%d: expected even sides", size[0], size[1])
		}
		positions = appendGrid(positions, size[0]/2, size[1]/2, i, 3)
	}
	s.positions, s.rope = positionArray(positions), nn.NewFluxRope(positions, axes, theta)
	return s, nil
}

const fluxTheta = 10000 // of the rotary embedding

// Timestep is the sinusoidal embedding [1, 256] that Forward takes, for a time t
// from 0 to 1 (pure noise).
func (m *Flux) Timestep(t float32) *mlx.Array { return nn.TimestepEmbedding(t*1000, timestepFeatures) }

// Guidance is the sinusoidal embedding [1, 256] of a guidance scale that Forward
// takes if the model has guidance_embeds.
func (m *Flux) Guidance(scale float32) *mlx.Array {
	return nn.TimestepEmbedding(scale*1000, timestepFeatures)
}

// Projections returns what a forward pass computes from the time, the guidance and the pooled embeddings of a
// single prompt alone: a row [1, n] for each of the times from 0 to 1. It computes in dtype.
func (m *Flux) Projections(in Inputs, times []float32, dtype mlx.Dtype) *mlx.Array {
	return m.ofTime.project(m.TimeTextEmbed.Forward(sinusoids(times, m.Timestep), in.Guidance, in.Pooled.AsType(dtype)))
}

// TimeLayers returns the layers of [Flux.Projections].
func (m *Flux) TimeLayers() *TimeLayers { return &m.ofTime }

// Pass returns the forward pass, whose output is the velocity [B, C, H, W] of latents. Guidance is nil for a model
// without guidance_embeds. in_channels is 4C, and with Channels as many more. It computes in the dtype of the
// latents, in float16 with float32 residual streams, which diffusers clips instead.
func (m *Flux) Pass(in Inputs, s *FluxSequence) Pass {
	batch, dtype := in.Latents.Dim(0), in.Latents.Dtype()
	tokens, text := Pack(in.Latents), in.Text.AsType(dtype)
	if in.Channels != nil {
		tokens = mlx.Concat(2, tokens, toBatch(in.Channels.AsType(dtype), batch))
	}
	if in.References != nil {
		tokens = mlx.Concat(1, tokens, toBatch(in.References.AsType(dtype), batch))
	}
	p := &fluxPass{Flux: m, FluxSequence: s, tokens: tokens, textTokens: text}
	x := m.XEmbedder.Forward(tokens)
	p.time = stepTime{projections: in.Projections, layers: &m.ofTime}
	if in.Projections == nil {
		p.pooled = in.Pooled.AsType(dtype)
		p.time.temb = m.TimeTextEmbed.Forward(in.Timestep, in.Guidance, p.pooled)
	}
	c := toBatch(m.ContextEmbedder.Forward(text), x.Dim(0))
	p.shares = nn.NewShares(s.group, s.text, tokens.Dim(1))
	p.embedded = Hidden{Text: nn.WidenFP16(c), Image: nn.WidenFP16(x)}.shareOf(p.shares)
	p.joint = newFluxJoint(&m.Module, m.PosEmbed.Forward(s.rope, s.positions)).over(p.shares)
	return m.inStages(p)
}

type fluxPass struct {
	*Flux
	*FluxSequence
	tokens, textTokens, pooled *mlx.Array
	embedded                   Hidden
	time                       stepTime
	shares                     *nn.Shares
	joint                      joint
}

func (p *fluxPass) Embed() Hidden { return p.embedded }

func (p *fluxPass) Len() int { return len(p.TransformerBlocks) + len(p.SingleTransformerBlocks) }

func (p *fluxPass) Blocks(h Hidden, first, end int) Hidden {
	defer p.Sharing(p.shares)()
	text := p.shares.Count(0)
	c, x := h.Text, h.Image
	double, single := cut(p.TransformerBlocks, p.SingleTransformerBlocks, first, end)
	for _, b := range mlx.Layers(double, &c, &x) {
		c, x = b.Forward(c, x, p.time, p.joint)
	}
	if len(single) == 0 {
		return Hidden{Text: c, Image: x}
	}
	x = mlx.Concat(1, c, x)
	for _, b := range mlx.Layers(single, &x) {
		x = b.Forward(x, p.time, p.joint, text)
	}
	return splitText(x, text, end == p.Len())
}

func (p *fluxPass) Output(image *mlx.Array) *mlx.Array {
	out := imageOf(p.shares).Output(&p.Module, func() *mlx.Array { return p.ProjOut.Forward(p.NormOut.Forward(image, p.time)) })
	n := p.text + out.Dim(1)
	out = p.Tap(out, p.tokens, p.textTokens, p.pooled, p.positions.Slice(0, 0, p.text), p.positions.Slice(0, p.text, n))
	return Unpack(out.Slice(1, 0, p.h*p.w), p.h, p.w)
}

// fluxTimeTextEmbed is CombinedTimestepGuidanceTextProjEmbeddings or, without
// guidance, CombinedTimestepTextProjEmbeddings.
type fluxTimeTextEmbed struct {
	nn.Module        `in:"1 2"`         // pooled embeddings are input 1 without guidance, 2 with it
	TimeProj         timeProj           `w:"time_proj"`
	TimestepEmbedder *timestepEmbedding `w:"timestep_embedder"`
	GuidanceEmbedder *timestepEmbedding `w:"guidance_embedder"`
	TextEmbedder     *timestepEmbedding `w:"text_embedder"`
}

func newFluxTimeTextEmbed(dim, pooled int, guidance bool) *fluxTimeTextEmbed {
	t := &fluxTimeTextEmbed{TimestepEmbedder: newTimestepEmbedding(timestepFeatures, dim, true), TextEmbedder: &timestepEmbedding{
		Linear1: nn.NewLinear(pooled, dim, true), Act1: &nn.SiLU{}, Linear2: nn.NewLinear(dim, dim, true),
	}}
	if guidance {
		t.GuidanceEmbedder = newTimestepEmbedding(timestepFeatures, dim, true)
	}
	return t
}

func (t *fluxTimeTextEmbed) Forward(timestep, guidance, pooled *mlx.Array) *mlx.Array {
	dtype := pooled.Dtype()
	emb := t.TimestepEmbedder.Forward(t.TimeProj.Forward(timestep, dtype))
	if t.GuidanceEmbedder == nil {
		return t.Tap(emb.Add(t.TextEmbedder.Forward(pooled)), pooled, nil)
	}
	emb = emb.Add(t.GuidanceEmbedder.Forward(t.TimeProj.Forward(guidance, dtype)))
	return t.Tap(emb.Add(t.TextEmbedder.Forward(pooled)), nil, pooled)
}

// adaLayerNorm is AdaLayerNormZero, which modulates attention and the feed-forward, or
// AdaLayerNormZeroSingle, which modulates attention only.
type adaLayerNorm struct {
	nn.Module `in:"0 emb"`
	SiLU      *nn.SiLU      `w:"silu"`
	Linear    *nn.Linear    `w:"linear"`
	Norm      *nn.LayerNorm `w:"norm"`

	modulations int
}

func newAdaLayerNorm(dim, modulations int) *adaLayerNorm {
	return &adaLayerNorm{
		SiLU: &nn.SiLU{}, Linear: nn.NewLinear(dim, 3*modulations*dim, true), Norm: nn.NewLayerNorm(1e-6),
		modulations: modulations,
	}
}

// Forward takes x [B, L, dim] and the time of the step. It returns the norm of x with the shift
// and scale for attention, and all modulations; the caller applies the gates and the
// modulation of the feed-forward.
func (n *adaLayerNorm) Forward(x *mlx.Array, t stepTime) (y *mlx.Array, attn, mlp modulation) {
	m := splitModulations(t.projectSiLU(n.SiLU, n.Linear), n.modulations)
	y = n.tap(m[0].norm(n.Norm, x), m, x, t.temb)
	if n.modulations == 1 {
		return y, m[0], modulation{}
	}
	return y, m[0], m[1]
}

// tap passes y through the hook, with the modulations that the reference returns, each
// [B, dim]: the gate of attention, and all of the feed-forward's.
func (n *adaLayerNorm) tap(y *mlx.Array, m []modulation, x, temb *mlx.Array) *mlx.Array {
	if !n.Observed() {
		return y
	}
	out, returned := []*mlx.Array{y}, []**mlx.Array{&m[0].Gate}
	if len(m) == 2 {
		returned = append(returned, &m[1].Shift, &m[1].Scale, &m[1].Gate)
	}
	for _, part := range returned {
		out = append(out, (*part).Squeeze(1))
	}
	out = n.TapAll(out, x, temb)
	for i, part := range returned {
		*part = out[i+1].ExpandDims(1)
	}
	return out[0]
}

// fluxBlock is FluxTransformerBlock.
type fluxBlock struct {
	nn.Module `in:"hidden_states encoder_hidden_states temb image_rotary_emb.0 image_rotary_emb.1"`

	Norm1        *adaLayerNorm   `w:"norm1"`
	Norm1Context *adaLayerNorm   `w:"norm1_context"`
	Attn         *jointAttention `w:"attn"`
	Norm2        *nn.LayerNorm   `w:"norm2"`
	FF           *feedForward    `w:"ff"`
	Norm2Context *nn.LayerNorm   `w:"norm2_context"`
	FFContext    *feedForward    `w:"ff_context"`
}

func newFluxBlock(c FluxConfig) *fluxBlock {
	dim := c.NumAttentionHeads * c.AttentionHeadDim
	return &fluxBlock{
		Norm1: newAdaLayerNorm(dim, 2), Norm1Context: newAdaLayerNorm(dim, 2),
		Attn:  newJointAttention(c.NumAttentionHeads, c.AttentionHeadDim, true, 1e-6),
		Norm2: nn.NewLayerNorm(1e-6), FF: newFeedForward(dim, 4*dim),
		Norm2Context: nn.NewLayerNorm(1e-6), FFContext: newFeedForward(dim, 4*dim),
	}
}

// Forward takes the text c [B, T, dim] and the image x [B, L, dim].
func (b *fluxBlock) Forward(c, x *mlx.Array, t stepTime, j joint) (nextC, nextX *mlx.Array) {
	normX, attnX, mlpX := b.Norm1.Forward(x, t)
	normC, attnC, mlpC := b.Norm1Context.Forward(c, t)
	dx, dc := b.Attn.Forward(normX, normC, j)

	nextX, normX = attnX.addThenNorm(x, dx, b.Norm2, mlpX)
	nextX = mlpX.add(nextX, b.FF.Forward(normX))
	nextC, normC = attnC.addThenNorm(c, dc, b.Norm2Context, mlpC)
	nextC = mlpC.add(nextC, b.FFContext.Forward(normC))
	return b.Tap2(nextC, nextX, x, c, t.temb, j.emb[0], j.emb[1])
}

// fluxSingleBlock is FluxSingleTransformerBlock.
type fluxSingleBlock struct {
	nn.Module `in:"encoder_hidden_states hidden_states temb image_rotary_emb.0 image_rotary_emb.1"`

	Norm    *adaLayerNorm      `w:"norm"`
	ProjMLP *nn.Linear         `w:"proj_mlp"`
	ActMLP  *nn.Activation     `w:"act_mlp"` // GELU with approximate "tanh"
	ProjOut *nn.Linear         `w:"proj_out"`
	Attn    *parallelAttention `w:"attn"`

	QKVMLP nn.Stack
}

func newFluxSingleBlock(c FluxConfig) *fluxSingleBlock {
	dim := c.NumAttentionHeads * c.AttentionHeadDim
	b := &fluxSingleBlock{
		Norm:    newAdaLayerNorm(dim, 1),
		ProjMLP: nn.NewLinear(dim, 4*dim, true), ActMLP: &nn.Activation{Func: (*mlx.Array).GELUTanh},
		ProjOut: nn.NewLinear(5*dim, dim, true),
		Attn:    newParallelAttention(newSelfAttention(c.NumAttentionHeads, c.AttentionHeadDim, true, 1e-6)),
	}
	b.QKVMLP = nn.NewStack(b.Attn.ToQ, b.Attn.ToK, b.Attn.ToV, b.ProjMLP)
	return b
}

// Forward takes x [B, T+L, dim], whose first tokens are the text.
func (b *fluxSingleBlock) Forward(x *mlx.Array, t stepTime, j joint, text int) *mlx.Array {
	h, mod, _ := b.Norm.Forward(x, t)
	projected := b.QKVMLP.Forward(h)
	attn, mlp := b.Attn.Forward(h, projected[:3], j), projected[3]
	both := b.ActMLP.Fused("fluxSingleBlock.Forward",
		func() *mlx.Array { return mlx.ConcatGELU(attn, mlp) },
		func() *mlx.Array { return mlx.Concat(2, attn, b.ActMLP.Forward(mlp.Array())) })
	y := mod.add(x, b.ProjOut.ForwardWide(both, h.Dtype()))
	return b.tap(y, x, t.temb, j, text)
}

// tap passes text and image through the hook separately, as the reference's block takes
// and returns them.
func (b *fluxSingleBlock) tap(y, x, temb *mlx.Array, j joint, text int) *mlx.Array {
	if !b.Observed() {
		return y
	}
	n := x.Dim(1)
	nextC, nextX := b.Tap2(y.Slice(1, 0, text), y.Slice(1, text, n),
		x.Slice(1, 0, text), x.Slice(1, text, n), temb, j.emb[0], j.emb[1])
	return mlx.Concat(1, nextC, nextX)
}
