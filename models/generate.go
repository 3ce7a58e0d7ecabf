package models

import (
	"image"
	"time"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/errs"
)

// Generate makes one picture. It must run on the MLX thread.
func (p *Pipeline) Generate(request Request) (*Result, error) {
	r, err := p.Prepare(request, 1)
	if err != nil {
		return nil, err
	}
	results, err := r.Generate([]uint64{request.Seed})
	if err != nil {
		return nil, err
	}
	return results[0], nil
}

// Generate makes a picture for each of some seeds at once, which take the place of
// the request's. Pixels of a batch can differ by rounding from those of single
// pictures. It must run on the MLX thread.
func (r *Run) Generate(seeds []uint64) ([]*Result, error) {
	if err := r.checkBatch(seeds); err != nil {
		return nil, err
	}
	if err := mlx.Use(r.device); err != nil {
		return nil, err
	}
	r.batch = len(seeds)
	defer r.enter()()
	mlx.ResetPeakMemory()
	clock := stopwatch{at: time.Now()}
	onStep := r.OnStep
	defer func() { r.OnStep = onStep }()
	r.OnStep = clock.without(onStep)

	res := Result{Scheduler: r.schedule.Name, Steps: r.steps()} // what all pictures have in common
	if r.loader != nil {
		res.EstimatedMemory = r.Estimate().Peak()
	}
	r.report(Progress{Phase: PhaseEncode, Steps: res.Steps})
	var predict predictors
	defer r.forget()
	if r.plan.predict {
		var err error
		if predict, err = r.predictors(); err != nil {
			return nil, err
		}
		res.PromptTokens = predict.rows
	}
	res.Encode = clock.lap()

	latents, err := r.denoise(seeds, predict)
	if err != nil {
		return nil, err
	}
	res.Step = (clock.lap() - clock.away) / time.Duration(len(seeds))
	r.forget()
	if r.way.alone {
		r.release()
		r.free()
		r.pace.keep()
	}

	results := make([]*Result, len(seeds))
	for i := range results {
		r.report(Progress{Phase: PhaseDecode, Steps: res.Steps})
		one := res
		if one.Image, err = r.decodeResult(latents, i); err != nil {
			return nil, err
		}
		one.Decode = clock.lap()
		results[i] = &one
		res.Encode = 0 // of the others
	}
	for _, one := range results {
		one.PeakMemory = mlx.PeakMemory()
	}
	mlx.StopPoint()
	return results, nil
}

// A stopwatch takes the time of a run's phases.
type stopwatch struct {
	at   time.Time
	away time.Duration // in callbacks
}

func (s *stopwatch) lap() time.Duration {
	d := time.Since(s.at)
	s.at = s.at.Add(d)
	return d
}

// without makes a callback whose time is not the run's.
func (s *stopwatch) without(f func(Step) error) func(Step) error {
	if f == nil {
		return nil
	}
	return func(step Step) error {
		start := time.Now()
		defer func() { s.away += time.Since(start) }()
		return f(step)
	}
}

// enter makes the pipeline's taps and MLX's memory those of the run, which may be in
// a callback of another one, until leave.
func (r *Run) enter() (leave func()) {
	points := r.points
	r.points = hooks.Points{Func: r.Hook, Step: -1}
	r.pace = setPace(r.device, r.way.ahead(r))
	return func() {
		r.release()
		r.pace.restore()
		r.points = points
	}
}

// release frees what is compiled, which holds the weights.
func (r *Run) release() {
	for _, free := range r.compiled {
		free()
	}
	r.compiled = nil
}

// checkBatch returns an error for what of a request cannot be for several seeds.
func (r *Run) checkBatch(seeds []uint64) error {
	switch {
	case len(seeds) == 0:
		return errs.Requestf("a batch of no seeds")
	case len(seeds) > 1 && r.Given != nil:
		return errs.Requestf("values are given for one picture, not for a batch of %d", len(seeds))
	case len(seeds) > 1 && r.Latents.Data != nil:
		return errs.Requestf("initial latents are given for one picture, not for a batch of %d", len(seeds))
	}
	return nil
}

// decodeResult decodes one picture of latents [B, C, h, w], or what is given in
// their place.
func (r *Run) decodeResult(latents *mlx.Array, index int) (*image.RGBA, error) {
	if !r.has("vae.decode.in", -1) {
		return r.decodeWith(r.vae.Unscale, latents.Slice(0, index, index+1).Squeeze(0))
	}
	h, w := r.latentSize(r.Height, r.Width)
	z, err := givenValue(r.Given, "vae.decode.in", -1, r.dtype, append([]int{1}, r.vae.Unscaled(h, w)...)...)
	if err != nil {
		return nil, err
	}
	return r.decode(func() *mlx.Array { return z })
}
