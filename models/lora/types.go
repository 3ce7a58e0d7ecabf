package lora

import (
	"regexp"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
)

// A Spec is a LoRA to load.
type Spec struct {
	// Path is the path of a safetensors file.
	Path string
	// Scale multiplies its changes; 0 leaves the model as it is.
	Scale float64
	// Partial leaves out, with a warning, tensors that match no layer, and changes of another size
	// than their layer. Otherwise they are errors.
	Partial bool
}

// A Component is a component of a pipeline that LoRAs may change.
type Component struct {
	Name  string // its folder: transformer, text_encoder, text_encoder_2
	Class string // its class in diffusers or transformers
	Model any    // a pointer to its module tree, loaded or only declared
	// Tables are the layouts in which other programs name its tensors, and Rules map
	// names that occur only in LoRAs.
	Tables []*layout.Table
	Rules  []layout.Rule
	// UnusedLayers reports that LoRAs may have tensors for layers that Model does not
	// declare, because their output is not used.
	UnusedLayers bool
	// Padded are layers of which LoRAs may change the first inputs only.
	Padded []string
}

// A Hint recognises the model that a LoRA is for by the names of its tensors.
type Hint struct {
	For    string         // the model
	Names  *regexp.Regexp // matches some of the names that only this model has
	Shared *regexp.Regexp // if set, matches some that a few other models have too
	Class  string         // the class of its transformer, "" if it is not supported
}
