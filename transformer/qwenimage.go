package transformer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// QwenImageConfig is transformer/config.json of diffusers'
// QwenImageTransformer2DModel.
type QwenImageConfig struct {
	PatchSize          int   `json:"patch_size"`
	InChannels         int   `json:"in_channels"`
	OutChannels        *int  `json:"out_channels"`
	NumLayers          int   `json:"num_layers" layers:"0"`
	AttentionHeadDim   int   `json:"attention_head_dim"`
	NumAttentionHeads  int   `json:"num_attention_heads"`
	JointAttentionDim  int   `json:"joint_attention_dim" size:"1"`
	GuidanceEmbeds     bool  `json:"guidance_embeds"`
	AxesDimsRope       []int `json:"axes_dims_rope"`
	ZeroCondT          bool  `json:"zero_cond_t"`
	UseAdditionalTCond bool  `json:"use_additional_t_cond"`
	UseLayer3DRope     bool  `json:"use_layer3d_rope"`
}

// DefaultQwenImageConfig returns the values that diffusers uses for fields that a config lacks.
func DefaultQwenImageConfig() QwenImageConfig {
	out := 16
	return QwenImageConfig{
		PatchSize: 2, InChannels: 64, OutChannels: &out, NumLayers: 60, AttentionHeadDim: 128, NumAttentionHeads: 24,
		JointAttentionDim: 3584, AxesDimsRope: []int{16, 56, 56},
	}
}

// Validate returns an error if the model cannot be run with the config.
func (c *QwenImageConfig) Validate() error {
	out := outChannels(c.OutChannels, c.InChannels)
	switch {
	case c.UseLayer3DRope && c.ZeroCondT:
		return errors.New("use_layer3d_rope and zero_cond_t true: a variant that is not supported")
	case c.GuidanceEmbeds:
		return errors.New("guidance_embeds true: a guidance-distilled variant, which is not supported")
	case c.PatchSize != 2:
		return fmt.Errorf("patch_size %d: expected 2 (the pipeline packs 2×2 patches)", c.PatchSize)
	case c.InChannels < 4 || c.InChannels%4 != 0 || c.InChannels > nn.MaxDim:
		return fmt.Errorf("in_channels %d: expected 4 for each channel of the latents", c.InChannels)
	case out != c.InChannels/4:
		return fmt.Errorf("out_channels %d: expected %d, a quarter of in_channels", out, c.InChannels/4)
	}
	return validateJoint(c, c.NumAttentionHeads, c.AttentionHeadDim, c.AxesDimsRope, 3)
}

// QwenImage is diffusers' QwenImageTransformer2DModel.
type QwenImage struct {
	nn.Module `in:"hidden_states encoder_hidden_states"`
	staged

	PosEmbed          qwenImagePosEmbed   `w:"pos_embed"`
	TimeTextEmbed     *qwenImageTimeEmbed `w:"time_text_embed"`
	TxtNorm           *nn.RMSNorm         `w:"txt_norm"`
	ImgIn             *nn.Linear          `w:"img_in"`
	TxtIn             *nn.Linear          `w:"txt_in"`
	TransformerBlocks []*qwenImageBlock   `w:"transformer_blocks"`

	NormOut *adaLayerNormContinuous `w:"norm_out"`
	ProjOut *nn.Linear              `w:"proj_out"`

	Config QwenImageConfig

	ofTime TimeLayers
}

// NewQwenImage declares the model of a validated config.
func NewQwenImage(c QwenImageConfig) *QwenImage {
	dim := c.NumAttentionHeads * c.AttentionHeadDim
	m := &QwenImage{
		TimeTextEmbed: newQwenImageTimeEmbed(dim, c.UseAdditionalTCond),
		TxtNorm:       nn.NewRMSNorm(c.JointAttentionDim, 1e-6),
		ImgIn:         nn.NewLinear(c.InChannels, dim, true),
		TxtIn:         nn.NewLinear(c.JointAttentionDim, dim, true),
		NormOut:       newAdaLayerNormContinuous(dim, 1e-6, true),
		ProjOut:       nn.NewLinear(dim, c.InChannels, true),
		Config:        c,
	}
	m.ofTime.embedding = m.TimeTextEmbed
	for range c.NumLayers {
		b := newQwenImageBlock(c)
		m.TransformerBlocks = append(m.TransformerBlocks, b)
		m.ofTime.add(linearOf(b.ImgMod), linearOf(b.TxtMod))
	}
	m.ofTime.add(m.NormOut.Linear)
	return m
}

