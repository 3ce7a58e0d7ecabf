package gomflux

import (
	"cmp"
	"context"
	"errors"
	"image"
	"time"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
)

// A Phase is a phase of a run.
type Phase string

// The phases of a run, in order, and those of [Source.Save] and [Upscaler.Upscale].
const (
	PhaseLoad   Phase = "load"   // loading a component
	PhaseEncode Phase = "encode" // encoding the prompts and input images
	PhaseStep   Phase = "step"   // denoising steps
	PhaseDecode Phase = "decode" // decoding the latents
	PhaseSave   Phase = "save"   // saving a model

	PhaseUpscale Phase = "upscale" // enlarging an image; its steps are thousandths
)

// Progress reports the progress of a run. Each phase is reported when it starts, and
// each step when it is done.
type Progress struct {
	Phase Phase
	// Component is the component that is loaded or saved.
	Component string
	// Bytes of TotalBytes were loaded or saved.
	Bytes, TotalBytes int64
	// Step is the number of steps that are done, and Steps the number that will run.
	Step, Steps int
}

// A Step is the state of an image after a denoising step.
type Step struct {
	// Index is the index of the image in its batch.
	Index int
	// Step is the number of steps that are done, and Steps the number that will run.
	Step, Steps int
	// Sigma is the noise level of the latents, from 1 to 0.
	Sigma float64
	// Latents are the noisy latents.
	Latents Latents
	// Denoised are the latents without noise, as the model predicts them at this step. Those of layers are in
	// a grid, row by row from the lowest, without the whole image.
	Denoised Latents
}

// A Cut is the end of a prompt that was cut off, because the prompt has more tokens than
// a text encoder accepts.
type Cut struct {
	Prompt  string // "prompt" or "negative prompt"
	Encoder string // the text encoder's folder
	Tokens  int    // the number of tokens that were cut off, including those of the model's template
	Limit   int    // the number of tokens that the text encoder accepts
	Text    string // the part of the prompt that was cut off
}

// A Result is a generated image with the settings that generated it.
type Result struct {
	// Image is the generated image. Its size is Settings.Width and Settings.Height, but with
	// Options.Mask that of Options.Image with Inpaint.Expand, into which the generated part
	// was pasted, unless Inpaint.NoPasteBack was set. It is opaque: transparent pixels are
	// blended with white.
	Image *image.RGBA
	// Transparent is the image with its transparency, nil if all of it is opaque.
	Transparent *image.NRGBA
	// Layers are the layers of a model that splits an image, the lowest first. Over each other they
	// compose Image.
	Layers []*image.NRGBA
	// Settings generate the same image again on the same machine. They do not include
	// Options.Latents, nor the files of Options.Image, Options.References and
	// Options.Mask: set Settings.Image, Settings.References and Settings.Mask to record
	// those.
	Settings Settings

	// PromptTokens is the number of tokens of the prompt, including those of the model's
	// template. If Options.Values make the tokenizer unnecessary, it is TextTokens.
	PromptTokens int
	// TextTokens is the number of tokens that the transformer sees. Some models pad a
	// prompt to Settings.MaxSequenceLength.
	TextTokens int
	// CutTokens is the number of tokens that were cut off for CLIP, in models with that
	// text encoder.
	CutTokens int
	// Cuts lists everything that was cut off from the prompts.
	Cuts []Cut
	// PromptCached reports that the prompt embeddings came from OpenOptions.PromptCache,
	// so that no text encoder ran.
	PromptCached bool
	// StepsRun is the number of steps that were run. It is less than Settings.Steps with
	// Options.Image.
	StepsRun int
	// SkippedSteps and SkippedNegativeSteps are the steps, from 1, in which
	// Options.StepCache left out most of the transformer: for the prompt, and for the
	// negative prompt. A step of a scheduler that evaluates the model twice may be there
	// twice.
	SkippedSteps, SkippedNegativeSteps []int

	// EncodeTime, StepTime and DecodeTime are the durations of the phases. StepTime is
	// the sum of all steps, without the time that OnStep took.
	EncodeTime, StepTime, DecodeTime time.Duration
	// PeakMemory is the largest amount of memory that MLX used, in bytes.
	PeakMemory int
	// EstimatedMemory is the estimate of PeakMemory that was made before the run.
	EstimatedMemory int64
}

// Pixels returns the image with its transparency: Transparent, or Image if that is nil.
func (r *Result) Pixels() image.Image {
	if r.Transparent != nil {
		return r.Transparent
	}
	return r.Image
}

// onCaller returns f, to be called on the goroutine that waits for the MLX thread.
func onCaller(f func(Progress)) func(models.Progress) {
	if f == nil {
		return nil
	}
	report := onCallerFunc(f)
	return func(p models.Progress) {
		report(Progress{Phase(p.Phase), p.Component, p.Bytes, p.TotalBytes, p.Step, p.Steps})
	}
}

// onCallerFunc is onCaller without the conversion of the progress.
func onCallerFunc(f func(Progress)) func(Progress) {
	if f == nil {
		return nil
	}
	return func(p Progress) { mlx.Call(func() { f(p) }) }
}

