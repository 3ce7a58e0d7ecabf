package transformer

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Flux2Config is transformer/config.json of diffusers' Flux2Transformer2DModel.
type Flux2Config struct {
	PatchSize                int     `json:"patch_size"`
	InChannels               int     `json:"in_channels" size:"1"`
	OutChannels              *int    `json:"out_channels"`
	NumLayers                int     `json:"num_layers" layers:"0"`
	NumSingleLayers          int     `json:"num_single_layers" layers:"0"`
	AttentionHeadDim         int     `json:"attention_head_dim"`
	NumAttentionHeads        int     `json:"num_attention_heads"`
	JointAttentionDim        int     `json:"joint_attention_dim" size:"1"`
	TimestepGuidanceChannels int     `json:"timestep_guidance_channels" size:"2" multiple:"2"`
	MLPRatio                 float64 `json:"mlp_ratio"`
	AxesDimsRope             []int   `json:"axes_dims_rope"`
	RopeTheta                float64 `json:"rope_theta" number:"positive"`
	Eps                      float64 `json:"eps" number:"nonnegative"`
	GuidanceEmbeds           bool    `json:"guidance_embeds"`
}

// DefaultFlux2Config returns the values that diffusers uses for fields that a config lacks.
func DefaultFlux2Config() Flux2Config {
	return Flux2Config{
		PatchSize: 1, InChannels: 128, NumLayers: 8, NumSingleLayers: 48, AttentionHeadDim: 128, NumAttentionHeads: 48,
		JointAttentionDim: 15360, TimestepGuidanceChannels: 256, MLPRatio: 3, AxesDimsRope: []int{32, 32, 32, 32},
		RopeTheta: 2000, Eps: 1e-6, GuidanceEmbeds: true,
	}
}

// Validate returns an error if the model cannot be run with the config.
func (c *Flux2Config) Validate() error {
	switch {
	case c.PatchSize != 1:
		return fmt.Errorf("patch_size %d: expected 1 (the autoencoder's latents are patches)", c.PatchSize)
	case outChannels(c.OutChannels, c.InChannels) != c.InChannels:
		return fmt.Errorf("out_channels %d: expected in_channels, %d", *c.OutChannels, c.InChannels)
	case !(c.MLPRatio > 0 && c.MLPRatio <= 64):
		return fmt.Errorf("mlp_ratio %v: must be positive, and at most 64", c.MLPRatio)
	case c.NumAttentionHeads > 0 && c.AttentionHeadDim > 0 && c.hidden() < 1:
		return fmt.Errorf("mlp_ratio %v: the feed-forward has no features", c.MLPRatio)
	}
	return validateJoint(c, c.NumAttentionHeads, c.AttentionHeadDim, c.AxesDimsRope, 4)
}

// Flux2 is diffusers' Flux2Transformer2DModel.
type Flux2 struct {
	nn.Module `in:"hidden_states encoder_hidden_states txt_ids img_ids"`
	staged

	PosEmbed                  posEmbed            `w:"pos_embed"`
	TimeGuidanceEmbed         *flux2TimeEmbed     `w:"time_guidance_embed"`
	DoubleStreamModulationImg *flux2Modulation    `w:"double_stream_modulation_img"`
	DoubleStreamModulationTxt *flux2Modulation    `w:"double_stream_modulation_txt"`
	SingleStreamModulation    *flux2Modulation    `w:"single_stream_modulation"`
	XEmbedder                 *nn.Linear          `w:"x_embedder"`
	ContextEmbedder           *nn.Linear          `w:"context_embedder"`
	TransformerBlocks         []*flux2Block       `w:"transformer_blocks"`
	SingleTransformerBlocks   []*flux2SingleBlock `w:"single_transformer_blocks"`

	NormOut *adaLayerNormContinuous `w:"norm_out"`
	ProjOut *nn.Linear              `w:"proj_out"`

	Config Flux2Config
}

// NewFlux2 declares the model of a validated config.
func NewFlux2(c Flux2Config) *Flux2 {
	dim := c.NumAttentionHeads * c.AttentionHeadDim
	m := &Flux2{
		TimeGuidanceEmbed:         newFlux2TimeEmbed(c, dim),
		DoubleStreamModulationImg: newFlux2Modulation(dim, 6),
		DoubleStreamModulationTxt: newFlux2Modulation(dim, 6),
		SingleStreamModulation:    newFlux2Modulation(dim, 3),
		XEmbedder:                 nn.NewLinear(c.InChannels, dim, false),
		ContextEmbedder:           nn.NewLinear(c.JointAttentionDim, dim, false),
		NormOut:                   newAdaLayerNormContinuous(dim, c.Eps, false),
		ProjOut:                   nn.NewLinear(dim, c.InChannels, false),
		Config:                    c,
	}
	for range c.NumLayers {
		m.TransformerBlocks = append(m.TransformerBlocks, newFlux2Block(c))
	}
	for range c.NumSingleLayers {
		m.SingleTransformerBlocks = append(m.SingleTransformerBlocks, newFlux2SingleBlock(c))
	}
	return m
}

