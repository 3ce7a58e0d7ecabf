// Package component describes the classes of diffusers and transformers that
// models are made of: one file for each class, with everything that is particular
// to it. [All] lists them.
//
// What a class computes is in packages transformer, textenc and vae. Here is how
// such a component is found in files, loaded and judged: what other programs call
// its tensors, what their shapes say of its config, which of its layers are
// quantized, and how much work and memory it takes.
package component

import (
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
)

// A Class describes a component class of diffusers or transformers.
type Class struct {
	Name    string   // in model_index.json
	Aliases []string // other classes with the same modules
	Library string   // diffusers or transformers
	Role    Role
	// Folder is where pipelines have a component of the class, for files that do not
	// say: a single file, or a folder without model_index.json.
	Folder string

	// MFlux and Original are what mflux calls the tensors, and what ComfyUI and the
	// models' makers do. Files are compared with the former first, and in this order.
	MFlux, Original []*layout.Table
	// LoRA are names that only LoRAs have.
	LoRA []layout.Rule
	// LoRABeyond reports that LoRAs may change layers that are not declared, since
	// nothing that comes behind them is used.
	LoRABeyond bool
	// LoRAHint tells by the names of its tensors that a LoRA is for the class.
	LoRAHint *lora.Hint
	// Prefix is what transformers may put before the names of tensors.
	Prefix string
	// Infer finds out by the shapes of tensors what config.json would say: values
	// that follow from them, and those that published models of such sizes have.
	Infer func(s *layout.Sizes, told, published map[string]any)

	// Quantization are the layers that keep more bits than a model is quantized to.
	// The first rule that fits a layer counts.
	Quantization []QuantizationRule

	// FLOPs counts the operations of one evaluation of a transformer, of which model
	// is the module, for so many tokens of pictures and of text.
	FLOPs func(model any, image, text int) float64
	// Blocks describes the memory that the blocks of a module take. Nil is for what
	// [DefaultStack] finds.
	Blocks func(model any) Stack

	// NewAutoencoder declares an autoencoder. read reads the model's config over the
	// class's and validates it.
	NewAutoencoder func(read func(vae.Config) error) (vae.Autoencoder, error)
	// LatentKey is the key of an autoencoder's config with the channels of its latents.
	LatentKey string
	// Preview returns the published projection of an autoencoder's latents to
	// colours, nil for none.
	Preview func(a vae.Autoencoder) *Projection

	// Headed reports that a text encoder is the model inside a class that has a
	// language model's head too, and that pipelines call the outer one.
	Headed bool
	// Untapped are values of the reference's modules that have no counterpart here.
	Untapped []Untapped
}

// An Untapped tells values by their names in a recorded run, and why they have no
// counterpart.
type Untapped struct {
	Names  *regexp.Regexp
	Reason string
}

// Tables lists what other programs call the class's tensors.
func (c *Class) Tables() []*layout.Table {
	return slices.Concat(c.MFlux, c.Original)
}

// bare is a tensor's name without what transformers may put before it.
func (c *Class) bare(name string) string { return strings.TrimPrefix(name, c.Prefix) }

// is reports whether the class is known by a name.
func (c *Class) is(name string) bool {
	return name == c.Name || slices.Contains(c.Aliases, name)
}

// A Component is a part of a pipeline with weights, declared by its config.
type Component struct {
	Class    *Class
	Name     string   // the root of its modules' names
	Dir      string   // its folder
	Model    any      // a pointer to a struct, for nn.Load
	Prefixes []string // that names in files may have
	Ignore   []string // patterns of tensors that files may have besides
	// Projection is that of an autoencoder's latents, nil for one that is not known.
	Projection *Projection
}

// Open opens the component's checkpoint under diffusers' names, whatever its
// tensors are called.
func (c Component) Open(fsys fs.FS) (*checkpoint.Checkpoint, error) {
	ck, err := checkpoint.OpenCheckpoint(fsys, c.Dir)
	if err != nil || c.Model == nil {
		return ck, err
	}
	shapes := map[string][]int{}
	for _, p := range nn.Parameters(c.Model) {
		shapes[p.Name] = p.Stored()
	}
	view, _, err := layout.View(ck, c.Class.Tables(), shapes)
	if err != nil {
		ck.Close()
		return nil, err
	}
	return view, nil
}

// Match finds the component's tensors in its checkpoint.
func (c Component) Match(ck *checkpoint.Checkpoint) ([]nn.Found, *nn.MismatchError) {
	return nn.Match(c.Model, ck, nn.LoadOptions{Name: c.Name, Prefixes: c.Prefixes, Ignore: c.Ignore})
}

// Bare is the name of a tensor of the component without what its checkpoint may put
// before all names.
func (c Component) Bare(name string) string {
	for _, prefix := range c.Prefixes {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return rest
		}
	}
	return name
}

// Unload frees the component's parameters.
func (c Component) Unload() {
	for _, p := range nn.Parameters(c.Model) {
		p.Free()
	}
	mlx.ClearCache()
}

// ConfigFile is the config of a component that is a model.
const ConfigFile = "config.json"

// A Folder is a model folder whose components are being declared.
type Folder struct {
	FS     fs.FS
	Dtype  mlx.Dtype     // that is computed in
	Points *hooks.Points // of the pipeline's taps
	// Absent are the folders of components that are not there, and may not be needed.
	Absent map[string]bool
}

// Config reads the config of a component over its defaults, which stay where the
// component is absent.
func (f *Folder) Config(dir string, c interface{ Validate() error }) error {
	return f.ConfigAt(path.Join(dir, ConfigFile), c)
}

// ConfigAt is Config for a config of any name.
func (f *Folder) ConfigAt(name string, c interface{ Validate() error }) error {
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

// SameSize compares a size of two components that must be the same.
func SameSize(what string, size int, other string, otherSize int) error {
	if size != otherSize {
		return fmt.Errorf("%s is %d and %s %d: they belong to different models", what, size, other, otherSize)
	}
	return nil
}

// FitsTransformer compares the size of what a text encoder, by its folder, makes
// with what the transformer takes, if both are there.
func (f *Folder) FitsTransformer(encoder, what string, size int, key string, transformerSize int) error {
	if f.Absent[encoder] || f.Absent[Transformers] {
		return nil
	}
	return SameSize(what, size, "the transformer's "+key, transformerSize)
}

// Transformers and Autoencoders are the folders that pipelines have those in.
const (
	Transformers = "transformer"
	Autoencoders = "vae"
)
