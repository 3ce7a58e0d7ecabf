package transformer

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Krea2Config is transformer/config.json of diffusers' Krea2Transformer2DModel.
type Krea2Config struct {
	InChannels             int     `json:"in_channels"`
	NumLayers              int     `json:"num_layers" layers:"0"`
	AttentionHeadDim       int     `json:"attention_head_dim"`
	NumAttentionHeads      int     `json:"num_attention_heads"`
	NumKeyValueHeads       int     `json:"num_key_value_heads" size:"1"`
	IntermediateSize       int     `json:"intermediate_size" size:"1"`
	TimestepEmbedDim       int     `json:"timestep_embed_dim" size:"2" multiple:"2"`
	TextHiddenDim          int     `json:"text_hidden_dim" size:"1"`
	NumTextLayers          int     `json:"num_text_layers" size:"1"`
	TextNumAttentionHeads  int     `json:"text_num_attention_heads" size:"1"`
	TextNumKeyValueHeads   int     `json:"text_num_key_value_heads" size:"1"`
	TextIntermediateSize   int     `json:"text_intermediate_size" size:"1"`
	NumLayerwiseTextBlocks int     `json:"num_layerwise_text_blocks" layers:"0"`
	NumRefinerTextBlocks   int     `json:"num_refiner_text_blocks" layers:"0"`
	AxesDimsRope           []int   `json:"axes_dims_rope"`
	RopeTheta              float64 `json:"rope_theta" number:"positive"`
	NormEps                float64 `json:"norm_eps" number:"nonnegative"`
}

// DefaultKrea2Config returns the values that diffusers uses for fields that a config lacks: those of
// the published models.
func DefaultKrea2Config() Krea2Config {
	return Krea2Config{
		InChannels: 64, NumLayers: 28, AttentionHeadDim: 128, NumAttentionHeads: 48, NumKeyValueHeads: 12,
		IntermediateSize: 16384, TimestepEmbedDim: timestepFeatures, TextHiddenDim: 2560, NumTextLayers: 12,
		TextNumAttentionHeads: 20, TextNumKeyValueHeads: 20, TextIntermediateSize: 6912,
		NumLayerwiseTextBlocks: 2, NumRefinerTextBlocks: 2, AxesDimsRope: []int{32, 48, 48}, RopeTheta: 1000, NormEps: 1e-5,
	}
}

// Width returns the number of features of the stream.
func (c *Krea2Config) Width() int { return c.NumAttentionHeads * c.AttentionHeadDim }

// Validate returns an error if the model cannot be run with the config.
func (c *Krea2Config) Validate() error {
	switch err := nn.CheckConfig(c); {
	case err != nil:
		return err
	case c.InChannels < 4 || c.InChannels%4 != 0 || c.InChannels > nn.MaxDim:
		return fmt.Errorf("in_channels %d: expected 4 for each channel of the latents", c.InChannels)
	case c.NumAttentionHeads%c.NumKeyValueHeads != 0:
		return fmt.Errorf("num_attention_heads %d: expected a multiple of num_key_value_heads %d", c.NumAttentionHeads,
			c.NumKeyValueHeads)
	case c.TextNumAttentionHeads%c.TextNumKeyValueHeads != 0 || c.TextHiddenDim%c.TextNumAttentionHeads != 0:
		return fmt.Errorf("text_num_attention_heads %d: expected a multiple of text_num_key_value_heads %d that divides "+
			"text_hidden_dim %d", c.TextNumAttentionHeads, c.TextNumKeyValueHeads, c.TextHiddenDim)
	}
	return validateJoint(c, c.NumAttentionHeads, c.AttentionHeadDim, c.AxesDimsRope, 3)
}

