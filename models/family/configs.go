package family

import (
	"fmt"
	"path"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/vae"
)

// Networks are the networks of a pipeline, pointers to structs for nn.Load, by their folders.
type Networks map[string]any

// Configs reads the configs in a model folder. After the first error its methods do nothing.
type Configs struct {
	*component.Folder
	err      error
	unfilled map[string]string // see Unfilled
}

// Failed reports whether there was an error.
func (f *Configs) Failed() bool { return f.err != nil }

// Read reads a component's config.json into c, which holds the defaults, and validates it. The
// config of an absent component keeps its defaults.
func (f *Configs) Read(dir string, c interface{ Validate() error }) {
	if f.err == nil {
		f.err = f.Config(dir, c)
	}
}

// Unfilled treats a component as absent, because a new family lacks the code for it. The place of that
// code is for the error of a run that needs the component.
func (f *Configs) Unfilled(dir, where string) {
	if f.Absent == nil {
		f.Absent = map[string]bool{}
	}
	if f.unfilled == nil {
		f.unfilled = map[string]string{}
	}
	f.Absent[dir], f.unfilled[dir] = true, where
}

// Index reads the pipeline's options in model_index.json into a struct, which holds their defaults.
// Small models have options there that are constants, or arguments of a call, in diffusers.
func (f *Configs) Index(options any) {
	if f.err == nil && index.Exists(f.FS) { // see models.LoadOptions.Partial
		f.err = checkpoint.ReadJSON(f.FS, index.Name(f.FS), options)
	}
}

// Check refuses a model for an error in one of its configs, unless the error is nil.
func (f *Configs) Check(file string, err error) {
	if f.err == nil && err != nil {
		f.err = fmt.Errorf("%w: %s: %w", errs.ErrUnsupported, checkpoint.FullName(f.FS, file), err)
	}
}

// CheckIndex is Check for the pipeline's options.
func (f *Configs) CheckIndex(err error) { f.Check(index.Name(f.FS), err) }

// CheckTransformer is Check for the transformer's config.
func (f *Configs) CheckTransformer(err error) {
	f.Check(path.Join(component.Transformers, component.ConfigFile), err)
}

// autoencoder declares the autoencoder, for a pipeline whose other networks depend on it.
func (f *Configs) autoencoder() (m vae.Autoencoder) {
	if f.err == nil {
		m, _, f.err = component.DeclareAutoencoder(f.Folder, component.Autoencoders)
	}
	return m
}

// Fits checks that the output size of the text encoder in a folder is the input size of the
// transformer, unless one of them is absent.
func (f *Configs) Fits(encoder, what string, size int, key string, transformerSize int) {
	if f.err == nil && !f.Absent[encoder] && !f.Absent[component.Transformers] {
		f.err = component.SameSize(what, size, "the transformer's "+key, transformerSize)
	}
}

// HiddenStates returns the numbers of the hidden states that the text encoder returns: those of an
// option, or else the published models'. They must be from least (0 is the embeddings) to the number
// of its layers.
func (f *Configs) HiddenStates(option string, own, published []int, least, layers int) []int {
	if f.Absent["text_encoder"] {
		return published
	}
	if len(own) == 0 {
		own = published
	}
	if slices.Min(own) < least || slices.Max(own) > layers || len(own) > layers+1-least {
		f.CheckIndex(fmt.Errorf("%s %v: expected numbers from %d to the text encoder's num_hidden_layers, %d",
			option, own, least, layers))
	}
	return own
}
