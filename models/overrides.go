package models

import (
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
)

// Overrides are tensors that replace values of a run. What only leads to a replaced value is
// neither run nor loaded. The names are those of taps: prompt.input_ids, prompt.embeds, negative.*,
// sigmas, timesteps, latents.init, latents.start, latents.image, latents.mask, latents.masked,
// fill.mask, noise_pred, latents and vae.decode.in. Other values are always computed; only a hook can replace them.
type Overrides interface {
	// Has reports whether there is an override. The step is an evaluation of the model for
	// noise_pred and latents, and -1 for the others.
	Has(name string, step int) bool
	// Array returns the override in the shape and dtype of the tap. Latents may also have the
	// shape of diffusers' argument latents. It is called on the MLX thread.
	Array(name string, step int) (*mlx.Array, error)
}

// An UnpackObserver is a kind of Overrides that is notified when an override had the shape of
// diffusers' argument latents.
type UnpackObserver interface{ Unpacked(name string, step int) }

// override returns the override of a name outside of evaluations and checks its dtype and shape, where -1 stands for any
// size.
func override(o Overrides, name string, dtype mlx.Dtype, shape ...int) (*mlx.Array, error) {
	x, err := o.Array(name, -1)
	if err != nil {
		return nil, err
	}
	return x, checkOverride(hooks.Name{Module: name, Step: -1}, x, dtype, shape)
}

func checkOverride(name hooks.Name, x *mlx.Array, dtype mlx.Dtype, shape []int) error {
	if x.Dtype() != dtype {
		return errs.Requestf("override of %s has dtype %v, expected %v (it is cast only on request)", name, x.Dtype(), dtype)
	}
	if got := x.Shape(); !slices.EqualFunc(got, shape, func(g, want int) bool { return g == want || want < 0 && g > 0 }) {
		return errs.Requestf("override of %s has shape %v, expected %v (-1 is any size)", name, got, shape)
	}
	return nil
}

// overrideLatents returns an override of latents in a shape [1, C, h, w]. For a pipeline that packs
// its latents, the override may also be tokens [1, n, d], as diffusers' argument latents.
func overrideLatents(
	o Overrides, packer family.NoisePacker, name string, step int, dtype mlx.Dtype, shape []int,
) (*mlx.Array, error) {
	x, err := o.Array(name, step)
	if err != nil {
		return nil, err
	}
	full := hooks.Name{Module: name, Step: step}
	if packer == nil || x.Ndim() != 3 {
		return x, checkOverride(full, x, dtype, shape)
	}
	h, w := shape[2], shape[3]
	if err := checkOverride(full, x, dtype, packer.PackedShape(h, w)); err != nil {
		return nil, err
	}
	if u, ok := o.(UnpackObserver); ok {
		u.Unpacked(name, step)
	}
	return packer.Unpack(x, h, w).ExpandDims(0), nil
}
