// Package transformer holds the diffusion transformers, one file per diffusers
// class.
package transformer

import (
	"errors"
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// ZImageConfig is transformer/config.json of diffusers' ZImageTransformer2DModel.
type ZImageConfig struct {
	AllPatchSize   []int   `json:"all_patch_size"`
	AllFPatchSize  []int   `json:"all_f_patch_size"`
	InChannels     int     `json:"in_channels" size:"1"`
	Dim            int     `json:"dim" size:"1"`
	NLayers        int     `json:"n_layers" layers:"0"`
	NRefinerLayers int     `json:"n_refiner_layers" layers:"0"`
	NHeads         int     `json:"n_heads" size:"1"`
	NKVHeads       int     `json:"n_kv_heads"`
	NormEps        float64 `json:"norm_eps"`
	QKNorm         bool    `json:"qk_norm"`
	CapFeatDim     int     `json:"cap_feat_dim" size:"1"`
	SiglipFeatDim  *int    `json:"siglip_feat_dim"`
	RopeTheta      float64 `json:"rope_theta" number:"positive"`
	TScale         float64 `json:"t_scale"`
	AxesDims       []int   `json:"axes_dims"`
	AxesLens       []int   `json:"axes_lens"`
}

// DefaultZImageConfig returns the values that diffusers uses for fields that a config lacks.
func DefaultZImageConfig() ZImageConfig {
	return ZImageConfig{
		AllPatchSize: []int{2}, AllFPatchSize: []int{1}, InChannels: 16, Dim: 3840, NLayers: 30, NRefinerLayers: 2,
		NHeads: 30, NKVHeads: 30, NormEps: 1e-5, QKNorm: true, CapFeatDim: 2560, RopeTheta: 256, TScale: 1000,
		AxesDims: []int{32, 48, 48}, AxesLens: []int{1024, 512, 512},
	}
}

// Validate returns an error if the model cannot be run with the config.
func (c *ZImageConfig) Validate() error {
	sum := 0
	for _, d := range c.AxesDims {
		if d <= 0 || d%2 != 0 || d > nn.MaxDim {
			return fmt.Errorf("axes_dims %v: must be positive and even", c.AxesDims)
		}
		sum += d
	}
	switch err := nn.CheckConfig(c); {
	case err != nil:
		return err
	case len(c.AllPatchSize) != 1 || len(c.AllFPatchSize) != 1 || c.AllPatchSize[0] < 1 || c.AllFPatchSize[0] != 1:
		return fmt.Errorf("all_patch_size %v and all_f_patch_size %v: expected one patch size, and 1 frame", c.AllPatchSize,
			c.AllFPatchSize)
	case c.AllPatchSize[0] > 64:
		return fmt.Errorf("all_patch_size %v: too large", c.AllPatchSize)
	case c.Dim%c.NHeads != 0 || c.Dim/c.NHeads != sum || len(c.AxesDims) != 3 || len(c.AxesLens) != 3:
		return fmt.Errorf("dim %d, n_heads %d, axes_dims %v: three axes must sum to the head size", c.Dim, c.NHeads, c.AxesDims)
	case c.SiglipFeatDim != nil:
		return errors.New("siglip_feat_dim: the Omni variant is not supported")
	case !c.QKNorm:
		return errors.New("qk_norm false: expected true")
	}
	return nil
}

const (
	timestepFeatures  = 256  // frequency_embedding_size, in every family
	zimageAdaLNDim    = 256  // ADALN_EMBED_DIM
	zimageSeqMultiple = 32   // SEQ_MULTI_OF
	zimageTimeHidden  = 1024 // mid_size of the timestep embedder
)

// ZImage is diffusers' ZImageTransformer2DModel.
type ZImage struct {
	nn.Module `in:"0.0 2.0"`
	staged

	XEmbedder      map[string]*nn.Linear   `w:"all_x_embedder"`
	FinalLayer     map[string]*zimageFinal `w:"all_final_layer"`
	NoiseRefiner   []*zimageBlock          `w:"noise_refiner"`
	ContextRefiner []*zimageBlock          `w:"context_refiner"`
	TEmbedder      *zimageTimestep         `w:"t_embedder"`
	CapEmbedder    *nn.Sequential          `w:"cap_embedder"`
	XPadToken      nn.Param                `w:"x_pad_token"`
	CapPadToken    nn.Param                `w:"cap_pad_token"`
	Layers         []*zimageBlock          `w:"layers"`

	Config ZImageConfig
	patch  string // the key of the one patch size, "2-1"
}

// NewZImage declares the model of a validated config.
func NewZImage(c ZImageConfig) *ZImage {
	size := c.AllPatchSize[0]
	features := size * size * c.InChannels
	adaLN := min(c.Dim, zimageAdaLNDim)
	blocks := func(n int, modulated bool) []*zimageBlock {
		blocks := make([]*zimageBlock, n)
		for i := range blocks {
			blocks[i] = newZImageBlock(c, modulated)
		}
		return blocks
	}
	patch := fmt.Sprintf("%d-%d", size, c.AllFPatchSize[0])
	return &ZImage{
		XEmbedder: map[string]*nn.Linear{patch: nn.NewLinear(features, c.Dim, true)},
		FinalLayer: map[string]*zimageFinal{patch: {
			NormFinal: nn.NewLayerNorm(1e-6),
			Linear:    nn.NewLinear(c.Dim, features, true),
			AdaLN:     nn.NewSequential(&nn.SiLU{}, nn.NewLinear(adaLN, c.Dim, true)),
		}},
		NoiseRefiner:   blocks(c.NRefinerLayers, true),
		ContextRefiner: blocks(c.NRefinerLayers, false),
		TEmbedder: &zimageTimestep{MLP: nn.NewSequential(
			nn.NewLinear(timestepFeatures, zimageTimeHidden, true), &nn.SiLU{}, nn.NewLinear(zimageTimeHidden, adaLN, true))},
		CapEmbedder: nn.NewSequential(nn.NewRMSNorm(c.CapFeatDim, c.NormEps), nn.NewLinear(c.CapFeatDim, c.Dim, true)),
		XPadToken:   nn.NewParam(1, c.Dim),
		CapPadToken: nn.NewParam(1, c.Dim),
		Layers:      blocks(c.NLayers, true),
		Config:      c,
		patch:       patch,
	}
}

// ZImageSequence is the layout of an image size with a caption length. It is the
// same for all steps.
type ZImageSequence struct {
	shared
	h, w           int // latent size in patches
	image, caption int // tokens without padding

	imageRope, captionRope, jointRope nn.Rope
}

// Sequence lays out latents of height×width with a caption of the given number
// of tokens. Image and caption are each padded to a multiple of 32 tokens; the
// caption's positions, pads included, count on axis 0 from 1, the image follows it
// on axes 1 and 2, and pads of the image are at 0.
func (m *ZImage) Sequence(height, width, caption int) (*ZImageSequence, error) {
	if err := m.Fits(height, width, caption); err != nil {
		return nil, err
	}
	size := m.Config.AllPatchSize[0]
	s := &ZImageSequence{h: height / size, w: width / size, caption: caption}
	s.image = s.h * s.w
	captionPadded := padded(caption)
	var positions [][]int
	for k := range captionPadded {
		positions = append(positions, []int{1 + k, 0, 0})
	}
	s.captionRope = nn.NewRope(positions, m.Config.AxesDims, m.Config.RopeTheta)
	positions = appendGrid(nil, s.h, s.w, captionPadded+1, 3)
	for len(positions) < padded(s.image) {
		positions = append(positions, []int{0, 0, 0})
	}
	s.imageRope = nn.NewRope(positions, m.Config.AxesDims, m.Config.RopeTheta)
	s.jointRope = s.imageRope.Concat(s.captionRope)
	return s, nil
}

// Fits returns an error if latents of height×width or a caption of the given number
// of tokens are too large for the model.
func (m *ZImage) Fits(height, width, caption int) error {
	size := m.Config.AllPatchSize[0]
	for axis, need := range []int{padded(caption) + 2, height / size, width / size} {
		if most := m.Config.AxesLens[axis]; need > most {
			return fmt.Errorf("the %s has %d positions, expected at most %d", []string{"prompt", "height", "width"}[axis], need, most)
		}
	}
	return nil
}

// Timestep is the sinusoidal embedding that Forward takes, for a time t from 0
// (pure noise) to 1.
func (m *ZImage) Timestep(t float32) *mlx.Array {
	return nn.TimestepEmbedding(t*float32(m.Config.TScale), timestepFeatures)
}

// Pass returns the forward pass, whose output is the negated velocity [B, C, H, W] of latents. Text are prompt embeddings
// [T, cap_feat_dim] for the whole batch, or the result of [ZImage.RefineCaption] for them. Its blocks are those of
// layers; the refiners belong to the embedding. It computes in the dtype of the latents, in float16 with float32
// residual streams, and the caption up to the first layer in float32.
func (m *ZImage) Pass(in Inputs, s *ZImageSequence) Pass {
	temb := m.TEmbedder.Forward(in.Timestep.AsType(in.Latents.Dtype()))
	p := &zimagePass{ZImage: m, s: s, latents: in.Latents, caption: in.Text, temb: temb}
	p.shares = nn.NewShares(s.group, padded(s.image), padded(s.caption))
	return m.inStages(p)
}

type zimagePass struct {
	*ZImage
	s                      *ZImageSequence
	latents, caption, temb *mlx.Array
	shares                 *nn.Shares // of image and caption
}

func (p *zimagePass) Embed() Hidden {
	x := eachRow(p.latents, func(one *mlx.Array) *mlx.Array {
		return nn.WidenFP16(padTokens(p.patchify(one, p.s), p.XEmbedder[p.patch], p.XPadToken))
	})
	x = p.refineNoise(x)
	c := p.caption
	if c.Ndim() == 2 {
		c = p.RefineCaption(c, p.s, p.latents.Dtype())
	}
	return Hidden{Image: mlx.Concat(1, x, p.shares.Streams(1, 2).Share(1, toBatch(c, x.Dim(0))))}
}

// refineNoise returns this process's share of the refined image for all of its tokens x [B, L, dim].
func (p *zimagePass) refineNoise(x *mlx.Array) *mlx.Array {
	image := p.shares.Streams(0, 1)
	defer p.Sharing(image)()
	x = image.Share(1, x)
	j := joint{rope: p.s.imageRope}.over(image)
	for _, b := range mlx.Layers(p.NoiseRefiner, &x) {
		x = b.Forward(x, p.temb, j)
	}
	return x
}

// RefineCaption returns the caption [1, N, dim] in the joint sequence for prompt embeddings
// [T, cap_feat_dim]. It is the same for all steps. dtype is that of the latents.
func (m *ZImage) RefineCaption(caption *mlx.Array, s *ZImageSequence, dtype mlx.Dtype) *mlx.Array {
	c := padTokens(caption.AsType(nn.WideDtype(dtype)), m.CapEmbedder, m.CapPadToken)
	for _, b := range mlx.Layers(m.ContextRefiner, &c) {
		c = b.Forward(c, nil, joint{rope: s.captionRope})
	}
	return c
}

func (p *zimagePass) Len() int { return len(p.Layers) }

func (p *zimagePass) Blocks(h Hidden, first, end int) Hidden {
	defer p.Sharing(p.shares)()
	x, j := h.Image, joint{rope: p.s.jointRope}.over(p.shares)
	for _, b := range mlx.Layers(p.Layers[first:end], &x) {
		x = b.Forward(x, p.temb, j)
	}
	return Hidden{Image: x}
}

func (p *zimagePass) Output(x *mlx.Array) *mlx.Array {
	x = p.shares.Output(&p.Module, func() *mlx.Array { return p.FinalLayer[p.patch].Forward(x, p.temb) })
	out := eachRow(x, func(one *mlx.Array) *mlx.Array { return p.unpatchify(one, p.s).ExpandDims(0) })
	return p.tap(out, p.latents, p.caption)
}

// tap passes a single image through the hook: the reference's is in a list, with an axis
// for frames.
func (m *ZImage) tap(out, latents, caption *mlx.Array) *mlx.Array {
	if !m.Observed() || out.Dim(0) != 1 {
		return out
	}
	frame := func(x *mlx.Array) *mlx.Array { return x.Squeeze(0).ExpandDims(1) }
	return m.Tap(frame(out), frame(latents), caption).Squeeze(1).ExpandDims(0)
}

// eachRow applies f, which returns [1, ...], to each row of a batch x [B, ...]
// without its first axis, and concatenates the results.
func eachRow(x *mlx.Array, f func(one *mlx.Array) *mlx.Array) *mlx.Array {
	rows := make([]*mlx.Array, x.Dim(0))
	for i := range rows {
		rows[i] = f(x.Slice(0, i, i+1).Squeeze(0))
	}
	if len(rows) == 1 {
		return rows[0]
	}
	return mlx.Concat(0, rows...)
}

// patchify takes [C, H, W] to tokens [h·w, p·p·C], the channel fastest.
func (m *ZImage) patchify(x *mlx.Array, s *ZImageSequence) *mlx.Array {
	p, c := m.Config.AllPatchSize[0], m.Config.InChannels
	return x.Reshape(c, s.h, p, s.w, p).Transpose(1, 3, 2, 4, 0).Reshape(s.image, p*p*c)
}

// unpatchify takes the image's tokens of [L, p·p·C] to [C, H, W].
func (m *ZImage) unpatchify(x *mlx.Array, s *ZImageSequence) *mlx.Array {
	p, c := m.Config.AllPatchSize[0], m.Config.InChannels
	x = x.Slice(0, 0, s.image).Reshape(s.h, s.w, p, p, c)
	return x.Transpose(4, 0, 2, 1, 3).Reshape(c, s.h*p, s.w*p)
}

// padTokens embeds tokens [n, in] as [1, N, dim], where N is n rounded up to a multiple of
// 32. The rows from n on are the pad token. (As in the reference, they are embeddings of
// the repeated last token at first, so that a hook sees equal inputs of the module.)
func padTokens(tokens *mlx.Array, embed nn.Layer, pad nn.Param) *mlx.Array {
	n := tokens.Dim(0)
	padding := padded(n) - n
	if padding > 0 {
		last := tokens.Slice(0, n-1, n).BroadcastTo(padding, tokens.Dim(1))
		tokens = mlx.Concat(0, tokens, last)
	}
	x := embed.Forward(tokens)
	if padding > 0 {
		pads := pad.As(x.Dtype()).BroadcastTo(padding, x.Dim(1))
		x = mlx.Concat(0, x.Slice(0, 0, n), pads)
	}
	return x.ExpandDims(0)
}

// padded returns the next multiple of zimageSeqMultiple.
func padded(n int) int { return (n + zimageSeqMultiple - 1) / zimageSeqMultiple * zimageSeqMultiple }

// zimageTimestep is TimestepEmbedder.
type zimageTimestep struct {
	nn.Module
	MLP *nn.Sequential `w:"mlp"`
}

func (t *zimageTimestep) Forward(emb *mlx.Array) *mlx.Array {
	return t.Tap(t.MLP.Forward(emb)) // no input: the reference's is the time itself
}

// zimageBlock is ZImageTransformerBlock. Blocks of the context refiner have no
// modulation.
type zimageBlock struct {
	nn.Module      `in:"0 3"`
	Attention      *zimageAttention   `w:"attention"`
	FeedForward    *zimageFeedForward `w:"feed_forward"`
	AttentionNorm1 *nn.RMSNorm        `w:"attention_norm1"`
	FFNNorm1       *nn.RMSNorm        `w:"ffn_norm1"`
	AttentionNorm2 *nn.RMSNorm        `w:"attention_norm2"`
	FFNNorm2       *nn.RMSNorm        `w:"ffn_norm2"`
	AdaLN          *nn.Sequential     `w:"adaLN_modulation"`
}

func newZImageBlock(c ZImageConfig, modulated bool) *zimageBlock {
	norm := func() *nn.RMSNorm { return nn.NewRMSNorm(c.Dim, c.NormEps) }
	hidden := int(float64(c.Dim) / 3 * 8)
	b := &zimageBlock{
		Attention: &zimageAttention{selfAttention: newSelfAttention(c.NHeads, c.Dim/c.NHeads, false, 1e-5).withOut(false)},
		FeedForward: &zimageFeedForward{
			W1: nn.NewLinear(c.Dim, hidden, false), W2: nn.NewLinear(hidden, c.Dim, false), W3: nn.NewLinear(c.Dim, hidden, false),
		},
		AttentionNorm1: norm(), FFNNorm1: norm(), AttentionNorm2: norm(), FFNNorm2: norm(),
	}
	if modulated {
		b.AdaLN = nn.NewSequential(nn.NewLinear(min(c.Dim, zimageAdaLNDim), 4*c.Dim, true))
	}
	return b
}

// Forward takes x [1, L, dim] and temb [1, 256] (nil without modulation).
func (b *zimageBlock) Forward(x, temb *mlx.Array, j joint) *mlx.Array {
	if b.AdaLN == nil {
		y := x.Add(b.AttentionNorm2.Forward(b.Attention.Forward(b.AttentionNorm1.Forward(x), j)))
		y = y.Add(b.FFNNorm2.Forward(b.FeedForward.Forward(b.FFNNorm1.Forward(y))))
		return b.Tap(y, x, nil)
	}
	parts := b.AdaLN.Forward(temb).ExpandDims(1).Split(4, -1)
	attn := modulation{Scale: parts[0], Gate: parts[1].Tanh()}
	mlp := modulation{Scale: parts[2], Gate: parts[3].Tanh()}

	dx := b.Attention.Forward(attn.norm(b.AttentionNorm1, x), j)
	y := attn.normThenAdd(x, b.AttentionNorm2, dx)
	dy := b.FeedForward.Forward(mlp.norm(b.FFNNorm1, y))
	return b.Tap(mlp.normThenAdd(y, b.FFNNorm2, dy), x, temb)
}

// zimageAttention is diffusers' Attention with ZSingleStreamAttnProcessor.
type zimageAttention struct {
	nn.Module
	selfAttention `w:"."`
}

func (a *zimageAttention) Forward(x *mlx.Array, j joint) *mlx.Array {
	return a.Tap(a.forward(&a.Module, x, a.QKV.Forward(x), j), x)
}

// zimageFeedForward is FeedForward: w2(silu(w1 x)·w3 x).
type zimageFeedForward struct {
	nn.Module
	W1 *nn.Linear `w:"w1"`
	W2 *nn.Linear `w:"w2"`
	W3 *nn.Linear `w:"w3"`
}

func (f *zimageFeedForward) Forward(x *mlx.Array) *mlx.Array {
	y := nn.WideSwiGLU(nil, mlx.AllColumns(f.W1.Forward(x)), mlx.AllColumns(f.W3.Forward(x)))
	return f.Tap(f.W2.ForwardWide(y, x.Dtype()), x)
}

// zimageFinal is FinalLayer.
type zimageFinal struct {
	nn.Module `in:"0 c"`
	NormFinal *nn.LayerNorm  `w:"norm_final"`
	Linear    *nn.Linear     `w:"linear"`
	AdaLN     *nn.Sequential `w:"adaLN_modulation"`
}

func (f *zimageFinal) Forward(x, temb *mlx.Array) *mlx.Array {
	m := modulation{Scale: f.AdaLN.Forward(temb).ExpandDims(1)}
	return f.Tap(f.Linear.Forward(m.norm(f.NormFinal, x)), x, temb)
}
