package transformer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// CosmosConfig is transformer/config.json of diffusers' CosmosTransformer3DModel.
type CosmosConfig struct {
	InChannels        int       `json:"in_channels" size:"1"`
	OutChannels       int       `json:"out_channels"`
	NumAttentionHeads int       `json:"num_attention_heads"`
	AttentionHeadDim  int       `json:"attention_head_dim"`
	NumLayers         int       `json:"num_layers" layers:"0"`
	MLPRatio          float64   `json:"mlp_ratio"`
	TextEmbedDim      int       `json:"text_embed_dim" size:"1"`
	AdaLNLoRADim      int       `json:"adaln_lora_dim" size:"1"`
	MaxSize           []int     `json:"max_size"`   // of latents: frames, height and width
	PatchSize         []int     `json:"patch_size"` // the same axes
	RopeScale         []float64 `json:"rope_scale"` // the same axes
	ConcatPaddingMask bool      `json:"concat_padding_mask"`
	// What the models for video and for control have.
	ExtraPosEmbedType      *string `json:"extra_pos_embed_type"`
	UseCrossattnProjection bool    `json:"use_crossattn_projection"`
	ImgContextDimIn        *int    `json:"img_context_dim_in"`
}

// DefaultCosmosConfig returns the values that diffusers uses for fields that a config lacks.
func DefaultCosmosConfig() CosmosConfig {
	learnable := "learnable"
	return CosmosConfig{
		InChannels: 16, OutChannels: 16, NumAttentionHeads: 32, AttentionHeadDim: 128, NumLayers: 28, MLPRatio: 4,
		TextEmbedDim: 1024, AdaLNLoRADim: 256, MaxSize: []int{128, 240, 240}, PatchSize: []int{1, 2, 2},
		RopeScale: []float64{2, 1, 1}, ConcatPaddingMask: true, ExtraPosEmbedType: &learnable,
	}
}

// Width returns the number of features of the stream.
func (c *CosmosConfig) Width() int { return c.NumAttentionHeads * c.AttentionHeadDim }

// axes returns the numbers of features that frames, height and width rotate.
func (c *CosmosConfig) axes() []int {
	space := c.AttentionHeadDim / 6 * 2
	return []int{c.AttentionHeadDim - 2*space, space, space}
}

// Validate returns an error if the model cannot be run with the config.
func (c *CosmosConfig) Validate() error {
	hidden := c.MLPRatio * float64(c.Width())
	switch err := nn.CheckConfig(c); {
	case err != nil:
		return err
	case c.OutChannels != c.InChannels:
		return fmt.Errorf("out_channels %d: expected in_channels, %d", c.OutChannels, c.InChannels)
	case !(hidden >= 1 && hidden <= nn.MaxDim):
		return fmt.Errorf("mlp_ratio %g: expected a width of 1 to %d", c.MLPRatio, nn.MaxDim)
	case c.AttentionHeadDim < 18 || c.AttentionHeadDim%2 != 0:
		return fmt.Errorf("attention_head_dim %d: expected an even number, at least 18", c.AttentionHeadDim)
	case !slices.Equal(c.PatchSize, []int{1, 2, 2}):
		return fmt.Errorf("patch_size %v: expected [1 2 2]", c.PatchSize)
	case len(c.MaxSize) != 3 || slices.Min(c.MaxSize) < 1 || slices.Max(c.MaxSize) > nn.MaxDim:
		return fmt.Errorf("max_size %v: expected three numbers from 1 to %d", c.MaxSize, nn.MaxDim)
	case len(c.RopeScale) != 3 || !(slices.Min(c.RopeScale) > 0):
		return fmt.Errorf("rope_scale %v: expected three positive numbers", c.RopeScale)
	case c.ExtraPosEmbedType != nil:
		return fmt.Errorf("extra_pos_embed_type %q: expected null", *c.ExtraPosEmbedType)
	case c.UseCrossattnProjection:
		return errors.New("use_crossattn_projection true: expected false")
	case c.ImgContextDimIn != nil && *c.ImgContextDimIn > 0:
		return fmt.Errorf("img_context_dim_in %d: expected null", *c.ImgContextDimIn)
	}
	return validateJoint(c, c.NumAttentionHeads, c.AttentionHeadDim, c.axes(), 3)
}

