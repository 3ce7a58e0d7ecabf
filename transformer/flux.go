package transformer

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// FluxConfig is transformer/config.json of diffusers' FluxTransformer2DModel.
type FluxConfig struct {
	PatchSize           int   `json:"patch_size"`
	InChannels          int   `json:"in_channels"`
	OutChannels         *int  `json:"out_channels"`
	NumLayers           int   `json:"num_layers"`
	NumSingleLayers     int   `json:"num_single_layers"`
	AttentionHeadDim    int   `json:"attention_head_dim"`
	NumAttentionHeads   int   `json:"num_attention_heads"`
	JointAttentionDim   int   `json:"joint_attention_dim"`
	PooledProjectionDim int   `json:"pooled_projection_dim"`
	GuidanceEmbeds      bool  `json:"guidance_embeds"`
	AxesDimsRope        []int `json:"axes_dims_rope"`
}

// DefaultFluxConfig is what diffusers assumes where a config says nothing.
func DefaultFluxConfig() FluxConfig {
	return FluxConfig{
		PatchSize: 1, InChannels: 64, NumLayers: 19, NumSingleLayers: 38, AttentionHeadDim: 128, NumAttentionHeads: 24,
		JointAttentionDim: 4096, PooledProjectionDim: 768, AxesDimsRope: []int{16, 56, 56},
	}
}

// Validate says what of the config cannot be run.
func (c *FluxConfig) Validate() error {
	switch {
	case c.PatchSize != 1:
		return fmt.Errorf("patch_size %d: expected 1 (the pipeline packs 2×2 patches)", c.PatchSize)
	case c.InChannels < 4 || c.InChannels%4 != 0 || c.InChannels > nn.MaxDim:
		return fmt.Errorf("in_channels %d: expected 4 for each channel of the latents", c.InChannels)
	case outChannels(c.OutChannels, c.InChannels) != c.InChannels:
		return fmt.Errorf("out_channels %d and in_channels %d: a variant for inpainting or control, which takes more than latents", *c.OutChannels, c.InChannels)
	case c.JointAttentionDim < 1 || c.PooledProjectionDim < 1:
		return errors.New("joint_attention_dim and pooled_projection_dim must be positive")
	case c.JointAttentionDim > nn.MaxDim || c.PooledProjectionDim > nn.MaxDim:
		return fmt.Errorf("joint_attention_dim %d, pooled_projection_dim %d: too large", c.JointAttentionDim, c.PooledProjectionDim)
	}
	return validateJoint(c.NumAttentionHeads, c.AttentionHeadDim, c.NumLayers, c.NumSingleLayers, c.AxesDimsRope, 3)
}

// Flux is diffusers' FluxTransformer2DModel.
type Flux struct {
	nn.Module
	PosEmbed                posEmbed           `w:"pos_embed"`
	TimeTextEmbed           *fluxTimeTextEmbed `w:"time_text_embed"`
	ContextEmbedder         nn.Linear          `w:"context_embedder"`
	XEmbedder               nn.Linear          `w:"x_embedder"`
	TransformerBlocks       []*fluxBlock       `w:"transformer_blocks"`
	SingleTransformerBlocks []*fluxSingleBlock `w:"single_transformer_blocks"`

	NormOut *adaLayerNormContinuous `w:"norm_out"`
	ProjOut nn.Linear               `w:"proj_out"`

	Config FluxConfig
}

// NewFlux declares the model that a validated config describes.
func NewFlux(c FluxConfig) *Flux {
	dim := c.NumAttentionHeads * c.AttentionHeadDim
	m := &Flux{
		TimeTextEmbed:   newFluxTimeTextEmbed(dim, c.PooledProjectionDim, c.GuidanceEmbeds),
		ContextEmbedder: nn.NewLinear(c.JointAttentionDim, dim, true),
		XEmbedder:       nn.NewLinear(c.InChannels, dim, true),
		NormOut:         newAdaLayerNormContinuous(dim, 1e-6, true),
		ProjOut:         nn.NewLinear(dim, c.InChannels, true),
		Config:          c,
	}
	for range c.NumLayers {
		m.TransformerBlocks = append(m.TransformerBlocks, newFluxBlock(c))
	}
	for range c.NumSingleLayers {
		m.SingleTransformerBlocks = append(m.SingleTransformerBlocks, newFluxSingleBlock(c))
	}
	return m
}

// FluxSequence is the layout of one picture size with one number of text
// tokens: what stays the same over all steps.
type FluxSequence struct {
	h, w, text int        // size in patches, and text tokens
	positions  *mlx.Array // [text + h·w, 3]
	rope       nn.Rope
}

