package component

import (
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
)

// All lists the classes with weights, in the order in which files are searched for
// them.
var All = named(
	Flux3Transformer2DModel,
	Flux2Transformer2DModel, // before FluxTransformer2DModel, whose names occur in LoRAs for both
	FluxTransformer2DModel,
	ZImageTransformer2DModel,
	QwenImage21Transformer2DModel, // before QwenImageTransformer2DModel, whose LoRAs have names of its feed-forwards
	QwenImageTransformer2DModel,
	Krea2Transformer2DModel,
	CosmosTransformer3DModel,
	ErnieImageTransformer2DModel,
	AutoencoderKLFlux2, // before AutoencoderKL, whose tensors are a subset
	VideoAutoencoderKL, // before AutoencoderKL, too
	AutoencoderKL,
	AutoencoderKLQwenImage21, // before AutoencoderKLQwenImage, whose diffusers' names it has too
	AutoencoderKLQwenImage,
	AutoencoderTiny,
	CLIPTextModel,
	T5EncoderModel,
	AnimaTextConditioner,
	Qwen35ForConditionalGeneration,  // before those whose names occur in its files
	Qwen3VLForConditionalGeneration, // before Qwen3Model, whose names occur in its files
	Qwen3Model,
	Qwen25VLForConditionalGeneration,
	Ministral3ForCausalLM,
	Mistral3ForConditionalGeneration, // after those that have its names and more
	NaDiT,
	RRDBNet,
	SRVGGNetCompact,
)

// named sets the names of the classes' tables.
func named(classes ...*Class) []*Class {
	for _, c := range classes {
		for name, tables := range map[string][]*layout.Table{"mflux": c.MFlux, "original": slices.Concat(c.Original, c.Shared)} {
			for _, t := range tables {
				t.Name, t.Class = name, c.Name
			}
		}
	}
	return classes
}

// Find returns the class with a name or alias from model_index.json or a component's
// config, nil for an unknown class.
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