// Krea2 is diffusers' Krea2Transformer2DModel.
type Krea2 struct {
	nn.Module `in:"hidden_states encoder_hidden_states position_ids"`
	staged

	ImgIn             *nn.Linear           `w:"img_in"`
	TimeEmbed         *krea2TimeEmbedding  `w:"time_embed"`
	TimeModProj       *nn.Linear           `w:"time_mod_proj"`
	TextFusion        *krea2TextFusion     `w:"text_fusion"`
	TxtIn             *krea2TextProjection `w:"txt_in"`
	RotaryEmb         posEmbed             `w:"rotary_emb"`
	TransformerBlocks []*krea2Block        `w:"transformer_blocks"`
	FinalLayer        *krea2Final          `w:"final_layer"`

	Config Krea2Config
}

// NewKrea2 declares the model of a validated config.
func NewKrea2(c Krea2Config) *Krea2 {
	dim, text := c.Width(), c.TextHiddenDim
	norm := func(dim int) *nn.RMSNorm { return nn.NewRMSNormMinusOne(dim, c.NormEps) }
	m := &Krea2{
		ImgIn: nn.NewLinear(c.InChannels, dim, true),
		TimeEmbed: &krea2TimeEmbedding{
			Linear1: nn.NewLinear(c.TimestepEmbedDim, dim, true), Linear2: nn.NewLinear(dim, dim, true),
		},
		TimeModProj: nn.NewLinear(dim, 6*dim, true),
		TextFusion:  &krea2TextFusion{Projector: nn.NewLinear(c.NumTextLayers, 1, false)},
		TxtIn: &krea2TextProjection{
			Norm: norm(text), Linear1: nn.NewLinear(text, dim, true), Linear2: nn.NewLinear(dim, dim, true),
		},
		FinalLayer: &krea2Final{
			ScaleShiftTable: nn.NewParam(2, dim), Norm: norm(dim), Linear: nn.NewLinear(dim, c.InChannels, true),
		},
		Config: c,
	}
	textBlock := func() *krea2TextBlock {
		return &krea2TextBlock{
			Norm1: norm(text), Norm2: norm(text), FF: newGatedFeedForward(text, c.TextIntermediateSize),
			Attn: newGatedAttention(text, c.TextNumAttentionHeads, c.TextNumKeyValueHeads, norm),
		}
	}
	for range c.NumLayerwiseTextBlocks {
		m.TextFusion.LayerwiseBlocks = append(m.TextFusion.LayerwiseBlocks, textBlock())
	}
	for range c.NumRefinerTextBlocks {
		m.TextFusion.RefinerBlocks = append(m.TextFusion.RefinerBlocks, textBlock())
	}
	for range c.NumLayers {
		m.TransformerBlocks = append(m.TransformerBlocks, &krea2Block{
			ScaleShiftTable: nn.NewParam(6, dim), Norm1: norm(dim), Norm2: norm(dim),
			Attn: newGatedAttention(dim, c.NumAttentionHeads, c.NumKeyValueHeads, norm), FF: newGatedFeedForward(dim, c.IntermediateSize),
		})
	}
	return m
}

// Sequence lays out latents of height×width, both even, with a text of the given number of tokens.
// The text is at (0, 0, 0), and the patch in row y and column x at (0, y, x).
func (m *Krea2) Sequence(height, width, text int) (*FluxSequence, error) {
	return newFluxSequence(height, width, text, nil, m.Config.AxesDimsRope, m.Config.RopeTheta)
}

// Timestep is the sinusoidal embedding [1, timestep_embed_dim] that Forward takes, for a time t from
// 0 to 1 (pure noise).
func (m *Krea2) Timestep(t float32) *mlx.Array {
	return nn.TimestepEmbedding(t*1000, m.Config.TimestepEmbedDim)
}

