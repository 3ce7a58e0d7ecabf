package gomflux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	"io/fs"
	"math/rand/v2"
	"regexp"
	"runtime/debug"
	"slices"
	"time"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/picture"
)

// ErrUnsupported is wrapped by errors about models that are whole but that this
// version cannot run.
var ErrUnsupported = models.ErrUnsupported

// ErrRequest is what errors about Options and OpenOptions are (errors.Is): a
// size, a number or a prompt that the model cannot take, a device or dtype that
// there is not.
var ErrRequest = models.ErrRequest

// A ReferenceError is an ErrRequest about one of Options.References.
type ReferenceError = models.ReferenceError

// ErrNotFound is wrapped by errors about models that are not on this machine.
var ErrNotFound = models.ErrNotFound

// A NotFiniteError says that the model computed NaN or infinite values, of which
// no picture is made, and which of its weights are to blame for it.
type NotFiniteError = models.NotFiniteError

// ErrMemory is wrapped by errors of a batch for which there is not enough memory.
var ErrMemory = errors.New("not enough memory")

// Progress tells what a run has reached.
type Progress = models.Progress

// A Step is what a denoising step has made.
type Step = models.Step

// Latents are a picture as a diffusion model works on it: float32, in the
// shape of diffusers' pipeline without the batch axis.
type Latents = models.Latents

// Settings is everything that makes a picture again, by [OptionsFrom]. Package
// picture writes it into files and reads it.
type Settings = picture.Settings

// Phases of a run, in order.
const (
	PhaseLoad   = models.PhaseLoad
	PhaseEncode = models.PhaseEncode
	PhaseStep   = models.PhaseStep
	PhaseDecode = models.PhaseDecode
)

// Defaults are the settings a model is meant to be run with.
type Defaults = models.Defaults

// OpenOptions say how a model is loaded. The zero value, or nil, is sensible.
type OpenOptions struct {
	// Device is "gpu", "cpu" or, for a GPU where there is one, "". A GPU may be
	// called what Settings call it, "metal" or "cuda", if it is that.
	Device string
	// Dtype is "float32", "bfloat16" or "float16"; "" is float32 on the CPU and
	// bfloat16 on a GPU.
	Dtype string
	// Defaults, if set, replace those of the model's pipeline class.
	Defaults *Defaults
	// For, if set, are options that the model is to be used with: what it
	// cannot do of them is an error before its weights are read. What they need
	// none of, because of their Given, which must be the same, is not read, and
	// need not be there.
	For []Options
	// LowRAM keeps only one of the model's text encoders and its transformer in
	// memory at a time, and none while a picture is decoded, and loads them when they
	// are needed: a run's Progress tells of it, and must not run the model meanwhile.
	// As far as they do not fit beside each other that is done anyway.
	LowRAM bool
	// Quantize packs the weights while they are loaded: "3", "4", "5", "6" or "8"
	// bits, "mxfp4", "mxfp8" or "nvfp4"; "" leaves them as they are. Some layers keep
	// more bits, and the autoencoder all. GroupSize is how many weights share a scale:
	// 32, 64 or 128, of which 0 stands for 64; mxfp4, mxfp8 and nvfp4 have their own.
	// What the model's files have quantized already stays as it is.
	Quantize  string
	GroupSize int
	// LoRAs change the weights, before these are quantized. With RuntimeLoRA they are
	// computed beside the weights instead, which is slower. The changes that a
	// quantized file's weights get are always computed beside them.
	LoRAs       []LoRA
	RuntimeLoRA bool
	// BaseModel is the model that what a single file does not have is taken from, "" for
	// the published one that the file is made from, if that can be told and is on this
	// machine.
	BaseModel string
	// Batch is how many pictures are to be made at once, 0 for one, and Warn is told
	// before weights are read if the runs of For, or one with the model's own settings,
	// take more memory than is free, and what would fit.
	Batch int
	Warn  func(string)
	// Progress is called on the caller's goroutine while the model is loaded.
	Progress func(Progress)
}

