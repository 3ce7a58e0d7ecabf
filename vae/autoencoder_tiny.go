package vae

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// TinyConfig is config.json of diffusers' AutoencoderTiny. Its latent_magnitude and latent_shift are
// left out: they belong to a conversion of latents to bytes, which no pipeline does.
type TinyConfig struct {
	InChannels              int     `json:"in_channels"`
	OutChannels             int     `json:"out_channels"`
	EncoderBlockOutChannels []int   `json:"encoder_block_out_channels"`
	DecoderBlockOutChannels []int   `json:"decoder_block_out_channels"`
	NumEncoderBlocks        []int   `json:"num_encoder_blocks"`
	NumDecoderBlocks        []int   `json:"num_decoder_blocks"`
	ActFn                   string  `json:"act_fn"`
	UpsampleFn              string  `json:"upsample_fn"`
	LatentChannels          int     `json:"latent_channels" size:"1"`
	UpsamplingScalingFactor int     `json:"upsampling_scaling_factor"`
	ScalingFactor           float64 `json:"scaling_factor" number:"nonzero"`
	ShiftFactor             float64 `json:"shift_factor"`

	// UseMidblockGN adds a normalised branch to the blocks with the lowest resolution, and PatchSize 2
	// is for diffusion models whose latents are patches of 2x2. TAEF2 has both, which diffusers'
	// class lacks.
	UseMidblockGN bool `json:"use_midblock_gn"`
	PatchSize     int  `json:"patch_size"`
}

// DefaultTinyConfig returns the values that diffusers uses for fields that a config lacks.
func DefaultTinyConfig() TinyConfig {
	return TinyConfig{
		InChannels: 3, OutChannels: 3, EncoderBlockOutChannels: []int{64, 64, 64, 64}, DecoderBlockOutChannels: []int{64, 64, 64, 64},
		NumEncoderBlocks: []int{1, 3, 3, 3}, NumDecoderBlocks: []int{3, 3, 3, 1}, ActFn: "relu", UpsampleFn: "nearest",
		LatentChannels: 4, UpsamplingScalingFactor: 2, ScalingFactor: 1, PatchSize: 1,
	}
}

// Validate returns an error if the model cannot be run with the config. A config with empty lists for
// the encoder is that of a decoder alone.
func (c *TinyConfig) Validate() error {
	switch err := nn.CheckConfig(c); {
	case err != nil:
		return err
	case c.InChannels != 3 || c.OutChannels != 3:
		return fmt.Errorf("in_channels %d and out_channels %d, expected 3", c.InChannels, c.OutChannels)
	case c.ActFn != "relu":
		return fmt.Errorf("act_fn %q, expected relu", c.ActFn)
	case c.UpsampleFn != "nearest" || c.UpsamplingScalingFactor != 2:
		return fmt.Errorf("upsample_fn %q and upsampling_scaling_factor %d, expected nearest and 2",
			c.UpsampleFn, c.UpsamplingScalingFactor)
	case c.PatchSize != 1 && c.PatchSize != patch:
		return fmt.Errorf("patch_size %d, expected 1 or %d", c.PatchSize, patch)
	}
	if err := validTinyBlocks("decoder", c.DecoderBlockOutChannels, c.NumDecoderBlocks); err != nil {
		return err
	}
	if len(c.EncoderBlockOutChannels)+len(c.NumEncoderBlocks) == 0 {
		return nil
	}
	if len(c.EncoderBlockOutChannels) != len(c.DecoderBlockOutChannels) {
		return fmt.Errorf("encoder_block_out_channels %v, expected as many as decoder_block_out_channels %v",
			c.EncoderBlockOutChannels, c.DecoderBlockOutChannels)
	}
	return validTinyBlocks("encoder", c.EncoderBlockOutChannels, c.NumEncoderBlocks)
}

func validTinyBlocks(side string, widths, blocks []int) error {
	const most = 10 // levels
	if len(widths) == 0 || len(widths) > most || len(blocks) != len(widths) {
		return fmt.Errorf("%s_block_out_channels %v and num_%s_blocks %v: expected as many of both, 1 to %d",
			side, widths, side, blocks, most)
	}
	for _, w := range widths {
		if w != widths[0] || w < 1 || w > nn.MaxDim {
			return fmt.Errorf("%s_block_out_channels %v: expected equal widths, 1 to %d", side, widths, nn.MaxDim)
		}
	}
	for _, n := range blocks {
		if n < 0 || n > nn.MaxLayers {
			return fmt.Errorf("num_%s_blocks %v: expected 0 to %d", side, blocks, nn.MaxLayers)
		}
	}
	return nil
}

// Tiny is diffusers' AutoencoderTiny: TAESD and its relatives, which approximate the autoencoder of a
// diffusion model with a fraction of the computation.
type Tiny struct {
	nn.Module
	coder  `w:"."`
	Config TinyConfig
}

