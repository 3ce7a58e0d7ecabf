// Package family describes the families of diffusers' pipelines, one file for each, with
// everything that is specific to it. [All] lists them. Package models has what all pipelines
// share, and package component what is specific to a single component.
package family

import (
	"image"
	"math"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/stepcache"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/textenc/tokenizer"
	"github.com/gomflux/gomflux/vae"
)

// A Family is a group of pipeline classes that have much in common.
type Family struct {
	Name      string // in help texts and messages
	Pipelines []*Class
	Models    []Model // published models
	Help      Help
	Rewriter  *Rewriter // nil: gomflux's own prompts
}

// Help has the parts of help texts and messages that are about a family.
type Help struct {
	// Guidance describes the family's guidance scale, as a part of a sentence.
	Guidance string
	// Editing is a paragraph about the reference images of the family's edit models; "" if there
	// are no such models.
	Editing string
	// Editors names the family's edit models; "" if there are no such models.
	Editors string
}

// A Class is a pipeline class of diffusers.
type Class struct {
	Name string // in model_index.json
	// Also lists the classes with the same components for other inputs, such as an image with a mask.
	Also       []string
	Components []Member
	// Configure reads the configs of a pipeline's components, and declares the networks of those
	// with weights, except the vae. After an error, which Configs keeps, it returns nothing.
	Configure func(f *Configs) (Pipeline, Networks)
	// Autoencoder changes a declared autoencoder, if diffusers' pipeline replaces values of its config; it
	// may be nil.
	Autoencoder func(a vae.Autoencoder)
	// References is the largest number of reference images, 0 if its pipelines take none.
	References int
	// Layers reports that its pipelines are [Layerer], whose autoencoder has an alpha channel.
	Layers bool
	// NeedsNegativePrompt reports that diffusers' pipeline applies guidance only if a negative
	// prompt is given.
	NeedsNegativePrompt bool
	// Guidance is how the guidance scale counts, "" for [picture.CFGScale].
	Guidance picture.GuidanceUnit
	// TrueCFG reports that diffusers' pipeline has true_cfg_scale in addition to a guidance scale.
	TrueCFG bool
	// BoundsCFG reports that diffusers' pipeline has cfg_normalization and cfg_truncation.
	BoundsCFG bool
}

// A Member is a component of a pipeline class, as in model_index.json.
type Member struct {
	Folder string
	Class  *component.Class
	Alias  string        // name of the class in model_index.json, if not Class.Name
	MFlux  *layout.Table // names in mflux's folders, if not the first of the class's tables
	// Dense is set for weights that are not quantized, with which the image would change too much.
	Dense bool
	// MFluxFolder is the folder of its files in those of mflux, if it is another: one of its own, or that of another
	// component.
	MFluxFolder string
}

// ClassName returns the name of the member's class in model_index.json.
func (m Member) ClassName() string {
	if m.Alias != "" {
		return m.Alias
	}
	return m.Class.Name
}

// Member returns the member in a folder, and reports whether there is one.
func (c *Class) Member(folder string) (Member, bool) {
	for _, m := range c.Components {
		if m.Folder == folder {
			return m, true
		}
	}
	return Member{}, false
}

// Tokenizers lists the folders of the pipeline's tokenizers.
func (c *Class) Tokenizers() (folders []string) {
	for _, m := range c.Components {
		if m.Class.Tokenizes() {
			folders = append(folders, m.Folder)
		}
	}
	return folders
}

// A Model is a published model.
type Model struct {
	Name    string
	Aliases []string
	Repo    string // owner/name on the Hugging Face hub
	Licence Licence
	// Gated models are downloaded with a token of a user who has accepted their conditions on
	// the repository's page.
	Gated    bool
	Defaults Defaults

	Class     string         // of its pipeline
	Scheduler map[string]any // its scheduler_config.json
	Processor map[string]any // its preprocessor_config.json, if it has one
	// Index has the keys of model_index.json that distinguish the model from others of its class.
	Index map[string]any
	// Transformer has the keys of the transformer's config.json that do so.
	Transformer map[string]any
	// Configs has the other keys of config.json in the folders of components with weights that
	// determine a component's size and are not the defaults of its class.
	Configs map[string]map[string]any
	// FileNames identify single files of a model whose tensors have the shapes of another
	// model's: only a file whose name contains one of them, in any case, is of this model.
	FileNames []string
}

// Defaults are a model's default settings.
type Defaults struct {
	Steps             int
	Guidance          float64 // guidance scale
	NegativePrompt    string
	Height, Width     int // in pixels
	MaxSequenceLength int // in tokens
}

// anyNumber is the value of [Class.References] of a class without a limit.
const anyNumber = math.MaxInt

