package parity

import (
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/transformer"
)

// fillFaults are faults of FLUX.1-Fill's masked image and mask. flux1-fill has 40x24 pixels, latents
// of 4 channels in 10x6 positions of 4x4 pixels, and tokens of 16, 16 and 64 channels.
var fillFaults = []fault{
	{name: "fill: the mask before the masked image", dump: "flux1-fill",
		bug: keyed("transformer@0", "hidden_states", func(x *mlx.Array) *mlx.Array {
			return mlx.Concat(2, x.Slice(2, 0, 16), x.Slice(2, 32, 96), x.Slice(2, 16, 32))
		}), stage: "step 0", module: "transformer@0", hint: "permuted"},
	{name: "fill: the latents last", dump: "flux1-fill",
		bug:   keyed("transformer@0", "hidden_states", func(x *mlx.Array) *mlx.Array { return swapped(x, 2, 16) }),
		stage: "step 0", module: "transformer@0", hint: "parts in another order"},
	{name: "fill: columns of the mask's cells before rows", dump: "flux1-fill",
		bug: onto("fill.mask", func(x *mlx.Array) *mlx.Array {
			return x.Reshape(1, 15, 4, 4, 2, 2).Transpose(0, 1, 3, 2, 4, 5).Reshape(x.Shape()...)
		}), stage: "latents", module: "fill.mask", hint: "interleaved"},
	{name: "fill: the mask's cells packed with the channel last", dump: "flux1-fill",
		bug: onto("fill.mask", func(x *mlx.Array) *mlx.Array {
			return x.Reshape(1, 15, 16, 4).Transpose(0, 1, 3, 2).Reshape(x.Shape()...)
		}), stage: "latents", module: "fill.mask", hint: "interleaved"},
	{name: "fill: the mask inverted", dump: "flux1-fill",
		bug:   onto("fill.mask", func(x *mlx.Array) *mlx.Array { return x.Neg().Plus(1) }),
		stage: "latents", module: "fill.mask"},
	{name: "fill: the mask in the size of the latents", dump: "flux1-fill",
		bug: onto("fill.mask", func(x *mlx.Array) *mlx.Array { // its top left pixel for all of a cell
			cells := x.Reshape(1, 15, 16, 4)
			return cells.Slice(2, 0, 1).BroadcastTo(1, 15, 16, 4).Reshape(x.Shape()...)
		}), stage: "latents", module: "fill.mask"},
	{name: "fill: a black hole", dump: "flux1-fill",
		bug: makes("vae.encode.in#1", func(ref lookup) *mlx.Array {
			mask := transformer.Unpack(ref("fill.mask"), 3, 5).Reshape(4, 4, 6, 10).Transpose(2, 0, 3, 1).Reshape(1, 1, 24, 40)
			return ref("vae.encode.in#1").Sub(mask)
		}), stage: "encode", module: "vae.encode.in#1"},
	{name: "fill: the image without its hole", dump: "flux1-fill",
		bug:   makes("vae.encode.in#1", func(ref lookup) *mlx.Array { return ref("vae.encode.in") }),
		stage: "encode", module: "vae.encode.in#1"},
	{name: "fill: the masked image is not shifted", dump: "flux1-fill",
		bug:   makes("latents.masked", func(ref lookup) *mlx.Array { return ref("vae.encode.out#1").Times(0.3611) }),
		stage: "encode", module: "latents.masked", hint: "offset"},
	{name: "fill: half of the strength", dump: "flux1-fill-small",
		bug: makes("latents.start", func(ref lookup) *mlx.Array {
			return ref("latents.init").Times(0.5).Add(ref("latents.image").Times(0.5))
		}), stage: "latents", module: "latents.start"},
}
