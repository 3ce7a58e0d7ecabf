package models

import (
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
)

// denoise goes from noise to latents [B, C, h, w] of pictures. It returns nil
// where they do not count.
func (r *Run) denoise(seeds []uint64, predict predictors) (*mlx.Array, error) {
	if err := r.passSchedule(); err != nil {
		return nil, err
	}
	h, w := r.latentSize(r.Height, r.Width)
	latents, err := r.startLatents(seeds, r.latentShape(h, w))
	if err != nil || latents == nil {
		return nil, err
	}
	latents = own(latents)
	if r.steps() > 0 {
		r.report(Progress{Phase: PhaseStep, Steps: r.steps()})
	}
	for i := r.plan.first; i < len(r.schedule.Timesteps); i++ {
		if r.plan.predict { // a run of its own in a callback may have taken its place
			if err := r.ensure(component.Transformers); err != nil {
				return nil, err
			}
		}
		next, denoised := r.evaluate(i, latents, predict)
		latents.Free()
		latents = next
		if !r.schedule.Ends(i) {
			continue
		}
		if err := r.endStep(i, latents, denoised); err != nil {
			return nil, err
		}
	}
	r.points.Step = -1
	if !latents.AllFinite() {
		return nil, r.notFinite("latents", r.Progress)
	}
	return latents, nil
}

// passSchedule shows the schedule to the hook, which may replace it, or takes what is
// given in its place.
func (r *Run) passSchedule() error {
	if !r.plan.needs("scheduler") {
		return nil
	}
	sigmas, err := r.passValues("sigmas", r.schedule.Sigmas)
	if err != nil {
		return err
	}
	timesteps, err := r.passValues("timesteps", r.schedule.Timesteps)
	if err != nil {
		return err
	}
	if err := r.schedule.Replace(sigmas, timesteps); err != nil {
		return errs.Request(err)
	}
	return nil
}

// passValues are values of the schedule, or what is given or put in their place.
func (r *Run) passValues(name string, values []float32) ([]float32, error) {
	given := r.has(name, -1)
	if !given && !r.points.Active() {
		return values, nil
	}
	x := mlx.FromFloat32(values)
	if given {
		var err error
		if x, err = givenValue(r.Given, name, -1, mlx.Float32, len(values)); err != nil {
			return nil, err
		}
	}
	return r.points.Value(name, x).Floats(), nil
}

// evaluate evaluates the model once for latents, and moves them along. Denoised is
// what OnStep gets, nil where it is not called.
func (r *Run) evaluate(i int, latents *mlx.Array, predict predictors) (next, denoised *mlx.Array) {
	made := mlx.Scopes(func() []*mlx.Array {
		r.points.Step = i
		velocity := r.velocity(i, latents, predict)
		made := []*mlx.Array{own(r.points.Value("latents", r.schedule.Step(i, latents, velocity)))}
		if r.OnStep != nil && r.schedule.Ends(i) {
			made = append(made, r.schedule.Denoised(i, latents, velocity))
		}
		return made
	})
	mlx.Eval(made...) // so that steps can be timed and stopped
	mlx.StopPoint()
	if len(made) > 1 {
		denoised = made[1]
	}
	return made[0], denoised
}

// endStep reports the step that evaluation i has ended.
func (r *Run) endStep(i int, latents, denoised *mlx.Array) error {
	steps := r.steps()
	step := r.schedule.StepOf(i) - (r.Steps - steps) + 1
	r.report(Progress{Phase: PhaseStep, Step: step, Steps: steps})
	if r.OnStep == nil {
		return nil
	}
	if !latents.AllFinite() { // which no later step changes
		return r.notFinite("latents", r.Progress)
	}
	for index := range latents.Dim(0) {
		one := func(x *mlx.Array) Latents { return latentsOf(x.Slice(0, index, index+1).Squeeze(0)) }
		s := Step{Index: index, Step: step, Steps: steps, Sigma: float64(r.schedule.Sigmas[i+1]), Latents: one(latents), Denoised: one(denoised)}
		if err := r.OnStep(s); err != nil {
			return err
		}
	}
	denoised.Free()
	return nil
}

// own is an array of the same values that can be freed, where the hook may have
// put one of its own.
func own(x *mlx.Array) *mlx.Array { return x.Reshape(x.Shape()...) }

