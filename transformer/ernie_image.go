package transformer

import (
	"errors"
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// ErnieImageConfig is transformer/config.json of diffusers' ErnieImageTransformer2DModel.
type ErnieImageConfig struct {
	HiddenSize        int     `json:"hidden_size" size:"1"`
	NumAttentionHeads int     `json:"num_attention_heads" size:"1"`
	NumLayers         int     `json:"num_layers" layers:"0"`
	FFNHiddenSize     int     `json:"ffn_hidden_size" size:"1"`
	InChannels        int     `json:"in_channels" size:"1"`
	OutChannels       int     `json:"out_channels"`
	PatchSize         int     `json:"patch_size"`
	TextInDim         int     `json:"text_in_dim" size:"1"`
	RopeTheta         float64 `json:"rope_theta" number:"positive"`
	RopeAxesDim       []int   `json:"rope_axes_dim"`
	Eps               float64 `json:"eps" number:"nonnegative"`
	QKLayerNorm       bool    `json:"qk_layernorm"`
}

// DefaultErnieImageConfig returns the values that diffusers uses for fields that a config lacks.
func DefaultErnieImageConfig() ErnieImageConfig {
	return ErnieImageConfig{
		HiddenSize: 3072, NumAttentionHeads: 24, NumLayers: 24, FFNHiddenSize: 8192, InChannels: 128, OutChannels: 128,
		PatchSize: 1, TextInDim: 2560, RopeTheta: 256, RopeAxesDim: []int{32, 48, 48}, Eps: 1e-6, QKLayerNorm: true,
	}
}

// Validate returns an error if the model cannot be run with the config.
func (c *ErnieImageConfig) Validate() error {
	switch err := nn.CheckConfig(c); {
	case err != nil:
		return err
	case c.HiddenSize%c.NumAttentionHeads != 0:
		return fmt.Errorf("hidden_size %d: expected a multiple of num_attention_heads %d", c.HiddenSize, c.NumAttentionHeads)
	case c.OutChannels != c.InChannels:
		return fmt.Errorf("out_channels %d: expected in_channels %d", c.OutChannels, c.InChannels)
	case c.PatchSize != 1:
		return fmt.Errorf("patch_size %d: expected 1", c.PatchSize)
	case !c.QKLayerNorm:
		return errors.New("qk_layernorm false: expected true")
	}
	return validateJoint(c, c.NumAttentionHeads, c.HiddenSize/c.NumAttentionHeads, c.RopeAxesDim, 3)
}

// ErnieImage is diffusers' ErnieImageTransformer2DModel: blocks over one sequence of image and text, all
// of which have the same modulation.
type ErnieImage struct {
	nn.Module `in:"hidden_states text_bth"`
	staged

	XEmbedder       *ernieEmbedder          `w:"x_embedder"`
	TextProj        *nn.Linear              `w:"text_proj"` // nil if the text is as wide as the stream
	TimeProj        timeProj                `w:"time_proj"`
	TimeEmbedding   *timestepEmbedding      `w:"time_embedding"`
	AdaLNModulation *nn.Sequential          `w:"adaLN_modulation"`
	Layers          []*ernieBlock           `w:"layers"`
	FinalNorm       *adaLayerNormContinuous `w:"final_norm"`
	FinalLinear     *nn.Linear              `w:"final_linear"`

	Config ErnieImageConfig
}

// NewErnieImage declares the model of a validated config.
func NewErnieImage(c ErnieImageConfig) *ErnieImage {
	dim := c.HiddenSize
	m := &ErnieImage{
		XEmbedder:       &ernieEmbedder{Proj: nn.NewConv2d(c.InChannels, dim, 1, 1, 0)},
		TimeEmbedding:   newTimestepEmbedding(dim, dim, true),
		AdaLNModulation: nn.NewSequential(&nn.SiLU{}, nn.NewLinear(dim, 6*dim, true)),
		FinalNorm:       &adaLayerNormContinuous{Linear: nn.NewLinear(dim, 2*dim, true), Norm: nn.NewLayerNorm(c.Eps)},
		FinalLinear:     nn.NewLinear(dim, c.OutChannels, true),
		Config:          c,
	}
	if c.TextInDim != dim {
		m.TextProj = nn.NewLinear(c.TextInDim, dim, false)
	}
	for range c.NumLayers {
		m.Layers = append(m.Layers, newErnieBlock(c))
	}
	return m
}

// ErnieImageSequence is the layout of an image size with a number of text tokens. It is the same for all
// steps.
type ErnieImageSequence struct {
	shared
	h, w, text int
	rope       nn.Rope
}

// Sequence lays out latents of height×width with a text of the given number of tokens, which follows the
// image. Token n of the text is at (n, 0, 0), and the latent in row y and column x at (text, y, x).
func (m *ErnieImage) Sequence(height, width, text int) *ErnieImageSequence {
	positions := appendGrid(nil, height, width, text, 3)
	for n := range text {
		positions = append(positions, []int{n, 0, 0})
	}
	rope := nn.NewQwenImageRope(positions, m.Config.RopeAxesDim, m.Config.RopeTheta)
	rope.Layout = mlx.RopeAcross
	return &ErnieImageSequence{h: height, w: width, text: text, rope: rope}
}

// Timestep is the sinusoidal embedding [1, hidden_size] that Forward takes, for a time t from 0 to 1000
// (pure noise): all sines, then all cosines.
func (m *ErnieImage) Timestep(t float32) *mlx.Array {
	halves := nn.TimestepEmbedding(t, m.Config.HiddenSize).Split(2, 1)
	return mlx.Concat(1, halves[1], halves[0])
}

// Pass returns the forward pass, whose output is the velocity [B, C, H, W] of latents. It computes in the dtype of the
// latents, in float16 with float32 residual streams.
func (m *ErnieImage) Pass(in Inputs, s *ErnieImageSequence) Pass {
	p := &erniePass{ErnieImage: m, s: s, latents: in.Latents, text: in.Text}
	p.temb = m.TimeEmbedding.Forward(m.TimeProj.Forward(in.Timestep, in.Latents.Dtype()))
	p.shares = nn.NewShares(s.group, s.h*s.w, s.text)
	p.joint = joint{rope: s.rope}.over(p.shares)
	p.shared = splitModulations(m.AdaLNModulation.Forward(p.temb), 2)
	return m.inStages(p)
}

type erniePass struct {
	*ErnieImage
	s             *ErnieImageSequence
	latents, text *mlx.Array
	temb          *mlx.Array   // [1, dim]
	shared        []modulation // of attention and feed-forward, [1, 1, dim] each
	shares        *nn.Shares   // of image and text
	joint         joint
}

func (p *erniePass) Embed() Hidden {
	dtype := p.latents.Dtype()
	x, c := p.XEmbedder.Forward(p.latents), p.text.AsType(nn.WideDtype(dtype))
	if p.TextProj != nil {
		c = p.TextProj.ForwardWide(c, dtype)
	}
	x = mlx.Concat(1, nn.WidenFP16(x), toBatch(c, x.Dim(0)).AsType(nn.WideDtype(dtype)))
	return Hidden{Image: p.shares.Share(1, x)}
}

func (p *erniePass) Len() int { return len(p.ErnieImage.Layers) }

func (p *erniePass) Blocks(h Hidden, first, end int) Hidden {
	defer p.Sharing(p.shares)()
	x := p.turned(h.Image)
	for _, b := range mlx.Layers(p.ErnieImage.Layers[first:end], &x) {
		x = b.Forward(x, p.shared, p)
	}
	return Hidden{Image: p.turned(x)}
}

func (p *erniePass) Output(x *mlx.Array) *mlx.Array {
	n := p.shares.Count(0)
	if !p.Observed() {
		x = x.Slice(1, 0, n) // the reference drops the text at the end
	}
	return p.Tap(unflatten(p.image(p.turned(x), n), p.s.h, p.s.w), p.latents, p.text)
}

// image returns the output [B, L, C] for the tokens x, of which the first n are the image's.
func (p *erniePass) image(x *mlx.Array, n int) *mlx.Array {
	defer p.Sharing(p.shares)()
	y := p.turned(p.FinalLinear.Forward(p.FinalNorm.Forward(x, stepTime{temb: p.temb})))
	return p.shares.Streams(0, 1).Whole(y.Slice(1, 0, n))
}

// turned swaps batch and tokens of x where hooks see them: the reference's stream is [L, B, dim].
func (p *erniePass) turned(x *mlx.Array) *mlx.Array {
	if p.Observed() {
		return x.Transpose(1, 0, 2)
	}
	return x
}

// ernieEmbedder is ErnieImagePatchEmbedDynamic.
type ernieEmbedder struct {
	nn.Module
	Proj *nn.Conv2d `w:"proj"`
}

// Forward takes latents [B, C, H, W] to tokens [B, H·W, dim].
func (e *ernieEmbedder) Forward(x *mlx.Array) *mlx.Array {
	y := e.Proj.Forward(x.Transpose(0, 2, 3, 1))
	return e.Tap(y.Reshape(y.Dim(0), y.Dim(1)*y.Dim(2), -1), x)
}

// ernieBlock is ErnieImageSharedAdaLNBlock.
type ernieBlock struct {
	nn.Module     `in:"0"`
	AdaLNSaLN     *nn.RMSNorm       `w:"adaLN_sa_ln"`
	SelfAttention *ernieAttention   `w:"self_attention"`
	AdaLNMLPLN    *nn.RMSNorm       `w:"adaLN_mlp_ln"`
	MLP           *ernieFeedForward `w:"mlp"`
}

func newErnieBlock(c ErnieImageConfig) *ernieBlock {
	dim := c.HiddenSize
	a := &ernieAttention{selfAttention: newSelfAttention(c.NumAttentionHeads, dim/c.NumAttentionHeads, false, c.Eps).withOut(false)}
	f := &ernieFeedForward{
		GateProj: nn.NewLinear(dim, c.FFNHiddenSize, false), UpProj: nn.NewLinear(dim, c.FFNHiddenSize, false),
		LinearFC2: nn.NewLinear(c.FFNHiddenSize, dim, false),
	}
	f.In = nn.NewStack(f.GateProj, f.UpProj)
	return &ernieBlock{
		AdaLNSaLN: nn.NewRMSNorm(dim, c.Eps), SelfAttention: a, AdaLNMLPLN: nn.NewRMSNorm(dim, c.Eps), MLP: f,
	}
}

// Forward takes x [B, L, dim], or as the pass has turned it.
func (b *ernieBlock) Forward(x *mlx.Array, shared []modulation, p *erniePass) *mlx.Array {
	attn, mlp := shared[0], shared[1]
	dx := p.turned(b.SelfAttention.Forward(p.turned(attn.norm(b.AdaLNSaLN, x)), p.joint))
	y, normed := attn.addThenNorm(x, dx, b.AdaLNMLPLN, mlp)
	return b.Tap(mlp.add(y, b.MLP.Forward(normed)), x)
}

// ernieAttention is ErnieImageAttention.
type ernieAttention struct {
	nn.Module     `in:"0"`
	selfAttention `w:"."`
}

// Forward takes x [B, L, dim]. The result may be wide: see [nn.Linear.ForwardWide].
func (a *ernieAttention) Forward(x *mlx.Array, j joint) *mlx.Array {
	return a.Tap(a.forward(&a.Module, x, a.QKV.Forward(x), j), x)
}

// ernieFeedForward is ErnieImageFeedForward: down(up x·gelu(gate x)).
type ernieFeedForward struct {
	nn.Module
	GateProj  *nn.Linear `w:"gate_proj"`
	UpProj    *nn.Linear `w:"up_proj"`
	LinearFC2 *nn.Linear `w:"linear_fc2"`

	In nn.Stack
}

// Forward may return a wide result: see [nn.Linear.ForwardWide].
func (f *ernieFeedForward) Forward(x *mlx.Array) *mlx.Array {
	in := f.In.Forward(x)
	y := mlx.GEGLU(nn.WideColumns(in[0]), nn.WideColumns(in[1]))
	return f.Tap(f.LinearFC2.ForwardWide(y, x.Dtype()), x)
}
