package models

import (
	"errors"
	"fmt"
	"image"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gomflux/gomflux/hooks"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/noise"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
)

// A Request is what one picture is made from.
type Request struct {
	Prompt         string
	NegativePrompt string
	Height, Width  int
	Steps          int
	Guidance       float64
	Seed           uint64
	// MaxSequenceLength is how many tokens the prompt may have, with the text
	// that the model's template puts around it.
	MaxSequenceLength int
	Scheduler         string // "" is the model's own
	RNG               string // draws the noise: mlx, which "" stands for, or torch
	// Latents, if set, are the initial noise.
	Latents Latents
	// Image, if set, is the picture to start from: resized to Height×Width and
	// kept the more the higher ImageStrength is, from 0 (nothing) to 1.
	Image         image.Image
	ImageStrength float64
	// References, if set, are pictures that the model is shown, which not all can.
	References []image.Image

	Hook hooks.Func
	// Given, if set, are values that are not to be computed.
	Given    Given
	Progress func(Progress)
	// OnStep is called after every step. Its error ends the run.
	OnStep func(Step) error
}

// A Phase is a part of a run.
type Phase string

const (
	PhaseLoad   Phase = "load"
	PhaseEncode Phase = "encode"
	PhaseStep   Phase = "step"
	PhaseDecode Phase = "decode"
)

// Progress is what a run has reached. Phases are reported when they start
// (steps as step 0), steps when they are done.
type Progress struct {
	Phase             Phase
	Component         string // of PhaseLoad
	Bytes, TotalBytes int64
	Step, Steps       int // steps done, of all that run
}

// A Step is what a denoising step has made.
type Step struct {
	Step, Steps int     // steps done, of all that run
	Sigma       float64 // how much of the latents is still noise, from 1 to 0
	Latents     Latents
	// Denoised is what the latents would be without their noise, as far as the
	// model can tell at this step.
	Denoised Latents
}

// A Result is a picture and how long its parts took.
type Result struct {
	Image                *image.RGBA
	PromptTokens         int
	Steps                int           // that ran
	Scheduler            string        // its name
	Encode, Step, Decode time.Duration // Step is the sum over all steps, without OnStep
	PeakMemory           int           // bytes, of MLX's arrays
}

// ErrRequest is what errors about a request are (errors.Is): a size, a number
// or a prompt that another request would not have.
var ErrRequest = errors.New("bad request")

// A requestError is an error about a request, in its own words.
type requestError struct{ error }

func (e requestError) Unwrap() error      { return e.error }
func (requestError) Is(target error) bool { return target == ErrRequest }

// BadRequest makes an error one about a request: its text stays, and it is
// [ErrRequest].
func BadRequest(err error) error { return requestError{err} }

func requestErrorf(format string, args ...any) error {
	return requestError{fmt.Errorf(format, args...)}
}

// Check says what of a request cannot be done, with a hint. The numbers must
// have been filled in. Its errors are [ErrRequest].
func (p *Pipeline) Check(r Request) error {
	if err := p.checkNumbers(r); err != nil {
		return err
	}
	schedule, err := p.schedule(&r)
	if err != nil {
		return err
	}
	plan := p.plan(&r, schedule)
	if err := p.checkLoaded(plan); err != nil {
		return err
	}
	for _, what := range p.prompts(&r) {
		for _, t := range p.family.texts() {
			if !plan.texts[t.tokenizer] || r.has(what+"."+t.embeds, -1) || r.has(what+"."+t.ids, -1) {
				continue
			}
			ids, err := p.tokenize(&t, what, &r)
			if err != nil {
				return err
			}
			if err := p.family.fits(r.Height/p.ScaleFactor(), r.Width/p.ScaleFactor(), len(ids)); err != nil {
				return requestError{err}
			}
		}
	}
	return nil
}