// A Pipeline has what is specific to a pipeline class and depends on the configs of a model, which
// [Class.Configure] has read. Its methods run on the MLX thread, except Defaults, Multiple, Fits and those
// of Editor.
type Pipeline interface {
	Defaults() Defaults
	// PromptEncodings returns the text encoders that a prompt goes through, with the reference
	// images of an edit.
	PromptEncodings(references []image.Image) []PromptEncoding
	// LatentShape returns the shape [C, h, w] of an image's latents in diffusers.
	LatentShape(h, w int) []int
	// Multiple returns the number that h and w of latents must be a multiple of.
	Multiple() int
	// Fits returns an error if latents of h×w or a prompt of so many tokens are too large.
	Fits(h, w, tokens int) error
	// Guidance reports whether guidance needs a prediction for the negative prompt. A scale that the
	// model cannot take is an error.
	Guidance(g Guidance) (negative bool, err error)
	// Sigmas returns the noise schedule before the scheduler shifts it.
	Sigmas(steps int) []float32
	// Mu returns the shift for an image of so many tokens, for schedulers with dynamic
	// shifting.
	Mu(shift scheduler.DynamicShift, tokens, steps int) float64
	// MaskLatents reduces a mask, whose pixels are 0 or 255, to the size of latents of h×w: how much
	// of each position is inpainted, from 0 to 1.
	MaskLatents(mask *image.Gray, h, w int) []float32
	// Predictor returns a predictor for latents of h×w. It compiles what runs at every step.
	Predictor(c Conditioning, h, w int, compile Compiler) (Predictor, error)
	// Guide combines the predictions for prompt and negative prompt.
	Guide(positive, negative *mlx.Array, g Guidance) *mlx.Array
}

// Guidance is how predictions follow the prompt.
type Guidance struct {
	Scale   float64 // guidance scale, see [Class.Guidance]
	TrueCFG float64 // true_cfg_scale, see [Class.TrueCFG]; 1 or less disables it
	// Normalization is cfg_normalization: the largest norm of a guided prediction, relative to that of
	// the prediction for the prompt. 0 stands for no limit.
	Normalization float64
	// Truncation is cfg_truncation: the time, from 0 for noise to 1 for an image, after which predictions
	// are not guided. 0 stands for never.
	Truncation float64
}

// Guides reports whether guidance is applied at a timestep from 1000 to 0.
func (g Guidance) Guides(timestep float32) bool {
	return g.Truncation == 0 || float64((1000-timestep)/1000) <= g.Truncation
}

// A NoisePacker is a Pipeline whose transformer takes packed latents. mflux draws the noise in
// that form, and gomflux does so too, so that the same seed generates the same image.
type NoisePacker interface {
	// PackedShape returns the packed shape of latents of h×w.
	PackedShape(h, w int) []int
	// Unpack returns packed latents in the shape of LatentShape.
	Unpack(x *mlx.Array, h, w int) *mlx.Array
}

// An UnpackedDrawer is a NoisePacker of whose models mflux draws the noise in the shape of LatentShape.
type UnpackedDrawer interface{ DrawsUnpacked() }

// An Editor is a Pipeline that takes reference images. Each is encoded by the autoencoder, and its
// latents are tokens in the transformer's sequence, as many as those of an image of ReferenceSize.
type Editor interface {
	// CheckReferences returns an error if the model cannot take n reference images.
	CheckReferences(n int) error
	// CheckReference returns an error if it cannot take an image of some size.
	CheckReference(size image.Point) error
	// ReferenceSize returns the size in which an image is encoded, with sides of a multiple. An
	// image with transparent pixels keeps them if the autoencoder has an alpha channel, for a text
	// encoder that sees it too.
	ReferenceSize(size image.Point, multiple int) image.Point
	// EditSize returns the default size of an edit of images of some sizes.
	EditSize(sizes []image.Point, multiple int) image.Point
	// ReferenceName returns the word that stands before an image's number in prompts.
	ReferenceName() string
}

// A Cropper is an Editor that resizes reference images to another size than ReferenceSize, and crops
// them at the center to that.
type Cropper interface {
	// Uncropped returns the size of an image before it is cropped.
	Uncropped(size image.Point) image.Point
}

// A ReferenceCounter is an Editor that prepares reference images in another way if there are more of them.
type ReferenceCounter interface {
	// ForReferences returns the methods for n reference images. If an image in the size of Uncropped is smaller than
	// ReferenceSize, its border is reflected.
	ForReferences(n int) Editor
}

// A ReferenceReplacer is an Editor of one image: the image to inpaint, or in its place another one that
// is given besides it.
type ReferenceReplacer interface{ ReplacesInpainted() }

// A ReferencePlacer is an Editor whose prompt has a place for each token of a reference image, so that an
// image must be encoded in ReferenceSize, also the one to inpaint.
type ReferencePlacer interface{ PlacesReferences() }

// A VisionEncoder is an Editor whose text encoder sees the reference images.
type VisionEncoder interface {
	// Vision returns the vision encoder, and the number of its tokens for the images.
	Vision(references []image.Image) (vision component.Component, tokens int)
}

// MaxLayers is the largest number of layers of a run.
const MaxLayers = 100

// A Layerer is an Editor that splits its reference image, in the size of the run, into layers. The latents
// of a run are those of the whole image, which is not decoded, and of the layers, one below the other.
// Conditioning.Images is their number.
type Layerer interface {
	// DefaultLayers returns the default number of layers.
	DefaultLayers() int
}