// Pass returns the forward pass, whose output is the velocity [B, C, H, W] of latents. Text are hidden states of the text
// encoder [B, T, num_text_layers, text_hidden_dim], whose fusion belongs to the embedding, or the result of
// [Krea2.FuseText] for them. It computes in the dtype of the latents, in float16 with float32 residual streams.
func (m *Krea2) Pass(in Inputs, s *FluxSequence) Pass {
	p := &krea2Pass{Krea2: m, s: s, tokens: Pack(in.Latents), text: in.Text}
	p.shares = nn.NewShares(s.group, s.text, s.h*s.w)
	p.temb = m.TimeEmbed.Forward(in.Timestep.AsType(in.Latents.Dtype()))
	p.modulation = m.TimeModProj.Forward(geluTanh(p.temb))
	return m.inStages(p)
}

type krea2Pass struct {
	*Krea2
	s                *FluxSequence
	tokens, text     *mlx.Array
	temb, modulation *mlx.Array // [1, 1, dim] and [1, 1, 6·dim]
	shares           *nn.Shares // of text and image
}

// FuseText returns the text of the joint sequence [B, T, dim] for hidden states of the text encoder
// [B, T, num_text_layers, text_hidden_dim]. It is the same for all steps. It computes in dtype.
func (m *Krea2) FuseText(states *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	return m.TxtIn.Forward(m.TextFusion.Forward(states.AsType(nn.WideDtype(dtype)), dtype), dtype)
}

func (p *krea2Pass) Embed() Hidden {
	c := p.text
	if c.Ndim() == 4 {
		c = p.FuseText(c, p.tokens.Dtype())
	}
	x := p.ImgIn.Forward(p.tokens)
	return Hidden{Image: p.shares.Share(1, nn.WidenFP16(mlx.Concat(1, toBatch(c, x.Dim(0)), x)))}
}

func (p *krea2Pass) Len() int { return len(p.TransformerBlocks) }

func (p *krea2Pass) Blocks(h Hidden, first, end int) Hidden {
	defer p.Sharing(p.shares)()
	x, rope := h.Image, p.s.rope
	if first == 0 {
		rope = p.RotaryEmb.Forward(rope, p.s.positions)
	}
	j := newFluxJoint(&p.Module, rope).over(p.shares)
	for _, b := range mlx.Layers(p.TransformerBlocks[first:end], &x) {
		x = b.Forward(x, p.modulation, j)
	}
	return Hidden{Image: x}
}

func (p *krea2Pass) Output(x *mlx.Array) *mlx.Array {
	out := imageOf(p.shares).Output(&p.Module, func() *mlx.Array {
		return p.FinalLayer.Forward(x.Slice(1, p.shares.Count(0), x.Dim(1)), p.temb)
	})
	return Unpack(p.Tap(out, p.tokens, p.text, p.s.positions), p.s.h, p.s.w)
}

func geluTanh(x *mlx.Array) *mlx.Array { return mlx.ConcatGELU(nil, mlx.AllColumns(x)) }

// krea2TimeEmbedding is Krea2TimestepEmbedding, whose sinusoids are computed on the host.
type krea2TimeEmbedding struct {
	nn.Module
	Linear1 *nn.Linear `w:"linear_1"`
	Linear2 *nn.Linear `w:"linear_2"`
}

// Forward takes sinusoids [1, in] to [1, 1, dim].
func (t *krea2TimeEmbedding) Forward(sinusoids *mlx.Array) *mlx.Array {
	emb := t.Linear2.Forward(geluTanh(t.Linear1.Forward(sinusoids.ExpandDims(1))))
	return t.Tap(emb) // no input: the reference's is the time itself
}

// krea2TextFusion is Krea2TextFusion: blocks over the layers of each token, a projection of the
// layers to one, and blocks over the tokens.
type krea2TextFusion struct {
	nn.Module
	LayerwiseBlocks []*krea2TextBlock `w:"layerwise_blocks"`
	Projector       *nn.Linear        `w:"projector"`
	RefinerBlocks   []*krea2TextBlock `w:"refiner_blocks"`
}