// Cosmos is diffusers' CosmosTransformer3DModel for images, videos of one frame.
type Cosmos struct {
	nn.Module `in:"hidden_states encoder_hidden_states"`
	staged

	PatchEmbed        *cosmosPatchEmbed `w:"patch_embed"`
	Rope              cosmosRope        `w:"rope"`
	TimeEmbed         *cosmosEmbedding  `w:"time_embed"`
	TransformerBlocks []*cosmosBlock    `w:"transformer_blocks"`
	NormOut           *cosmosAdaNorm    `w:"norm_out"`
	ProjOut           *nn.Linear        `w:"proj_out"`

	Config CosmosConfig
}

// NewCosmos declares the model of a validated config.
func NewCosmos(c CosmosConfig) *Cosmos {
	dim, in := c.Width(), c.InChannels
	if c.ConcatPaddingMask {
		in++
	}
	m := &Cosmos{
		PatchEmbed: &cosmosPatchEmbed{Proj: nn.NewLinear(4*in, dim, false)},
		TimeEmbed: &cosmosEmbedding{
			TEmbedder: &timestepEmbedding{
				Linear1: nn.NewLinear(dim, dim, false), Activation: &nn.SiLU{}, Linear2: nn.NewLinear(dim, 3*dim, false),
			},
			Norm: nn.NewRMSNorm(dim, 1e-6),
		},
		NormOut: newCosmosAdaNorm(dim, c.AdaLNLoRADim, 2),
		ProjOut: nn.NewLinear(dim, 4*c.OutChannels, false),
		Config:  c,
	}
	norm := func() *cosmosAdaNorm { return newCosmosAdaNorm(dim, c.AdaLNLoRADim, 3) }
	for range c.NumLayers {
		m.TransformerBlocks = append(m.TransformerBlocks, &cosmosBlock{
			Norm1: norm(), Attn1: newCosmosAttention(c, 0),
			Norm2: norm(), Attn2: newCosmosAttention(c, c.TextEmbedDim),
			Norm3: norm(), FF: newPlainFeedForward(dim, int(c.MLPRatio*float64(dim))),
		})
	}
	return m
}

// CosmosSequence is the layout of an image size. It is the same for all steps.
type CosmosSequence struct {
	shared
	h, w int // size in patches
	rope nn.Rope
}

// Fits returns an error if latents of height×width are too large for the model, or have odd sides.
func (m *Cosmos) Fits(height, width int) error {
	if height < 2 || width < 2 || height%2 != 0 || width%2 != 0 {
		return fmt.Errorf("latents of %d×%d: expected even sides", height, width)
	}
	most := 0
	for i, size := range m.Config.MaxSize {
		most = max(most, size/m.Config.PatchSize[i])
	}
	if height/2 > most || width/2 > most {
		return fmt.Errorf("latents of %d×%d: expected at most %d (max_size)", height, width, 2*most)
	}
	return nil
}

// Sequence lays out latents of height×width. The patch in row y and column x is at (0, y, x).
func (m *Cosmos) Sequence(height, width int) (*CosmosSequence, error) {
	if err := m.Fits(height, width); err != nil {
		return nil, err
	}
	s := &CosmosSequence{h: height / 2, w: width / 2}
	grid := appendGrid(nil, s.h, s.w, 0, 3)
	for axis, dim := range m.Config.axes() {
		// as many features of a larger image: the lowest frequency is divided by the scale
		stretch := math.Pow(m.Config.RopeScale[axis], float64(dim)/float64(dim-2))
		at := make([][]int, len(grid))
		for i, p := range grid {
			at[i] = p[axis : axis+1]
		}
		r := nn.NewQwenImageRope(at, []int{dim}, float64(float32(10000*stretch)))
		if axis == 0 {
			s.rope = nn.Rope{Cos: r.Cos, Sin: r.Sin, Layout: mlx.RopeHalves}
			continue
		}
		s.rope.Cos, s.rope.Sin = mlx.Concat(1, s.rope.Cos, r.Cos), mlx.Concat(1, s.rope.Sin, r.Sin)
	}
	return s, nil
}