// A Filler is a Pipeline whose transformer sees the mask and the rest of the image, so that it
// generates nothing without them. The latents outside the mask are not replaced after each step.
type Filler interface {
	// FillMask returns a mask [1, 1, H, W] of 0 and 1 as the transformer's input.
	FillMask(mask *mlx.Array) *mlx.Array
}

// A KVCached is an Editor that may keep a KV cache of the reference images between steps, and of the
// prompt.
type KVCached interface {
	// CacheSize returns the number of elements in the cache for so many tokens of both, 0 without one.
	CacheSize(references, text int) int64
	// ConditionsOnce reports whether reference images and prompt are computed once for all images of
	// a batch, since they do not depend on the latents.
	ConditionsOnce() bool
}

// Conditioning is the input of a prediction besides latents and timestep.
type Conditioning struct {
	Text       []*mlx.Array // output of each of the pipeline's PromptEncodings
	IDs        [][]int32    // the ids that they got; nil where PromptEncoding.NeedsIDs is not set
	References []*mlx.Array // latents [C, h, w] of the reference images
	Images     int          // number of images in the latents, one below the other: 1 but for a Layerer
	Guidance   float64      // guidance scale
	Fill       *Fill        // for a Filler
	// StepCache leaves out parts of the forward pass in some steps, nil for none.
	StepCache *stepcache.Cache
	// Sequence is the group over which the transformer's tokens are split, nil for one process. Every member
	// has the whole prediction.
	Sequence *mlx.Group
	// Times has what depends on the timestep alone, nil while a hook looks at the modules, since it
	// sees those of every step.
	Times *TimeTable
	// Keep keeps arrays that are made in a step until the last step is done.
	Keep func(...*mlx.Array)
}

// once returns what compute returns, kept until the last step is done. It is for what all steps have in
// common, if no hook looks at the modules: hooks see them at every step, as in diffusers.
func (c Conditioning) once(compute func() *mlx.Array) *mlx.Array {
	x := mlx.Scope(compute)
	mlx.Eval(x)
	c.Keep(x)
	return x
}

// A Fill is the masked image that a [Filler] completes, in the pipeline's dtype.
type Fill struct {
	Latents *mlx.Array // [C, h, w] of the image, which is grey inside the mask
	Mask    *mlx.Array // result of FillMask
}

// A Predictor predicts the velocity of latents [B, C, h, w], float32 in their shape, at the
// first timestep of an interval of the noise schedule.
type Predictor func(latents *mlx.Array, at scheduler.Interval) *mlx.Array

// A Compiler is mlx.Compile, or returns the function as it is.
type Compiler func(func([]*mlx.Array) []*mlx.Array) func([]*mlx.Array) []*mlx.Array

// A PromptEncoding is the way of a prompt through a tokenizer and a text encoder.
type PromptEncoding struct {
	Tokenizer string // folder
	Encoder   string // folder
	IDs       string // tap of the ids, after "prompt."
	Embeds    string // tap of the text encoder's output, after "prompt."
	Shape     []int  // of the output in diffusers; -1 is any size
	// Limit is the largest number of ids, 0 for the request's. A prompt beyond it is no error,
	// since another text encoder sees all of it.
	Limit int
	// PrefixTokens is the number of ids at the beginning of the model's template that do not
	// count towards the limit.
	PrefixTokens int
	// LimitsRows reports that the limit applies to the rows of the output, of which the text
	// encoder computes more.
	LimitsRows bool
	// NeverCut reports that diffusers' pipeline ignores the limit.
	NeverCut bool
	// Tokenize returns the ids of a prompt in the model's template, truncated to a limit as
	// diffusers' pipeline does.
	Tokenize func(t *tokenizer.Tokenizer, prompt string, limit int) (Tokens, error)
	// Padded reports that Tokenize pads the ids to the limit.
	Padded bool
	// Images adds the ids of the reference images to random ids of a template and a prompt; nil
	// if the text encoder does not see them.
	Images func(ids []int32) ([]int32, error)
	Encode func(ids []int32) *mlx.Array
	// EncodeMasked replaces Encode for text encoders that mask padding: only the ids from first to end,
	// exclusive, are not padding. It needs the tokenizer even if the ids are overridden.
	EncodeMasked func(ids []int32, first, end int) *mlx.Array
	// EncodeAfter replaces Encode for a text encoder that takes the output of an earlier encoding too, which
	// After describes.
	EncodeAfter func(ids []int32, output *mlx.Array) *mlx.Array
	After       *PromptEncoding
	// LeastRows is the least number of rows of the output, which has more than ids for short prompts.
	LeastRows int
	// NeedsIDs reports that the predictor needs the ids of the prompt besides the output: they are
	// determined even if the output is overridden.
	NeedsIDs bool
	// SeesReferences reports that the text encoder sees the reference images too.
	SeesReferences bool
}

// Tokens are the tokens of a prompt.
type Tokens struct {
	IDs   []int32 // nil if the embeddings are in a cache
	Count int     // number of IDs, also if they are nil
	Total int     // number of ids without a limit, including PromptEncoding.PrefixTokens
	Lost  string  // end of the prompt that is cut off
}
