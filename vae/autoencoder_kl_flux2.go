package vae

import (
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// KLFlux2Config is vae/config.json of diffusers' AutoencoderKLFlux2.
type KLFlux2Config struct {
	CoderConfig
	DecoderBlockOutChannels []int   `json:"decoder_block_out_channels"` // empty: those of the encoder
	BatchNormEps            float64 `json:"batch_norm_eps"`
	PatchSize               []int   `json:"patch_size"`
}

// DefaultKLFlux2Config is what diffusers assumes where a config says nothing.
func DefaultKLFlux2Config() KLFlux2Config {
	return KLFlux2Config{
		CoderConfig: CoderConfig{
			InChannels: 3, OutChannels: 3, BlockOutChannels: []int{128, 256, 512, 512}, LayersPerBlock: 2, ActFn: "silu",
			LatentChannels: 32, NormNumGroups: 32, UseQuantConv: true, UsePostQuantConv: true, MidBlockAddAttention: true,
			DownBlockTypes: slices.Repeat([]string{"DownEncoderBlock2D"}, 4), UpBlockTypes: slices.Repeat([]string{"UpDecoderBlock2D"}, 4),
		},
		BatchNormEps: 1e-4, PatchSize: []int{patch, patch},
	}
}

// patch is the side of a patch of latents. The pipelines of diffusers have it
// fixed, whatever patch_size says.
const patch = 2

// Validate says what of the config cannot be run.
func (c *KLFlux2Config) Validate() error {
	if err := c.validate(c.decoderWidths()); err != nil {
		return err
	}
	if !slices.Equal(c.PatchSize, []int{patch, patch}) {
		return fmt.Errorf("patch_size %v, expected %v", c.PatchSize, []int{patch, patch})
	}
	if c.BatchNormEps < 0 {
		return fmt.Errorf("batch_norm_eps %v, expected 0 or more", c.BatchNormEps)
	}
	return nil
}

func (c *KLFlux2Config) decoderWidths() []int {
	if len(c.DecoderBlockOutChannels) == 0 {
		return c.BlockOutChannels
	}
	return c.DecoderBlockOutChannels
}

// KLFlux2 is diffusers' AutoencoderKLFlux2. Diffusion models work on patches of
// 2x2 of its latents, normalised by statistics that it has learned.
type KLFlux2 struct {
	nn.Module
	coder
	Encoder       *encoder   `w:"encoder"`
	Decoder       *decoder   `w:"decoder"`
	QuantConv     *nn.Conv2d `w:"quant_conv"`
	PostQuantConv *nn.Conv2d `w:"post_quant_conv"`
	BN            *batchNorm `w:"bn"`
	Config        KLFlux2Config
}

// batchNorm holds what torch.nn.BatchNorm2d without weight and bias has learned.
type batchNorm struct {
	RunningMean nn.Param `w:"running_mean"`
	RunningVar  nn.Param `w:"running_var"`
}

// NewKLFlux2 declares the model that a validated config describes.
func NewKLFlux2(c KLFlux2Config) *KLFlux2 {
	m, encoder, decoder := newCoder(c.CoderConfig, c.decoderWidths())
	n := patch * patch * c.LatentChannels
	return &KLFlux2{
		coder: m, Encoder: encoder, Decoder: decoder, QuantConv: m.quant, PostQuantConv: m.postQuant,
		BN: &batchNorm{nn.NewParam(n), nn.NewParam(n)}, Config: c,
	}
}

// ScaleFactor is the size of a picture over the number of patches.
func (m *KLFlux2) ScaleFactor() int { return patch * m.Config.coderScale() }

// LatentChannels is the number of channels of a patch.
func (m *KLFlux2) LatentChannels() int { return patch * patch * m.Config.LatentChannels }

// Unscaled is [latent_channels, 2·h, 2·w].
func (m *KLFlux2) Unscaled(h, w int) []int {
	return []int{m.Config.LatentChannels, patch * h, patch * w}
}

// Unused is a number that only training needs.
func (m *KLFlux2) Unused() []string { return []string{"bn.num_batches_tracked"} }

// Scale takes latents [..., latent_channels, 2·h, 2·w] to normalised patches
// [..., 4·latent_channels, h, w] (_patchify_latents of diffusers'
// Flux2KleinPipeline): a channel's four values are consecutive, row by row.
func (m *KLFlux2) Scale(z *mlx.Array) *mlx.Array {
	s := z.Shape()
	c, h, w := s[len(s)-3], s[len(s)-2]/patch, s[len(s)-1]/patch
	y := z.Reshape(-1, c, h, patch, w, patch).Transpose(0, 1, 3, 5, 2, 4)
	mean, std := m.statistics(z.Dtype())
	return y.Reshape(append(s[:len(s)-3:len(s)-3], patch*patch*c, h, w)...).Sub(mean).Div(std)
}

// Unscale is the inverse of Scale.
func (m *KLFlux2) Unscale(z *mlx.Array) *mlx.Array {
	s := z.Shape()
	c, h, w := s[len(s)-3]/(patch*patch), s[len(s)-2], s[len(s)-1]
	mean, std := m.statistics(z.Dtype())
	y := z.Mul(std).Add(mean).Reshape(-1, c, patch, patch, h, w).Transpose(0, 1, 4, 2, 5, 3)
	return y.Reshape(append(s[:len(s)-3:len(s)-3], c, patch*h, patch*w)...)
}

// statistics are mean and standard deviation, [4·latent_channels, 1, 1].
func (m *KLFlux2) statistics(dtype mlx.Dtype) (mean, std *mlx.Array) {
	mean = m.BN.RunningMean.As(dtype).Reshape(-1, 1, 1)
	std = m.BN.RunningVar.As(mlx.Float32).Plus(m.Config.BatchNormEps).Sqrt().AsType(dtype).Reshape(-1, 1, 1)
	return mean, std
}
