package models

import (
	"errors"
	"fmt"
	"image"
	"math"
	"time"

	"github.com/gomflux/gomflux/hooks"
	"github.com/gomflux/gomflux/mlx"
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
	// Latents, if set, are the initial noise: float32 in the shape that
	// diffusers' pipeline takes as latents, without the batch axis.
	Latents []float32

	Hook     hooks.Func
	Progress func(Progress)
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
	Step, Steps       int // steps done, of all
}

// A Result is a picture and how long its parts took.
type Result struct {
	Image                *image.RGBA
	PromptTokens         int
	Encode, Step, Decode time.Duration // Step is the sum over all steps
	PeakMemory           int           // bytes, of MLX's arrays
}

// ErrRequest is what errors about a request are (errors.Is): a size, a number
// or a prompt that another request would not have.
var ErrRequest = errors.New("bad request")

// A requestError is an error about a request, in its own words.
type requestError struct{ error }

func (e requestError) Unwrap() error      { return e.error }
func (requestError) Is(target error) bool { return target == ErrRequest }

func requestErrorf(format string, args ...any) error {
	return requestError{fmt.Errorf(format, args...)}
}

// Check says what of a request cannot be done, with a hint. The numbers must
// have been filled in. Its errors are [ErrRequest].
func (p *Pipeline) Check(r Request) error {
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
	if r.MaxSequenceLength < 1 {
		return requestErrorf("max sequence length %d: must be at least 1", r.MaxSequenceLength)
	}
	return nil
}

