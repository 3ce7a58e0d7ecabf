package models

import (
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
)

// denoise goes from noise to latents [B, C, h, w] of pictures. It returns nil
// where they do not count.
func (p *Pipeline) denoise(r Request, seeds []uint64, schedule *scheduler.Schedule, plan plan, predict, predictNegative predictor, report func(Progress), steps int) (*mlx.Array, error) {
	h, w := r.Height/p.ScaleFactor(), r.Width/p.ScaleFactor()
	if p.points.Active() && plan.needs("scheduler") {
		p.points.Value("sigmas", mlx.FromFloat32(schedule.Sigmas))
		p.points.Value("timesteps", mlx.FromFloat32(schedule.Timesteps))
	}
	latents, err := p.startLatents(r, seeds, schedule, plan, p.latentShape(h, w))
	if err != nil || latents == nil {
		return nil, err
	}
	latents = own(latents)
	if steps > 0 {
		report(Progress{Phase: PhaseStep, Steps: steps})
	}
	before := r.Steps - steps
	for i := plan.first; i < len(schedule.Timesteps); i++ {
		if plan.predict { // a run of its own in a callback may have taken its place
			if err := p.ensure("transformer", r.Progress); err != nil {
				return nil, err
			}
		}
		made := mlx.Scopes(func() []*mlx.Array {
			p.points.Step = i
			velocity := p.velocity(r, schedule, i, latents, predict, predictNegative)
			next := schedule.Step(i, latents, velocity)
			made := []*mlx.Array{own(p.points.Value("latents", next))}
			if r.OnStep != nil && schedule.Ends(i) {
				made = append(made, schedule.Denoised(i, latents, velocity))
			}
			return made
		})
		mlx.Eval(made...) // so that steps can be timed and stopped
		mlx.StopPoint()
		latents.Free()
		latents = made[0]
		if !schedule.Ends(i) {
			continue
		}
		step := schedule.StepOf(i) - before + 1
		report(Progress{Phase: PhaseStep, Step: step, Steps: steps})
		if r.OnStep == nil {
			continue
		}
		if !finite(latents) { // which no later step changes
			return nil, p.notFinite("latents", r.Progress)
		}
		for index := range seeds {
			one := func(x *mlx.Array) Latents { return latentsOf(x.Slice(0, index, index+1).Squeeze(0)) }
			s := Step{Index: index, Step: step, Steps: steps, Sigma: float64(schedule.Sigmas[i+1]), Latents: one(latents), Denoised: one(made[1])}
			if err := r.OnStep(s); err != nil {
				return nil, err
			}
		}
		made[1].Free()
	}
	p.points.Step = -1
	if !finite(latents) {
		return nil, p.notFinite("latents", r.Progress)
	}
	return latents, nil
}

// own is an array of the same values that can be freed, where the hook may have
// put one of its own.
func own(x *mlx.Array) *mlx.Array { return x.Reshape(x.Shape()...) }

// latentShape is the family's, or of a transformer that is not there the
// autoencoder's.
func (p *Pipeline) latentShape(h, w int) []int {
	if p.without["transformer"] {
		return []int{p.vae.LatentChannels(), h, w}
	}
	return p.family.latentShape(h, w)
}

