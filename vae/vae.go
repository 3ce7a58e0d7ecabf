// Package vae holds the autoencoders, one file per diffusers class.
package vae

import "github.com/gomflux/gomflux/mlx"

// An Autoencoder takes pictures to latents and back. What it calls its own
// latents, an array that Encode returns and Decode takes, is in general not what
// a diffusion model works on; Scale and Unscale take one to the other.
type Autoencoder interface {
	// Encode takes pictures [N, 3, H, W] from -1 to 1, with sides that are
	// multiples of ScaleFactor, to the mean of the autoencoder's own latents.
	Encode(x *mlx.Array) *mlx.Array
	// Decode takes the autoencoder's own latents to pictures [N, 3, H, W], from
	// about -1 to 1, clamped only where diffusers' class does.
	Decode(z *mlx.Array) *mlx.Array

	// Scale takes the autoencoder's own latents, [N, C, h, w] or [C, h, w], to
	// those that the diffusion model works on.
	Scale(z *mlx.Array) *mlx.Array
	// Unscale is the inverse of Scale.
	Unscale(z *mlx.Array) *mlx.Array

	// ScaleFactor is the size of a picture over that of the diffusion model's
	// latents.
	ScaleFactor() int
	// LatentChannels is the number of channels of the diffusion model's latents.
	LatentChannels() int
	// Unscaled is the shape without a batch axis of what Unscale makes of
	// latents of h rows and w columns.
	Unscaled(h, w int) []int

	// SetBudget limits the memory, in bytes, that Encode and Decode take beside
	// the inputs and outputs of their layers. They then compute convolutions in
	// strips of as many rows as fit, at least one, with the same result up to
	// rounding. 0, as at first, is no limit. While a hook looks there is none.
	SetBudget(bytes int64)
	// DecodeMemory estimates what Decode takes for one picture under the budget,
	// in bytes, without the weights.
	DecodeMemory(height, width int, d mlx.Device, dtype mlx.Dtype) int64
	// EncodeMemory is that of Encode.
	EncodeMemory(height, width int, d mlx.Device, dtype mlx.Dtype) int64

	// Unused are patterns (path.Match) of the tensors in a checkpoint that the
	// autoencoder does not have.
	Unused() []string
}

// A Config is the config of one class.
type Config interface{ Validate() error }