// QwenImageSequence is the layout of an image size with a number of text tokens and
// some reference images. It is the same for all steps.
type QwenImageSequence struct {
	shared
	h, w                     int // size in patches
	text, target, references int // tokens
	rope                     nn.Rope
}

// Sequence lays out latents of height×width with a text of the given number of
// tokens and references of the given heights and widths, all of them even. In an
// image of h×w patches, the patch in row y and column x is at (n, y-⌈h/2⌉, x-⌈w/2⌉),
// where n is 0 for the target and counts the references from 1. Text token k is at
// m+k on all axes, where m is the largest ⌊h/2⌋ or ⌊w/2⌋ of all images.
func (m *QwenImage) Sequence(height, width, text int, references ...[2]int) (*QwenImageSequence, error) {
	s := &QwenImageSequence{h: height / 2, w: width / 2, text: text, target: height / 2 * (width / 2)}
	images := []placedImage{{0, height, width}}
	for i, size := range references {
		images = append(images, placedImage{i + 1, size[0], size[1]})
	}
	return s, m.place(s, images, 0)
}

// Layers lays out the latents of n images of height×width, one below the other, and a reference of the same
// size, for a model with use_layer3d_rope. Positions are as in Sequence, where n is the number of the image
// from 0, and -1 for the reference. Text token k is at m+k, where m is at least the number of images.
func (m *QwenImage) Layers(height, width, text, n int) (*QwenImageSequence, error) {
	s := &QwenImageSequence{h: n * height / 2, w: width / 2, text: text, target: n * height / 2 * (width / 2)}
	var images []placedImage
	for i := range n {
		images = append(images, placedImage{i, height, width})
	}
	return s, m.place(s, append(images, placedImage{-1, height, width}), n)
}

// A placedImage is an image in a sequence: its position on the first axis, and the size of its latents.
type placedImage struct{ n, height, width int }

// place sets the rotary embeddings of a sequence of images with the text at first or later.
func (m *QwenImage) place(s *QwenImageSequence, images []placedImage, first int) error {
	var image [][]int
	for _, i := range images {
		if i.height < 2 || i.width < 2 || i.height%2 != 0 || i.width%2 != 0 {
			return fmt.Errorf("latents of %d×%d: expected even sides", i.height, i.width)
		}
		h, w := i.height/2, i.width/2
		grid := appendGrid(nil, h, w, i.n, 3)
		for _, p := range grid {
			p[1] -= h - h/2
			p[2] -= w - w/2
		}
		image = append(image, grid...)
		first = max(first, h/2, w/2)
	}
	s.references = len(image) - s.target
	positions := make([][]int, 0, s.text+len(image))
	for k := range s.text {
		positions = append(positions, []int{first + k, first + k, first + k})
	}
	s.rope = nn.NewQwenImageRope(append(positions, image...), m.Config.AxesDimsRope, qwenImageTheta)
	return nil
}

const qwenImageTheta = 10000 // of the rotary embedding

// Timestep is the sinusoidal embedding [1, 256] that Forward takes, for a time t
// from 0 to 1 (pure noise).
func (m *QwenImage) Timestep(t float32) *mlx.Array {
	return nn.ScaledTimestepEmbedding(t, 1000, timestepFeatures)
}

// Projections returns what a forward pass computes from the time alone: a row [1, n] for each of the
// times from 0 to 1, and with zero_cond_t one for time 0, which the rows of each step end with. It
// computes in dtype.
func (m *QwenImage) Projections(times []float32, dtype mlx.Dtype) *mlx.Array {
	if m.Config.ZeroCondT {
		times = append(slices.Clone(times), 0)
	}
	like := mlx.Scalar(0, dtype)
	return m.ofTime.project(m.TimeTextEmbed.Forward(sinusoids(times, m.Timestep), like))
}

// TimeLayers returns the layers of [QwenImage.Projections].
func (m *QwenImage) TimeLayers() *TimeLayers { return &m.ofTime }

// Pass returns the forward pass, whose output is the velocity [B, C, H, W] of latents. References are in the sequence's
// order. It computes in the dtype of the latents. In float16 the residual streams, which reach tens of millions in
// the published model, are float32, and the text is not rounded before its norm.
func (m *QwenImage) Pass(in Inputs, s *QwenImageSequence) Pass {
	dtype := in.Latents.Dtype()
	tokens, text := Pack(in.Latents), in.Text.AsType(nn.WideDtype(dtype))
	if in.References != nil {
		tokens = mlx.Concat(1, tokens, toBatch(in.References.AsType(dtype), tokens.Dim(0)))
	}
	x := m.ImgIn.Forward(tokens)
	c := toBatch(m.TxtIn.Forward(m.TxtNorm.Forward(text).AsType(dtype)), x.Dim(0))
	p := &qwenImagePass{QwenImage: m, QwenImageSequence: s, tokens: tokens, textTokens: text}
	p.time.stepTime = m.time(in, x)
	p.shares = nn.NewShares(s.group, s.text, s.target+s.references)
	p.embedded = Hidden{Text: nn.WidenFP16(c), Image: nn.WidenFP16(x)}.shareOf(p.shares)
	if m.Config.ZeroCondT {
		p.time.isReference = imageOf(p.shares).Share(1, between(s.target+s.references, s.target, s.target+s.references))
	}
	p.joint = m.PosEmbed.Forward(s.rope, s.text).over(p.shares)
	return m.inStages(p)
}

