// Package family describes the families of diffusers' pipelines, one file for each,
// with everything that is particular to it: [All] lists them. What all pipelines do
// alike is in package models, and what belongs to a single component is in package
// component.
package family

import (
	"image"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// A Family is pipelines that have much in common, and what is published of them.
type Family struct {
	Name      string // as people call it
	Pipelines []*Class
	Models    []Model // that are published
	Help      Help
}

// Help are the parts of help texts and messages that are about a family.
type Help struct {
	// Guidance says, after a comma or a semicolon, how the family counts guidance.
	Guidance string
	// Editing describes in a paragraph which pictures the family edits; "" if it does
	// not.
	Editing string
	// Editors are the models that edit, as people call them.
	Editors string
}

// A Class is a pipeline class of diffusers.
type Class struct {
	Name       string // in model_index.json
	Components []Member
	New        func() Pipeline
	// NeedsNegativePrompt reports that diffusers' pipeline uses guidance only where a
	// negative prompt is given.
	NeedsNegativePrompt bool
}

// A Member is a component that a pipeline class names in model_index.json.
type Member struct {
	Folder string
	Class  *component.Class
	As     string        // the name of the class there, if it is an alias
	MFlux  *layout.Table // how mflux saves it, if not as the first of the class's tables
}

// ClassName is the name of the member's class in model_index.json.
func (m Member) ClassName() string {
	if m.As != "" {
		return m.As
	}
	return m.Class.Name
}

// Member returns the member that has a folder, and reports whether there is one.
func (c *Class) Member(folder string) (Member, bool) {
	for _, m := range c.Components {
		if m.Folder == folder {
			return m, true
		}
	}
	return Member{}, false
}

// A Model is a published model: its names, where it is, what it may be used for, the
// settings that it is meant to be run with, and what tells it from others.
type Model struct {
	Name    string
	Aliases []string
	Repo    string
	// Licence is an SPDX identifier, or the licence's own name where it has none.
	Licence    string
	LicenceURL string
	// Gated models are fetched with a token of somebody who has accepted their
	// conditions at the repository's page.
	Gated    bool
	Defaults Defaults

	Class     string         // of its pipeline
	Scheduler map[string]any // its scheduler_config.json
	Processor map[string]any // its preprocessor_config.json, if it has one
	// Index and Transformer are what model_index.json and the transformer's
	// config.json have that other models of the class have not.
	Index, Transformer map[string]any
}

// Defaults are the settings a model is meant to be run with.
type Defaults struct {
	Steps             int
	Guidance          float64
	NegativePrompt    string
	Height, Width     int
	MaxSequenceLength int
}

// A Pipeline is what one pipeline class has of its own. Its methods run on the MLX
// thread.
type Pipeline interface {
	// Configure reads the configs of its components and declares them: all but
	// scheduler, tokenizers and vae. The other methods count on it.
	Configure(f *component.Folder) ([]component.Component, error)
	Defaults() Defaults
	// Texts are what a prompt goes through, with the pictures that it speaks about.
	Texts(references []image.Image) []Text
	// LatentShape is that of one picture's latents in diffusers, [C, h, w] for a
	// latent size of h×w.
	LatentShape(h, w int) []int
	// Multiple is what the latents' sides must be a multiple of.
	Multiple() int
	// Fits returns an error if a latent size of h×w or a prompt of so many tokens is
	// too large.
	Fits(h, w, tokens int) error
	// Guidance reports whether a scale asks for a prediction for the negative prompt
	// too. A scale that the model cannot take is an error.
	Guidance(scale float64) (negative bool, err error)
	// Sigmas is the schedule before the scheduler's shift, and Mu the shift of a
	// picture of so many tokens.
	Sigmas(steps int) []float32
	Mu(c *scheduler.FlowMatchEulerConfig, tokens, steps int) float64
	// Predictor prepares to predict for a latent size of h×w. What it runs at every
	// step goes through compile.
	Predictor(c Conditions, h, w int, compile Compiler) (Predictor, error)
	// Guide joins the predictions for prompt and negative prompt.
	Guide(positive, negative *mlx.Array, scale float64) *mlx.Array
}

// A Packer is a pipeline whose transformer sees latents in another form, in which
// mflux draws the noise, so that the same seed gives the same picture.
type Packer interface {
	// Packed is the shape of that form of latents of h×w, and Unpack takes it to
	// theirs.
	Packed(h, w int) []int
	Unpack(x *mlx.Array, h, w int) *mlx.Array
}

// An Editor is a pipeline that can be shown pictures.
type Editor interface {
	// CheckReferences returns an error for a number of pictures that the model cannot
	// be shown, and CheckReference one for a picture of such a size.
	CheckReferences(n int) error
	CheckReference(size image.Point) error
	// Reference is a picture as the autoencoder gets it, of the size that
	// ReferenceSize says, with sides of a multiple.
	Reference(img *image.RGBA, multiple int) *image.RGBA
	ReferenceSize(size image.Point, multiple int) image.Point
	// EditSize is the size of what is made of pictures of some sizes.
	EditSize(sizes []image.Point, multiple int) image.Point
	// ReferenceName is what the model knows pictures by, before their numbers.
	ReferenceName() string
}

// A Looker is a pipeline whose text encoder is shown pictures.
type Looker interface {
	// Vision is its vision encoder, and how many tokens that sees of pictures.
	Vision(references []image.Image) (vision component.Component, tokens int)
}

// A Cacher is a pipeline that may keep what one step computed for the next ones.
type Cacher interface {
	// CacheSize is how many elements it keeps of so many tokens of references.
	CacheSize(tokens int) int64
}

// Conditions are what a picture is predicted from.
type Conditions struct {
	Text       []*mlx.Array // what each of the pipeline's texts makes of the prompt
	References []*mlx.Array // latents [C, h, w] of pictures
	Guidance   float64
	// Keep keeps arrays of one step for later ones.
	Keep func(...*mlx.Array)
}

// A Predictor predicts from latents [B, C, h, w] the velocity, float32 in their
// shape, at a timestep of the schedule.
type Predictor func(latents *mlx.Array, timestep float32) *mlx.Array

// A Compiler is mlx.Compile, or returns the function as it is.
type Compiler func(func([]*mlx.Array) []*mlx.Array) func([]*mlx.Array) []*mlx.Array

// A Text is a way that a prompt takes to the transformer: through a tokenizer and
// an encoder, which are named by their folders.
type Text struct {
	Tokenizer, Encoder string
	// What they make is a tap under the prompt's name: prompt.input_ids and
	// prompt.embeds.
	IDs, Embeds string
	Shape       []int // of the embeds in diffusers; -1 is any size
	// Limit is how many ids there are at most, 0 for as many as a request says,
	// beside those at the beginning of the model's template that do not count. What
	// Limit cuts off is no error, since another text encoder sees all of the prompt.
	Limit     int
	Uncounted int
	// CutsRows reports that the limit is on the rows of the embeds, of which the
	// encoder makes more.
	CutsRows bool
	// Whole reports that diffusers' pipeline cuts nothing off, whatever the limit.
	Whole bool
	// Tokens are the ids of a prompt, with all that the model wants around them, cut
	// to a limit as diffusers' pipeline does it.
	Tokens func(t *tokenizer.Tokenizer, prompt string, limit int) (Tokens, error)
	Encode func(ids []int32) *mlx.Array
	// Masked is Encode instead where padding is masked and must be told, and so the
	// tokenizer is needed even with ids that are given.
	Masked func(ids []int32, valid int) *mlx.Array
	// Looks reports that the encoder is shown the reference pictures too.
	Looks bool
}

// Tokens are the ids of a prompt.
type Tokens struct {
	IDs []int32
	// Total is how many there would be without a limit, Text.Uncounted included.
	Total int
	// Lost is the part of the prompt that is cut off.
	Lost string
}
