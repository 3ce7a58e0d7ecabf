package save

import (
	"io/fs"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/lora"
)

// The layouts that [Model] writes.
const (
	// LayoutDiffusers is the layout that from_pretrained of diffusers reads. It does not
	// support quantized weights.
	LayoutDiffusers = "diffusers"
	// LayoutMFlux is the layout that mflux-save writes and mflux reads, with the configs
	// of diffusers in addition.
	LayoutMFlux = "mflux"
)

// A Source is a model to save, with the information that is recorded about it.
type Source struct {
	FS       fs.FS  // the model folder in diffusers' layout
	Name     string // the name by which it was found
	Folder   string // the folder or file on disk, "" for a built-in model
	Revision string // the commit, for a model in the Hugging Face cache
	// Origin is the name of the model, or of the model that it was saved from, "" if it
	// is unknown. It determines the recommended settings.
	Origin string
	// Base is mflux's name for the published model, nil for other models.
	Base *string
}

// Options configure how a model is saved.
type Options struct {
	// Layout is LayoutDiffusers or LayoutMFlux. If it is empty, LayoutMFlux is used for
	// quantized weights, and LayoutDiffusers otherwise.
	Layout string
	// Quantize is the quantization of the weights, subject to the rules of the component
	// classes; nil does not quantize. Weights that are quantized already stay as they
	// are, except in LayoutDiffusers. mflux reads affine quantization only.
	Quantize *mlx.Quantization
	// Dtype is the dtype of all other floating-point tensors, nil for bfloat16.
	// KeepDtypes keeps the dtype of every tensor instead.
	Dtype      *mlx.Dtype
	KeepDtypes bool
	// LoRAs are baked into the weights before quantization.
	LoRAs []lora.Spec
	// Overwrite allows replacing a model in the folder.
	Overwrite bool
	// Progress, if set, is called with the number of bytes of all components that were
	// written, while a component is written.
	Progress func(component string, done, total int64)
}

// check returns an error for options that exclude each other, and for a quantization
// that the device does not support.
func (o *Options) check() error {
	if !slices.Contains([]string{"", LayoutDiffusers, LayoutMFlux}, o.Layout) {
		return errs.Requestf("layout %q: expected %s or %s", o.Layout, LayoutDiffusers, LayoutMFlux)
	}
	if o.Quantize == nil {
		return nil
	}
	if o.Layout == LayoutDiffusers {
		return errs.Requestf("layout %s: does not support quantized weights (leave out the layout or the quantization)", LayoutDiffusers)
	}
	return component.CheckQuantization(*o.Quantize)
}

// A Report describes a saved model.
type Report struct {
	Folder       string // as passed to Model
	Layout       string
	Quantization string // as accepted by component.ParseQuantization; "" if nothing is quantized
	Bytes        int64  // size of all tensors
	Files        int    // number of files with weights
	// Layers lists the quantized layers by component and name.
	Layers []Layer
	// Left lists tensors, with their components, that the layout does not contain and
	// that generating images does not need.
	Left  []string
	LoRAs []lora.Report
}

// A Layer is a quantized layer of a saved model.
type Layer struct {
	Component, Name string
	mlx.Quantization
	Bytes int64
	// Error is the relative error ‖W-Ŵ‖/‖W‖ of the dequantized weights Ŵ, 0 if Kept.
	Error float64
	// Kept reports that the layer was quantized in the source and is unchanged.
	Kept bool
}