// checkNumbers is Check without the prompts, which need a tokenizer.
func (p *Pipeline) checkNumbers(r Request) error {
	m := p.Multiple()
	for _, side := range []struct {
		name  string
		value int
	}{{"height", r.Height}, {"width", r.Width}} {
		if side.value < m || side.value%m != 0 {
			return requestErrorf("%s %d: must be a positive multiple of %d (try %d)", side.name, side.value, m, max(m, (side.value+m/2)/m*m))
		}
	}
	if r.Steps < 1 {
		return requestErrorf("steps %d: must be at least 1 (this model is meant for %d)", r.Steps, p.Defaults.Steps)
	}
	if math.IsNaN(r.Guidance) || math.IsInf(r.Guidance, 0) || r.Guidance < 0 {
		return requestErrorf("guidance %g: must be a number from 0, which is none (this model is meant for %g)", r.Guidance, p.Defaults.Guidance)
	}
	if _, err := p.family.guidance(r.Guidance); err != nil {
		return requestError{err}
	}
	if r.Scheduler != "" {
		if _, err := scheduler.Name(r.Scheduler); err != nil {
			return requestError{err}
		}
	}
	if r.RNG != "" && !slices.Contains(noise.Names, r.RNG) {
		return requestErrorf("unknown random number generator %q, expected one of %s", r.RNG, strings.Join(noise.Names, ", "))
	}
	if r.MaxSequenceLength < 1 {
		return requestErrorf("max sequence length %d: must be at least 1", r.MaxSequenceLength)
	}
	if err := p.checkReferences(r.References); err != nil {
		return err
	}
	if r.Image != nil {
		if r.Image.Bounds().Empty() {
			return requestErrorf("the picture to start from is empty: its bounds are %v", r.Image.Bounds())
		}
		if !(r.ImageStrength > 0 && r.ImageStrength <= 1) {
			return requestErrorf("image strength %g: must be above 0, which would keep nothing of the picture, and below 1", r.ImageStrength)
		}
		if r.start() >= r.Steps {
			return requestErrorf("image strength %g of %d steps leaves no step that changes anything (a lower strength, or more steps)", r.ImageStrength, r.Steps)
		}
	}
	return nil
}

// SizeFor completes the size of what is made from a picture of some size: the
// picture's own, cut to a multiple, and no larger than four times the area
// that the model is meant for.
func (p *Pipeline) SizeFor(size image.Point, height, width int) (int, int) {
	m := p.Multiple()
	fit := func(v float64) int { return max(1, int(v+1e-9)/m) * m }
	w, h := float64(size.X), float64(size.Y)
	switch {
	case height > 0 && width > 0:
	case height > 0:
		width = fit(float64(height) * w / h)
	case width > 0:
		height = fit(float64(width) * h / w)
	default:
		most := 4 * float64(p.Defaults.Height) * float64(p.Defaults.Width)
		shrink := min(1, math.Sqrt(most/(w*h)))
		height, width = fit(h*shrink), fit(w*shrink)
	}
	return height, width
}

// ReferenceSize is the size in which the model is shown a picture of some size.
func (p *Pipeline) ReferenceSize(size image.Point) image.Point {
	if f, ok := p.family.(editor); ok && f.checkReference(size) == nil {
		return f.referenceSize(size, p.Multiple())
	}
	return size
}

// start is the first step that runs.
func (r *Request) start() int {
	if r.Image == nil {
		return 0
	}
	return scheduler.FirstStep(r.Steps, r.ImageStrength)
}

// Generate makes one picture. It must run on the MLX thread.
func (p *Pipeline) Generate(r Request) (*Result, error) {
	if err := p.Check(r); err != nil {
		return nil, err
	}
	if err := mlx.Use(p.device); err != nil {
		return nil, err
	}
	outer := p.points // of a run that this one is a callback of
	p.points = hooks.Points{Func: r.Hook, Step: -1}
	defer func() { p.points = outer }()
	report := func(pr Progress) {
		if r.Progress != nil {
			r.Progress(pr)
		}
	}
	var away time.Duration // in OnStep
	if f := r.OnStep; f != nil {
		r.OnStep = func(s Step) error {
			start := time.Now()
			defer func() { away += time.Since(start) }()
			return f(s)
		}
	}
	mlx.ResetPeakMemory()
	res := &Result{}
	clock := time.Now()
	lap := func() time.Duration {
		d := time.Since(clock)
		clock = clock.Add(d)
		return d
	}

	schedule, err := p.schedule(&r)
	if err != nil {
		return nil, err
	}
	plan := p.plan(&r, schedule)
	res.Scheduler = schedule.Name
	res.Steps = r.Steps - schedule.StepOf(plan.first+schedule.Order()-1)
	report(Progress{Phase: PhaseEncode, Steps: res.Steps})
	var predict, predictNegative predictor
	var kept []*mlx.Array
	free := func() {
		for _, a := range kept {
			a.Free()
		}
		kept = nil
	}
	defer free()
	if plan.predict {
		predict, predictNegative, err = p.prepare(&r, res, func(arrays ...*mlx.Array) {
			mlx.Keep(arrays...)
			kept = append(kept, arrays...)
		})
		if err != nil {
			return nil, err
		}
	}
	res.Encode = lap()

	latents, err := p.denoise(r, schedule, plan, predict, predictNegative, report, res.Steps)
	if err != nil {
		return nil, err
	}
	res.Step = lap() - away
	free()

	report(Progress{Phase: PhaseDecode, Steps: res.Steps})
	if r.has("vae.decode.in", -1) {
		scale := p.ScaleFactor()
		shape := append([]int{1}, p.vae.Unscaled(r.Height/scale, r.Width/scale)...)
		z, err := r.given("vae.decode.in", -1, p.dtype, shape...)
		if err != nil {
			return nil, err
		}
		res.Image = p.decode(func() *mlx.Array { return z })
	} else {
		res.Image = p.decodeWith(p.vae.Unscale, latents)
	}
	res.Decode = lap()
	res.PeakMemory = mlx.PeakMemory()
	mlx.StopPoint()
	return res, nil
}

