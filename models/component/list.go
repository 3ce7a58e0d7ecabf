package component

import (
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
)

// All lists the classes that have weights. Files are searched for them in this
// order.
var All = described(
	Flux2Transformer2DModel, // before FLUX.1's, whose names LoRAs of both have
	FluxTransformer2DModel,
	ZImageTransformer2DModel,
	QwenImageTransformer2DModel,
	AutoencoderKLFlux2, // before AutoencoderKL, whose tensors it has too
	AutoencoderKL,
	AutoencoderKLQwenImage,
	CLIPTextModel,
	T5EncoderModel,
	Qwen3Model,
	Qwen25VLForConditionalGeneration,
)

// described completes the tables of classes with their names.
func described(classes ...*Class) []*Class {
	for _, c := range classes {
		for name, tables := range map[string][]*layout.Table{"mflux": c.MFlux, "original": c.Original} {
			for _, t := range tables {
				t.Name, t.Class = name, c.Name
			}
		}
	}
	return classes
}

// Find returns the class of a name, as model_index.json or a component's config
// has it; nil for one that is not known.
func Find(name string) *Class {
	if i := slices.IndexFunc(All, func(c *Class) bool { return c.is(name) }); i >= 0 {
		return All[i]
	}
	return nil
}

// Names lists the names of the classes with a role.
func Names(role Role) (names []string) {
	for _, c := range All {
		if c.Role == role {
			names = append(names, c.Name)
		}
	}
	slices.SortFunc(names, strings.Compare)
	return names
}
