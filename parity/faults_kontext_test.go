package parity

import (
	"math"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/transformer"
)

// kontextFaults are faults of FLUX.1-Kontext's reference image. That of flux1-kontext has
// 40x56 pixels, 35 tokens, of a preferred size of 44x60; the new image has 15 tokens.
var kontextFaults = []fault{
	{name: "kontext: positions of the reference count from 1", dump: "flux1-kontext",
		bug: keyed("transformer@0", "img_ids", func(x *mlx.Array) *mlx.Array {
			p := x.Split(3, -1)
			return mlx.Concat(-1, p[0], p[1].Add(p[0]), p[2].Add(p[0]))
		}), stage: "step 0", module: "transformer@0", hint: "positions"},
	{name: "kontext: the reference has the new image's positions", dump: "flux1-kontext",
		bug: keyed("transformer@0", "img_ids", func(x *mlx.Array) *mlx.Array {
			p := x.Split(3, -1)
			return mlx.Concat(-1, p[0].Times(0), p[1], p[2])
		}), stage: "step 0", module: "transformer@0", hint: "positions"},
	{name: "kontext: the reference before the new image", dump: "flux1-kontext",
		bug: keyed("transformer@0", "hidden_states", func(x *mlx.Array) *mlx.Array {
			return swapped(x, 1, 15)
		}), stage: "step 0", module: "transformer@0", hint: "parts in another order"},
	{name: "kontext: prediction for the reference's tokens", dump: "flux1-kontext",
		bug: makes("noise_pred@0", func(ref lookup) *mlx.Array {
			return transformer.Unpack(ref("transformer@0").Slice(1, 15, 30), 3, 5)
		}), stage: "step 0", module: "noise_pred@0"},
	{name: "kontext: mu of all tokens", dump: "flux1-kontext",
		bug: onto("sigmas", func(x *mlx.Array) *mlx.Array {
			more := math.Exp(35 * (1.15 - 0.5) / (4096 - 256)) // e^mu is a factor of sigma / (1 - sigma)
			return x.Times(more).Div(x.Times(more).Add(x.Neg().Plus(1)))
		}), stage: "scheduler", module: "sigmas", hint: "schedule shift"},
	{name: "kontext: a sample of the reference's latents", dump: "flux1-kontext",
		bug: onto("vae.encode.out", func(x *mlx.Array) *mlx.Array {
			noise := mlx.Arange(0, float64(x.Size()), 1, mlx.Float32).Times(2.4).Sin().Reshape(x.Shape()...)
			return x.Add(noise.Times(0.1))
		}), stage: "encode", module: "vae.encode.out"},
	{name: "kontext: the reference is not shifted", dump: "flux1-kontext", edit: config("vae", "shift_factor", nil),
		stage: "encode", module: "latents.reference", hint: "offset"},
	{name: "kontext: a preferred size is rounded, not cut", dump: "flux1-kontext",
		edit:  indexed("preferred_sizes", []int{48, 64, 56, 56, 64, 48}),
		stage: "encode", module: "image.in"},
	{name: "kontext: the ratio of the reference before it is cut", dump: "flux1-kontext-small",
		edit:  indexed("preferred_sizes", []int{40, 72}), // what that would choose
		stage: "encode", module: "image.in"},
}