// startLatents are those that the first evaluation of the plan gets: noise, that
// mixed with a picture, or what is given, [B, C, h, w]. They are nil where they
// do not count.
func (p *Pipeline) startLatents(r Request, seeds []uint64, schedule *scheduler.Schedule, plan plan, shape []int) (*mlx.Array, error) {
	batch := append([]int{1}, shape...)
	if plan.latents >= 0 {
		x, err := r.given("latents", plan.latents, mlx.Float32, batch...)
		if err != nil {
			return nil, err
		}
		p.points.Step = plan.latents
		x = p.points.Value("latents", x)
		p.points.Step = -1
		return x, nil
	}
	if !plan.start {
		return nil, nil
	}
	if r.Image != nil && r.has("latents.start", -1) {
		x, err := r.given("latents.start", -1, mlx.Float32, batch...)
		if err != nil {
			return nil, err
		}
		return p.points.Value("latents.start", x), nil
	}
	var latents *mlx.Array
	var err error
	if r.has("latents.init", -1) {
		latents, err = r.given("latents.init", -1, mlx.Float32, batch...)
	} else {
		latents, err = p.initialLatents(r, seeds, shape)
	}
	if err != nil {
		return nil, err
	}
	latents = p.points.Value("latents.init", latents)
	if r.Image == nil {
		return latents, nil
	}
	noise := latents
	latents = mlx.Scope(func() *mlx.Array {
		var clean *mlx.Array
		if r.has("latents.image", -1) {
			x, err := r.given("latents.image", -1, p.dtype, batch...)
			if err != nil {
				mlx.Throw(err)
			}
			clean = p.points.Value("latents.image", x).AsType(mlx.Float32)
		} else {
			clean = p.encodePicture(picture.Resize(picture.Opaque(r.Image), r.Width, r.Height), "latents.image").ExpandDims(0)
		}
		return p.points.Value("latents.start", schedule.ScaleNoise(plan.first, clean, noise))
	})
	mlx.Eval(latents)
	mlx.StopPoint()
	return latents, nil
}

// velocity is that of an evaluation: predicted for the prompts, or given.
func (p *Pipeline) velocity(r Request, schedule *scheduler.Schedule, i int, latents *mlx.Array, predict, predictNegative predictor) *mlx.Array {
	if r.has("noise_pred", i) {
		x, err := r.given("noise_pred", i, mlx.Float32, latents.Shape()...)
		if err != nil {
			mlx.Throw(err)
		}
		return p.points.Value("noise_pred", x)
	}
	t := schedule.Timesteps[i]
	if predictNegative == nil {
		return p.points.Value("noise_pred", predict(latents, t))
	}
	one := func(predict predictor) *mlx.Array {
		y := mlx.Scope(func() *mlx.Array { return predict(latents, t) })
		mlx.StopPoint(y) // the CPU is done with what the other one does not need
		return y
	}
	positive := one(predict)
	p.points.Negative = true
	velocity := p.family.guide(positive, one(predictNegative), r.Guidance)
	p.points.Negative = false
	return p.points.Value("noise_pred", velocity)
}

// compiler fuses on a GPU. On the CPU MLX would call a C++ compiler for it and
// gain nothing, and nothing may be fused while a hook looks inside.
func (p *Pipeline) compiler() compiler {
	if p.device == mlx.CPU && !p.compileOnCPU || p.points.Active() {
		return func(f func([]*mlx.Array) []*mlx.Array) func([]*mlx.Array) []*mlx.Array { return f }
	}
	return func(f func([]*mlx.Array) []*mlx.Array) func([]*mlx.Array) []*mlx.Array {
		compiled, free := mlx.CompileUntil(f)
		p.compiled = append(p.compiled, free)
		return compiled
	}
}

// initialLatents are the noise of each seed, [B, C, h, w] of a shape [C, h, w].
func (p *Pipeline) initialLatents(r Request, seeds []uint64, shape []int) (*mlx.Array, error) {
	if l := r.Latents; l.Data != nil {
		if !slices.Equal(l.Shape, shape) || len(l.Data) != l.size() {
			return nil, requestErrorf("%d initial latents of shape %v given, expected shape %v", len(l.Data), l.Shape, shape)
		}
		return mlx.FromFloat32(l.Data, shape...).ExpandDims(0), nil
	}
	all := make([]*mlx.Array, len(seeds))
	for i, seed := range seeds {
		all[i] = p.noise(seed, r.RNG, shape).ExpandDims(0)
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return mlx.Concat(0, all...), nil
}

func (p *Pipeline) noise(seed uint64, rng string, shape []int) *mlx.Array {
	if rng == "torch" {
		return mlx.FromFloat32(scheduler.TorchNoise(seed, Latents{Shape: shape}.size()), shape...)
	}
	if f, ok := p.family.(packer); ok && !p.without["transformer"] {
		h, w := shape[1], shape[2]
		return f.unpack(mlx.Normal(mlx.Key(seed), mlx.Float32, f.packed(h, w)...), h, w)
	}
	return mlx.Normal(mlx.Key(seed), mlx.Float32, shape...)
}