// Flux2Sequence is the layout of an image size with a number of text tokens and some
// reference images. It is the same for all steps.
type Flux2Sequence struct {
	shared
	h, w                     int
	text, target, references flux2Positions
}

// flux2Positions has the positions of a part of the sequence.
type flux2Positions struct {
	n    int
	at   *mlx.Array // [n, 4]
	rope nn.Rope
}

// then returns the positions of p followed by those of q.
func (p flux2Positions) then(q flux2Positions) flux2Positions {
	if q.n == 0 {
		return p
	}
	return flux2Positions{p.n + q.n, mlx.Concat(0, p.at, q.at), p.rope.Concat(q.rope)}
}

// Sequence lays out latents of height×width with a text of the given number of
// tokens and references of the given heights and widths, all in the
// autoencoder's patches. Text token k is at (0, 0, 0, k), the latent in row y and
// column x at (0, y, x, 0), and that of reference r, from 0, at
// (10+10r, y, x, 0).
func (m *Flux2) Sequence(height, width, text int, references ...[2]int) (*Flux2Sequence, error) {
	return newFlux2Sequence(height, width, text, references, func(k int) []int { return []int{0, 0, 0, k} },
		func(p []int, r int) { p[0] = 10 + 10*r }, func(positions [][]int) flux2Positions {
			return flux2Positions{len(positions), positionArray(positions),
				nn.NewFluxRope(positions, m.Config.AxesDimsRope, m.Config.RopeTheta)}
		})
}

// newFlux2Sequence lays out tokens: of the text by their numbers, and of an image at (0, y, x, 0), where place sets what
// differs for reference r, from 0. layOut makes the tables of positions.
func newFlux2Sequence(height, width, text int, references [][2]int, ofText func(k int) []int, place func(p []int, r int),
	layOut func(positions [][]int) flux2Positions,
) (*Flux2Sequence, error) {
	for _, size := range append([][2]int{{height, width}}, references...) {
		if size[0] < 1 || size[1] < 1 {
			return nil, fmt.Errorf("latents of %d×%d: expected at least 1×1", size[0], size[1])
		}
	}
	var texts, others [][]int
	for k := range text {
		texts = append(texts, ofText(k))
	}
	for r, size := range references {
		grid := appendGrid(nil, size[0], size[1], 0, 4)
		for _, p := range grid {
			place(p, r)
		}
		others = append(others, grid...)
	}
	s := &Flux2Sequence{h: height, w: width, text: layOut(texts), target: layOut(appendGrid(nil, height, width, 0, 4))}
	if len(references) > 0 {
		s.references = layOut(others)
	}
	return s, nil
}

// Timestep is the sinusoidal embedding [1, timestep_guidance_channels] that
// Forward takes, for a time t from 0 to 1 (pure noise).
func (m *Flux2) Timestep(t float32) *mlx.Array {
	return nn.TimestepEmbedding(t*1000, m.Config.TimestepGuidanceChannels)
}

// Guidance is the sinusoidal embedding [1, timestep_guidance_channels] of a guidance scale that Forward
// takes if the model has guidance_embeds.
func (m *Flux2) Guidance(scale float32) *mlx.Array { return m.Timestep(scale) }

// Pass returns the forward pass, whose output is the velocity [B, C, h, w] of latents. Guidance is nil for a model
// without guidance_embeds. It computes in the dtype of the latents, in float16 with float32 residual streams, which
// diffusers clips instead, and without rounding the text.
func (m *Flux2) Pass(in Inputs, s *Flux2Sequence) Pass {
	tokens := flatten(in.Latents)
	if in.References != nil {
		tokens = mlx.Concat(1, tokens, toBatch(in.References.AsType(in.Latents.Dtype()), in.Latents.Dim(0)))
	}
	return m.pass(tokens, in, s, s.target.then(s.references), nil)
}

