package gomflux

import (
	"cmp"
	"image"
	"math/rand/v2"
	"runtime/debug"
	"slices"

	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/picture"
)

// A Model is a loaded model. Its methods may be called from several goroutines
// and follow one another; those that are called from a callback of Generate
// run at once.
type Model struct {
	// VAE is the model's autoencoder, whose methods are the model's too. It is
	// there until the model is closed.
	VAE
	pipeline *models.Pipeline
	source   *Source
	changes  Settings // how the weights were changed, and nothing else
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
func (m *Model) Defaults() Defaults { return Defaults(m.pipeline.Defaults) }

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
	// Guidance is how closely the prompt is followed, as the model's family counts
	// it; nil is the model's default. For most families it is the scale of
	// classifier-free guidance; the pages of docs/models say at which value it is off,
	// and which models have none. What a model cannot take is an [ErrRequest].
	Guidance *float64
	// Seed chooses the initial noise; nil is a random one.
	Seed *uint64
	// MaxSequenceLength is how many tokens the prompt may have, with those of
	// the model's template.
	MaxSequenceLength int
	// RefuseLongPrompts makes a prompt of more tokens an error. Else its end is cut
	// off, as diffusers does it, and Result.Cuts says what is lost.
	RefuseLongPrompts bool
	// Scheduler makes the steps; "" stands for the model's own.
	Scheduler Scheduler
	// RNG draws the noise of a seed; "" stands for MLXNoise.
	RNG RNG
	// Image, if set, is the picture to start from. It is resized to Height and
	// Width, which are its own where they are 0.
	Image image.Image
	// ImageStrength is how much of Image is kept, below 1: the part of the
	// steps that it takes the place of, as in mflux. diffusers' strength is
	// the rest, 1 - ImageStrength. 0 stands for 0.4.
	ImageStrength float64
	// References, if set, are pictures for a model that edits. The prompt can
	// speak of them as $1, $2 and so on, which becomes what the model knows them
	// by, such as image 1 or Picture 1. Without Height and Width the model chooses
	// a size by theirs.
	References []image.Image
	// Latents, if set, are the initial noise, instead of what Seed gives.
	Latents Latents

	// Progress is called on the caller's goroutine.
	Progress func(Progress)
	// OnCut is called on the caller's goroutine, before anything runs, for every part
	// of a prompt that is cut off.
	OnCut func(Cut)
	// OnStep is called on the caller's goroutine after every step. It may use
	// the model, to decode the latents or show them. Its error ends the run
	// and is returned.
	OnStep func(Step) error
	// Hook sees every module's output.
	Hook Hook
	// Values, if set, are values of the run that are not to be computed.
	Values Values
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
		MaxSequenceLength: s.MaxSequenceLength, Scheduler: Scheduler(s.Scheduler), RNG: RNG(s.RNG), ImageStrength: s.ImageStrength,
	}
}

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
		Version: picture.SettingsVersion, Generator: "gomflux " + Version(), Model: catalog.TildePath(m.source.Name()), Revision: m.source.Revision(), BaseModel: catalog.TildePath(m.source.BaseModel()), Class: m.Class(),
		Prompt: r.Prompt, NegativePrompt: r.NegativePrompt, Seed: r.Seed, Steps: r.Steps, Guidance: r.Guidance,
		Height: r.Height, Width: r.Width, MaxSequenceLength: r.MaxSequenceLength, Scheduler: r.Scheduler,
		Dtype: string(m.Dtype()), Device: string(m.Device()),
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

// UsesNegativePrompt reports whether Options.NegativePrompt counts: whether the
// model has classifier-free guidance, and Options.Guidance turns it on.
func (m *Model) UsesNegativePrompt(o Options) bool {
	return m.pipeline.UsesNegativePrompt(request(m.pipeline, o))
}

// Check returns the error that Generate would return for what the model cannot do of
// the options, without running anything.
func (m *Model) Check(o Options) error {
	return public(m.pipeline.Check(request(m.pipeline, o)))
}

// request fills in what the options leave open.
func request(p *models.Pipeline, o Options) models.Request {
	d := p.Defaults
	r := models.Request{
		Prompt: o.Prompt, NegativePrompt: cmp.Or(o.NegativePrompt, d.NegativePrompt),
		Height: o.Height, Width: o.Width,
		Steps: cmp.Or(o.Steps, d.Steps), Guidance: d.Guidance,
		MaxSequenceLength: cmp.Or(o.MaxSequenceLength, d.MaxSequenceLength),
		RefuseLongPrompts: o.RefuseLongPrompts,
		Scheduler:         string(o.Scheduler), RNG: string(o.RNG), Image: o.Image, ImageStrength: cmp.Or(o.ImageStrength, 0.4),
		References: o.References, Latents: models.Latents(o.Latents), Hook: o.Hook.internal(), Given: givenOf(o.Values),
		Progress: onCaller(o.Progress), OnStep: onStep(o.OnStep),
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
	return r
}
