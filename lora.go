package gomflux

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"github.com/gomflux/gomflux/internal/filehash"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/picture"
)

// A LoRA is a file that changes the weights of a model.
type LoRA struct {
	// Path is a safetensors file, a folder with one, or owner/name[@revision][:file] of a
	// repository in the Hugging Face cache. The error for a LoRA that is not there is an
	// [ErrNotFound].
	Path string
	// Scale multiplies the changes. 0 stands for 1.
	Scale float64
	// Partial uses the tensors that fit the model and leaves out the others. Otherwise a tensor
	// that fits no layer is an error.
	Partial bool
}

// A LoRAReport describes a LoRA that was applied to a model.
type LoRAReport struct {
	Path  string  `json:"path"`  // the file
	Scale float64 `json:"scale"` // the factor of its changes
	// Modules is the number of modules that it changes, by component.
	Modules map[string]int `json:"modules"`
	// Unused lists tensors for the last layers of a text encoder, whose output the
	// pipeline does not use.
	Unused []string `json:"-"`
	// Warnings describe tensors that were left out. OpenOptions.Warn gets them too.
	Warnings []string `json:"-"`
}

// LoRAs describes each of OpenOptions.LoRAs.
func (m *Model) LoRAs() []LoRAReport { return loraReports(m.pipeline.LoRAs()) }

func loraReports(list []lora.Report) (out []LoRAReport) {
	for _, r := range list {
		out = append(out, LoRAReport(r))
	}
	return out
}

// OpenOptionsFrom returns the options for opening a model to generate the image of some
// settings again.
func OpenOptionsFrom(s *Settings) *OpenOptions {
	o := &OpenOptions{
		Device: Device(s.Device), Dtype: Dtype(s.Dtype), BaseModel: s.BaseModel,
		Quantize: Quantization(s.Quantize), GroupSize: s.GroupSize, RuntimeLoRA: s.RuntimeLoRA,
	}
	for _, l := range s.LoRAs {
		if l.Scale == 0 {
			continue // has no effect
		}
		o.LoRAs = append(o.LoRAs, LoRA{Path: recordedLoRA(l), Scale: l.Scale, Partial: l.Partial})
	}
	return o
}

// recordedLoRA returns the name of a LoRA in settings, with the recorded commit if that
// is on this machine.
func recordedLoRA(l picture.LoRA) string {
	if repo, _, file, ok := hub.ParseAddress(l.Path); ok && hub.IsRevision(l.Revision) {
		pinned := hub.Address(repo, l.Revision, file)
		if _, err := catalog.FindLoRA(pinned); err == nil {
			return pinned
		}
	}
	return l.Path
}

// change finds the LoRAs of the options, and records in m how they and the quantization
// change the weights.
func (m *Model) change(o *OpenOptions, q *mlx.Quantization) (specs []lora.Spec, runtime bool, err error) {
	if q != nil {
		m.changes.Quantize = component.QuantizationName(*q)
		if standard, err := component.ParseQuantization(m.changes.Quantize, 0); err == nil && q.Group != standard.Group {
			m.changes.GroupSize = q.Group
		}
	}
	if specs, m.changes.LoRAs, err = findLoRAs(o.LoRAs); err != nil {
		return nil, false, err
	}
	m.changes.RuntimeLoRA = o.RuntimeLoRA && len(specs) > 0
	return specs, o.RuntimeLoRA, nil
}

// findLoRAs finds the files of LoRAs, and returns what is recorded about them in
// settings.
func findLoRAs(list []LoRA) (specs []lora.Spec, recorded []picture.LoRA, err error) {
	for _, l := range list {
		scale := cmp.Or(l.Scale, 1)
		if math.IsNaN(scale) || math.IsInf(scale, 0) {
			return nil, nil, errs.Request(fmt.Errorf("LoRA %s: scale: expected a finite number, found %v", l.Path, scale))
		}
		found, err := catalog.FindLoRA(l.Path)
		if err != nil {
			return nil, nil, err
		}
		specs = append(specs, lora.Spec{Path: found.Path, Scale: scale, Partial: l.Partial})
		recorded = append(recorded, picture.LoRA{
			Path: catalog.TildePath(found.Name), Revision: found.Revision, Scale: scale, Partial: l.Partial,
		})
	}
	return specs, recorded, nil
}

// hashLoRAs sets the recorded hashes of the files of LoRAs.
func hashLoRAs(ctx context.Context, specs []lora.Spec, recorded []picture.LoRA) (err error) {
	for i, spec := range specs {
		if recorded[i].SHA256, err = filehash.SHA256(ctx, spec.Path); err != nil {
			return fmt.Errorf("LoRA %s: %w", spec.Path, err)
		}
	}
	return nil
}