// Timestep is the sinusoidal embedding [1, dim] that Forward takes, for a time t from 0 to 1 (pure
// noise).
func (m *Cosmos) Timestep(t float32) *mlx.Array { return nn.TimestepEmbedding(t, m.Config.Width()) }

// Pass returns the forward pass, whose output is the velocity [B, C, H, W] of latents. It computes in the dtype of the
// latents, in float16 with a float32 residual stream.
func (m *Cosmos) Pass(in Inputs, s *CosmosSequence) Pass {
	p := &cosmosPass{Cosmos: m, s: s, latents: in.Latents.ExpandDims(2)}
	dtype, x := in.Latents.Dtype(), p.latents
	if m.Config.ConcatPaddingMask { // nothing is padded
		x = mlx.Concat(1, x, mlx.Zeros(dtype, x.Dim(0), 1, 1, x.Dim(3), x.Dim(4)))
	}
	p.text = in.Text.AsType(dtype)
	p.shares = nn.NewShares(s.group, s.h*s.w)
	p.rope = m.Rope.Forward(s.rope, x).over(p.shares)
	x = m.PatchEmbed.Forward(x)
	p.embedded = x.Reshape(x.Dim(0), s.h*s.w, -1)
	p.time = m.TimeEmbed.Forward(p.embedded, in.Timestep)
	return m.inStages(p)
}

type cosmosPass struct {
	*Cosmos
	s             *CosmosSequence
	latents, text *mlx.Array
	embedded      *mlx.Array
	time          cosmosTime
	shares        *nn.Shares
	rope          joint
}

func (p *cosmosPass) Embed() Hidden {
	return Hidden{Image: p.shares.Share(1, nn.WidenFP16(p.embedded))}
}

func (p *cosmosPass) Len() int { return len(p.TransformerBlocks) }

func (p *cosmosPass) Blocks(h Hidden, first, end int) Hidden {
	defer p.Sharing(p.shares)()
	x := h.Image
	for _, b := range mlx.Layers(p.TransformerBlocks[first:end], &x) {
		x = b.Forward(x, p.text, p.time, p.rope)
	}
	return Hidden{Image: x}
}

func (p *cosmosPass) Output(x *mlx.Array) *mlx.Array {
	y := p.shares.Output(&p.Module, func() *mlx.Array {
		y, _ := p.NormOut.Forward(x, p.time)
		return p.ProjOut.Forward(y)
	})
	b, c := y.Dim(0), p.Config.OutChannels
	y = y.Reshape(b, p.s.h, p.s.w, 2, 2, c).Transpose(0, 5, 1, 3, 2, 4).Reshape(b, c, 1, 2*p.s.h, 2*p.s.w)
	return p.Tap(y, p.latents, p.text).Squeeze(2)
}

// cosmosPatchEmbed is CosmosPatchEmbed.
type cosmosPatchEmbed struct {
	nn.Module
	Proj *nn.Linear `w:"proj"`
}

// Forward takes [B, C, 1, H, W] to [B, 1, H/2, W/2, dim].
func (e *cosmosPatchEmbed) Forward(x *mlx.Array) *mlx.Array {
	h, w := x.Dim(3)/2, x.Dim(4)/2
	tokens := Pack(x.Squeeze(2))
	return e.Tap(e.Proj.Forward(tokens.Reshape(tokens.Dim(0), 1, h, w, -1)), x)
}

// cosmosRope is CosmosRotaryPosEmbed, whose tables are computed on the host.
type cosmosRope struct{ nn.Module }