// pass returns the pass of an image stream's tokens [B, n, C] at some positions. One that fills
// the KV cache runs all blocks.
func (m *Flux2) pass(tokens *mlx.Array, in Inputs, s *Flux2Sequence, at flux2Positions, kv *flux2KV) Pass {
	dtype := tokens.Dtype()
	p := &flux2Pass{Flux2: m, Flux2Sequence: s, tokens: tokens, textTokens: in.Text.AsType(nn.WideDtype(dtype)), at: at}
	p.temb = m.TimeGuidanceEmbed.Forward(in.Timestep, in.Guidance, dtype)
	p.shares = nn.NewShares(s.group, s.text.n, at.n)
	if kv.fills() {
		p.shares = nn.NewShares(s.group, s.text.n, s.references.n, s.target.n)
	}
	p.ofImage, p.ofText, p.ofBoth = m.modulations(p.temb, p.shares, kv)
	x := nn.WidenFP16(m.XEmbedder.Forward(tokens))
	p.embedded = Hidden{Text: toBatch(m.ContextEmbedder.ForwardWide(p.textTokens, dtype), x.Dim(0)), Image: x}.shareOf(p.shares)
	imageRope := m.PosEmbed.Forward(at.rope, at.at)
	p.joint = newFluxJoint(&m.Module, m.PosEmbed.Forward(s.text.rope, s.text.at).Concat(imageRope)).over(p.shares)
	p.joint.kv = kv
	return m.inStages(p)
}

type flux2Pass struct {
	*Flux2
	*Flux2Sequence
	tokens, textTokens, temb *mlx.Array
	embedded                 Hidden
	at                       flux2Positions // of tokens
	ofImage, ofText, ofBoth  streamModulation
	shares                   *nn.Shares // of the text, the references of a pass that fills the cache, and the other tokens
	joint                    joint
}

func (p *flux2Pass) Embed() Hidden { return p.embedded }

func (p *flux2Pass) Len() int { return p.layers() }

func (p *flux2Pass) Blocks(h Hidden, first, end int) Hidden {
	defer p.Sharing(p.shares)()
	c, x, j := h.Text, h.Image, p.joint
	double, single := cut(p.TransformerBlocks, p.SingleTransformerBlocks, first, end)
	for i, b := range mlx.Layers(double, j.kv.state(&c, &x)...) {
		j.layer = first + i
		c, x = b.Forward(c, x, p.ofImage, p.ofText, j)
	}
	if len(single) == 0 {
		return Hidden{Text: c, Image: x}
	}
	x = mlx.Concat(1, c, x)
	for i, b := range mlx.Layers(single, j.kv.state(&x)...) {
		j.layer = first + len(double) + i
		x = b.Forward(x, p.ofBoth, j)
	}
	return splitText(x, p.shares.Count(0), end == p.Len())
}

// Output returns the velocity. image has the target first, or last in a pass that fills the KV cache.
func (p *flux2Pass) Output(image *mlx.Array) *mlx.Array {
	last := p.shares.Len() - 1
	if p.joint.kv.fills() { // the references are needed no more
		image = image.Slice(1, p.shares.Count(1), image.Dim(1))
	}
	out := p.shares.Streams(last, last+1).Output(&p.Module, func() *mlx.Array {
		return p.ProjOut.Forward(p.NormOut.Forward(image, stepTime{temb: p.temb}))
	})
	out = p.Tap(out, p.tokens, p.textTokens, p.text.at.ExpandDims(0), p.at.at.ExpandDims(0))
	if out.Dim(1) > p.target.n {
		out = out.Slice(1, 0, p.target.n)
	}
	return unflatten(out, p.h, p.w)
}

// modulations projects temb for this process's tokens of the image stream, the text stream, and
// both together. A pass that fills the KV cache modulates references as at time 0.
func (m *Flux2) modulations(temb *mlx.Array, s *nn.Shares, kv *flux2KV) (ofImage, ofText, ofBoth streamModulation) {
	project := func(l *flux2Modulation) streamModulation {
		all := l.Forward(temb)
		return streamModulation{all: all, tapped: all}
	}
	ofImage, ofText = project(m.DoubleStreamModulationImg), project(m.DoubleStreamModulationTxt)
	ofBoth = project(m.SingleStreamModulation)
	if kv.fills() {
		temb = m.TimeGuidanceEmbed.Forward(m.Timestep(0), nil, temb.Dtype())
		text, references, target := s.Count(0), s.Count(1), s.Count(2)
		ofImage = ofImage.withReferences(m.DoubleStreamModulationImg.Forward(temb), between(references+target, 0, references), m.Observed())
		ofBoth = ofBoth.withReferences(m.SingleStreamModulation.Forward(temb),
			between(text+references+target, text, text+references), m.Observed())
	}
	return ofImage.forAllBlocks(2), ofText.forAllBlocks(2), ofBoth.forAllBlocks(1)
}