// prepare encodes what the transformer receives besides latents: prompts and
// pictures. The second predictor is that for the negative prompt, nil without
// one.
func (p *Pipeline) prepare(r *Request, res *Result, keep func(...*mlx.Array)) (predict, negative predictor, err error) {
	h, w := r.Height/p.ScaleFactor(), r.Width/p.ScaleFactor()
	c := conditions{guidance: r.Guidance, keep: keep}
	texts := map[string][]*mlx.Array{}
	for _, what := range p.prompts(r) {
		p.points.Negative = what == "negative"
		if texts[what], err = p.encode(what, r); err != nil {
			return nil, nil, err
		}
	}
	p.points.Negative = false
	for _, img := range r.References {
		img := p.family.(editor).reference(picture.Opaque(img), p.Multiple())
		latents := mlx.Scope(func() *mlx.Array { return p.encodePicture(img, "latents.reference").AsType(p.dtype) })
		mlx.Eval(latents)
		mlx.StopPoint()
		c.references = append(c.references, latents)
	}
	for _, what := range p.prompts(r) {
		c.text = texts[what]
		made, err := p.family.predictor(c, h, w, p.compiler())
		if err != nil {
			return nil, nil, err
		}
		if what == "negative" {
			negative = made
			continue
		}
		predict = made
		rows := c.text[len(c.text)-1]
		res.PromptTokens = rows.Dim(rows.Ndim() - 2)
	}
	return predict, negative, nil
}

// checkReferences says what of some pictures the model cannot be shown.
func (p *Pipeline) checkReferences(references []image.Image) error {
	if len(references) == 0 {
		return nil
	}
	editor, ok := p.family.(editor)
	if !ok {
		return requestErrorf("%s makes pictures from a prompt and edits none (FLUX.2-klein edits)", p.Class)
	}
	for i, img := range references {
		if err := editor.checkReference(img.Bounds().Size()); err != nil {
			return requestError{&ReferenceError{i, err}}
		}
	}
	return nil
}

// A ReferenceError is what is wrong with one of a request's References.
type ReferenceError struct {
	Index int // from 0
	Err   error
}

func (e *ReferenceError) Error() string { return fmt.Sprintf("picture %d: %v", e.Index+1, e.Err) }
func (e *ReferenceError) Unwrap() error { return e.Err }

