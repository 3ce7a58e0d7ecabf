// Package models runs the pipelines of diffusers: it loads the components of a model folder
// (load.go), prepares runs of requests (run.go), and generates images (generate.go). What is
// specific to a family of pipelines or to a component class is in the packages family and
// component below this one.
package models

import (
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/lora"
)

// A Pipeline is a loaded model. Its fields describe the model; the state of a run is in a [Run].
type Pipeline struct {
	*Autoencoder
	Class    string // pipeline class in model_index.json
	Defaults family.Defaults

	family     family.Pipeline
	declared   *family.Declared
	loader     *component.Loader
	tokenizers map[string]*lazyTokenizer // by folder
	loadables  map[string]*loadable      // components with weights, by folder, except notLoaded
	notLoaded  map[string]bool           // folders of components that no run needs
	residency  residency
	loading    bool // while a component is being loaded

	random *Random // LoadOptions.Random

	group     *mlx.Group          // LoadOptions.Group, nil if this process is alone
	files     map[string]string   // what the files of components are, by folder; only with a group
	divisions map[string]division // by the names of splits; only with a group
	staged    bool                // components are loaded in stages
	tooLarge  bool                // runs that choose their split need stages, see chooseStages

	promptCache lru[encodedPrompt]
	disk        *diskCache // nil without LoadOptions.PromptCache
	inputCache  lru[encodedInput]

	blockMemory func(component.Component) component.BlockMemory // LoadOptions.BlockMemory, may be nil

	compileMode mlx.CompileMode // replaces the device's in tests, unless it is 0
	memory      int64           // replaces the available memory, in bytes, in tests and for mac
	mac         *mlx.DeviceInfo // the GPU of another Mac, for estimates; nil for this machine
}

// Components lists the components that have weights, as declared by their configs.
func (p *Pipeline) Components() []component.Component { return p.declared.Components }

// LoRAs reports what was found in each of LoadOptions.LoRAs.
func (p *Pipeline) LoRAs() []lora.Report {
	if p.loader == nil || p.loader.LoRAs == nil {
		return nil
	}
	return p.loader.LoRAs.Reports()
}

// Close frees everything that the pipeline holds: weights with their LoRAs, the preview decoder,
// prompt embeddings and latents of input images, tokenizers and files of LoRAs. What belongs to a run
// ends with it. Runs of a closed pipeline return [ErrClosed]. Close may be called on any goroutine. On
// the MLX thread it throws an error if it is called by a callback of a run.
func (p *Pipeline) Close() { mlx.Finish(p.close) }

func (p *Pipeline) close() {
	p.Autoencoder.close()
	for _, l := range p.loadables {
		p.free(l)
	}
	p.promptCache.shrink(0)
	p.inputCache.shrink(0)
	if p.loader != nil && p.loader.LoRAs != nil {
		p.loader.LoRAs.Close()
	}
	for _, l := range p.tokenizers {
		if l.once.Do(func() { l.err = ErrClosed }); l.t != nil {
			l.t.Close()
		}
	}
	p.tokenizers = nil
}

// Multiple returns the number of pixels that heights and widths must be a multiple of.
func (p *Pipeline) Multiple() int { return p.ScaleFactor() * p.family.Multiple() }

// latentSize returns the height and width of the latents of an image.
func (p *Pipeline) latentSize(height, width int) (h, w int) {
	return height / p.ScaleFactor(), width / p.ScaleFactor()
}

// tokens returns the number of tokens of an image in the transformer's sequence.
func (p *Pipeline) tokens(height, width int) int {
	if packer, ok := p.family.(family.NoisePacker); ok {
		return packer.PackedShape(p.latentSize(height, width))[1]
	}
	return height / p.Multiple() * (width / p.Multiple())
}

// latentShape returns the family's shape of latents, or the autoencoder's if there is no
// transformer.
func (p *Pipeline) latentShape(h, w int) []int {
	if p.notLoaded[component.Transformers] {
		return []int{p.vae.LatentChannels(), h, w}
	}
	return p.family.LatentShape(h, w)
}
