package vae

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// SeedVR2Config is the config of SeedVR2's VideoAutoencoderKL, with the names of its makers, which are those of diffusers'
// AutoencoderKL.
type SeedVR2Config struct {
	CoderConfig
	TemporalScaleNum int     `json:"temporal_scale_num"` // levels that halve the number of frames too
	ScalingFactor    float64 `json:"scaling_factor" number:"nonzero"`
}

// DefaultSeedVR2Config returns the published config.
func DefaultSeedVR2Config() SeedVR2Config {
	c := SeedVR2Config{DefaultKLConfig().CoderConfig, 2, 0.9152}
	c.BlockOutChannels, c.LayersPerBlock, c.LatentChannels = []int{128, 256, 512, 512}, 2, 16
	c.UseQuantConv, c.UsePostQuantConv = false, false
	c.DownBlockTypes, c.UpBlockTypes = slices.Repeat(c.DownBlockTypes, 4), slices.Repeat(c.UpBlockTypes, 4)
	return c
}

// Validate returns an error if the model cannot be run with the config.
func (c *SeedVR2Config) Validate() error {
	if err := c.validate(c, c.BlockOutChannels); err != nil {
		return err
	}
	switch most := len(c.BlockOutChannels) - 1; {
	case c.TemporalScaleNum < 0 || c.TemporalScaleNum > most:
		return fmt.Errorf("temporal_scale_num %d, expected 0 to %d for block_out_channels %v", c.TemporalScaleNum, most, c.BlockOutChannels)
	case c.UseQuantConv || c.UsePostQuantConv:
		return errors.New("use_quant_conv or use_post_quant_conv true, expected false")
	}
	return nil
}

// SeedVR2 is SeedVR2's VideoAutoencoderKL for images. That is a video autoencoder, and an image is a video of one frame: its
// causal 3-D convolutions see copies of the frame before it. So they are computed as 2-D convolutions with the sum of the
// slices of their weights in time; see [nn.Param.Sum]. Where the decoder makes two frames of one, the first is kept. Arrays
// lack the reference's axis of frames.
type SeedVR2 struct {
	nn.Module
	coder  `w:"."`
	Config SeedVR2Config
}

// NewSeedVR2 declares the model of a validated config.
func NewSeedVR2(c SeedVR2Config) *SeedVR2 {
	m := newCoder(c.CoderConfig, c.BlockOutChannels, 1)
	e, d := m.Encoder.(*half), m.Decoder.(*half)
	resnets := func(all []*resnet) {
		for _, r := range all {
			inflate(3, r.Conv1, r.Conv2)
			if shortcut, ok := r.ConvShortcut.(*nn.Conv2d); ok {
				inflate(1, shortcut)
			}
		}
	}
	inflate(3, e.ConvIn, e.ConvOut, d.ConvIn, d.ConvOut)
	resnets(e.MidBlock.Resnets)
	resnets(d.MidBlock.Resnets)
	for i, b := range e.DownBlocks {
		b := b.(*resizeBlock)
		resnets(b.Resnets)
		for _, down := range b.Downsamplers {
			frames := 1
			if i >= len(e.DownBlocks)-1-c.TemporalScaleNum {
				frames = 3
			}
			inflate(frames, down.(*downsample).Conv)
		}
	}
	for i, b := range d.UpBlocks {
		b := b.(*resizeBlock)
		resnets(b.Resnets)
		for _, s := range b.Upsamplers {
			up := s.(*upsample)
			channels, parts := c.BlockOutChannels[len(c.BlockOutChannels)-1-i], 4
			if i < c.TemporalScaleNum {
				parts = 8
			}
			up.UpscaleConv = nn.NewConv2d(channels, parts*channels, 1, 1, 0)
			inflate(1, up.UpscaleConv)
			inflate(3, up.Conv)
		}
	}
	return &SeedVR2{coder: m, Config: c}
}

// inflate declares that checkpoints have the weights of convolutions with an axis of frames.
func inflate(frames int, convolutions ...*nn.Conv2d) {
	for _, c := range convolutions {
		s := nn.Parameters(c)[0].Stored()
		c.Weight = nn.NewParam(s[0], s[1], frames, s[2], s[3]).Sum()
	}
}

// shuffled is the first frame of a convolution's output whose channels are the rows, columns and, with eight parts, frames
// that a pixel of x [N, H, W, C] becomes: [N, 2H, 2W, C].
func shuffled(conv *nn.Conv2d, x *mlx.Array) *mlx.Array {
	return mlx.Scope(func() *mlx.Array { // lets MLX free what is as large as the result
		weight, bias := conv.As(x.Dtype())
		n, h, w, c := x.Dim(0), x.Dim(1), x.Dim(2), x.Dim(3)
		first := func(a *mlx.Array, shape ...int) *mlx.Array {
			return a.Reshape(4, -1, c, a.Size()/weight.Dim(0)).Slice(1, 0, 1).Reshape(shape...)
		}
		y := x.BiasedConv2d(first(weight, 4*c, 1, 1, c), first(bias, 4*c), 1, 0)
		return y.Reshape(n, h, w, 2, 2, c).Transpose(0, 1, 3, 2, 4, 5).Reshape(n, 2*h, 2*w, c)
	})
}

// Scale converts unscaled latents of any shape to the diffusion model's.
func (m *SeedVR2) Scale(z *mlx.Array) *mlx.Array { return z.Times(m.Config.ScalingFactor) }

// Unscale is the inverse of Scale.
func (m *SeedVR2) Unscale(z *mlx.Array) *mlx.Array { return z.Over(m.Config.ScalingFactor) }
