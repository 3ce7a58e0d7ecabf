package gomflux

import (
	"cmp"
	"context"
	"image"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/picture"
)

// A Model is a loaded model. Its methods may be called from several goroutines, and wait
// for each other, except that methods called from a callback of Generate run
// immediately.
type Model struct {
	// VAE is the model's autoencoder, which is closed with the model.
	VAE
	pipeline *models.Pipeline
	source   *Source
	previews string   // see PreviewDecoder
	changes  Settings // only the fields that describe how the weights were changed
	group    *Group   // OpenOptions.Group

	captioned struct { // see caption
		sync.Mutex
		caption
	}
}

// Close frees the memory of the model: its weights, and everything that was kept for later
// images. It waits for images that are being generated. Callbacks of Generate get an error
// if they close the model that calls them. Afterwards, methods that would run the model
// return [ErrClosed]. Closing it again has no effect.
func (m *Model) Close() error { return closeModel(m.pipeline) }

// closeModel closes a pipeline or an autoencoder.
func closeModel(m interface{ Close() }) error {
	return mlx.Do(context.Background(), func() error {
		m.Close()
		return nil
	})
}

// ReleaseMemory returns memory to the system that no model and no run uses: what MLX, the
// C library (glibc) and Go keep of freed memory. It waits for runs, and the next run is
// slower until it has that memory again: call it when no image was generated for some
// seconds.
func ReleaseMemory(ctx context.Context) error {
	debug.FreeOSMemory() // also finds the arrays that nothing refers to, which the job frees
	return mlx.Do(ctx, func() error {
		mlx.ReleaseMemory()
		return nil
	})
}

// Class returns the model's pipeline class, as in model_index.json.
func (m *Model) Class() string { return m.pipeline.Class }

// Defaults returns the settings that Generate uses for options that are not set.
func (m *Model) Defaults() Defaults { return Defaults(m.pipeline.Defaults) }

// PreviewDecoder returns the name of the autoencoder that decodes previews, or
// LinearPreviews. See [OpenOptions].PreviewDecoder.
func (m *Model) PreviewDecoder() string { return m.previews }

// Multiple returns the number of pixels that heights and widths must be multiples of.
func (m *Model) Multiple() int { return m.pipeline.Multiple() }

// A Module is a module of a model's networks.
type Module struct {
	Name  string // as in [Tap]
	Class string // the Go type
}

// Modules lists the modules whose tensors hooks see.
func (m *Model) Modules() (all []Module) {
	for _, module := range m.pipeline.Modules() {
		all = append(all, Module(module))
	}
	return all
}