// flux2TimeEmbed is Flux2TimestepGuidanceEmbeddings.
type flux2TimeEmbed struct {
	nn.Module
	TimeProj         timeProj           `w:"time_proj"`
	TimestepEmbedder *timestepEmbedding `w:"timestep_embedder"`
	GuidanceEmbedder *timestepEmbedding `w:"guidance_embedder"` // nil without guidance_embeds
}

func newFlux2TimeEmbed(c Flux2Config, dim int) *flux2TimeEmbed {
	t := &flux2TimeEmbed{TimestepEmbedder: newTimestepEmbedding(c.TimestepGuidanceChannels, dim, false)}
	if c.GuidanceEmbeds {
		t.GuidanceEmbedder = newTimestepEmbedding(c.TimestepGuidanceChannels, dim, false)
	}
	return t
}

func (t *flux2TimeEmbed) Forward(timestep, guidance *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	emb := t.TimestepEmbedder.Forward(t.TimeProj.Forward(timestep, dtype))
	if t.GuidanceEmbedder != nil {
		emb = emb.Add(t.GuidanceEmbedder.Forward(t.TimeProj.Forward(guidance, dtype)))
	}
	return t.Tap(emb) // no input: the reference's are the numbers themselves
}

// flux2Modulation is Flux2Modulation.
type flux2Modulation struct {
	nn.Module
	Linear *nn.Linear `w:"linear"`
	Act    *nn.SiLU   `w:"act_fn"`
}

func newFlux2Modulation(dim, parts int) *flux2Modulation {
	return &flux2Modulation{Linear: nn.NewLinear(dim, parts*dim, false), Act: &nn.SiLU{}}
}

// Forward takes temb [B, dim] to [B, parts·dim].
func (m *flux2Modulation) Forward(temb *mlx.Array) *mlx.Array {
	return m.Tap(m.Linear.Forward(m.Act.Forward(temb)), temb)
}

// flux2Block is Flux2TransformerBlock.
type flux2Block struct {
	nn.Module `in:"hidden_states encoder_hidden_states temb_mod_img temb_mod_txt image_rotary_emb.0 image_rotary_emb.1"`

	Norm1        *nn.LayerNorm     `w:"norm1"`
	Norm1Context *nn.LayerNorm     `w:"norm1_context"`
	Attn         *jointAttention   `w:"attn"`
	Norm2        *nn.LayerNorm     `w:"norm2"`
	FF           *flux2FeedForward `w:"ff"`
	Norm2Context *nn.LayerNorm     `w:"norm2_context"`
	FFContext    *flux2FeedForward `w:"ff_context"`
}

func newFlux2Block(c Flux2Config) *flux2Block {
	dim := c.NumAttentionHeads * c.AttentionHeadDim
	ff := func() *flux2FeedForward {
		hidden := c.hidden()
		return &flux2FeedForward{LinearIn: nn.NewLinear(dim, 2*hidden, false), Act: newSwiGLU(),
			LinearOut: nn.NewLinear(hidden, dim, false)}
	}
	return &flux2Block{
		Norm1: nn.NewLayerNorm(c.Eps), Norm1Context: nn.NewLayerNorm(c.Eps),
		Attn:  newJointAttention(c.NumAttentionHeads, c.AttentionHeadDim, false, c.Eps),
		Norm2: nn.NewLayerNorm(c.Eps), FF: ff(), Norm2Context: nn.NewLayerNorm(c.Eps), FFContext: ff(),
	}
}

// hidden is the width of the feed-forwards.
func (c *Flux2Config) hidden() int {
	return int(float64(c.NumAttentionHeads*c.AttentionHeadDim) * c.MLPRatio)
}

// Forward takes the text c [B, T, dim] and the image x [B, L, dim].
func (b *flux2Block) Forward(c, x *mlx.Array, ofImage, ofText streamModulation, j joint) (nextC, nextX *mlx.Array) {
	attnX, mlpX := ofImage.attentionAndMLP()
	attnC, mlpC := ofText.attentionAndMLP()
	dx, dc := b.Attn.Forward(attnX.norm(b.Norm1, x), attnC.norm(b.Norm1Context, c), j)

	nextX, normX := attnX.addThenNorm(x, dx, b.Norm2, mlpX)
	nextX = mlpX.add(nextX, b.FF.Forward(normX))
	nextC, normC := attnC.addThenNorm(c, dc, b.Norm2Context, mlpC)
	nextC = mlpC.add(nextC, b.FFContext.Forward(normC))
	return b.Tap2(nextC, nextX, x, c, ofImage.tapped, ofText.tapped, j.emb[0], j.emb[1])
}