// NewTiny declares the model of a validated config.
func NewTiny(c TinyConfig) *Tiny {
	s := &strips{}
	m := &Tiny{Config: c, coder: coder{
		Decoder: newTinyDecoder(c, s), imageChannels: c.InChannels, latentChannels: c.LatentChannels,
		scale: 1 << (len(c.DecoderBlockOutChannels) - 1), patch: c.PatchSize, strips: s,
	}}
	if len(c.NumEncoderBlocks) > 0 {
		m.Encoder = newTinyEncoder(c, s)
	}
	return m
}

// Scale converts unscaled latents of any shape to the diffusion model's:
// (z - shift_factor)·scaling_factor, as patches if patch_size is 2.
func (m *Tiny) Scale(z *mlx.Array) *mlx.Array {
	z = z.Plus(-m.Config.ShiftFactor).Times(m.Config.ScalingFactor)
	if m.Config.PatchSize > 1 {
		z = patchify(z)
	}
	return z
}

// Unscale is the inverse of Scale.
func (m *Tiny) Unscale(z *mlx.Array) *mlx.Array {
	if m.Config.PatchSize > 1 {
		z = unpatchify(z)
	}
	return z.Over(m.Config.ScalingFactor).Plus(m.Config.ShiftFactor)
}

// tinyCoder is diffusers' EncoderTiny or DecoderTiny.
type tinyCoder struct {
	nn.Module
	Layers []nn.Layer `w:"layers"`

	before, after func(*mlx.Array) *mlx.Array
	stages        []layer // the layers as they are computed in strips
	strips        *strips
}

func newTinyEncoder(c TinyConfig, s *strips) *tinyCoder {
	e := &tinyCoder{
		before: func(x *mlx.Array) *mlx.Array { return x.Plus(1).Over(2) },
		after:  func(x *mlx.Array) *mlx.Array { return x },
		strips: s,
	}
	width, last := c.EncoderBlockOutChannels[0], len(c.NumEncoderBlocks)-1
	for i, blocks := range c.NumEncoderBlocks {
		if i == 0 {
			e.addConv(nn.NewConv2d(c.InChannels, width, 3, 1, 1))
		} else {
			e.addConv(nn.NewConv2d(width, width, 3, 2, 1).WithoutBias())
		}
		e.addBlocks(blocks, width, c.UseMidblockGN && i == last)
	}
	e.addConv(nn.NewConv2d(width, c.LatentChannels, 3, 1, 1))
	return e
}

func newTinyDecoder(c TinyConfig, s *strips) *tinyCoder {
	d := &tinyCoder{
		before: func(x *mlx.Array) *mlx.Array { return x.Over(3).Tanh().Times(3) },
		after:  func(x *mlx.Array) *mlx.Array { return x.Times(2).Plus(-1) },
		strips: s,
	}
	width, last := c.DecoderBlockOutChannels[0], len(c.NumDecoderBlocks)-1
	in := nn.NewConv2d(c.LatentChannels, width, 3, 1, 1)
	d.Layers, d.stages = []nn.Layer{in, &relu{}}, []layer{rectifiedStage{convStage(in)}}
	for i, blocks := range c.NumDecoderBlocks {
		d.addBlocks(blocks, width, c.UseMidblockGN && i == 0)
		if i == last {
			d.addConv(nn.NewConv2d(width, c.OutChannels, 3, 1, 1))
			break
		}
		conv := nn.NewConv2d(width, width, 3, 1, 1).WithoutBias()
		d.Layers = append(d.Layers, &nearest{}, conv)
		d.stages = append(d.stages, stage{double: mlx.Upsample, conv: conv, before: 1, after: 1})
	}
	return d
}

func (t *tinyCoder) addConv(conv *nn.Conv2d) {
	t.Layers, t.stages = append(t.Layers, conv), append(t.stages, convStage(conv))
}

// addBlocks adds blocks of a width, with a pool or without.
func (t *tinyCoder) addBlocks(n, width int, pool bool) {
	for range n {
		b := newTinyBlock(width, pool)
		t.Layers, t.stages = append(t.Layers, b), append(t.stages, b)
	}
}

func (t *tinyCoder) layers() []layer { return t.stages }

func (t *tinyCoder) Forward(x *mlx.Array) *mlx.Array {
	y := mlx.Scope(func() *mlx.Array { return t.before(x) })
	if t.strips.use(&t.Module) {
		y = t.strips.run(y, t.stages)
	} else {
		y = chain(y, t.Layers, nn.Layer.Forward)
	}
	return t.TapImage(t.after(y), x)
}