// Options describe the image to generate. Fields with the value zero stand for the
// model's defaults.
type Options struct {
	// Prompt describes the image.
	Prompt string
	// Enhance, if set, is how a language model rewrites Prompt first, as [Source.Enhance]. Settings have the
	// rewritten prompt, so that the image can be generated again without the language model.
	Enhance *LanguageOptions
	// OriginalPrompt and EnhancedBy are recorded in Settings: the prompt that was rewritten to Prompt, and
	// the language model that did it.
	OriginalPrompt, EnhancedBy string
	// NegativePrompt describes what the image should not contain. It needs
	// classifier-free guidance, see [Model.UsesNegativePrompt].
	NegativePrompt string
	// Height and Width are the size in pixels. They must be multiples of Model.Multiple.
	Height, Width int
	// Steps is the number of denoising steps.
	Steps int
	// Guidance is the guidance scale: how closely the prompt is followed. nil stands for
	// the model's default. For most families it is the scale of classifier-free guidance;
	// the pages in docs/models describe which value disables it, and which models do not
	// support it. A value that the model does not support is an [ErrRequest].
	Guidance *float64
	// GuidanceUnit is how Guidance counts. "" stands for the unit of the model's pipeline. A value that
	// cannot be converted to that stands for the model's default.
	GuidanceUnit picture.GuidanceUnit
	// GuidanceInterval are two fractions of Steps, from 0 to 1, between which
	// classifier-free guidance is applied, as the start and stop of diffusers' guiders:
	// after [0, 0.6] of 10 steps, the model runs for the prompt alone in the last 4 steps,
	// which takes about half of the time. nil stands for all steps. A model or guidance
	// scale without classifier-free guidance makes it an [ErrRequest].
	GuidanceInterval []float64
	// TrueCFGScale adds classifier-free guidance to a model whose Guidance is an input of its
	// transformer, FLUX.1 and FLUX.1-Kontext, as diffusers' true_cfg_scale: above 1, the model
	// runs a second time in each step, with NegativePrompt, which may be empty. Next to a Guidance that is
	// a distilled scale, as in settings of programs with both, other models use it as Guidance.
	TrueCFGScale float64
	// CFGNormalization is Z-Image's cfg_normalization: the largest norm of a guided prediction,
	// relative to that of the prediction for Prompt. 1 is diffusers' True, 0 stands for no
	// limit.
	CFGNormalization float64
	// CFGTruncation is Z-Image's cfg_truncation: classifier-free guidance ends when this part
	// of the noise is gone, from 0 to 1. 0 stands for 1, which is never.
	CFGTruncation float64
	// StepCache leaves out most of the transformer in steps whose prediction changes
	// little, and uses what it added in an earlier step: a rule and its threshold, such as
	// "first-block:0.1", the rule of diffusers' FirstBlockCacheConfig, or "easy:0.05", the
	// rule of EasyCache, which leaves out the whole transformer. The larger the
	// threshold, above 0 and below 1, the more is left out, and the more the image
	// differs. It needs at least 12 steps, and helps from 20. "" computes everything.
	// Result.SkippedSteps lists what was left out.
	StepCache string
	// Sigmas are the noise levels of the steps, from at most 1 to above 0, in place of the model's own, as the
	// sigmas of diffusers' pipelines: the scheduler shifts them as for the model. Their number is that of the steps, and
	// Steps may be 0. LoRAs for few steps may need some: see docs/models/flux-2-dev.md.
	Sigmas []float64
	// Seed determines the initial noise. nil stands for a random seed.
	Seed *uint64
	// MaxSequenceLength is the largest number of tokens of a prompt, including those of
	// the model's template.
	MaxSequenceLength int
	// RefuseLongPrompts makes a prompt with more tokens an error. Otherwise its end is cut
	// off, as in diffusers, and reported in Result.Cuts.
	RefuseLongPrompts bool
	// Scheduler is the scheduler of the steps. "" stands for the model's own.
	Scheduler Scheduler
	// RNG is the generator of the initial noise. "" stands for MLXNoise.
	RNG RNG
	// Background is what becomes of transparent pixels. "" stands for AutoBackground. The
	// prompt should ask for a transparent background too.
	Background Background
	// Image, if set, is the image to start from (image-to-image). It is resized to Height
	// and Width, which default to its size. Transparent pixels of it and of References are
	// blended with white, unless the model's images have an alpha channel (Model.HasAlpha).
	Image image.Image
	// ImageStrength is how much of Image is kept, as in mflux: the fraction of the steps
	// that are skipped. It must be less than 1, and 0 stands for 0.4. It corresponds to
	// 1 - strength in diffusers. With Mask it applies to the masked part, and 0 keeps
	// nothing of that.
	ImageStrength float64
	// Mask, if set, makes Image an image to inpaint: the part that is white in Mask is
	// regenerated, by a model of any family. Mask is black, white and grey, or has
	// transparent pixels, which stand for white, and has the size or the proportions of
	// Image. Result.Image is Image, in which only the masked part differs, unless
	// Inpaint.NoPasteBack is set. A model that edits images sees the whole Image as its
	// first reference image, $1 in the prompt, and References after it; FLUX.1-Kontext,
	// which takes one image, sees the one in References instead.
	Mask image.Image
	// Inpaint has options for Mask. Inpaint.Expand needs no Mask.
	Inpaint InpaintOptions
	// References are the input images of an edit model. The prompt can refer to them as
	// $1, $2 and so on, which is replaced by the model's name for them, such as image 1 or
	// Picture 1. If Height and Width are 0, the size is derived from these images.
	References []image.Image
	// Layers is the number of layers into which a model that splits an image, Qwen-Image-Layered, splits
	// References[0]: see Result.Layers. 0 stands for the model's default, Model.Layers. Without a Prompt
	// the model's text encoder describes the image first, as a language model, and Settings have its text.
	Layers int
	// Enlarge, if set, is how the generated image is enlarged.
	Enlarge *EnlargeOptions
	// Latents, if set, are the initial noise. They override Seed.
	Latents Latents
	// Split is how the processes of OpenOptions.Group generate the image; "" stands for AutoSplit. Unless it is
	// SplitPictures, all processes call Generate at the same time, with the same options, and get the same
	// image. Callbacks must not use the model's group again.
	Split Split

	// Progress, if set, is called on the caller's goroutine.
	Progress func(Progress)
	// OnCut, if set, is called on the caller's goroutine before the run starts, for every
	// part of a prompt that is cut off.
	OnCut func(Cut)
	// OnStep, if set, is called on the caller's goroutine after every step. It may use the
	// model to decode or preview the latents. An error ends the run and is returned.
	OnStep func(Step) error
	// Hook, if set, is called with the output of every module.
	Hook Hook
	// Values, if set, override computed tensors.
	Values Values

	prepared    *preparedMask       // see PrepareMask
	conversions *models.Conversions // see PrepareImages
}