// onStep is onCaller for Options.OnStep.
func onStep(f func(Step) error) func(models.Step) error {
	if f == nil {
		return nil
	}
	return func(s models.Step) (err error) {
		mlx.Call(func() { err = f(Step{s.Index, s.Step, s.Steps, s.Sigma, Latents(s.Latents), Latents(s.Denoised)}) })
		return err
	}
}

// Generate generates an image. If the context is done, it returns after the current
// block of the transformer on the CPU, or after the current step on a GPU, with an error
// that wraps the context's cause.
func (m *Model) Generate(ctx context.Context, o Options) (*Result, error) {
	results, err := m.generate(ctx, o, nil)
	if err != nil {
		return nil, err
	}
	return results[0], nil
}

// GenerateBatch generates an image for each seed at once. On a GPU this can be faster
// than generating them one by one, see [Model.BatchSize]. Pixels can differ from those
// of Generate because of rounding. A batch needs more memory; if there is not enough,
// the error is [ErrMemory]. Options.Seed is ignored. Options.Latents and Options.Values
// must not be set, because they are for a single image. OnStep is called for every image
// with its Step.Index.
func (m *Model) GenerateBatch(ctx context.Context, o Options, seeds []uint64) ([]*Result, error) {
	if seeds == nil {
		seeds = []uint64{}
	}
	return m.generate(ctx, o, seeds)
}

// BatchSize returns the batch size with the highest throughput, according to
// measurements. It is 1 on the CPU and for large images.
func (m *Model) BatchSize(o Options) int {
	r, err := inpaintRequest(m.pipeline, o)
	if err != nil {
		return 1
	}
	return m.pipeline.BatchSize(r)
}

// shares reports whether all processes of the group generate the same image.
func (m *Model) shares(o *Options) bool { return m.group.Size() > 1 && o.Split != SplitPictures }

// generate generates an image for each seed, and enlarges them as the options ask for. If
// seeds is nil, it generates a single image for the seed of the options.
func (m *Model) generate(ctx context.Context, o Options, seeds []uint64) ([]*Result, error) {
	results, err := m.generateHere(ctx, o, seeds)
	if err != nil && m.shares(&o) {
		err = m.group.agree(err) // the others are about to compare the image
	}
	if err == nil {
		err = m.enlarge(ctx, &o, results)
	}
	if err != nil {
		return nil, err
	}
	return results, nil
}

func (m *Model) generateHere(ctx context.Context, o Options, seeds []uint64) ([]*Result, error) {
	if err := o.Enlarge.check(); err != nil {
		return nil, err
	}
	if o.Enhance != nil {
		if err := m.enhance(ctx, &o); err != nil {
			return nil, err
		}
	}
	if err := m.caption(ctx, &o); err != nil {
		return nil, err
	}
	r, err := inpaintRequest(m.pipeline, o)
	if err != nil {
		return nil, err
	}
	if seeds == nil {
		if o.Seed == nil && o.Split != SplitPictures {
			if r.Seed, err = m.group.seed(ctx, r.Seed); err != nil {
				return nil, err
			}
		}
		seeds = []uint64{r.Seed}
	}
	until, shared, began := ctx, m.shares(&o), false
	if shared { // all stop after the same step
		r.Stopped = func() error { return context.Cause(ctx) }
		until = context.WithoutCancel(ctx)
	}
	start := time.Now()
	var made []*models.Result
	var run *models.Run
	var lost []Cut
	var version string
	err = mlx.Do(until, func() (err error) {
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
		began = true
		made, err = run.Generate(seeds)
		return err
	})
	if err != nil {
		_, known := errors.AsType[*models.GroupError](err)
		_, found := errors.AsType[*models.NotFiniteError](err) // by all
		if err = batchError(err, len(seeds)); shared && began && !known {
			err = &models.GroupError{Err: err, Broken: !found}
		}
		return nil, err
	}
	tokens, cut := run.Tokens()
	took := time.Since(start) / time.Duration(len(seeds))
	results := make([]*Result, len(made))
	for i, out := range made {
		r.Seed = seeds[i]
		settings := m.settings(r, &o)
		settings.Scheduler, settings.MLX = out.Scheduler, version
		if len(seeds) > 1 {
			settings.Batch = len(seeds)
		}
		settings.Created, settings.Seconds = start.UTC().Truncate(time.Second), took.Round(time.Millisecond).Seconds()
		results[i] = &Result{
			Image: out.Image, Transparent: out.Transparent, Layers: out.Layers, Settings: settings, StepsRun: out.Steps,
			SkippedSteps: out.Skipped, SkippedNegativeSteps: out.SkippedNegative,
			PromptTokens: cmp.Or(tokens, out.PromptTokens), TextTokens: out.PromptTokens, CutTokens: cut, Cuts: lost,
			PromptCached: out.PromptCached,
			EncodeTime:   out.Encode, StepTime: out.Step, DecodeTime: out.Decode,
			PeakMemory: out.PeakMemory, EstimatedMemory: out.EstimatedMemory,
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