// tinyBlock is AutoencoderTinyBlock with as many input as output channels.
type tinyBlock struct {
	nn.Module
	Pool *tinyPool  `w:"pool"` // nil except in TAEF2
	Conv *tinyConvs `w:"conv"`
	Fuse *relu      `w:"fuse"`
}

// tinyConvs are the convolutions of a block. Act is between them, twice.
type tinyConvs struct {
	nn.Module
	In  *nn.Conv2d `w:"0"`
	Act *relu      `w:"1"`
	Mid *nn.Conv2d `w:"2"`
	Out *nn.Conv2d `w:"4"`
}

// tinyPool is a branch with a norm over the whole image.
type tinyPool struct {
	nn.Module
	Expand  *nn.Conv2d    `w:"0"`
	Norm    *nn.GroupNorm `w:"1"`
	Act     *relu         `w:"2"`
	Project *nn.Conv2d    `w:"3"`
}

func newTinyBlock(width int, pool bool) *tinyBlock {
	conv := func() *nn.Conv2d { return nn.NewConv2d(width, width, 3, 1, 1) }
	b := &tinyBlock{Conv: &tinyConvs{In: conv(), Act: &relu{}, Mid: conv(), Out: conv()}, Fuse: &relu{}}
	if pool {
		const groups = 4
		wide := groups * width
		b.Pool = &tinyPool{
			Expand: nn.NewConv2d(width, wide, 1, 1, 0).WithoutBias(), Norm: nn.NewGroupNorm(groups, wide, 1e-5),
			Act: &relu{}, Project: nn.NewConv2d(wide, width, 1, 1, 0).WithoutBias(),
		}
	}
	return b
}

func (b *tinyBlock) Forward(x *mlx.Array) *mlx.Array {
	in := b.pooled(x)
	add := layerFunc(func(y *mlx.Array) *mlx.Array { return in.Add(y) })
	return b.TapImage(chain(in, []nn.Layer{b.Conv, add, b.Fuse}, nn.Layer.Forward), x)
}

func (c *tinyConvs) Forward(x *mlx.Array) *mlx.Array {
	return c.TapImage(chain(x, []nn.Layer{c.In, c.Act, c.Mid, c.Act, c.Out}, nn.Layer.Forward), x)
}

// pooled adds the branch with the norm, if there is one.
func (b *tinyBlock) pooled(x *mlx.Array) *mlx.Array {
	if b.Pool == nil {
		return x
	}
	return mlx.Scope(func() *mlx.Array { return x.Add(b.Pool.Forward(x)) })
}

func (b *tinyBlock) strip(x *mlx.Array, s *strips) *mlx.Array {
	in := x
	if b.Pool != nil {
		in = s.own(1, b.pooled(s.whole(x)))
	}
	return mlx.EvalChain(in, b.convs(), func(conv *nn.Conv2d, x *mlx.Array) *mlx.Array {
		return convStage(conv).stripThen(x, s, func(y *mlx.Array, lo, hi int) *mlx.Array {
			if conv == b.Conv.Out {
				y = slice(in, lo, hi).Add(y)
			}
			return rectified(y)
		})
	})
}

func (b *tinyBlock) convs() []*nn.Conv2d { return []*nn.Conv2d{b.Conv.In, b.Conv.Mid, b.Conv.Out} }

// memory leaves out the pool: it is at the lowest resolution.
func (b *tinyBlock) memory(in size, m memoryModel) (int64, size) {
	n, out := convStage(b.Conv.Mid).memory(in, m)
	return in.bytes(m.item()) + n, out
}

func (p *tinyPool) Forward(x *mlx.Array) *mlx.Array {
	return p.TapImage(chain(x, []nn.Layer{p.Expand, p.Norm, p.Act, p.Project}, nn.Layer.Forward), x)
}

// rectifiedStage is a convolution followed by ReLU.
type rectifiedStage struct{ stage }

func (s rectifiedStage) strip(x *mlx.Array, by *strips) *mlx.Array {
	return s.stripThen(x, by, func(y *mlx.Array, lo, hi int) *mlx.Array { return rectified(y) })
}

// relu is torch.nn.ReLU on [N, H, W, C].
type relu struct{ nn.Module }

func (r *relu) Forward(x *mlx.Array) *mlx.Array { return r.TapImage(rectified(x), x) }

func rectified(x *mlx.Array) *mlx.Array { return x.Maximum(mlx.Scalar(0, x.Dtype())) }

// nearest is torch.nn.Upsample with mode nearest and a factor of 2, on [N, H, W, C].
type nearest struct{ nn.Module }

func (n *nearest) Forward(x *mlx.Array) *mlx.Array { return n.TapImage(mlx.Upsample(x), x) }

// A layerFunc is a layer without parameters.
type layerFunc func(*mlx.Array) *mlx.Array

func (f layerFunc) Forward(x *mlx.Array) *mlx.Array { return f(x) }