// PrepareImages makes Generate keep Image and References as the model takes them, for all
// images that are generated with these options or with copies of them. Without it, each call
// of Generate converts them. Their pixels must not be changed afterwards. If one of the two
// fields is set to something else later, that is converted.
func (o *Options) PrepareImages() {
	if o.conversions == nil {
		o.conversions = &models.Conversions{}
	}
}

// ForgetPrepared frees what PrepareMask and PrepareImages keep, unless copies of the options
// have it too.
func (o *Options) ForgetPrepared() { o.prepared, o.conversions = nil, nil }

// OptionsFrom returns the options that generate the image of some settings again, with a
// model that is opened with [OpenOptionsFrom] under the name s.Model, followed by @ and
// s.Revision if that is set. The caller must set Options.Image, Options.References and
// Options.Mask if s.Image, s.References and s.Mask are set. In settings that were read from a file, fields that
// the file does not have are zero, which stands for the default except for Seed and
// Guidance: see [picture.Found.Has].
func OptionsFrom(s *Settings) Options {
	seed, guidance := s.Seed, s.Guidance
	return Options{
		Prompt: s.Prompt, OriginalPrompt: s.OriginalPrompt, EnhancedBy: s.EnhancedBy,
		NegativePrompt: s.NegativePrompt, Height: s.Height, Width: s.Width,
		Steps: s.Steps, Guidance: &guidance, GuidanceUnit: s.GuidanceUnit, GuidanceInterval: slices.Clone(s.GuidanceInterval),
		TrueCFGScale: s.TrueCFGScale, CFGNormalization: s.CFGNormalization, CFGTruncation: s.CFGTruncation,
		StepCache: s.StepCache, Sigmas: slices.Clone(s.Sigmas), Seed: &seed, MaxSequenceLength: s.MaxSequenceLength,
		Scheduler: Scheduler(s.Scheduler), RNG: RNG(s.RNG), ImageStrength: s.ImageStrength,
		Background: Background(s.Background), Layers: s.Layers, Inpaint: inpaintOptionsFrom(s),
	}
}

// Settings returns the settings that Generate would return for some options, as far as
// they are known in advance. Without Options.Seed, the seed is 0.
func (m *Model) Settings(o Options) Settings {
	r := request(m.pipeline, o)
	if o.Seed == nil {
		r.Seed = 0
	}
	return m.settings(r, &o)
}

func (m *Model) settings(r models.Request, o *Options) Settings {
	s := Settings{
		Version: picture.SettingsVersion, Generator: "gomflux " + Version(), Class: m.Class(),
		Model: catalog.TildePath(m.source.Name()), Revision: m.source.Revision(), BaseModel: catalog.TildePath(m.source.BaseModel()),
		Prompt: r.Prompt, OriginalPrompt: o.OriginalPrompt, EnhancedBy: catalog.TildePath(o.EnhancedBy),
		NegativePrompt: r.NegativePrompt, Seed: r.Seed, Steps: r.Steps, Guidance: r.Guidance,
		GuidanceUnit:     family.Find(m.Class()).GuidanceUnit(),
		GuidanceInterval: slices.Clone([]float64(r.GuidanceInterval)), StepCache: r.StepCache,
		Sigmas:       slices.Clone([]float64(r.Sigmas)),
		TrueCFGScale: r.TrueCFGScale, CFGNormalization: r.CFGNormalization, CFGTruncation: r.CFGTruncation,
		Height: r.Height, Width: r.Width, Layers: r.Layers, MaxSequenceLength: r.MaxSequenceLength, Scheduler: r.Scheduler,
		Dtype: string(m.Dtype()), Device: string(m.Device()), Tuning: m.pipeline.Tuned(), KVCache: m.pipeline.KeepsKV(r),
		Quantize: m.changes.Quantize, GroupSize: m.changes.GroupSize,
		LoRAs: slices.Clone(m.changes.LoRAs), RuntimeLoRA: m.changes.RuntimeLoRA,
	}
	if split, ranks, err := m.pipeline.SplitOf(&r); err == nil {
		s.Split, s.Ranks = split, ranks
	}
	if r.RNG != "mlx" {
		s.RNG = r.RNG
	}
	if r.Background != models.BackgroundAuto {
		s.Background = r.Background
	}
	if r.Image != nil {
		s.ImageStrength = r.ImageStrength
	}
	if o.inpaints() {
		o.Inpaint.record(&s)
	}
	return s
}