// Forward passes the table through the hook, for latents x, and describes attention with it.
func (r *cosmosRope) Forward(rope nn.Rope, x *mlx.Array) joint {
	if !r.Observed() {
		return joint{rope: rope}
	}
	twice := func(x *mlx.Array) *mlx.Array { return mlx.Concat(1, x, x) }
	once := func(x *mlx.Array) *mlx.Array { return x.Slice(1, 0, x.Dim(1)/2) }
	cos, sin := r.Tap2(twice(rope.Cos), twice(rope.Sin), x)
	return joint{rope: nn.Rope{Cos: once(cos), Sin: once(sin), Layout: rope.Layout}, emb: [2]*mlx.Array{cos, sin}}
}

// A cosmosTime is what blocks see of a step's time.
type cosmosTime struct {
	embedded *mlx.Array // normed sinusoids [1, dim]
	active   *mlx.Array // SiLU of embedded, for all norms
	temb     *mlx.Array // [1, 3·dim], which is added to the modulation of every norm
}

// cosmosEmbedding is CosmosEmbedding.
type cosmosEmbedding struct {
	nn.Module
	TimeProj  timeProj           `w:"time_proj"`
	TEmbedder *timestepEmbedding `w:"t_embedder"`
	Norm      *nn.RMSNorm        `w:"norm"`
}

// Forward takes sinusoids [1, dim], in the dtype of the image x.
func (e *cosmosEmbedding) Forward(x, sinusoids *mlx.Array) cosmosTime {
	y := e.TimeProj.Forward(sinusoids, x.Dtype())
	temb := e.TEmbedder.Forward(y)
	var t cosmosTime
	t.temb, t.embedded = e.Tap2(temb, e.Norm.Forward(y), x)
	t.active = mlx.WideSiLU(t.embedded)
	return t
}

// cosmosAdaNorm is CosmosAdaLayerNormZero or, without a gate, CosmosAdaLayerNorm: a layer norm whose
// modulation is the time's, which all norms share, and a projection of low rank of its own.
type cosmosAdaNorm struct {
	nn.Module  `in:"0 1 2"`
	Norm       *nn.LayerNorm `w:"norm"`
	Activation *nn.SiLU      `w:"activation"`
	Linear1    *nn.Linear    `w:"linear_1"`
	Linear2    *nn.Linear    `w:"linear_2"`

	parts int
}

func newCosmosAdaNorm(dim, rank, parts int) *cosmosAdaNorm {
	return &cosmosAdaNorm{
		Norm: nn.NewLayerNorm(1e-6), Activation: &nn.SiLU{}, Linear1: nn.NewLinear(dim, rank, false),
		Linear2: nn.NewLinear(rank, parts*dim, false), parts: parts,
	}
}

// modulation returns the norm's shift, scale and gate for a time.
func (n *cosmosAdaNorm) modulation(t cosmosTime) (m modulation) {
	active := n.Fused("cosmosAdaNorm.modulation",
		func() *mlx.Array { return t.active }, func() *mlx.Array { return n.Activation.Forward(t.embedded) })
	y := n.Linear2.Forward(n.Linear1.Forward(active))
	y = y.Add(t.temb.Slice(1, 0, y.Dim(1))).ExpandDims(1)
	for i, part := range y.Split(n.parts, -1) {
		*[]**mlx.Array{&m.Shift, &m.Scale, &m.Gate}[i] = part
	}
	return m
}

// Forward norms x [B, L, dim], and returns the modulation too.
func (n *cosmosAdaNorm) Forward(x *mlx.Array, t cosmosTime) (*mlx.Array, modulation) {
	m := n.modulation(t)
	return n.tap(m.norm(n.Norm, x), x, m, t)
}

