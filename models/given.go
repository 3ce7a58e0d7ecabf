package models

import (
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
)

// Given are values of a pipeline that are known before a run. They take the
// place of its own, and what only leads to those is neither run nor loaded. The
// names are those of taps: prompt.input_ids, prompt.embeds, negative.*, sigmas,
// timesteps, latents.init, latents.start, latents.image, noise_pred, latents and
// vae.decode.in. Other values are computed, and replaced by a hook if at all.
type Given interface {
	// Has reports whether a value is given, at an evaluation of the model for
	// noise_pred and latents, and at -1 for the others.
	Has(name string, step int) bool
	// Array is the value, with the shape and dtype of the tap, or for latents with
	// the shape that diffusers' pipeline takes as its argument latents. It is called
	// on the MLX thread.
	Array(name string, step int) (*mlx.Array, error)
}

// An Unpacker is told which values had the shape of diffusers' argument, as a Given
// that is one.
type Unpacker interface{ Unpacked(name string, step int) }

// givenValue is the value that is given under a name, which must be of the dtype
// and shape. A -1 in the shape stands for any size.
func givenValue(g Given, name string, step int, dtype mlx.Dtype, shape ...int) (*mlx.Array, error) {
	x, err := g.Array(name, step)
	if err != nil {
		return nil, err
	}
	return x, checkGiven(hooks.Name{Module: name, Step: step}, x, dtype, shape)
}

func checkGiven(name hooks.Name, x *mlx.Array, dtype mlx.Dtype, shape []int) error {
	if x.Dtype() != dtype {
		return errs.Requestf("%s is given as %v, expected %v (it is not cast unless that is asked for)", name, x.Dtype(), dtype)
	}
	if got := x.Shape(); !slices.EqualFunc(got, shape, func(g, want int) bool { return g == want || want < 0 && g > 0 }) {
		return errs.Requestf("%s is given with the shape %v, expected %v (-1 is any size)", name, got, shape)
	}
	return nil
}

// givenLatents is givenValue for latents of a shape [1, C, h, w]. Where the pipeline
// packs them they may also have the shape of tokens [1, n, d] that diffusers' pipeline
// takes as its argument latents.
func givenLatents(g Given, packer family.Packer, name string, step int, dtype mlx.Dtype, shape []int) (*mlx.Array, error) {
	x, err := g.Array(name, step)
	if err != nil {
		return nil, err
	}
	full := hooks.Name{Module: name, Step: step}
	if packer == nil || x.Ndim() != 3 {
		return x, checkGiven(full, x, dtype, shape)
	}
	h, w := shape[2], shape[3]
	if err := checkGiven(full, x, dtype, packer.Packed(h, w)); err != nil {
		return nil, err
	}
	if u, ok := g.(Unpacker); ok {
		u.Unpacked(name, step)
	}
	return packer.Unpack(x, h, w).ExpandDims(0), nil
}