// Sequence lays out latents of height×width, which must be even, with a text of
// the given number of tokens. The text is at (0, 0, 0), the patch in row y and
// column x at (0, y, x).
func (m *Flux) Sequence(height, width, text int) (*FluxSequence, error) {
	if height < 2 || width < 2 || height%2 != 0 || width%2 != 0 {
		return nil, fmt.Errorf("latents of %d×%d: expected even sides", height, width)
	}
	s := &FluxSequence{h: height / 2, w: width / 2, text: text}
	positions := make([][]int, text, text+s.h*s.w)
	for i := range positions {
		positions[i] = make([]int, 3)
	}
	positions = appendGrid(positions, s.h, s.w, 0, 3)
	s.positions = positionArray(positions)
	s.rope = nn.NewFluxRope(positions, m.Config.AxesDimsRope, fluxTheta)
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

// Forward predicts from latents [B, C, H, W], a timestep and a guidance [1, 256]
// (nil for a model without guidance_embeds), the text encoder's states
// [B, T, joint_attention_dim] and pooled states [B, pooled_projection_dim] the
// velocity [B, C, H, W]. Text and pooled states may be those of one for the whole
// batch. It computes in the latents' dtype.
func (m *Flux) Forward(latents, timestep, guidance, text, pooled *mlx.Array, s *FluxSequence) *mlx.Array {
	dtype := latents.Dtype()
	tokens, text, pooled := Pack(latents), text.AsType(dtype), pooled.AsType(dtype)

	x := m.XEmbedder.Forward(tokens)
	temb := m.TimeTextEmbed.Forward(timestep, guidance, pooled)
	c := toBatch(m.ContextEmbedder.Forward(text), x.Dim(0))
	j := newFluxJoint(&m.Module, m.PosEmbed.Forward(s.rope, s.positions))

	streams := mlx.ChainAll([]*mlx.Array{c, x}, m.TransformerBlocks, func(b *fluxBlock, streams []*mlx.Array) []*mlx.Array {
		c, x := b.Forward(streams[0], streams[1], temb, j)
		return []*mlx.Array{c, x}
	})
	y := mlx.Concat(1, streams...)
	y = mlx.Chain(y, m.SingleTransformerBlocks, func(b *fluxSingleBlock, y *mlx.Array) *mlx.Array {
		return b.Forward(y, temb, j, s.text)
	})
	x = y.Slice(1, s.text, y.Dim(1))
	out := m.ProjOut.Forward(m.NormOut.Forward(x, temb))
	out = m.TapKeys("hidden_states encoder_hidden_states pooled_projections txt_ids img_ids", out,
		tokens, text, pooled, s.positions.Slice(0, 0, s.text), s.positions.Slice(0, s.text, y.Dim(1)))
	return Unpack(out, s.h, s.w)
}

// fluxTimeTextEmbed is CombinedTimestepGuidanceTextProjEmbeddings or, without
// guidance, CombinedTimestepTextProjEmbeddings.
type fluxTimeTextEmbed struct {
	nn.Module
	TimeProj         timeProj           `w:"time_proj"`
	TimestepEmbedder *timestepEmbedding `w:"timestep_embedder"`
	GuidanceEmbedder *timestepEmbedding `w:"guidance_embedder"`
	TextEmbedder     *textProjection    `w:"text_embedder"`
}

func newFluxTimeTextEmbed(dim, pooled int, guidance bool) *fluxTimeTextEmbed {
	t := &fluxTimeTextEmbed{TimestepEmbedder: newTimestepEmbedding(timestepFeatures, dim, true), TextEmbedder: newTextProjection(pooled, dim)}
	if guidance {
		t.GuidanceEmbedder = newTimestepEmbedding(timestepFeatures, dim, true)
	}
	return t
}

func (t *fluxTimeTextEmbed) Forward(timestep, guidance, pooled *mlx.Array) *mlx.Array {
	dtype, key := pooled.Dtype(), "1" // the reference's other inputs are the times themselves
	emb := t.TimestepEmbedder.Forward(t.TimeProj.Forward(timestep, dtype))
	if t.GuidanceEmbedder != nil {
		key = "2"
		emb = emb.Add(t.GuidanceEmbedder.Forward(t.TimeProj.Forward(guidance, dtype)))
	}
	return t.TapKeys(key, emb.Add(t.TextEmbedder.Forward(pooled)), pooled)
}

// adaLayerNorm is AdaLayerNormZero or AdaLayerNormZeroSingle.
type adaLayerNorm struct {
	nn.Module
	SiLU   *nn.SiLU      `w:"silu"`
	Linear nn.Linear     `w:"linear"`
	Norm   *nn.LayerNorm `w:"norm"`

	parts int
}

func newAdaLayerNorm(dim, parts int) *adaLayerNorm {
	return &adaLayerNorm{SiLU: &nn.SiLU{}, Linear: nn.NewLinear(dim, parts*dim, true), Norm: nn.NewLayerNorm(1e-6), parts: parts}
}

// Forward takes x [B, L, dim] and temb [B, dim] to the modulated norm of x and
// the modulation's other parts [B, 1, dim]: a gate, and for the feed-forward
// shift, scale and gate.
func (n *adaLayerNorm) Forward(x, temb *mlx.Array) (y *mlx.Array, parts []*mlx.Array) {
	m := n.Linear.Forward(n.SiLU.Forward(temb)).ExpandDims(1).Split(n.parts, -1)
	y = modulate(n.Norm.Forward(x), m[0], m[1])
	if n.Observed() {
		for i, part := range m[2:] {
			m[2+i] = n.TapFurther(strconv.Itoa(i+1), part.Squeeze(1)).ExpandDims(1)
		}
	}
	return n.TapKeys("0 emb", y, x, temb), m[2:]
}

// fluxBlock is FluxTransformerBlock.
type fluxBlock struct {
	nn.Module
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
		Norm1: newAdaLayerNorm(dim, 6), Norm1Context: newAdaLayerNorm(dim, 6),
		Attn:  newJointAttention(c.NumAttentionHeads, c.AttentionHeadDim, true, 1e-6),
		Norm2: nn.NewLayerNorm(1e-6), FF: newFeedForward(dim, 4*dim),
		Norm2Context: nn.NewLayerNorm(1e-6), FFContext: newFeedForward(dim, 4*dim),
	}
}