// startLatents are those that the first evaluation of the plan gets: noise, that
// mixed with a picture, or what is given, [B, C, h, w]. They are nil where they
// do not count.
func (r *Run) startLatents(seeds []uint64, shape []int) (*mlx.Array, error) {
	batch := append([]int{1}, shape...)
	if r.plan.latents >= 0 {
		x, err := givenLatents(r.Given, r.packer(), "latents", r.plan.latents, mlx.Float32, batch)
		if err != nil {
			return nil, err
		}
		r.points.Step = r.plan.latents
		x = r.points.Value("latents", x)
		r.points.Step = -1
		return x, nil
	}
	if !r.plan.start {
		return nil, nil
	}
	if r.Image != nil && r.has("latents.start", -1) {
		x, err := givenLatents(r.Given, r.packer(), "latents.start", -1, mlx.Float32, batch)
		if err != nil {
			return nil, err
		}
		return r.points.Value("latents.start", x), nil
	}
	var latents *mlx.Array
	var err error
	if r.has("latents.init", -1) {
		latents, err = givenLatents(r.Given, r.packer(), "latents.init", -1, mlx.Float32, batch)
	} else {
		latents, err = r.initialLatents(seeds, shape)
	}
	if err != nil {
		return nil, err
	}
	latents = r.points.Value("latents.init", latents)
	if r.Image == nil {
		return latents, nil
	}
	noise := latents
	latents = mlx.Scope(func() *mlx.Array {
		var clean *mlx.Array
		if r.has("latents.image", -1) {
			x, err := givenLatents(r.Given, r.packer(), "latents.image", -1, r.dtype, batch)
			if err != nil {
				mlx.Throw(err)
			}
			clean = r.points.Value("latents.image", x).AsType(mlx.Float32)
		} else {
			clean = r.encodePicture(picture.Resize(picture.Opaque(r.Image), r.Width, r.Height), "latents.image").ExpandDims(0)
		}
		return r.points.Value("latents.start", r.schedule.ScaleNoise(r.plan.first, clean, noise))
	})
	mlx.Eval(latents)
	mlx.StopPoint()
	return latents, nil
}

// velocity is that of an evaluation: predicted for the prompts, or given.
func (r *Run) velocity(i int, latents *mlx.Array, predict predictors) *mlx.Array {
	if r.has("noise_pred", i) {
		x, err := givenLatents(r.Given, r.packer(), "noise_pred", i, mlx.Float32, latents.Shape())
		if err != nil {
			mlx.Throw(err)
		}
		return r.points.Value("noise_pred", x)
	}
	t := r.schedule.Timesteps[i]
	if predict.negative == nil {
		return r.points.Value("noise_pred", predict.prompt(latents, t))
	}
	one := func(predict family.Predictor) *mlx.Array {
		y := mlx.Scope(func() *mlx.Array { return predict(latents, t) })
		mlx.StopPoint(y) // the CPU is done with what the other one does not need
		return y
	}
	positive := one(predict.prompt)
	r.points.Negative = true
	velocity := r.family.Guide(positive, one(predict.negative), r.Guidance)
	r.points.Negative = false
	return r.points.Value("noise_pred", velocity)
}

// initialLatents are the noise of each seed, [B, C, h, w] of a shape [C, h, w].
func (r *Run) initialLatents(seeds []uint64, shape []int) (*mlx.Array, error) {
	if l := r.Latents; l.Data != nil {
		if !slices.Equal(l.Shape, shape) || len(l.Data) != l.size() {
			return nil, errs.Requestf("%d initial latents of shape %v given, expected shape %v", len(l.Data), l.Shape, shape)
		}
		return mlx.FromFloat32(l.Data, shape...).ExpandDims(0), nil
	}
	all := make([]*mlx.Array, len(seeds))
	for i, seed := range seeds {
		all[i] = r.noise(seed, shape).ExpandDims(0)
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return mlx.Concat(0, all...), nil
}

func (r *Run) noise(seed uint64, shape []int) *mlx.Array {
	if r.RNG == "torch" {
		return mlx.FromFloat32(scheduler.TorchNoise(seed, Latents{Shape: shape}.size()), shape...)
	}
	if f := r.packer(); f != nil {
		h, w := shape[1], shape[2]
		return f.Unpack(mlx.Normal(mlx.Key(seed), mlx.Float32, f.Packed(h, w)...), h, w)
	}
	return mlx.Normal(mlx.Key(seed), mlx.Float32, shape...)
}