// flux2FeedForward is Flux2FeedForward.
type flux2FeedForward struct {
	nn.Module
	LinearIn  *nn.Linear `w:"linear_in"`
	Act       *swiGLU    `w:"act_fn"`
	LinearOut *nn.Linear `w:"linear_out"`
}

func (f *flux2FeedForward) Forward(x *mlx.Array) *mlx.Array {
	return f.after(x, mlx.AllColumns(f.LinearIn.Forward(x)))
}

// after is Forward with the result of LinearIn.
func (f *flux2FeedForward) after(x *mlx.Array, in mlx.Columns) *mlx.Array {
	return f.Tap(f.LinearOut.ForwardWide(f.Act.after(nil, in), x.Dtype()), x)
}

// swiGLU is Flux2SwiGLU: silu(a)·b of [a|b], in float32 for float16.
type swiGLU struct {
	nn.Module
	Gate *nn.SiLU `w:"gate_fn"`
}

func newSwiGLU() *swiGLU { return &swiGLU{Gate: &nn.SiLU{}} }

// after returns the columns [first, silu(a)·b] of x = [a|b]. first may be nil.
func (s *swiGLU) after(first *mlx.Array, x mlx.Columns) *mlx.Array {
	half := x.Size / 2
	a, b := mlx.Columns{X: x.X, From: x.From, Size: half}, mlx.Columns{X: x.X, From: x.From + half, Size: half}
	return s.Fused("swiGLU.after", func() *mlx.Array { return nn.WideSwiGLU(first, a, b) }, func() *mlx.Array {
		y := s.Tap(nn.WidenFP16(s.Gate.Forward(a.Array())).Mul(nn.WidenFP16(b.Array())), x.Array())
		if first != nil {
			y = mlx.Concat(2, nn.WidenFP16(first), y)
		}
		return y
	})
}

// flux2SingleBlock is Flux2SingleTransformerBlock.
type flux2SingleBlock struct {
	nn.Module `in:"hidden_states temb_mod image_rotary_emb.0 image_rotary_emb.1"`
	Norm      *nn.LayerNorm           `w:"norm"`
	Attn      *flux2ParallelAttention `w:"attn"`
}

// flux2ParallelAttention is Flux2ParallelSelfAttention, whose projections are for
// attention and the feed-forward together.
type flux2ParallelAttention struct {
	nn.Module `in:"hidden_states image_rotary_emb.0 image_rotary_emb.1"`

	ToQKVMLP *nn.Linear  `w:"to_qkv_mlp_proj"`
	Act      *swiGLU     `w:"mlp_act_fn"`
	NormQ    *nn.RMSNorm `w:"norm_q"`
	NormK    *nn.RMSNorm `w:"norm_k"`
	ToOut    *nn.Linear  `w:"to_out"`

	heads, dim int
}

func newFlux2SingleBlock(c Flux2Config) *flux2SingleBlock {
	dim, hidden := c.NumAttentionHeads*c.AttentionHeadDim, c.hidden()
	return &flux2SingleBlock{Norm: nn.NewLayerNorm(c.Eps), Attn: &flux2ParallelAttention{
		ToQKVMLP: nn.NewLinear(dim, 3*dim+2*hidden, false), Act: newSwiGLU(),
		NormQ: nn.NewRMSNorm(c.AttentionHeadDim, c.Eps), NormK: nn.NewRMSNorm(c.AttentionHeadDim, c.Eps),
		ToOut: nn.NewLinear(dim+hidden, dim, false), heads: c.NumAttentionHeads, dim: dim,
	}}
}

// Forward takes [B, T+L, dim].
func (b *flux2SingleBlock) Forward(x *mlx.Array, mod streamModulation, j joint) *mlx.Array {
	m := mod.split(1)[0]
	y := b.Attn.Forward(m.norm(b.Norm, x), j)
	return b.Tap(m.add(x, y), x, mod.tapped, j.emb[0], j.emb[1])
}

func (a *flux2ParallelAttention) Forward(x *mlx.Array, j joint) *mlx.Array {
	all := a.ToQKVMLP.Forward(x)
	columns := func(i, n int) mlx.Columns { return mlx.Columns{X: all, From: i, Size: n} }
	qkv := []mlx.Columns{columns(0, a.dim), columns(a.dim, a.dim), columns(2*a.dim, a.dim)}
	h := a.NormRope(j.rope, a.heads, nn.NewQKV(qkv, a.NormQ, a.NormK))
	both := a.Act.after(j.attend(&a.Module, h), columns(3*a.dim, all.Dim(2)-3*a.dim))
	return a.Tap(a.ToOut.ForwardWide(both, x.Dtype()), x, j.emb[0], j.emb[1])
}