// time returns the time of a step, and with zero_cond_t time 0 in the second row, for the tokens x.
func (m *QwenImage) time(in Inputs, x *mlx.Array) stepTime {
	if in.Projections != nil {
		return stepTime{projections: in.Projections, layers: &m.ofTime}
	}
	timestep := in.Timestep
	if m.Config.ZeroCondT {
		timestep = mlx.Concat(0, timestep, m.Timestep(0))
	}
	return stepTime{temb: m.TimeTextEmbed.Forward(timestep, x)}
}

type qwenImagePass struct {
	*QwenImage
	*QwenImageSequence
	tokens, textTokens *mlx.Array
	embedded           Hidden
	time               qwenImageTime
	shares             *nn.Shares
	joint              joint
}

func (p *qwenImagePass) Embed() Hidden { return p.embedded }

func (p *qwenImagePass) Len() int { return len(p.TransformerBlocks) }

func (p *qwenImagePass) Blocks(h Hidden, first, end int) Hidden {
	defer p.Sharing(p.shares)()
	c, x := h.Text, h.Image
	for _, b := range mlx.Layers(p.TransformerBlocks[first:end], &c, &x) {
		c, x = b.Forward(c, x, p.time, p.joint)
	}
	return Hidden{Text: c, Image: x}
}

func (p *qwenImagePass) Output(image *mlx.Array) *mlx.Array {
	out := imageOf(p.shares).Output(&p.Module, func() *mlx.Array { return p.ProjOut.Forward(p.NormOut.Forward(image, p.time.now())) })
	return Unpack(p.Tap(out, p.tokens, p.textTokens).Slice(1, 0, p.target), p.h, p.w)
}

// qwenImageTimeEmbed is QwenTimestepProjEmbeddings.
type qwenImageTimeEmbed struct {
	nn.Module        `in:"1 2"`         // the reference's first input is the time itself
	TimeProj         timeProj           `w:"time_proj"`
	TimestepEmbedder *timestepEmbedding `w:"timestep_embedder"`
	// AdditionTEmbedding is nil without use_additional_t_cond.
	AdditionTEmbedding *nn.Embedding `w:"addition_t_embedding"`
}

func newQwenImageTimeEmbed(dim int, addition bool) *qwenImageTimeEmbed {
	t := &qwenImageTimeEmbed{TimestepEmbedder: newTimestepEmbedding(timestepFeatures, dim, true)}
	if addition {
		t.AdditionTEmbedding = nn.NewEmbedding(2, dim)
	}
	return t
}

// Forward takes sinusoids [n, 256] to [n, dim], in the dtype of the image x.
func (t *qwenImageTimeEmbed) Forward(sinusoids, x *mlx.Array) *mlx.Array {
	temb := t.TimestepEmbedder.Forward(t.TimeProj.Forward(sinusoids, x.Dtype()))
	if t.AdditionTEmbedding == nil {
		return t.Tap(temb, x, nil)
	}
	isRGB := mlx.FromInt32([]int32{0}, 1)
	return t.Tap(temb.Add(t.AdditionTEmbedding.Gather(isRGB, x.Dtype())), x, isRGB)
}

// A qwenImageTime has the time embedding that modulates all blocks. Under zero_cond_t it has two
// rows, the second of time 0.
type qwenImageTime struct {
	stepTime
	isReference *mlx.Array // [1, L, 1], true for the image's tokens at time 0; nil without zero_cond_t
}

// now is the step's time in a single row.
func (t qwenImageTime) now() stepTime { return t.firstRow() }

// modulation is the projection all [n, 6·dim] of temb, for the image.
func (t qwenImageTime) modulation(all *mlx.Array) streamModulation {
	if t.isReference == nil {
		return streamModulation{all: all}
	}
	return streamModulation{all: all.Slice(0, 0, 1), references: all.Slice(0, 1, 2), isReference: t.isReference}
}