// load turns the options into those of package models.
func (o *OpenOptions) load() (models.LoadOptions, error) {
	if o == nil {
		o = &OpenOptions{}
	}
	l := models.LoadOptions{Defaults: o.Defaults, LowRAM: o.LowRAM, Batch: o.Batch, Progress: onCaller(o.Progress)}
	if warn := o.Warn; warn != nil {
		l.Warn = func(message string) { mlx.Call(func() { warn(message) }) }
	}
	var err error
	if l.Device, err = parseDevice(o.Device); err != nil {
		return l, err
	}
	if o.Dtype != "" {
		d, err := mlx.ParseDtype(o.Dtype)
		if err != nil || d != mlx.Float32 && d != mlx.Float16 && d != mlx.BFloat16 {
			return l, models.BadRequest(fmt.Errorf("dtype %q: expected float32, bfloat16 or float16", o.Dtype))
		}
		l.Dtype = &d
	}
	if len(o.For) > 0 {
		l.Given = o.For[0].Given
		l.For = func(p *models.Pipeline) (runs []models.Request) {
			for _, options := range o.For {
				runs = append(runs, request(p, options))
			}
			return runs
		}
	}
	if o.Quantize != "" {
		l.Quantize, err = models.ParseQuantization(o.Quantize, o.GroupSize)
	} else if o.GroupSize != 0 {
		err = models.BadRequest(errors.New("a group size says nothing without a quantization"))
	}
	return l, err
}

func (o *OpenOptions) baseModel() string {
	if o == nil {
		return ""
	}
	return o.BaseModel
}

// A Model is a loaded model. Its methods may be called from several goroutines
// and follow one another; those that are called from a callback of Generate
// run at once.
type Model struct {
	// VAE is the model's autoencoder, whose methods are the model's too. It is
	// there until the model is closed.
	VAE
	pipeline *models.Pipeline
	source   models.Source
	changes  Settings // how the weights were changed, and nothing else
}

// Open loads a model: a folder in the layout of Hugging Face diffusers or of
// mflux, a published model that is in the Hugging Face cache, by its repository
// (owner/name) or a short name (z-image-turbo), a single file, or a built-in one
// that the program imports. What it cannot find is [ErrNotFound].
func Open(ctx context.Context, model string, o *OpenOptions) (*Model, error) {
	source, err := models.FindWith(model, o.baseModel())
	if err != nil {
		return nil, err
	}
	return open(ctx, *source, o)
}

// OpenFS loads the model in a file system, such as an embed.FS.
func OpenFS(ctx context.Context, fsys fs.FS, o *OpenOptions) (*Model, error) {
	return open(ctx, models.Source{FS: fsys}, o)
}

