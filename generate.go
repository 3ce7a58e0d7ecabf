package gomflux

import (
	"cmp"
	"context"
	"image"
	"time"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
)

// A Phase is a part of a run.
type Phase string

// Phases of a run, in order, and that of [Source.Save].
const (
	PhaseLoad   Phase = "load"
	PhaseEncode Phase = "encode"
	PhaseStep   Phase = "step"
	PhaseDecode Phase = "decode"
	PhaseSave   Phase = "save"
)

// Progress tells what a run has reached. Phases are reported when they start (steps
// as step 0), steps when they are done.
type Progress struct {
	Phase             Phase
	Component         string // of PhaseLoad and PhaseSave
	Bytes, TotalBytes int64
	Step, Steps       int // steps done, of all that run
}

// A Step is what a denoising step has made of a picture.
type Step struct {
	Index       int     // of the picture in its batch
	Step, Steps int     // steps done, of all that run
	Sigma       float64 // how much of the latents is still noise, from 1 to 0
	Latents     Latents
	// Denoised is what the latents would be without their noise, as far as the model
	// can tell at this step.
	Denoised Latents
}

// A Cut is a part of a prompt that a text encoder is not shown, because there are
// more tokens than it takes.
type Cut struct {
	Prompt  string // prompt or negative prompt
	Encoder string // the text encoder's folder
	Tokens  int    // how many are lost, with those of the model's template
	Limit   int
	Text    string // what is lost of the prompt
}

// A Result is a picture and what made it.
type Result struct {
	Image *image.RGBA
	// Settings make the picture again on the same machine, except that they do
	// not have Options.Latents, nor where Options.Image and Options.References
	// came from: set Settings.Image and Settings.References for that.
	Settings Settings

	// PromptTokens is how many tokens the prompt has, with those of the model's
	// template, and TextTokens how many the transformer sees of it, which some models
	// pad to Settings.MaxSequenceLength. CutTokens is how many of a long prompt's end
	// CLIP, where a model has it, is not shown. Without a tokenizer, because of
	// Options.Values, PromptTokens is TextTokens.
	PromptTokens, TextTokens, CutTokens int
	// Cuts are what was cut off the prompts.
	Cuts     []Cut
	StepsRun int // fewer than Steps with Options.Image

	EncodeTime, StepTime, DecodeTime time.Duration // StepTime is the sum over all steps, without OnStep
	PeakMemory                       int           // bytes, of MLX's arrays
	EstimatedMemory                  int64         // what PeakMemory was to be
}

// onCaller makes f run on the goroutine that waits for the MLX thread.
func onCaller(f func(Progress)) func(models.Progress) {
	if f == nil {
		return nil
	}
	report := onCallerFunc(f)
	return func(p models.Progress) {
		report(Progress{Phase(p.Phase), p.Component, p.Bytes, p.TotalBytes, p.Step, p.Steps})
	}
}

// onCallerFunc is onCaller for what makes its own progress.
func onCallerFunc(f func(Progress)) func(Progress) {
	if f == nil {
		return nil
	}
	return func(p Progress) { mlx.Call(func() { f(p) }) }
}

// onStep is likewise for a callback of steps.
func onStep(f func(Step) error) func(models.Step) error {
	if f == nil {
		return nil
	}
	return func(s models.Step) (err error) {
		mlx.Call(func() { err = f(Step{s.Index, s.Step, s.Steps, s.Sigma, Latents(s.Latents), Latents(s.Denoised)}) })
		return err
	}
}

// Generate makes one picture. A done context ends it at the next block on the
// CPU and at the next step on a GPU, with an error that wraps the context's.
func (m *Model) Generate(ctx context.Context, o Options) (*Result, error) {
	results, err := m.generate(ctx, o, nil)
	if err != nil {
		return nil, err
	}
	return results[0], nil
}

// GenerateBatch makes a picture for each of some seeds at once, which on a GPU
// can be faster than one by one: see [Model.BatchSize]. The pixels can differ
// from those that Generate makes, by rounding, and it takes more memory; where
// there is not enough the error is [ErrMemory]. Options.Seed does not count.
// Options.Latents and Options.Values are of one picture and refused. OnStep is
// called for every picture, which Step.Index tells apart.
func (m *Model) GenerateBatch(ctx context.Context, o Options, seeds []uint64) ([]*Result, error) {
	if seeds == nil {
		seeds = []uint64{}
	}
	return m.generate(ctx, o, seeds)
}

// BatchSize is how many pictures are made fastest at once, as far as that was
// measured: 1 on the CPU and for large pictures.
func (m *Model) BatchSize(o Options) int { return m.pipeline.BatchSize(request(m.pipeline, o)) }

// generate makes a request's picture, or a batch of seeds.
func (m *Model) generate(ctx context.Context, o Options, seeds []uint64) ([]*Result, error) {
	r := request(m.pipeline, o)
	if seeds == nil {
		seeds = []uint64{r.Seed}
	}
	start := time.Now()
	var made []*models.Result
	var run *models.Run
	var lost []Cut
	var version string
	err := mlx.Do(ctx, func() (err error) {
		version = mlx.Version()
		if run, err = m.pipeline.Prepare(r, len(seeds)); err != nil {
			return err
		}
		if lost = cuts(run); o.OnCut != nil && len(lost) > 0 {
			mlx.Call(func() {
				for _, c := range lost {
					o.OnCut(c)
				}
			})
		}
		made, err = run.Generate(seeds)
		return err
	})
	if err != nil {
		return nil, batchError(err, len(seeds))
	}
	tokens, cut := run.Tokens()
	took := time.Since(start) / time.Duration(len(seeds))
	results := make([]*Result, len(made))
	for i, out := range made {
		r.Seed = seeds[i]
		settings := m.settings(r)
		settings.Scheduler, settings.MLX = out.Scheduler, version
		if len(seeds) > 1 {
			settings.Batch = len(seeds)
		}
		settings.Created, settings.Seconds = start.UTC().Truncate(time.Second), took.Round(time.Millisecond).Seconds()
		results[i] = &Result{
			Image: out.Image, Settings: settings, PromptTokens: cmp.Or(tokens, out.PromptTokens), TextTokens: out.PromptTokens, CutTokens: cut, Cuts: lost, StepsRun: out.Steps,
			EncodeTime: out.Encode, StepTime: out.Step, DecodeTime: out.Decode, PeakMemory: out.PeakMemory, EstimatedMemory: out.EstimatedMemory,
		}
	}
	return results, nil
}

func cuts(r *models.Run) (out []Cut) {
	for _, c := range r.Cuts() {
		out = append(out, Cut(c))
	}
	return out
}