// Version returns the version of this module in the program.
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

// HasAlpha reports whether the images of the model have an alpha channel: whether it
// generates transparent images, and sees the transparency of input images.
func (m *Model) HasAlpha() bool { return m.pipeline.HasAlpha() }

// UsesNegativePrompt reports whether Options.NegativePrompt has an effect: whether the
// model supports classifier-free guidance and Options.Guidance enables it.
func (m *Model) UsesNegativePrompt(o Options) bool {
	return m.pipeline.UsesNegativePrompt(request(m.pipeline, o))
}

// Check returns the error that Generate would return for options that the model does not
// support. It does not run the model.
func (m *Model) Check(o Options) error {
	if err := o.Enlarge.check(); err != nil {
		return err
	}
	r, err := inpaintRequest(m.pipeline, o)
	if err != nil {
		return err
	}
	return public(m.pipeline.Check(r))
}

// inpaintRequest is request with Options.Mask.
func inpaintRequest(p *models.Pipeline, o Options) (models.Request, error) {
	r := request(p, o)
	prepared, err := o.prepareMask()
	if prepared != nil {
		r.Inpaint = prepared.input
	}
	return r, err
}

// request returns a request with the model's defaults for options that are not set, without
// Options.Mask.
func request(p *models.Pipeline, o Options) models.Request {
	d := p.Defaults
	r := models.Request{
		Prompt: o.Prompt, NegativePrompt: cmp.Or(o.NegativePrompt, d.NegativePrompt),
		Height: o.Height, Width: o.Width,
		Steps: cmp.Or(o.Steps, len(o.Sigmas), d.Steps), Sigmas: o.Sigmas, Guidance: d.Guidance, GuidanceInterval: o.GuidanceInterval,
		TrueCFGScale: o.TrueCFGScale, CFGNormalization: o.CFGNormalization, CFGTruncation: o.CFGTruncation,
		StepCache:         o.StepCache,
		MaxSequenceLength: cmp.Or(o.MaxSequenceLength, d.MaxSequenceLength),
		RefuseLongPrompts: o.RefuseLongPrompts,
		Scheduler:         string(o.Scheduler), RNG: string(o.RNG), Image: o.Image, ImageStrength: cmp.Or(o.ImageStrength, 0.4),
		References: o.References, Conversions: o.conversions, Background: string(o.Background),
		Layers:  cmp.Or(o.Layers, p.DefaultLayers()),
		Split:   string(o.Split),
		Latents: models.Latents(o.Latents), Hook: o.Hook.internal(), Overrides: overridesOf(o.Values),
		Progress: onCaller(o.Progress), OnStep: onStep(o.OnStep),
	}
	switch {
	case o.Image != nil && o.inpaints():
		r.ImageStrength = o.ImageStrength
		r.Height, r.Width = p.InpaintSize(o.Inpaint.canvas(o.Image), o.Inpaint.Crop, r.Height, r.Width)
	case o.Image != nil:
		r.Height, r.Width = p.SizeFor(o.Image.Bounds().Size(), r.Height, r.Width)
	case len(o.References) > 0:
		r.Height, r.Width = p.SizeFor(p.EditSize(o.References), r.Height, r.Width)
	}
	r.Height, r.Width = cmp.Or(r.Height, d.Height), cmp.Or(r.Width, d.Width)
	unit := family.Find(p.Class).GuidanceUnit()
	if o.GuidanceUnit == picture.DistilledCFGScale { // of settings that can have both scales
		if o.TrueCFGScale != 0 && unit != picture.DistilledCFGScale {
			o.Guidance, o.GuidanceUnit = &o.TrueCFGScale, picture.CFGScale
			r.TrueCFGScale = 0
		} else if o.TrueCFGScale <= 1 {
			r.TrueCFGScale = 0
		}
	}
	if o.Guidance != nil {
		if scale, ok := o.GuidanceUnit.Convert(*o.Guidance, unit); ok {
			r.Guidance = scale
		}
	}
	if o.Seed != nil {
		r.Seed = *o.Seed
	} else {
		r.Seed = uint64(rand.Uint32()) // 32 bits are short enough to type
	}
	return r
}
