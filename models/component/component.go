// Package component describes the component classes of diffusers and transformers
// that models consist of. Each class has a file with everything specific to it, and
// [All] lists the classes.
//
// The networks themselves are in packages transformer, textenc, vae and upscaler. This package
// describes how to find components in files and how to load and quantize them: the
// names that other programs give their tensors, how a config is inferred from tensor
// shapes, which layers are quantized, and how much computation and memory they need.
package component

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/upscaler"
	"github.com/gomflux/gomflux/vae"
)

// A Role is what a component does in a pipeline.
type Role int

const (
	Transformer Role = iota + 1
	Autoencoder
	TextEncoder
	Tokenizer
	Scheduler
	Processor
	Upscaler
)

// A Class describes a component class of diffusers or transformers, or a network of BasicSR or SeedVR2.
type Class struct {
	Name    string   // in model_index.json
	Aliases []string // other classes with the same modules
	Library string   // diffusers, transformers or, of an upscaler, basicsr or seedvr
	Role    Role
	// Folder is the folder that pipelines use for the class. It applies to files that do
	// not name one: a single file, or a folder without model_index.json.
	Folder string

	// MFlux and Original map the tensor names of mflux, and those of ComfyUI and the
	// original checkpoints, to diffusers' names. They are tried in this order.
	MFlux, Original []*layout.Table
	// Shared maps names that files of another class have too. A file has this class only if the
	// model's other files, or its base model, require it.
	Shared []*layout.Table
	// MFluxAtRoot reports that mflux saves the class's files at the top of a model's folder, beside
	// the folders of the other components.
	MFluxAtRoot bool
	// LoRA maps module names that occur only in LoRAs.
	LoRA []layout.Rule
	// LoRAUnusedLayers reports that LoRAs may have tensors for the last layers of a text
	// encoder, which are not declared because the pipeline does not use their output.
	LoRAUnusedLayers bool
	// LoRAPadded are layers of which LoRAs may change the first inputs only, because some models
	// of the class have more inputs than the one that a LoRA was trained for.
	LoRAPadded []string
	// LoRAHint recognises LoRAs for the class by the names of their tensors.
	LoRAHint *lora.Hint
	// Prefix is a prefix that transformers may put before all tensor names.
	Prefix string
	// Infer infers the values of config.json from the shapes of the tensors. Values that
	// follow from shapes go to inferred; values that shapes do not determine, but that
	// published models of such a size have, go to published.
	Infer func(s *layout.Sizes, inferred, published map[string]any)

	// Quantization lists the layers that keep more bits than the rest of a quantized
	// model. The first rule that matches a layer applies.
	Quantization []QuantizationRule

	// FLOPs returns the number of floating-point operations of one forward pass of a
	// transformer for numbers of tokens of the image, of reference images and of the text. model
	// is its module.
	FLOPs func(model any, image, references, text int) float64
	// Blocks describes the memory that the blocks of a module need. If it is nil,
	// [DefaultBlockMemory] is used.
	Blocks func(model any) BlockMemory

	// LanguageModel declares the model with its head, to write text, as NewAutoencoder does an autoencoder.
	// Whole names a published model of the class that has one.
	LanguageModel LanguageModelFunc
	Whole         string
	// Processor has the values of the class's image processor that published models differ in from those of
	// transformers, for folders without its config.
	Processor func(p *textenc.Qwen2VLImageProcessor)

	// NewAutoencoder declares an autoencoder. It calls read with the class's default
	// config, and read overrides that with the model's config and validates it.
	NewAutoencoder func(read func(Config) error) (vae.Autoencoder, error)
	// LatentKey is the key of the number of latent channels in an autoencoder's config.
	LatentKey string
	// Preview returns the published projection of an autoencoder's latents to colours,
	// nil if there is no such projection.
	Preview func(a vae.Autoencoder) *Projection
	// Tiny returns the published tiny autoencoder for an autoencoder's latents, nil if there is no such
	// one.
	Tiny func(a vae.Autoencoder) *TinyAutoencoder
	// NewUpscaler declares a network that enlarges images, as NewAutoencoder does an autoencoder.
	NewUpscaler func(read func(Config) error) (upscaler.Model, error)
	// Standalone reports that no pipeline has the class. An autoencoder can decode previews then, a
	// language model write text, and an upscaler enlarge images.
	Standalone bool

	// Tokenizer reports that a processor's folder also has the pipeline's tokenizer.
	Tokenizer bool
	// Headed reports that a text encoder is the inner model of a class that also has a
	// language model head, and that pipelines call the outer class.
	Headed bool
	// Untapped lists values of the reference's modules that have no counterpart here.
	Untapped []Untapped
}

// An Untapped describes values of the reference that have no counterpart here.
type Untapped struct {
	Names  *regexp.Regexp // the names of the values in a dump
	Reason string         // why they have no counterpart
}

// Tokenizes reports whether the class is a tokenizer or has one.
func (c *Class) Tokenizes() bool { return c.Role == Tokenizer || c.Tokenizer }

// Tables lists the layouts in which other programs name the class's tensors.
func (c *Class) Tables() []*layout.Table {
	return slices.Concat(c.MFlux, c.Original, c.Shared)
}

// bare removes the class's prefix from a tensor name.
func (c *Class) bare(name string) string { return strings.TrimPrefix(name, c.Prefix) }