// denoise goes from noise to the latents of a picture. It returns nil where
// they do not count.
func (p *Pipeline) denoise(r Request, schedule *scheduler.Schedule, plan plan, predict, predictNegative predictor, report func(Progress), steps int) (*mlx.Array, error) {
	h, w := r.Height/p.ScaleFactor(), r.Width/p.ScaleFactor()
	if p.points.Active() && plan.needs("scheduler") {
		p.points.Value("sigmas", mlx.FromFloat32(schedule.Sigmas))
		p.points.Value("timesteps", mlx.FromFloat32(schedule.Timesteps))
	}
	latents, err := p.startLatents(r, schedule, plan, p.latentShape(h, w))
	if err != nil || latents == nil {
		return nil, err
	}
	if steps > 0 {
		report(Progress{Phase: PhaseStep, Steps: steps})
	}
	before := r.Steps - steps
	for i := plan.first; i < len(schedule.Timesteps); i++ {
		made := mlx.Scopes(func() []*mlx.Array {
			p.points.Step = i
			velocity := p.velocity(r, schedule, i, latents, predict, predictNegative)
			next := schedule.Step(i, latents, velocity)
			made := []*mlx.Array{p.points.Value("latents", next.ExpandDims(0)).Squeeze(0)}
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
		if r.OnStep != nil {
			s := Step{Step: step, Steps: steps, Sigma: float64(schedule.Sigmas[i+1]), Latents: latentsOf(latents), Denoised: latentsOf(made[1])}
			made[1].Free()
			if err := r.OnStep(s); err != nil {
				return nil, err
			}
		}
	}
	p.points.Step = -1
	return latents, nil
}

// latentShape is the family's, or of a transformer that is not there the
// autoencoder's.
func (p *Pipeline) latentShape(h, w int) []int {
	if p.without["transformer"] {
		return []int{p.vae.LatentChannels(), h, w}
	}
	return p.family.latentShape(h, w)
}

// startLatents are those that the first evaluation of the plan gets: noise, that
// mixed with a picture, or what is given. They are nil where they do not count.
func (p *Pipeline) startLatents(r Request, schedule *scheduler.Schedule, plan plan, shape []int) (*mlx.Array, error) {
	batch := append([]int{1}, shape...)
	if plan.latents >= 0 {
		x, err := r.given("latents", plan.latents, mlx.Float32, batch...)
		if err != nil {
			return nil, err
		}
		p.points.Step = plan.latents
		x = p.points.Value("latents", x).Squeeze(0)
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
		return p.points.Value("latents.start", x).Squeeze(0), nil
	}
	var latents *mlx.Array
	var err error
	if r.has("latents.init", -1) {
		if latents, err = r.given("latents.init", -1, mlx.Float32, batch...); err == nil {
			latents = latents.Squeeze(0)
		}
	} else {
		latents, err = p.initialLatents(r, shape)
	}
	if err != nil {
		return nil, err
	}
	if p.points.Active() {
		latents = p.points.Value("latents.init", latents.ExpandDims(0)).Squeeze(0)
	}
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
			clean = p.points.Value("latents.image", x).AsType(mlx.Float32).Squeeze(0)
		} else {
			clean = p.encodePicture(picture.Resize(picture.Opaque(r.Image), r.Width, r.Height), "latents.image")
		}
		x := schedule.ScaleNoise(plan.first, clean, noise)
		return p.points.Value("latents.start", x.ExpandDims(0)).Squeeze(0)
	})
	mlx.Eval(latents)
	mlx.StopPoint()
	return latents, nil
}

// velocity is that of an evaluation: predicted for the prompts, or given.
func (p *Pipeline) velocity(r Request, schedule *scheduler.Schedule, i int, latents *mlx.Array, predict, predictNegative predictor) *mlx.Array {
	if r.has("noise_pred", i) {
		x, err := r.given("noise_pred", i, mlx.Float32, append([]int{1}, latents.Shape()...)...)
		if err != nil {
			mlx.Throw(err)
		}
		return p.points.Value("noise_pred", x).Squeeze(0)
	}
	t := schedule.Timesteps[i]
	velocity := predict(latents, t)
	if predictNegative != nil {
		p.points.Negative = true
		velocity = p.family.guide(velocity, predictNegative(latents, t), r.Guidance)
		p.points.Negative = false
	}
	return p.points.Value("noise_pred", velocity.ExpandDims(0)).Squeeze(0)
}

// compiler fuses on a GPU. On the CPU MLX would call a C++ compiler for it and
// gain nothing, and nothing may be fused while a hook looks inside.
func (p *Pipeline) compiler() compiler {
	if p.device == mlx.CPU && !p.compileOnCPU || p.points.Active() {
		return func(f func([]*mlx.Array) []*mlx.Array) func([]*mlx.Array) []*mlx.Array { return f }
	}
	return mlx.Compile
}

// initialLatents are the noise of a shape [C, h, w].
func (p *Pipeline) initialLatents(r Request, shape []int) (*mlx.Array, error) {
	l := r.Latents
	switch {
	case l.Data == nil && r.RNG == "torch":
		return mlx.FromFloat32(noise.Torch(r.Seed, Latents{Shape: shape}.size()), shape...), nil
	case l.Data == nil:
		if f, ok := p.family.(packer); ok && !p.without["transformer"] {
			h, w := shape[1], shape[2]
			return f.unpack(mlx.Normal(mlx.Key(r.Seed), mlx.Float32, f.packed(h, w)...), h, w), nil
		}
		return mlx.Normal(mlx.Key(r.Seed), mlx.Float32, shape...), nil
	}
	if !slices.Equal(l.Shape, shape) || len(l.Data) != l.size() {
		return nil, requestErrorf("%d initial latents of shape %v given, expected shape %v", len(l.Data), l.Shape, shape)
	}
	return mlx.FromFloat32(l.Data, shape...), nil
}