// Generate makes one picture. It must run on the MLX thread.
func (p *Pipeline) Generate(r Request) (*Result, error) {
	if err := p.Check(r); err != nil {
		return nil, err
	}
	if err := mlx.Use(p.device); err != nil {
		return nil, err
	}
	p.points = hooks.Points{Func: r.Hook, Step: -1}
	defer func() { p.points = hooks.Points{} }()
	report := func(pr Progress) {
		if r.Progress != nil {
			r.Progress(pr)
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

	report(Progress{Phase: PhaseEncode, Steps: r.Steps})
	caption, err := p.encode("prompt", r.Prompt, r.MaxSequenceLength)
	if err != nil {
		return nil, err
	}
	res.PromptTokens = caption.Dim(0)
	var negative *mlx.Array
	if r.Guidance > 0 {
		p.points.Negative = true
		if negative, err = p.encode("negative", r.NegativePrompt, r.MaxSequenceLength); err != nil {
			return nil, err
		}
		p.points.Negative = false
	}
	res.Encode = lap()

	latents, err := p.denoise(r, caption, negative, report)
	if err != nil {
		return nil, err
	}
	res.Step = lap()

	report(Progress{Phase: PhaseDecode, Steps: r.Steps})
	res.Image = p.decode(latents)
	res.Decode = lap()
	res.PeakMemory = mlx.PeakMemory()
	mlx.StopPoint()
	return res, nil
}

// encode takes a prompt to what the transformer receives, under the names
// what.input_ids and what.embeds.
func (p *Pipeline) encode(what, text string, limit int) (*mlx.Array, error) {
	ids, err := p.tokenizer.Encode(p.family.prompt(text))
	if err != nil {
		return nil, requestErrorf("%s: %w", what, err)
	}
	if len(ids) > limit {
		return nil, requestErrorf("%s has %d tokens, with the model's own around it, and the limit is %d (shorten it, or raise --max-sequence-length)", what, len(ids), limit)
	}
	if p.points.Active() {
		p.points.Value(what+".input_ids", mlx.FromInt32(ids, 1, len(ids)))
	}
	embeds := mlx.Scope(func() *mlx.Array {
		return p.points.Value(what+".embeds", p.family.encode(ids))
	})
	mlx.Eval(embeds)
	mlx.StopPoint()
	return embeds, nil
}

// denoise goes from noise to the latents of a picture.
func (p *Pipeline) denoise(r Request, caption, negative *mlx.Array, report func(Progress)) (*mlx.Array, error) {
	scale := p.vae.Config.ScaleFactor()
	h, w := r.Height/scale, r.Width/scale
	shape := p.family.latentShape(h, w)
	latents, err := initialLatents(r, shape)
	if err != nil {
		return nil, err
	}
	predict, err := p.family.predictor(caption, h, w, p.compiler())
	if err != nil {
		return nil, err
	}
	var predictNegative predictor
	if negative != nil {
		if predictNegative, err = p.family.predictor(negative, h, w, p.compiler()); err != nil {
			return nil, err
		}
	}
	m := p.family.multiple()
	schedule := p.scheduler.NewSchedule(p.family.sigmas(r.Steps), p.scheduler.Mu(h/m*(w/m)))

	if p.points.Active() {
		p.points.Value("sigmas", mlx.FromFloat32(schedule.Sigmas))
		p.points.Value("timesteps", mlx.FromFloat32(schedule.Timesteps))
		latents = p.points.Value("latents.init", latents.ExpandDims(0)).Squeeze(0)
	}
	report(Progress{Phase: PhaseStep, Steps: r.Steps})
	for i, t := range schedule.Timesteps {
		next := mlx.Scope(func() *mlx.Array {
			p.points.Step = i
			velocity := predict(latents, t)
			if predictNegative != nil {
				p.points.Negative = true
				velocity = p.family.guide(velocity, predictNegative(latents, t), r.Guidance)
				p.points.Negative = false
			}
			velocity = p.points.Value("noise_pred", velocity.ExpandDims(0)).Squeeze(0)
			next := schedule.Step(i, latents, velocity)
			return p.points.Value("latents", next.ExpandDims(0)).Squeeze(0)
		})
		mlx.Eval(next) // so that steps can be timed and stopped
		mlx.StopPoint()
		latents.Free()
		latents = next
		report(Progress{Phase: PhaseStep, Step: i + 1, Steps: r.Steps})
	}
	p.points.Step = -1
	return latents, nil
}

// compiler fuses on a GPU. On the CPU MLX would call a C++ compiler for it and
// gain nothing, and nothing may be fused while a hook looks inside.
func (p *Pipeline) compiler() compiler {
	if p.device == mlx.CPU || p.points.Active() {
		return func(f func([]*mlx.Array) []*mlx.Array) func([]*mlx.Array) []*mlx.Array { return f }
	}
	return mlx.Compile
}

func initialLatents(r Request, shape []int) (*mlx.Array, error) {
	if r.Latents == nil {
		return mlx.Normal(mlx.Key(r.Seed), mlx.Float32, shape...), nil
	}
	n := 1
	for _, d := range shape {
		n *= d
	}
	if len(r.Latents) != n {
		return nil, requestErrorf("%d initial latents given, expected %d for shape %v", len(r.Latents), n, shape)
	}
	return mlx.FromFloat32(r.Latents, shape...), nil
}

// decode takes latents to a picture.
func (p *Pipeline) decode(latents *mlx.Array) *image.RGBA {
	var pixels []uint8
	var h, w int
	mlx.Scope(func() *mlx.Array {
		z := p.points.Value("vae.decode.in", p.vae.Unscale(latents.AsType(p.dtype)).ExpandDims(0))
		x := p.points.Value("vae.decode.out", p.vae.Decode(z))
		x = x.AsType(mlx.Float32).Over(2).Plus(0.5).Clip(0, 1).Times(255).Round()
		x = p.points.Value("image", x.Squeeze(0).Transpose(1, 2, 0).AsType(mlx.Uint8))
		h, w = x.Dim(0), x.Dim(1)
		pixels = x.Uint8s()
		return nil
	})
	return rgba(pixels, h, w)
}

// rgba makes a picture of interleaved red, green and blue.
func rgba(pixels []uint8, h, w int) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	for i := range h * w {
		copy(img.Pix[4*i:], pixels[3*i:3*i+3])
		img.Pix[4*i+3] = 255
	}
	return img
}