// Forward takes the text c [B, T, dim] and the image x [B, L, dim].
func (b *fluxBlock) Forward(c, x, temb *mlx.Array, j joint) (nextC, nextX *mlx.Array) {
	ofX, partsX := b.Norm1.Forward(x, temb)
	ofC, partsC := b.Norm1Context.Forward(c, temb)
	dx, dc := b.Attn.Forward(ofX, ofC, j)

	nextX = endBlock(x, dx, partsX, b.Norm2, b.FF)
	nextX = b.TapFurther("1", nextX)
	nextC = limitHalf(endBlock(c, dc, partsC, b.Norm2Context, b.FFContext))
	nextC = b.TapKeys("hidden_states encoder_hidden_states temb image_rotary_emb.0 image_rotary_emb.1", nextC, x, c, temb, j.emb[0], j.emb[1])
	return nextC, nextX
}

// fluxSingleBlock is FluxSingleTransformerBlock.
type fluxSingleBlock struct {
	nn.Module
	Norm    *adaLayerNorm   `w:"norm"`
	ProjMLP nn.Linear       `w:"proj_mlp"`
	ActMLP  *nn.Activation  `w:"act_mlp"` // GELU with approximate "tanh"
	ProjOut nn.Linear       `w:"proj_out"`
	Attn    *jointAttention `w:"attn"`
}

func newFluxSingleBlock(c FluxConfig) *fluxSingleBlock {
	dim := c.NumAttentionHeads * c.AttentionHeadDim
	return &fluxSingleBlock{
		Norm: newAdaLayerNorm(dim, 3), ProjMLP: nn.NewLinear(dim, 4*dim, true), ActMLP: &nn.Activation{Func: (*mlx.Array).GELUTanh},
		ProjOut: nn.NewLinear(5*dim, dim, true),
		Attn:    newSelfAttention(c.NumAttentionHeads, c.AttentionHeadDim, true, 1e-6),
	}
}

// Forward takes x [B, T+L, dim], of which the first text tokens are the text's.
func (b *fluxSingleBlock) Forward(x, temb *mlx.Array, j joint, text int) *mlx.Array {
	h, parts := b.Norm.Forward(x, temb)
	mlp := b.ActMLP.Forward(b.ProjMLP.Forward(h))
	attention := b.Attn.ForwardSelf(h, j)
	y := limitHalf(x.Add(parts[0].Mul(b.ProjOut.Forward(mlx.Concat(2, attention, mlp)))))
	if !b.Observed() {
		return y
	}
	// the reference's takes and returns text and image apart
	n := x.Dim(1)
	image := b.TapFurther("1", y.Slice(1, text, n))
	out := b.TapKeys("encoder_hidden_states hidden_states temb image_rotary_emb.0 image_rotary_emb.1",
		y.Slice(1, 0, text), x.Slice(1, 0, text), x.Slice(1, text, n), temb, j.emb[0], j.emb[1])
	return mlx.Concat(1, out, image)
}
