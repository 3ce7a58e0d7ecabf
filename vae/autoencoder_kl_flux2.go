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
	DecoderBlockOutChannels []int   `json:"decoder_block_out_channels"` // empty: block_out_channels
	BatchNormEps            float64 `json:"batch_norm_eps" number:"nonnegative"`
	PatchSize               []int   `json:"patch_size"`
}

// DefaultKLFlux2Config returns the values that diffusers uses for fields that a config lacks.
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

// patch is the side of a patch of latents. It is a constant in diffusers' pipelines,
// which ignore patch_size.
const patch = 2

// Validate returns an error if the model cannot be run with the config.
func (c *KLFlux2Config) Validate() error {
	if err := c.validate(c, c.decoderWidths()); err != nil {
		return err
	}
	if !slices.Equal(c.PatchSize, []int{patch, patch}) {
		return fmt.Errorf("patch_size %v, expected %v", c.PatchSize, []int{patch, patch})
	}
	return nil
}

func (c *KLFlux2Config) decoderWidths() []int {
	if len(c.DecoderBlockOutChannels) == 0 {
		return c.BlockOutChannels
	}
	return c.DecoderBlockOutChannels
}

// KLFlux2 is diffusers' AutoencoderKLFlux2. Diffusion models work on 2x2 patches of
// its latents, normalised by learned statistics.
type KLFlux2 struct {
	nn.Module
	coder  `w:"."`
	BN     *batchNorm `w:"bn"`
	Config KLFlux2Config
}

// batchNorm holds the running statistics of a torch.nn.BatchNorm2d without weight and
// bias.
type batchNorm struct {
	RunningMean nn.Param `w:"running_mean"`
	RunningVar  nn.Param `w:"running_var"`
}

// NewKLFlux2 declares the model of a validated config.
func NewKLFlux2(c KLFlux2Config) *KLFlux2 {
	n := patch * patch * c.LatentChannels
	return &KLFlux2{
		coder: newCoder(c.CoderConfig, c.decoderWidths(), patch), BN: &batchNorm{nn.NewParam(n), nn.NewParam(n)}, Config: c,
	}
}

// Unused returns the name of a counter that only training needs.
func (m *KLFlux2) Unused() []string { return []string{"bn.num_batches_tracked"} }

// Scale converts latents [..., latent_channels, 2·h, 2·w] to normalised patches
// [..., 4·latent_channels, h, w].
func (m *KLFlux2) Scale(z *mlx.Array) *mlx.Array {
	mean, std := m.statistics(z.Dtype())
	return patchify(z).Sub(mean).Div(std)
}

// Unscale is the inverse of Scale.
func (m *KLFlux2) Unscale(z *mlx.Array) *mlx.Array {
	mean, std := m.statistics(z.Dtype())
	return unpatchify(z.Mul(std).Add(mean))
}

// patchify converts latents [..., c, 2·h, 2·w] to patches [..., 4·c, h, w]. As in _patchify_latents of
// diffusers' Flux2KleinPipeline, the four values of a channel are consecutive, row by row.
func patchify(z *mlx.Array) *mlx.Array {
	s := z.Shape()
	c, h, w := s[len(s)-3], s[len(s)-2]/patch, s[len(s)-1]/patch
	y := z.Reshape(-1, c, h, patch, w, patch).Transpose(0, 1, 3, 5, 2, 4)
	return y.Reshape(append(s[:len(s)-3:len(s)-3], patch*patch*c, h, w)...)
}

// unpatchify is the inverse of patchify.
func unpatchify(z *mlx.Array) *mlx.Array {
	s := z.Shape()
	c, h, w := s[len(s)-3]/(patch*patch), s[len(s)-2], s[len(s)-1]
	y := z.Reshape(-1, c, patch, patch, h, w).Transpose(0, 1, 4, 2, 5, 3)
	return y.Reshape(append(s[:len(s)-3:len(s)-3], c, patch*h, patch*w)...)
}

// statistics returns mean and standard deviation, [4·latent_channels, 1, 1].
func (m *KLFlux2) statistics(dtype mlx.Dtype) (mean, std *mlx.Array) {
	mean = m.BN.RunningMean.As(dtype).Reshape(-1, 1, 1)
	std = m.BN.RunningVar.As(mlx.Float32).Plus(m.Config.BatchNormEps).Sqrt().AsType(dtype).Reshape(-1, 1, 1)
	return mean, std
}
