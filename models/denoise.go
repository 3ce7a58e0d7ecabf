package models

import (
	"cmp"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/stepcache"
	"github.com/gomflux/gomflux/scheduler"
)

// denoise returns the latents [B, C, h, w] after the last step, or nil if overrides make them
// unnecessary.
func (r *Run) denoise(seeds []uint64, predict predictors) (*mlx.Array, error) {
	if err := r.replaceSchedule(); err != nil {
		return nil, err
	}
	shape := r.latentShape(r.latentsSize())
	var err error
	if r.inpainting, err = r.newInpainting(seeds, shape); err != nil {
		return nil, err
	}
	latents, err := r.startLatents(seeds, shape)
	if err != nil || latents == nil {
		return nil, err
	}
	latents = owned(latents)
	if r.steps() > 0 {
		r.report(Progress{Phase: PhaseStep, Steps: r.steps()})
	}
	var state scheduler.State
	for i := r.plan.first; i < len(r.schedule.Timesteps); i++ {
		if r.plan.predicts { // a callback may have run the model and unloaded the transformer
			if err := r.ensureLoaded(component.Transformers); err != nil {
				return nil, err
			}
		}
		next, denoised, kept := r.evaluate(i, latents, state, seeds, predict)
		for _, a := range append(state, latents) {
			a.Free()
		}
		latents, state = next, kept
		if !r.schedule.Ends(i) {
			continue
		}
		if err := r.goOn(r.endStep(i, latents, denoised)); err != nil {
			return nil, err
		}
	}
	r.points.Step = -1
	if !latents.AllFinite() {
		return nil, r.notFinite("latents", r.Progress)
	}
	return latents, nil
}

// replaceSchedule replaces sigmas and timesteps by their overrides or by what a hook returns.
func (r *Run) replaceSchedule() error {
	if !r.plan.evaluates {
		return nil
	}
	sigmas, err := r.replaceValues("sigmas", r.schedule.Sigmas)
	if err != nil {
		return err
	}
	timesteps, err := r.replaceValues("timesteps", r.schedule.Timesteps)
	if err != nil {
		return err
	}
	if err := r.schedule.Replace(sigmas, timesteps); err != nil {
		return errs.Request(err)
	}
	return nil
}

func (r *Run) replaceValues(name string, values []float32) ([]float32, error) {
	overridden := r.isOverridden(name, -1)
	if !overridden && !r.points.Active() {
		return values, nil
	}
	x := mlx.FromFloat32(values)
	if overridden {
		var err error
		if x, err = override(r.Overrides, name, mlx.Float32, len(values)); err != nil {
			return nil, err
		}
	}
	return r.points.Value(name, x).Floats(), nil
}

// evaluate evaluates the model once, and the scheduler moves the latents along its prediction. The caller frees the
// results. denoised is for OnStep, nil if that is not called.
func (r *Run) evaluate(i int, latents *mlx.Array, state scheduler.State, seeds []uint64, predict predictors,
) (next, denoised *mlx.Array, kept scheduler.State) {
	made := mlx.Scopes(func() []*mlx.Array {
		r.points.Step = i
		e := scheduler.Evaluation{Index: i, Latents: latents, State: state}
		e.Noise = func() *mlx.Array { return r.stepNoise(seeds, i, latents.Shape()[1:]) }
		e.Velocity = r.velocity(i, latents, predict)
		stepped, state := r.sampler.Step(e)
		if in := r.inpainting; in != nil && r.schedule.Ends(i) {
			stepped = in.blend(r, i+1, r.points.Value("latents.stepped", stepped))
		}
		next = owned(r.points.Value("latents", stepped))
		for _, a := range state { // it may have arrays of e, which are freed
			kept = append(kept, owned(a))
		}
		made := append([]*mlx.Array{next}, kept...)
		if r.OnStep != nil && r.schedule.Ends(i) {
			clean := r.sampler.Denoised(e)
			if in := r.inpainting; in != nil {
				clean = in.over(clean, in.image)
			}
			denoised = owned(r.layerGrid(clean))
			made = append(made, denoised)
		}
		return made
	})
	mlx.Eval(made...) // so that steps can be timed and stopped
	mlx.StopPoint()
	return next, denoised, kept
}

// endStep reports the step that evaluation i ends.
func (r *Run) endStep(i int, latents, denoised *mlx.Array) error {
	steps := r.steps()
	step := r.schedule.StepOf(i) - (r.Steps - steps) + 1
	r.report(Progress{Phase: PhaseStep, Step: step, Steps: steps})
	if r.OnStep == nil {
		return nil
	}
	if !latents.AllFinite() { // later steps would not be finite either
		return r.notFinite("latents", r.Progress)
	}
	for index := range latents.Dim(0) {
		one := func(x *mlx.Array) Latents { return latentsOf(x.Slice(0, index, index+1).Squeeze(0)) }
		s := Step{
			Index: index, Step: step, Steps: steps, Sigma: float64(r.schedule.Sigmas[i+1]),
			Latents: one(latents), Denoised: one(denoised),
		}
		if err := r.OnStep(s); err != nil {
			return err
		}
	}
	denoised.Free()
	return nil
}

// owned returns an array with the same values that can be freed. A hook may have returned an array
// that is freed elsewhere.
func owned(x *mlx.Array) *mlx.Array { return x.Reshape(x.Shape()...) }

// velocity returns the prediction of evaluation i, with guidance if there is a negative prompt and
// the step is guided, or its override.
func (r *Run) velocity(i int, latents *mlx.Array, predict predictors) *mlx.Array {
	if r.isOverridden("noise_pred", i) {
		x, err := overrideLatents(r.Overrides, r.packer(), "noise_pred", i, mlx.Float32, latents.Shape())
		if err != nil {
			mlx.Throw(err)
		}
		return r.points.Value("noise_pred", x)
	}
	t := r.schedule.Interval(i)
	for _, c := range r.stepCaches {
		c.Part = float64(i-r.plan.first) / float64(len(r.schedule.Timesteps)-r.plan.first)
	}
	guidance := r.guidance()
	guided := len(r.prompts) > 1 && r.GuidanceInterval.Includes(r.schedule.StepOf(i), r.Steps) && guidance.Guides(t.Timestep)
	var positive, negative *mlx.Array
	if predict.prompt != nil {
		positive = mlx.Scope(func() *mlx.Array { return predict.prompt(latents, t) })
		r.countSkipped(i, predict.promptCache, &r.skipped)
	}
	if predict.negative != nil && guided {
		if positive != nil {
			mlx.StopPoint(positive) // on the CPU this frees the memory of one pass before the other
			if r.sequence != nil {  // all members exchange what the passes need in the same order
				mlx.AsyncEval(positive)
			}
		}
		r.points.Negative = true
		negative = mlx.Scope(func() *mlx.Array { return predict.negative(latents, t) })
		mlx.StopPoint(negative)
		r.points.Negative = false
		r.countSkipped(i, predict.negativeCache, &r.skippedNegative)
	}
	if r.passes != nil { // without guidance the prediction for the prompt is that of both, for any latents of the other
		positive, negative = r.exchange(cmp.Or(positive, negative, latents))
	}
	if guided {
		positive = r.family.Guide(positive, negative, guidance)
	}
	return r.points.Value("noise_pred", positive)
}

// countSkipped appends the step of evaluation i, from 1, to steps if its prediction used the step
// cache.
func (r *Run) countSkipped(i int, cache *stepcache.Cache, steps *[]int) {
	if cache != nil && cache.Reused {
		*steps = append(*steps, r.schedule.StepOf(i)+1)
	}
}
