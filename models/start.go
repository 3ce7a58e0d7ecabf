package models

import (
	"image"
	"math/rand/v2"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/scheduler"
)

// startLatents returns the latents [B, C, h, w] of the first evaluation that runs: noise, a mix of
// noise and an image, or their override. It returns nil if no latents are needed.
func (r *Run) startLatents(seeds []uint64, shape []int) (*mlx.Array, error) {
	if at := r.plan.resumeAfter; at >= 0 {
		x, err := r.latentsOverride("latents", at, mlx.Float32, shape)
		if err != nil {
			return nil, err
		}
		r.points.Step = at
		x = r.points.Value("latents", x)
		r.points.Step = -1
		return x, nil
	}
	if !r.plan.start {
		return nil, nil
	}
	if r.Image != nil && r.isOverridden("latents.start", -1) {
		x, err := r.latentsOverride("latents.start", -1, mlx.Float32, shape)
		if err != nil {
			return nil, err
		}
		return r.points.Value("latents.start", x), nil
	}
	noise, err := r.startNoise(seeds, shape)
	if err != nil || r.Image == nil {
		return noise, err
	}
	latents := mlx.Scope(func() *mlx.Array {
		clean := r.imageLatents(shape)
		return r.points.Value("latents.start", r.sampler.ScaleNoise(r.plan.first, clean, noise))
	})
	mlx.Eval(latents)
	mlx.StopPoint()
	return latents, nil
}

// startNoise returns the initial noise [B, C, h, w], which inpainting has drawn already.
func (r *Run) startNoise(seeds []uint64, shape []int) (*mlx.Array, error) {
	if r.inpainting != nil {
		return r.inpainting.noise, nil
	}
	noise, err := r.initialLatents(seeds, shape)
	if err != nil {
		return nil, err
	}
	return r.points.Value("latents.init", noise), nil
}

// latentsOverride returns an override of latents [1, C, h, w], by the shape [C, h, w].
func (r *Run) latentsOverride(name string, step int, dtype mlx.Dtype, shape []int) (*mlx.Array, error) {
	return overrideLatents(r.Overrides, r.packer(), name, step, dtype, append([]int{1}, shape...))
}

// imageLatents returns the latents [1, C, h, w] of the image to start from or to inpaint, float32, or
// their override. They are computed once.
func (r *Run) imageLatents(shape []int) *mlx.Array {
	if r.encodedImage == nil {
		r.encodedImage = mlx.Scope(func() *mlx.Array { return owned(r.encodeStart(shape)) })
		mlx.Eval(r.encodedImage)
		mlx.StopPoint()
		r.keep(r.encodedImage)
	}
	return r.encodedImage
}

func (r *Run) encodeStart(shape []int) *mlx.Array {
	if !r.isOverridden("latents.image", -1) {
		img, size := r.Conversions.convert(r.Autoencoder, r.Image), image.Pt(r.Width, r.Height)
		return r.encodeInput(inputKey{image: img.hash, size: size}, func() *mlx.Array {
			return r.encodeImage(r.resized(img.Image, size.X, size.Y), nil, "latents.image")
		}).ExpandDims(0)
	}
	x, err := r.latentsOverride("latents.image", -1, r.dtype, shape)
	if err != nil {
		mlx.Throw(err)
	}
	return r.points.Value("latents.image", x).AsType(mlx.Float32)
}

// initialLatents returns the initial noise [B, C, h, w] in a shape [C, h, w]: of each seed, of the
// request, or the override.
func (r *Run) initialLatents(seeds []uint64, shape []int) (*mlx.Array, error) {
	if r.isOverridden("latents.init", -1) {
		return r.latentsOverride("latents.init", -1, mlx.Float32, shape)
	}
	if l := r.Latents; l.Data != nil {
		if !slices.Equal(l.Shape, shape) || len(l.Data) != l.size() {
			return nil, errs.Requestf("%d initial latents of shape %v, expected shape %v", len(l.Data), l.Shape, shape)
		}
		return mlx.FromFloat32(l.Data, shape...).ExpandDims(0), nil
	}
	return r.batchNoise(seeds, shape), nil
}

// batchNoise draws the noise of each seed, [B, C, h, w] in a shape [C, h, w].
func (r *Run) batchNoise(seeds []uint64, shape []int) *mlx.Array {
	all := make([]*mlx.Array, len(seeds))
	for i, seed := range seeds {
		all[i] = r.noise(seed, shape).ExpandDims(0)
	}
	if len(all) == 1 {
		return all[0]
	}
	return mlx.Concat(0, all...)
}

// stepNoise draws noise for the scheduler at evaluation i. It depends only on the seeds and i, so
// that a run that starts at a later step draws the same noise.
func (r *Run) stepNoise(seeds []uint64, i int, shape []int) *mlx.Array {
	derived := make([]uint64, len(seeds))
	for k, seed := range seeds {
		derived[k] = rand.NewPCG(seed, uint64(i)+1).Uint64()
	}
	return r.batchNoise(derived, shape)
}

// noise draws the noise of a seed in a shape [C, h, w], with the request's random number generator.
func (r *Run) noise(seed uint64, shape []int) *mlx.Array {
	if r.RNG == "torch" {
		return r.fromTorch(mlx.FromFloat32(scheduler.TorchNoise(seed, Latents{Shape: shape}.size()), r.torchShape(shape)...), shape)
	}
	_, unpacked := r.family.(family.UnpackedDrawer)
	if f := r.packer(); f != nil && !unpacked {
		h, w := shape[1], shape[2]
		return f.Unpack(mlx.Normal(mlx.Key(seed), mlx.Float32, f.PackedShape(h, w)...), h, w)
	}
	return mlx.Normal(mlx.Key(seed), mlx.Float32, shape...)
}
