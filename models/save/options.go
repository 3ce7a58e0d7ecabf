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
	// LayoutDiffusers is what from_pretrained of diffusers reads. It has no
	// quantized weights.
	LayoutDiffusers = "diffusers"
	// LayoutMFlux is what mflux reads, as its mflux-save writes it, with the
	// configs of diffusers beside it.
	LayoutMFlux = "mflux"
)

// A Source is a model that is to be saved, with what is recorded of it.
type Source struct {
	FS       fs.FS
	Name     string // that it was found by
	Folder   string // on disk, or the file; "" for a model inside the program
	Revision string // the commit, of a model in the Hugging Face cache
	// Origin is the name of the model that it is, or was saved of, "" for one that
	// is not known. It tells the settings that the model is meant to be run with.
	Origin string
	// Base is the name by which mflux knows the published model that it is, nil for
	// none.
	Base *string
}

// Options say how a model is saved.
type Options struct {
	// Layout is LayoutDiffusers or LayoutMFlux; "" for the latter if weights are
	// quantized and for the former if none are.
	Layout string
	// Quantize is how weights are packed, all but those that the components' classes
	// have rules of; nil for not at all. Those that are quantized already stay as they
	// are, but in diffusers' layout. Of all modes mflux reads affine alone.
	Quantize *mlx.Quantization
	// Dtype is that of all other floating-point tensors, bfloat16 if it is nil;
	// KeepDtypes leaves each in its own.
	Dtype      *mlx.Dtype
	KeepDtypes bool
	// LoRAs are added to the weights before these are quantized.
	LoRAs []lora.Spec
	// Overwrite lets the model take the place of another one in the folder.
	Overwrite bool
	// Progress, if set, is told how many bytes of all components are written, while
	// those of one are.
	Progress func(component string, done, total int64)
}

// check refuses options that do not go together, and a quantization that the
// device cannot do.
func (o *Options) check() error {
	if !slices.Contains([]string{"", LayoutDiffusers, LayoutMFlux}, o.Layout) {
		return errs.Requestf("layout %q: expected %s or %s", o.Layout, LayoutDiffusers, LayoutMFlux)
	}
	if o.Quantize == nil {
		return nil
	}
	if o.Layout == LayoutDiffusers {
		return errs.Requestf("diffusers' layout has no quantized weights of this kind: leave the layout or the quantization out")
	}
	return component.CheckQuantization(*o.Quantize)
}

// A Report says what was saved.
type Report struct {
	Folder       string // as it was given
	Layout       string
	Quantization string // as component.ParseQuantization takes it; "" if nothing is quantized
	Bytes        int64  // of all tensors
	Files        int    // with weights
	// Layers are the quantized ones, in the order of components and names.
	Layers []Layer
	// Left lists tensors, with their components, that the layout has no place for,
	// and that no picture needs.
	Left  []string
	LoRAs []lora.Report
}

// A Layer is a quantized layer of a saved model.
type Layer struct {
	Component, Name string
	mlx.Quantization
	Bytes int64
	// Error is ‖W-Ŵ‖/‖W‖ of the weights W and what they are unpacked to. It is 0 if
	// Kept is set, of a layer that was quantized before.
	Error float64
	Kept  bool
}
