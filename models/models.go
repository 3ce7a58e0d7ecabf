// Package models runs the pipelines of diffusers: it loads a model folder's
// components (load.go), prepares a run of a request (run.go), and makes pictures
// (generate.go). What the families and the component classes have of their own is in
// packages family and component below it.
package models

import (
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// A Pipeline is a loaded model. Its fields are those of the model; what belongs to a
// run is in a [Run].
type Pipeline struct {
	*Autoencoder
	Class    string // of model_index.json
	Defaults family.Defaults

	family     family.Pipeline
	declared   *family.Declared
	loader     *component.Loader
	tokenizers map[string]*tokenizer.Tokenizer // by their folders
	parts      map[string]*part                // by their folders, without those in without
	without    map[string]bool                 // the folders of components that were not loaded
	way        way                             // how memory is used
	loading    bool                            // a part is being loaded

	encodings lru[encoding] // of the last prompts
	pictures  lru[encoded]  // the last pictures that were encoded

	stack func(component.Component) component.Stack // see LoadOptions; may be nil

	compileOnCPU bool  // of tests
	memory       int64 // of tests, instead of what there is for the model
}

// Components are the components that have weights, declared by their configs.
func (p *Pipeline) Components() []component.Component { return p.declared.Components }

// LoRAs says what was found in each of LoadOptions.LoRAs.
func (p *Pipeline) LoRAs() []lora.Report {
	if p.loader == nil || p.loader.LoRAs == nil {
		return nil
	}
	return p.loader.LoRAs.Reports()
}

// Close frees what is not the garbage collector's. Arrays are freed when
// nothing refers to the pipeline any more.
func (p *Pipeline) Close() {
	if p.loader != nil && p.loader.LoRAs != nil {
		p.loader.LoRAs.Close()
	}
	for _, t := range p.tokenizers {
		t.Close()
	}
}

// Multiple is what heights and widths must be a multiple of, in pixels.
func (p *Pipeline) Multiple() int { return p.ScaleFactor() * p.family.Multiple() }

// latentSize is the latents' height and width of a picture.
func (p *Pipeline) latentSize(height, width int) (h, w int) {
	return height / p.ScaleFactor(), width / p.ScaleFactor()
}

// tokens is how many tokens the transformer sees of a picture.
func (p *Pipeline) tokens(height, width int) int {
	return height / p.Multiple() * (width / p.Multiple())
}

// latentShape is the family's, or of a transformer that is not there the
// autoencoder's.
func (p *Pipeline) latentShape(h, w int) []int {
	if p.without[component.Transformers] {
		return []int{p.vae.LatentChannels(), h, w}
	}
	return p.family.LatentShape(h, w)
}

// A way is one of using memory.
type way struct {
	near   bool // a GPU is given less work in advance
	lowRAM bool // only one text encoder or the transformer is in memory at a time
	alone  bool // the autoencoder is alone in memory when it decodes
}
