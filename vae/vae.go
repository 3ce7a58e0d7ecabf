// Package vae holds the autoencoders, one file per diffusers class.
package vae

import "github.com/gomflux/gomflux/mlx"

// An Autoencoder encodes images to latents and decodes them. Its own latents, which
// Encode returns and Decode takes, are in general not those of the diffusion model:
// Scale and Unscale convert between them.
type Autoencoder interface {
	// Encode encodes images [N, ImageChannels, H, W] from -1 to 1, with sides that are multiples of
	// ScaleFactor. It returns the mean of the autoencoder's own latents.
	Encode(x *mlx.Array) *mlx.Array
	// Decode decodes the autoencoder's own latents to images [N, ImageChannels, H, W], from
	// about -1 to 1, clamped only where diffusers' class does.
	Decode(z *mlx.Array) *mlx.Array

	// Scale converts the autoencoder's own latents, [N, C, h, w] or [C, h, w], to the
	// diffusion model's.
	Scale(z *mlx.Array) *mlx.Array
	// Unscale is the inverse of Scale.
	Unscale(z *mlx.Array) *mlx.Array

	// ImageChannels is the number of channels of images: 3 for RGB, 4 for RGB and alpha, which
	// is -1 for transparent pixels and 1 for opaque ones; colours are not multiplied by it.
	ImageChannels() int
	// ScaleFactor is the size of an image divided by that of the diffusion model's
	// latents.
	ScaleFactor() int
	// LatentChannels is the number of channels of the diffusion model's latents.
	LatentChannels() int
	// Unscaled is the shape that Unscale returns for latents of h rows and w columns,
	// without a batch axis.
	Unscaled(h, w int) []int

	// SetBudget limits the memory, in bytes, that Encode and Decode take in addition to
	// the inputs and outputs of their layers. They then compute convolutions in strips
	// of as many rows as fit, at least one, with the same result up to rounding. 0, the
	// default, is no limit. With a hook there is no limit.
	SetBudget(bytes int64)
	// SetGroup makes the members of a group divide the rows of an image in Encode and Decode,
	// which all call at once, and which return all of the result to each; nil is this process
	// alone. With a hook, and for fewer rows of latents than members, each computes all.
	SetGroup(g *mlx.Group)
	// DecodeMemory estimates the memory in bytes that Decode takes for one image under
	// the budget, without the weights.
	DecodeMemory(height, width int, d mlx.Device, dtype mlx.Dtype) int64
	// EncodeMemory estimates the same for Encode.
	EncodeMemory(height, width int, d mlx.Device, dtype mlx.Dtype) int64

	// Unused returns patterns (path.Match) of the names of tensors that a checkpoint may
	// have and the autoencoder does not use.
	Unused() []string
}
