package gomflux

import (
	"context"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/save"
)

// A Layout is a form in which models are saved.
type Layout string

const (
	// DiffusersLayout is what from_pretrained of diffusers reads. It has no quantized
	// weights.
	DiffusersLayout Layout = "diffusers"
	// MFluxLayout is what mflux reads, with the configs of diffusers beside it.
	MFluxLayout Layout = "mflux"
)

// KeepDtypes as SaveOptions.Dtype leaves every tensor in its own dtype.
const KeepDtypes Dtype = "keep"

// SaveOptions say how a model is saved.
type SaveOptions struct {
	// Layout is MFluxLayout if weights are quantized, and else DiffusersLayout, where
	// it is "".
	Layout Layout
	// Quantize and GroupSize are those of OpenOptions.
	Quantize  Quantization
	GroupSize int
	// Dtype is that of what is not quantized: "" stands for BFloat16.
	Dtype Dtype
	// LoRAs are added to the weights before these are quantized.
	LoRAs []LoRA
	// BaseModel is the base model of [FindWith], for [Save].
	BaseModel string
	// Device is what quantizes.
	Device Device
	// Overwrite lets the model take the place of another one in a folder.
	Overwrite bool
	// Progress is called on the caller's goroutine, with Bytes of TotalBytes written.
	Progress func(Progress)
}

// A SaveReport says what was saved.
type SaveReport struct {
	Folder       string
	Layout       Layout
	Quantization Quantization // "" if nothing is quantized
	Bytes        int64        // of all tensors
	Files        int          // with weights
	// Layers are the quantized ones, in the order of components and names.
	Layers []SavedLayer
	// Left lists tensors, with their components, that the layout has no place for, and
	// that no picture needs.
	Left  []string
	LoRAs []LoRAReport
}

// A SavedLayer is a quantized layer of a saved model.
type SavedLayer struct {
	Component, Name string
	Mode            string // affine, or the name of a block format
	Bits, Group     int
	Bytes           int64
	// Error is ‖W-Ŵ‖/‖W‖ of the weights W and what they are unpacked to. It is 0 if
	// Kept is set, of a layer that was quantized before.
	Error float64
	Kept  bool
}

// Save writes a model, which is named as for [Find], to a folder. The folder appears
// when all of it is written. One that is there, and not empty, is an [ErrRequest],
// unless it holds a model and Overwrite is set; then it is replaced at the end. A
// disk that has no room for it is an error before the first byte.
func Save(ctx context.Context, model, folder string, o *SaveOptions) (*SaveReport, error) {
	base := ""
	if o != nil {
		base = o.BaseModel
	}
	source, err := FindWith(model, base)
	if err != nil {
		return nil, err
	}
	return source.Save(ctx, folder, o)
}

// Save is [Save] for a model that was found.
func (s *Source) Save(ctx context.Context, folder string, o *SaveOptions) (*SaveReport, error) {
	if s.found.Err != nil {
		return nil, s.found.Err
	}
	if o == nil {
		o = &SaveOptions{}
	}
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
	var report *save.Report
	err = mlx.Do(ctx, func() (err error) {
		if device != nil {
			if err := mlx.Use(*device); err != nil {
				return err
			}
		}
		report, err = save.Model(s.saved(), folder, options)
		return err
	})
	if err != nil {
		return nil, public(err)
	}
	return newSaveReport(report), nil
}

// saved is what is recorded of the model in a folder that it is saved to.
func (s *Source) saved() save.Source {
	source := save.Source{FS: s.found.FS, Name: s.found.Name, Folder: s.found.Folder, Revision: s.found.Revision, Origin: s.found.Origin()}
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
		Left: r.Left, LoRAs: loraReports(r.LoRAs),
	}
	for _, l := range r.Layers {
		out.Layers = append(out.Layers, SavedLayer{l.Component, l.Name, l.Mode, l.Bits, l.Group, l.Bytes, l.Error, l.Kept})
	}
	return out
}
