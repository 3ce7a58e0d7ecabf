package vae

import (
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// KLConfig is vae/config.json of diffusers' AutoencoderKL.
type KLConfig struct {
	CoderConfig
	ScalingFactor float64  `json:"scaling_factor" number:"nonzero"`
	ShiftFactor   *float64 `json:"shift_factor"`
}

// DefaultKLConfig returns the values that diffusers uses for fields that a config lacks.
func DefaultKLConfig() KLConfig {
	return KLConfig{
		CoderConfig: CoderConfig{
			InChannels: 3, OutChannels: 3, BlockOutChannels: []int{64}, LayersPerBlock: 1, ActFn: "silu", LatentChannels: 4,
			NormNumGroups: 32, UseQuantConv: true, UsePostQuantConv: true, MidBlockAddAttention: true,
			DownBlockTypes: []string{"DownEncoderBlock2D"}, UpBlockTypes: []string{"UpDecoderBlock2D"},
		},
		ScalingFactor: 0.18215,
	}
}

// Validate returns an error if the model cannot be run with the config.
func (c *KLConfig) Validate() error { return c.validate(c, c.BlockOutChannels) }

// KL is diffusers' AutoencoderKL.
type KL struct {
	nn.Module
	coder  `w:"."`
	Config KLConfig
}

// NewKL declares the model of a validated config.
func NewKL(c KLConfig) *KL {
	return &KL{coder: newCoder(c.CoderConfig, c.BlockOutChannels, 1), Config: c}
}

// Scale converts unscaled latents of any shape to the diffusion model's:
// (z - shift_factor)·scaling_factor.
func (m *KL) Scale(z *mlx.Array) *mlx.Array {
	return z.Plus(-m.shift()).Times(m.Config.ScalingFactor)
}

// Unscale is the inverse of Scale.
func (m *KL) Unscale(z *mlx.Array) *mlx.Array {
	return z.Over(m.Config.ScalingFactor).Plus(m.shift())
}

func (m *KL) shift() float64 {
	if m.Config.ShiftFactor == nil {
		return 0
	}
	return *m.Config.ShiftFactor
}