// addThenNorm returns sum = x + gate·dx for the gate of another modulation, and Forward of sum.
func (n *cosmosAdaNorm) addThenNorm(x, dx *mlx.Array, before modulation, t cosmosTime) (sum, y *mlx.Array, m modulation) {
	m = n.modulation(t)
	sum, y = before.addThenNorm(x, dx, n.Norm, m)
	y, m = n.tap(y, sum, m, t)
	return sum, y, m
}

// tap passes the outputs through the hook: the gate, if there is one, has no axis of tokens in the
// reference.
func (n *cosmosAdaNorm) tap(y, x *mlx.Array, m modulation, t cosmosTime) (*mlx.Array, modulation) {
	if m.Gate == nil {
		return n.Tap(y, x, t.embedded, t.temb), m
	}
	y, m.Gate = n.Tap2(y, m.Gate, x, t.embedded, t.temb)
	return y, m
}

// cosmosBlock is CosmosTransformerBlock.
type cosmosBlock struct {
	nn.Module `in:"0 1 2 3 4.0 4.1"`
	Norm1     *cosmosAdaNorm   `w:"norm1"`
	Attn1     *cosmosAttention `w:"attn1"`
	Norm2     *cosmosAdaNorm   `w:"norm2"`
	Attn2     *cosmosAttention `w:"attn2"`
	Norm3     *cosmosAdaNorm   `w:"norm3"`
	FF        *feedForward     `w:"ff"`
}

// Forward takes the image x [B, L, dim] and the text c [B or 1, T, text_embed_dim].
func (b *cosmosBlock) Forward(x, c *mlx.Array, t cosmosTime, j joint) *mlx.Array {
	normed, attn := b.Norm1.Forward(x, t)
	y, normed, cross := b.Norm2.addThenNorm(x, b.Attn1.Forward(normed, nil, j), attn, t)
	y, normed, ff := b.Norm3.addThenNorm(y, b.Attn2.Forward(normed, c, joint{}), cross, t)
	return b.Tap(ff.add(y, b.FF.Forward(normed)), x, c, t.embedded, t.temb, j.emb[0], j.emb[1])
}

// cosmosAttention is Attention with CosmosAttnProcessor2_0: of the image to itself, or to the text.
type cosmosAttention struct {
	nn.Module     `in:"0 encoder_hidden_states image_rotary_emb.0 image_rotary_emb.1"`
	selfAttention `w:"."`
}

// newCosmosAttention declares attention of the image to itself, or to a text of so many features.
func newCosmosAttention(c CosmosConfig, text int) *cosmosAttention {
	a := &cosmosAttention{selfAttention: newSelfAttention(c.NumAttentionHeads, c.AttentionHeadDim, false, 1e-5).withOut(false, &dropout{})}
	if text > 0 {
		a.ToK, a.ToV = nn.NewLinear(text, c.Width(), false), nn.NewLinear(text, c.Width(), false)
		a.QKV = nn.NewStack(a.ToK, a.ToV)
	}
	return a
}

// Forward takes x [B, L, dim] and c [B or 1, T, context], nil for attention to x itself. The result may
// be wide: see [nn.Linear.ForwardWide].
func (a *cosmosAttention) Forward(x, c *mlx.Array, j joint) *mlx.Array {
	projected := a.QKV.Forward(cmp.Or(c, x)) // of the text without the queries, which are the image's
	if c != nil {
		projected = append([]mlx.Columns{mlx.AllColumns(a.ToQ.Forward(x))}, projected...)
	}
	qkv := nn.NewQKV(projected, a.NormQ, a.NormK)
	qkv.HeadsFirst = true
	h := a.NormRope(j.rope, a.heads, qkv)
	if b := h.Q.Dim(0); h.K.Dim(0) != b {
		all := func(x *mlx.Array) *mlx.Array { return x.BroadcastTo(b, x.Dim(1), x.Dim(2), x.Dim(3)) }
		h = nn.QKVHeads{Q: h.Q, K: all(h.K), V: all(h.V)}
	}
	return a.Tap(a.out(j.attend(&a.Module, h), x.Dtype()), x, c, j.emb[0], j.emb[1])
}