// is reports whether name is the class's name or one of its aliases.
func (c *Class) is(name string) bool {
	return name == c.Name || slices.Contains(c.Aliases, name)
}

// A Component is a part of a pipeline with weights, declared by its config.
type Component struct {
	Class    *Class
	Name     string   // the root of its module names
	Dir      string   // its folder
	Model    any      // a pointer to a struct, for nn.Load
	Prefixes []string // prefixes that tensor names may have in files
	Ignore   []string // patterns of tensors in files that are not needed
	// MFlux is mflux's layout in the pipeline, which has names of several of the class; nil for the class's.
	MFlux *layout.Table
	// Dense is set if the pipeline does not quantize its weights, whatever the class says.
	Dense bool
	// Projection projects an autoencoder's latents to colours; nil if it is unknown.
	Projection *Projection
	// Random, if set, is the dtype of weights that are drawn at random; no files have them.
	Random checkpoint.Dtype
}

// tables lists the class's layouts, the pipeline's first.
func (c Component) tables() []*layout.Table {
	if c.MFlux == nil {
		return c.Class.Tables()
	}
	return append([]*layout.Table{c.MFlux}, c.Class.Tables()...)
}

// Open opens the component's checkpoint. Tensors have diffusers' names, whatever the
// layout of the file.
func (c Component) Open(fsys fs.FS) (*checkpoint.Checkpoint, error) {
	if c.Random != "" {
		return nn.RandomCheckpoint(c.Model, c.Random), nil
	}
	ck, err := checkpoint.OpenCheckpoint(fsys, c.Dir)
	if err != nil || c.Model == nil {
		return ck, err
	}
	shapes := map[string][]int{}
	for _, p := range nn.Parameters(c.Model) {
		shapes[p.Name] = p.Stored()
	}
	view, _, err := layout.View(ck, c.tables(), shapes)
	if err != nil {
		ck.Close()
		return nil, err
	}
	return view, nil
}

// Match finds the tensors of the component's parameters in its checkpoint.
func (c Component) Match(ck *checkpoint.Checkpoint) ([]nn.Found, *nn.MismatchError) {
	return nn.Match(c.Model, ck, nn.LoadOptions{Name: c.Name, Prefixes: c.Prefixes, Ignore: c.Ignore})
}

// Bare removes a prefix in c.Prefixes from a tensor name.
func (c Component) Bare(name string) string {
	for _, prefix := range c.Prefixes {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return rest
		}
	}
	return name
}

// Staged returns what of the component can be divided into stages, nil for one without.
func (c Component) Staged() nn.Staged {
	if s, ok := c.Model.(nn.Staged); ok {
		return s
	}
	return textenc.Staged(c.Model)
}

// Unload frees the component's parameters.
func (c Component) Unload() {
	nn.Free(c.Model)
	mlx.ClearCache()
}

// ConfigFile is the name of the config file of a component with weights.
const ConfigFile = "config.json"

// A Config is the config of a network, which holds the defaults of its class at first.
type Config interface{ Validate() error }

// A Folder is a model folder whose components are being declared.
type Folder struct {
	FS     fs.FS
	Dtype  mlx.Dtype     // the dtype of computations
	Points *hooks.Points // the tap points of the pipeline
	// Absent has the folders of components that do not exist and may not be needed.
	Absent map[string]bool
	Random bool // language models have random weights, whatever files there are
}

// Config reads a component's config.json into c, which holds the defaults, and
// validates it. The config of an absent component keeps its defaults.
func (f *Folder) Config(dir string, c Config) error {
	return f.ConfigAt(path.Join(dir, ConfigFile), c)
}

// ConfigAt is Config for a config file of any name.
func (f *Folder) ConfigAt(name string, c Config) error {
	if f.Absent[path.Dir(name)] {
		return nil
	}
	if err := checkpoint.ReadJSON(f.FS, name, c); err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return fmt.Errorf("%w: %s: %w", errs.ErrUnsupported, checkpoint.FullName(f.FS, name), err)
	}
	return nil
}

// ClassName returns the name of the class in the config of a folder, "" without one.
func ClassName(fsys fs.FS, dir string) (string, error) {
	var config struct {
		Class         string   `json:"_class_name"`
		Architectures []string `json:"architectures"` // as transformers writes it
	}
	err := checkpoint.ReadJSON(fsys, path.Join(dir, ConfigFile), &config)
	return cmp.Or(append([]string{config.Class}, config.Architectures...)...), err
}

// classIn returns the class with a role that the config in a folder names.
func (f *Folder) classIn(dir string, role Role) (*Class, error) {
	name, err := ClassName(f.FS, dir)
	if err != nil {
		return nil, err
	}
	class := Find(name)
	if class == nil || class.Role != role {
		return nil, fmt.Errorf("%w: %s: class %q: expected one of %s", errs.ErrUnsupported,
			checkpoint.FullName(f.FS, path.Join(dir, ConfigFile)), name, strings.Join(Names(role), ", "))
	}
	return class, nil
}

// SameSize returns an error if two sizes that must be equal differ.
func SameSize(what string, size int, other string, otherSize int) error {
	if size != otherSize {
		return fmt.Errorf("%s is %d, but %s is %d: the components belong to different models", what, size, other, otherSize)
	}
	return nil
}

// Transformers and Autoencoders are the folders of a pipeline's transformer and
// autoencoder.
const (
	Transformers = "transformer"
	Autoencoders = "vae"
)