// Forward takes hidden states [B, T, layers, dim] to [B, T, dim]. The blocks compute in dtype.
func (f *krea2TextFusion) Forward(states *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	b, t, layers, dim := states.Dim(0), states.Dim(1), states.Dim(2), states.Dim(3)
	x := states.Reshape(b*t, layers, dim)
	for _, block := range mlx.Layers(f.LayerwiseBlocks, &x) {
		x = block.Forward(x, dtype)
	}
	x = f.Projector.Forward(x.Reshape(b, t, layers, dim).Transpose(0, 1, 3, 2)).Squeeze(-1)
	for _, block := range mlx.Layers(f.RefinerBlocks, &x) {
		x = block.Forward(x, dtype)
	}
	return f.Tap(x, states)
}

// krea2TextBlock is Krea2TextFusionBlock.
type krea2TextBlock struct {
	nn.Module
	Norm1 *nn.RMSNorm       `w:"norm1"`
	Norm2 *nn.RMSNorm       `w:"norm2"`
	Attn  *gatedAttention   `w:"attn"`
	FF    *gatedFeedForward `w:"ff"`
}

func (b *krea2TextBlock) Forward(x *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	y := x.Add(b.Attn.Forward(b.Norm1.Forward(x).AsType(dtype), joint{}))
	y = y.Add(b.FF.Forward(b.Norm2.Forward(y).AsType(dtype)))
	return b.Tap(y, x)
}

// krea2TextProjection is Krea2TextProjection.
type krea2TextProjection struct {
	nn.Module
	Norm    *nn.RMSNorm `w:"norm"`
	Linear1 *nn.Linear  `w:"linear_1"`
	Linear2 *nn.Linear  `w:"linear_2"`
}

func (p *krea2TextProjection) Forward(x *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	y := p.Linear2.Forward(geluTanh(p.Linear1.Forward(p.Norm.Forward(x).AsType(dtype))))
	return p.Tap(y, x)
}

// krea2Block is Krea2TransformerBlock. All blocks have the same projection of the time, to which
// each adds a table.
type krea2Block struct {
	nn.Module       `in:"0 1 2.0 2.1"`
	ScaleShiftTable nn.Param          `w:"scale_shift_table"`
	Norm1           *nn.RMSNorm       `w:"norm1"`
	Norm2           *nn.RMSNorm       `w:"norm2"`
	Attn            *gatedAttention   `w:"attn"`
	FF              *gatedFeedForward `w:"ff"`
}

// Forward takes x [B, L, dim] and the projection of the time [1, 1, 6·dim].
func (b *krea2Block) Forward(x, time *mlx.Array, j joint) *mlx.Array {
	parts := time.Reshape(1, 6, -1).Add(b.ScaleShiftTable.As(time.Dtype())).Split(6, 1)
	attn := modulation{Scale: parts[0], Shift: parts[1], Gate: parts[2]}
	ff := modulation{Scale: parts[3], Shift: parts[4], Gate: parts[5]}

	dx := b.Attn.Forward(attn.norm(b.Norm1, x), j)
	y, normed := attn.addThenNorm(x, dx, b.Norm2, ff)
	return b.Tap(ff.add(y, b.FF.Forward(normed)), x, time, j.emb[0], j.emb[1])
}

// krea2Final is Krea2FinalLayer.
type krea2Final struct {
	nn.Module       `in:"0 1"`
	ScaleShiftTable nn.Param    `w:"scale_shift_table"`
	Norm            *nn.RMSNorm `w:"norm"`
	Linear          *nn.Linear  `w:"linear"`
}

// Forward takes x [B, L, dim] and the embedding of the time [1, 1, dim].
func (f *krea2Final) Forward(x, temb *mlx.Array) *mlx.Array {
	parts := temb.Add(f.ScaleShiftTable.As(temb.Dtype())).Split(2, 1)
	m := modulation{Scale: parts[0], Shift: parts[1]}
	return f.Tap(f.Linear.Forward(m.norm(f.Norm, x)), x, temb)
}
