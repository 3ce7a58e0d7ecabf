package lora

import (
	"regexp"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
)

// A Spec is a LoRA to load.
type Spec struct {
	// Path is that of a safetensors file.
	Path string
	// Scale is what its changes are multiplied with; 0 leaves the model as it is.
	Scale float64
}

// A Component is a part of a pipeline that LoRAs may change.
type Component struct {
	Name  string // its folder: transformer, text_encoder, text_encoder_2
	Class string // of diffusers or transformers
	Model any    // a pointer to its module tree, loaded or only declared
	// Tables are the names that other programs have for its tensors, and Rules names
	// that only LoRAs have.
	Tables []*layout.Table
	Rules  []layout.Rule
	// Beyond reports that LoRAs may change layers that Model does not declare, which
	// come behind all that is used.
	Beyond bool
}

// A Hint tells by the names of tensors what model a LoRA is for.
type Hint struct {
	For   string
	Names *regexp.Regexp
}
