package gomflux

import (
	"cmp"
	"context"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/save"
)

// A Layout is a layout of model folders.
type Layout string

const (
	// DiffusersLayout is the layout that from_pretrained of diffusers reads. It does not
	// support quantized weights.
	DiffusersLayout Layout = "diffusers"
	// MFluxLayout is the layout that mflux reads, with the configs of diffusers in
	// addition.
	MFluxLayout Layout = "mflux"
)

// KeepDtypes is a value of SaveOptions.Dtype that keeps the dtype of every tensor.
const KeepDtypes Dtype = "keep"

// SaveOptions configure how a model is saved.
type SaveOptions struct {
	// Layout is the layout of the folder. "" stands for MFluxLayout if weights are
	// quantized, and otherwise for DiffusersLayout.
	Layout Layout
	// Quantize is the quantization of the weights, as in OpenOptions.
	Quantize Quantization
	// GroupSize is the group size of the quantization, as in OpenOptions.
	GroupSize int
	// Dtype is the dtype of weights that are not quantized. "" stands for BFloat16.
	Dtype Dtype
	// LoRAs are baked into the weights before quantization.
	LoRAs []LoRA
	// BaseModel is the base model for [FindWith], used by [Save].
	BaseModel string
	// Device is the device that computes the quantization.
	Device Device
	// Overwrite allows replacing a model in the folder.
	Overwrite bool
	// Progress, if set, is called on the caller's goroutine with the number of bytes that
	// were written.
	Progress func(Progress)
}

// A SaveReport describes a saved model.
type SaveReport struct {
	Folder       string       `json:"folder"`                 // the folder of the model
	Layout       Layout       `json:"layout"`                 // the layout of the folder
	Quantization Quantization `json:"quantization,omitempty"` // the quantization of most layers, "" if nothing is quantized
	Bytes        int64        `json:"bytes"`                  // the size of all tensors
	Files        int          `json:"files"`                  // the number of files with weights
	// Layers lists the quantized layers by component and name.
	Layers []SavedLayer `json:"layers"`
	// Left lists tensors, with their components, that the layout does not contain and that
	// generating images does not need.
	Left []string `json:"left,omitempty"`
	// LoRAs describes the LoRAs that were baked into the weights.
	LoRAs []LoRAReport `json:"loras,omitempty"`
}

// A SavedLayer is a quantized layer of a saved model.
type SavedLayer struct {
	Component string `json:"component"` // the folder of the component
	Name      string `json:"name"`      // the name of the layer
	Mode      string `json:"mode"`      // affine, or the name of a block format
	Bits      int    `json:"bits"`      // bits per weight
	Group     int    `json:"group"`     // the number of weights that share a scale
	Bytes     int64  `json:"bytes"`     // the size of the layer
	// Error is the relative error ‖W-Ŵ‖/‖W‖ of the dequantized weights Ŵ, 0 if Kept.
	Error float64 `json:"error"`
	// Kept reports that the layer was quantized in the source and is unchanged.
	Kept bool `json:"kept,omitempty"`
}

// Save writes a model, found by its name like [Find], to a folder. The folder appears
// after everything was written. A folder that exists and is not empty is an
// [ErrRequest], unless it contains a model and Overwrite is set; that model is replaced
// at the end. Too little space on the disk is an error before anything is written.
func Save(ctx context.Context, model, folder string, o *SaveOptions) (*SaveReport, error) {
	source, err := FindWith(model, cmp.Or(o, &SaveOptions{}).BaseModel)
	if err != nil {
		return nil, err
	}
	return source.Save(ctx, folder, o)
}

// Save writes the model to a folder, see [Save].
func (s *Source) Save(ctx context.Context, folder string, o *SaveOptions) (*SaveReport, error) {
	if s.found.Err != nil {
		return nil, s.found.Err
	}
	o = cmp.Or(o, &SaveOptions{})
	device, err := o.Device.device()
	if err != nil {
		return nil, err
	}
	options := save.Options{Layout: string(o.Layout), KeepDtypes: o.Dtype == KeepDtypes, Overwrite: o.Overwrite, Progress: o.progress()}
	if !options.KeepDtypes {
		if options.Dtype, err = o.Dtype.compute(); err != nil {
			return nil, err
		}
	}
	if options.Quantize, err = o.Quantize.internal(o.GroupSize); err != nil {
		return nil, err
	}
	if options.LoRAs, _, err = findLoRAs(o.LoRAs); err != nil {
		return nil, err
	}
	report, err := onMLX(ctx, func() (*save.Report, error) {
		if device != nil {
			if err := mlx.Use(*device); err != nil {
				return nil, err
			}
		}
		return save.Model(s.saved(), folder, options)
	})
	if err != nil {
		return nil, err
	}
	return newSaveReport(report), nil
}

// saved returns the model with the information that is recorded in its folder.
func (s *Source) saved() save.Source {
	source := save.Source{
		FS: s.found.FS, Name: s.found.Name, Folder: s.found.Folder, Revision: s.found.Revision, Origin: s.found.Origin(),
	}
	if _, _, preset := catalog.Published(source.Origin); preset != nil {
		source.Base = &preset.Name
	}
	return source
}

func (o *SaveOptions) progress() func(component string, done, total int64) {
	report := onCallerFunc(o.Progress)
	if report == nil {
		return nil
	}
	return func(component string, done, total int64) {
		report(Progress{Phase: PhaseSave, Component: component, Bytes: done, TotalBytes: total})
	}
}

func newSaveReport(r *save.Report) *SaveReport {
	out := &SaveReport{
		Folder: r.Folder, Layout: Layout(r.Layout), Quantization: Quantization(r.Quantization), Bytes: r.Bytes, Files: r.Files,
		Layers: []SavedLayer{}, Left: r.Left, LoRAs: loraReports(r.LoRAs),
	}
	for _, l := range r.Layers {
		out.Layers = append(out.Layers, SavedLayer{l.Component, l.Name, l.Mode, l.Bits, l.Group, l.Bytes, l.Error, l.Kept})
	}
	return out
}