func open(ctx context.Context, source models.Source, o *OpenOptions) (*Model, error) {
	load, err := o.load()
	if err != nil {
		return nil, err
	}
	if load.Defaults == nil {
		load.Defaults = source.Defaults
	}
	m := &Model{source: source}
	if load.LoRAs, load.RuntimeLoRA, err = m.change(o, load.Quantize); err != nil {
		return nil, err
	}
	err = mlx.Do(ctx, func() (err error) {
		m.pipeline, err = models.Load(source.FS, load)
		return err
	})
	if err != nil {
		return nil, err
	}
	m.VAE.autoencoder = m.pipeline.Autoencoder
	if err := hashLoRAs(ctx, load.LoRAs, m.changes.LoRAs); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// A VAE is a model's autoencoder: pictures to latents and back. Like a Model it
// may be used from several goroutines. The garbage collector frees it.
type VAE struct {
	autoencoder *models.Autoencoder
}

// OpenVAE loads the autoencoder of a model, which may have nothing else, or a
// folder that is an autoencoder's own. The model is named as for [Open].
func OpenVAE(ctx context.Context, model string, o *OpenOptions) (*VAE, error) {
	source, err := models.FindWith(model, o.baseModel())
	if err != nil {
		return nil, err
	}
	load, err := o.load()
	if err != nil {
		return nil, err
	}
	v := &VAE{}
	err = mlx.Do(ctx, func() (err error) {
		v.autoencoder, err = models.LoadAutoencoder(source.FS, load)
		return err
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Device is where the model runs: cpu, metal or cuda.
func (v *VAE) Device() string { return v.autoencoder.Device().String() }

// Dtype is what the model computes in.
func (v *VAE) Dtype() string { return v.autoencoder.Dtype().String() }

// ScaleFactor is the size of a picture over the size of its latents.
func (v *VAE) ScaleFactor() int { return v.autoencoder.ScaleFactor() }

// DecodeMemory estimates what Decode takes for a picture, in bytes, with as much
// memory as is free now: large pictures are decoded in strips where it is short.
// Encode takes less.
func (v *VAE) DecodeMemory(height, width int) (n int64) {
	mlx.Do(context.Background(), func() error { // which does not fail
		n = v.autoencoder.DecodeMemory(height, width)
		return nil
	})
	return n
}

// Encode takes a picture to latents: the mean of what the encoder predicts.
// Its sides must be multiples of ScaleFactor.
func (v *VAE) Encode(ctx context.Context, img image.Image) (l Latents, err error) {
	err = mlx.Do(ctx, func() (err error) {
		l, err = v.autoencoder.Encode(img)
		return err
	})
	return l, err
}

// Decode takes latents to a picture.
func (v *VAE) Decode(ctx context.Context, l Latents) (img *image.RGBA, err error) {
	err = mlx.Do(ctx, func() (err error) {
		img, err = v.autoencoder.Decode(l)
		return err
	})
	return img, err
}

// DecodeUnscaled takes latents to a picture as diffusers' vae.decode does:
// without the model's scaling_factor and shift_factor, which those of Generate
// and Encode have.
func (v *VAE) DecodeUnscaled(ctx context.Context, l Latents) (img *image.RGBA, err error) {
	err = mlx.Do(ctx, func() (err error) {
		img, err = v.autoencoder.DecodeUnscaled(l)
		return err
	})
	return img, err
}

// Preview shows latents as a picture of their own size, without the decoder:
// colours are a linear function of the latents, which is found at the first
// call by encoding a colour chart. Best for [Step].Denoised.
func (v *VAE) Preview(ctx context.Context, l Latents) (*image.RGBA, error) {
	var p *models.Projection
	err := mlx.Do(ctx, func() (err error) {
		p, err = v.autoencoder.Projection()
		return err
	})
	if err != nil {
		return nil, err
	}
	return p.Picture(l)
}

// parseDevice returns nil for "".
func parseDevice(name string) (*mlx.Device, error) {
	if name == "" {
		return nil, nil
	}
	d, err := mlx.ParseDevice(name)
	if err != nil {
		return nil, models.BadRequest(err)
	}
	return &d, nil
}

// onCaller makes f run on the goroutine that waits for the MLX thread.
func onCaller(f func(Progress)) func(Progress) {
	if f == nil {
		return nil
	}
	return func(p Progress) { mlx.Call(func() { f(p) }) }
}

// Close frees the model. It must not be in use, and cannot be used any more;
// to close it again does nothing.
func (m *Model) Close() error {
	if m.pipeline != nil {
		m.pipeline.Close()
	}
	m.pipeline, m.VAE.autoencoder = nil, nil
	return nil
}

// Class is the model's pipeline class, as model_index.json names it.
func (m *Model) Class() string { return m.pipeline.Class }

// Defaults are the settings that Generate uses where Options has none.
func (m *Model) Defaults() Defaults { return m.pipeline.Defaults }

// Multiple is what heights and widths must be a multiple of, in pixels.
func (m *Model) Multiple() int { return m.pipeline.Multiple() }

// Options say what picture to make. Zero values stand for the model's
// defaults.
type Options struct {
	Prompt string
	// NegativePrompt is what guidance leads away from.
	NegativePrompt string
	// Height and Width are in pixels, multiples of Model.Multiple.
	Height, Width int
	Steps         int
	// Guidance is how closely the prompt is followed, as the model's family
	// counts it; nil is the model's default. It is the scale of classifier-free
	// guidance for Z-Image, where 0 is none, and for Qwen-Image and FLUX.2-klein's
	// base models, where 1 is none, as 0 is. FLUX.1-dev has an input of this name
	// instead, so that every number counts. FLUX.1-schnell takes none but 0, and
	// distilled models of FLUX.2-klein take none above 1.
	Guidance *float64
	// Seed chooses the initial noise; nil is a random one.
	Seed *uint64
	// MaxSequenceLength is how many tokens the prompt may have, with those of
	// the model's template.
	MaxSequenceLength int
	// Scheduler is flow_match_euler_discrete, which "" stands for,
	// flow_match_heun_discrete or linear.
	Scheduler string
	// RNG draws the noise of a seed: mlx, which "" stands for, as mflux does
	// too, or torch, as diffusers does with a generator on the CPU.
	RNG string
	// Image, if set, is the picture to start from. It is resized to Height and
	// Width, which are its own where they are 0.
	Image image.Image
	// ImageStrength is how much of Image is kept, below 1: the part of the
	// steps that it takes the place of, as in mflux. diffusers' strength is
	// the rest, 1 - ImageStrength. 0 stands for 0.4.
	ImageStrength float64
	// References, if set, are pictures for a model that edits. The prompt can
	// speak of them as $1, $2 and so on, which becomes what the model knows them
	// by: image 1 for FLUX.2-klein, Picture 1 for Qwen-Image-Edit. Without Height
	// and Width the model chooses a size: the former by the first of them, the
	// latter by the last.
	References []image.Image
	// Latents, if set, are the initial noise, instead of what Seed gives.
	Latents Latents

	// Progress is called on the caller's goroutine.
	Progress func(Progress)
	// OnStep is called on the caller's goroutine after every step. It may use
	// the model, to decode the latents or show them. Its error ends the run
	// and is returned.
	OnStep func(Step) error
	// Hook sees every module's output, on the MLX thread.
	Hook hooks.Func
	// Given, if set, are values of the run that are not to be computed.
	Given models.Given
}

// OptionsFrom are the options that make a picture of these settings again, with
// a model that is opened by its name, s.Model, with @ and s.Revision if there is
// one, and [OpenOptionsFrom]. Options.Image and
// Options.References are left to the caller where s.Image and s.References say
// that there were some. The zero values of settings that
// were read stand for what the file had not, except Seed and Guidance: see
// [picture.Found.Has].
func OptionsFrom(s *Settings) Options {
	seed, guidance := s.Seed, s.Guidance
	return Options{
		Prompt: s.Prompt, NegativePrompt: s.NegativePrompt, Height: s.Height, Width: s.Width, Steps: s.Steps, Guidance: &guidance, Seed: &seed,
		MaxSequenceLength: s.MaxSequenceLength, Scheduler: s.Scheduler, RNG: s.RNG, ImageStrength: s.ImageStrength,
	}
}

// A Result is a picture and what made it.
type Result struct {
	Image *image.RGBA
	// Settings make the picture again on the same machine, except that they do
	// not have Options.Latents, nor where Options.Image and Options.References
	// came from: set Settings.Image and Settings.References for that.
	Settings Settings

	// PromptTokens is how many tokens the prompt has, with those of the model's
	// template, and TextTokens how many the transformer sees of it, which some
	// models pad to Settings.MaxSequenceLength. CutTokens is how many of a long
	// prompt's end CLIP, where a model has it, is not shown; no other text encoder
	// cuts. Without a tokenizer, because of Options.Given, PromptTokens is
	// TextTokens.
	PromptTokens, TextTokens, CutTokens int
	StepsRun                            int // fewer than Steps with Options.Image

	EncodeTime, StepTime, DecodeTime time.Duration // StepTime is the sum over all steps, without OnStep
	PeakMemory                       int           // bytes, of MLX's arrays
	EstimatedMemory                  int64         // what PeakMemory was to be
}

// Generate makes one picture. A done context ends it at the next block on the
// CPU and at the next step on a GPU, with an error that wraps the context's.
func (m *Model) Generate(ctx context.Context, o Options) (*Result, error) {
	results, err := m.generate(ctx, request(m.pipeline, o), nil)
	if err != nil {
		return nil, err
	}
	return results[0], nil
}

// GenerateBatch makes a picture for each of some seeds at once, which on a GPU
// can be faster than one by one: see [Model.BatchSize]. The pixels can differ
// from those that Generate makes, by rounding, and it takes more memory; where
// there is not enough the error is [ErrMemory]. Options.Seed does not count.
// Options.Latents and Options.Given are of one picture and refused. OnStep is
// called for every picture, which Step.Index tells apart.
func (m *Model) GenerateBatch(ctx context.Context, o Options, seeds []uint64) ([]*Result, error) {
	if seeds == nil {
		seeds = []uint64{}
	}
	return m.generate(ctx, request(m.pipeline, o), seeds)
}

// BatchSize is how many pictures are made fastest at once, as far as that was
// measured: 1 on the CPU and for large pictures.
func (m *Model) BatchSize(o Options) int { return m.pipeline.BatchSize(request(m.pipeline, o)) }

// generate makes a request's picture, or a batch of seeds.
func (m *Model) generate(ctx context.Context, r models.Request, seeds []uint64) ([]*Result, error) {
	if seeds == nil {
		seeds = []uint64{r.Seed}
	}
	start := time.Now()
	var made []*models.Result
	var version string
	var tokens, cut int
	err := mlx.Do(ctx, func() (err error) {
		version = mlx.Version()
		if made, err = m.pipeline.GenerateBatch(r, seeds); err != nil {
			return err
		}
		tokens, cut, err = m.pipeline.Tokens(r)
		return err
	})
	if err != nil {
		return nil, batchError(err, len(seeds))
	}
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
			Image: out.Image, Settings: settings, PromptTokens: cmp.Or(tokens, out.PromptTokens), TextTokens: out.PromptTokens, CutTokens: cut, StepsRun: out.Steps,
			EncodeTime: out.Encode, StepTime: out.Step, DecodeTime: out.Decode, PeakMemory: out.PeakMemory, EstimatedMemory: out.EstimatedMemory,
		}
	}
	return results, nil
}

// batchError says of an error for lack of memory how many pictures it was for.
func batchError(err error, n int) error {
	var failed *mlx.Error
	if n > 1 && errors.As(err, &failed) && outOfMemory.MatchString(failed.Error()) {
		return fmt.Errorf("%w for %d pictures at once: %w", ErrMemory, n, err)
	}
	return err
}

// outOfMemory matches what MLX says of the CPU, Metal and CUDA.
var outOfMemory = regexp.MustCompile(`(?i)out of memory|unable to allocate|attempting to allocate|insufficient memory|bad_alloc`)

// Settings are those that Generate will give the picture of some options, as far
// as they are known before. Without Options.Seed theirs is 0.
func (m *Model) Settings(o Options) Settings {
	r := request(m.pipeline, o)
	if o.Seed == nil {
		r.Seed = 0
	}
	return m.settings(r)
}

func (m *Model) settings(r models.Request) Settings {
	s := Settings{
		Version: picture.SettingsVersion, Generator: "gomflux " + Version(), Model: models.TildePath(m.source.Name), Revision: m.source.Revision, BaseModel: models.TildePath(m.source.Base), Class: m.Class(),
		Prompt: r.Prompt, NegativePrompt: r.NegativePrompt, Seed: r.Seed, Steps: r.Steps, Guidance: r.Guidance,
		Height: r.Height, Width: r.Width, MaxSequenceLength: r.MaxSequenceLength, Scheduler: r.Scheduler,
		Dtype: m.Dtype(), Device: m.Device(),
		Quantize: m.changes.Quantize, GroupSize: m.changes.GroupSize, LoRAs: slices.Clone(m.changes.LoRAs), RuntimeLoRA: m.changes.RuntimeLoRA,
	}
	if r.RNG != "mlx" {
		s.RNG = r.RNG
	}
	if r.Image != nil {
		s.ImageStrength = r.ImageStrength
	}
	return s
}

// Version is the version of this module that the program was built with.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		const path = "github.com/gomflux/gomflux"
		if info.Main.Path == path && info.Main.Version != "" {
			return info.Main.Version
		}
		for _, dep := range info.Deps {
			if dep.Path == path && dep.Replace == nil {
				return dep.Version
			}
		}
	}
	return "(unknown version)"
}

