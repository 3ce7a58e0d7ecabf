package models

import (
	"image"
	"time"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/errs"
)

// Generate generates one image. It must run on the MLX thread.
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

// Generate generates an image for each of the seeds at once, instead of the request's seed. The
// pixels of a batch can differ by rounding from those of single images. It must run on the MLX
// thread.
func (r *Run) Generate(seeds []uint64) ([]*Result, error) {
	if r.closed {
		return nil, ErrClosed
	}
	if err := r.checkBatch(seeds); err != nil {
		return nil, err
	}
	if err := mlx.Use(r.device); err != nil {
		return nil, err
	}
	r.batch, r.skipped, r.skippedNegative = len(seeds), nil, nil
	if err := r.joinSplit(seeds); err != nil {
		return nil, err
	}
	defer r.enter()()
	mlx.ResetPeakMemory()
	r.encoded, r.read = 0, 0
	clock := stopwatch{at: time.Now()}
	onStep := r.OnStep
	defer func() { r.OnStep = onStep }()
	r.OnStep = clock.excluding(onStep)

	res := Result{Scheduler: r.schedule.Name, Steps: r.steps()} // common to all images
	if r.loader != nil {
		res.EstimatedMemory = r.Estimate().Peak()
	}
	r.report(Progress{Phase: PhaseEncode, Steps: res.Steps})
	var predict predictors
	defer r.freeKept()
	var err error
	if r.plan.predicts {
		predict, err = r.predictors()
		res.PromptTokens, res.References = predict.rows, predict.references
		res.PromptCached = r.read > 0 && r.encoded == 0
	}
	if err := r.goOn(err); err != nil {
		return nil, err
	}
	res.Encode = clock.lap()

	latents, err := r.denoise(seeds, predict)
	if err != nil {
		return nil, err
	}
	res.Step = (clock.lap() - clock.inCallbacks) / time.Duration(len(seeds))
	res.Compiled = len(r.compiled) > 0
	if err := r.agreeOnSkipped(); err != nil {
		return nil, err
	}
	res.Skipped, res.SkippedNegative = r.skipped, r.skippedNegative
	r.freeKept()
	if r.residency.decodeAlone {
		r.freeCompiled()
		r.unload()
		r.limiter.update()
	}
	return r.decodeAll(latents, len(seeds), res, &clock)
}

// decodeAll decodes the images of a batch, whose results have res in common.
func (r *Run) decodeAll(latents *mlx.Array, n int, res Result, clock *stopwatch) (results []*Result, err error) {
	for i := range n {
		r.report(Progress{Phase: PhaseDecode, Steps: res.Steps})
		one := res
		decoded, err := r.decodeResult(latents, i)
		if err != nil {
			return nil, err
		}
		one.Image, one.Transparent = r.shown(decoded)
		if r.images() > 1 {
			one.Layers = decoded
		}
		one.Decode = clock.lap()
		results = append(results, &one)
		res.Encode = 0 // counts for the first image only
	}
	for _, one := range results {
		one.PeakMemory = mlx.PeakMemory()
	}
	mlx.StopPoint()
	return results, nil
}

// A stopwatch measures the times of a run's phases.
type stopwatch struct {
	at          time.Time     // start of the current phase
	inCallbacks time.Duration // time spent in OnStep
}

// lap ends the current phase and returns its time.
func (s *stopwatch) lap() time.Duration {
	d := time.Since(s.at)
	s.at = s.at.Add(d)
	return d
}

// excluding returns the callback f with its time added to inCallbacks.
func (s *stopwatch) excluding(f func(Step) error) func(Step) error {
	if f == nil {
		return nil
	}
	return func(step Step) error {
		start := time.Now()
		defer func() { s.inCallbacks += time.Since(start) }()
		return f(step)
	}
}

// enter sets the pipeline's hook and MLX's memory limit for this run. It may be a run in a callback
// of another one, whose settings leave restores.
func (r *Run) enter() (leave func()) {
	r.running++
	points := r.points
	r.points = hooks.Points{Func: r.Hook, Forked: r.Forked, Step: -1, Parameters: r.parameters}
	r.points.Elsewhere = r.passes != nil && r.passes.Rank() > 0
	r.limiter = limitMemory(r.device, r.residency.lookahead(r))
	return func() {
		r.freeCompiled()
		r.limiter.restore()
		r.points = points
		r.running--
	}
}

// freeCompiled frees the compiled functions, which hold the weights.
func (r *Run) freeCompiled() {
	for _, free := range r.compiled {
		free()
	}
	r.compiled = nil
}

// checkBatch returns an error if the request cannot be run for several seeds.
func (r *Run) checkBatch(seeds []uint64) error {
	switch {
	case len(seeds) == 0:
		return errs.Requestf("a batch needs at least one seed")
	case len(seeds) > 1 && r.Overrides != nil:
		return errs.Requestf("overrides are for a single image, not for a batch of %d", len(seeds))
	case len(seeds) > 1 && r.Latents.Data != nil:
		return errs.Requestf("initial latents are for a single image, not for a batch of %d", len(seeds))
	}
	return nil
}

// decodeResult decodes one image of latents [B, C, h, w], or its layers, or the override of the decoder's
// input.
func (r *Run) decodeResult(latents *mlx.Array, index int) ([]*image.NRGBA, error) {
	defer r.divideRows()()
	if !r.isOverridden("vae.decode.in", -1) {
		one := latents.Slice(0, index, index+1).Squeeze(0)
		if r.images() > 1 {
			return r.decodeLayers(one)
		}
		img, err := r.decodeWith(r.vae.Unscale, one)
		return []*image.NRGBA{img}, err
	}
	h, w := r.latentSize(r.Height, r.Width)
	z, err := override(r.Overrides, "vae.decode.in", r.dtype, append([]int{max(1, r.Layers)}, r.vae.Unscaled(h, w)...)...)
	if err != nil {
		return nil, err
	}
	return r.decode(func() *mlx.Array { return z })
}