// qwenImagePosEmbed is QwenEmbedRope, whose tables are computed on the host.
type qwenImagePosEmbed struct{ nn.Module }

// Forward passes the table of a sequence that begins with the text through the hook, and
// describes attention with it. The hook sees the tables of the image and of the text
// as complex numbers [L, D/2, (real, imaginary)], and so do the reference's blocks.
func (p *qwenImagePosEmbed) Forward(rope nn.Rope, text int) joint {
	if !p.Observed() {
		return joint{rope: rope}
	}
	both := mlx.Concat(2, rope.Cos.ExpandDims(2), rope.Sin.ExpandDims(2))
	ofImage, ofText := p.Tap2(both.Slice(0, text, both.Dim(0)), both.Slice(0, 0, text))
	parts := mlx.Concat(0, ofText, ofImage).Split(2, 2)
	rope = nn.Rope{Cos: parts[0].Squeeze(2), Sin: parts[1].Squeeze(2)}
	return joint{rope: rope, emb: [2]*mlx.Array{ofImage, ofText}}
}

// qwenImageBlock is QwenImageTransformerBlock.
type qwenImageBlock struct {
	nn.Module `in:"hidden_states encoder_hidden_states temb image_rotary_emb.0 image_rotary_emb.1 modulate_index"`

	ImgMod   *nn.Sequential  `w:"img_mod"`
	ImgNorm1 *nn.LayerNorm   `w:"img_norm1"`
	Attn     *jointAttention `w:"attn"`
	ImgNorm2 *nn.LayerNorm   `w:"img_norm2"`
	ImgMLP   *feedForward    `w:"img_mlp"`
	TxtMod   *nn.Sequential  `w:"txt_mod"`
	TxtNorm1 *nn.LayerNorm   `w:"txt_norm1"`
	TxtNorm2 *nn.LayerNorm   `w:"txt_norm2"`
	TxtMLP   *feedForward    `w:"txt_mlp"`
}

func newQwenImageBlock(c QwenImageConfig) *qwenImageBlock {
	dim := c.NumAttentionHeads * c.AttentionHeadDim
	mod := func() *nn.Sequential { return nn.NewSequential(&nn.SiLU{}, nn.NewLinear(dim, 6*dim, true)) }
	norm := func() *nn.LayerNorm { return nn.NewLayerNorm(1e-6) }
	return &qwenImageBlock{
		ImgMod: mod(), ImgNorm1: norm(), ImgNorm2: norm(), ImgMLP: newFeedForward(dim, 4*dim),
		TxtMod: mod(), TxtNorm1: norm(), TxtNorm2: norm(), TxtMLP: newFeedForward(dim, 4*dim),
		Attn: newJointAttention(c.NumAttentionHeads, c.AttentionHeadDim, true, 1e-6),
	}
}

// linearOf returns the linear layer of a modulation.
func linearOf(modulation *nn.Sequential) *nn.Linear { return modulation.Layers[1].(*nn.Linear) }

// Forward takes the text c [B, T, dim] and the image x [B, L, dim].
func (b *qwenImageBlock) Forward(c, x *mlx.Array, t qwenImageTime, j joint) (nextC, nextX *mlx.Array) {
	attnX, mlpX := t.modulation(t.project(linearOf(b.ImgMod), b.ImgMod.Forward)).attentionAndMLP()
	attnC, mlpC := streamModulation{all: t.now().project(linearOf(b.TxtMod), b.TxtMod.Forward)}.attentionAndMLP()
	dx, dc := b.Attn.Forward(attnX.norm(b.ImgNorm1, x), attnC.norm(b.TxtNorm1, c), j)

	nextX, normX := attnX.addThenNorm(x, dx, b.ImgNorm2, mlpX)
	nextX = mlpX.add(nextX, b.ImgMLP.Forward(normX))
	nextC, normC := attnC.addThenNorm(c, dc, b.TxtNorm2, mlpC)
	nextC = mlpC.add(nextC, b.TxtMLP.Forward(normC))
	return b.tap(nextC, nextX, x, c, t, j)
}

// tap adds the reference's modulate_index [B, L], which is 1 for references.
func (b *qwenImageBlock) tap(nextC, nextX, x, c *mlx.Array, t qwenImageTime, j joint) (*mlx.Array, *mlx.Array) {
	var index *mlx.Array
	if b.Observed() && t.isReference != nil {
		index = t.isReference.Squeeze(2).AsType(mlx.Int32).BroadcastTo(x.Dim(0), x.Dim(1))
	}
	return b.Tap2(nextC, nextX, x, c, t.temb, j.emb[0], j.emb[1], index)
}