// UsesNegativePrompt says whether Options.NegativePrompt counts: whether the
// model has classifier-free guidance, and Options.Guidance turns it on.
func (m *Model) UsesNegativePrompt(o Options) bool {
	return m.pipeline.UsesNegativePrompt(request(m.pipeline, o))
}

// Check says what of the options the model cannot do, as Generate would,
// without running anything.
func (m *Model) Check(o Options) error { return m.pipeline.Check(request(m.pipeline, o)) }

// request fills in what the options leave open.
func request(p *models.Pipeline, o Options) models.Request {
	d := p.Defaults
	r := models.Request{
		Prompt: o.Prompt, NegativePrompt: cmp.Or(o.NegativePrompt, d.NegativePrompt),
		Height: o.Height, Width: o.Width,
		Steps: cmp.Or(o.Steps, d.Steps), Guidance: d.Guidance,
		MaxSequenceLength: cmp.Or(o.MaxSequenceLength, d.MaxSequenceLength),
		Scheduler:         o.Scheduler, RNG: o.RNG, Image: o.Image, ImageStrength: cmp.Or(o.ImageStrength, 0.4),
		References: o.References, Latents: o.Latents, Hook: o.Hook, Given: o.Given, Progress: onCaller(o.Progress),
	}
	switch {
	case o.Image != nil:
		r.Height, r.Width = p.SizeFor(o.Image.Bounds().Size(), r.Height, r.Width)
	case len(o.References) > 0:
		r.Height, r.Width = p.SizeFor(p.EditSize(o.References), r.Height, r.Width)
	}
	r.Height, r.Width = cmp.Or(r.Height, d.Height), cmp.Or(r.Width, d.Width)
	if o.Guidance != nil {
		r.Guidance = *o.Guidance
	}
	if o.Seed != nil {
		r.Seed = *o.Seed
	} else {
		r.Seed = uint64(rand.Uint32()) // 32 bits: what people are used to typing again
	}
	if f := o.OnStep; f != nil {
		r.OnStep = func(s Step) (err error) {
			mlx.Call(func() { err = f(s) })
			return err
		}
	}
	return r
}
