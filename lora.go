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
	// Path is a safetensors file, a folder with one, or owner/name[@revision][:file]
	// of a repository that is in the Hugging Face cache. What cannot be found is
	// [ErrNotFound].
	Path string
	// Scale is what its changes are multiplied with. 0 stands for 1.
	Scale float64
}

// A LoRAReport is what was found in a LoRA.
type LoRAReport struct {
	Path  string
	Scale float64
	// Modules is how many modules it changes of each component.
	Modules map[string]int
	// Unused are its tensors for layers of a text encoder that come behind all that
	// the pipeline uses of it.
	Unused []string
}

// LoRAs returns what was found in each of OpenOptions.LoRAs.
func (m *Model) LoRAs() []LoRAReport { return loraReports(m.pipeline.LoRAs()) }

func loraReports(list []lora.Report) (out []LoRAReport) {
	for _, r := range list {
		out = append(out, LoRAReport(r))
	}
	return out
}

// OpenOptionsFrom are the options that a model is opened with to make a picture of
// these settings again.
func OpenOptionsFrom(s *Settings) *OpenOptions {
	o := &OpenOptions{Device: Device(s.Device), Dtype: Dtype(s.Dtype), Quantize: Quantization(s.Quantize), GroupSize: s.GroupSize, RuntimeLoRA: s.RuntimeLoRA, BaseModel: s.BaseModel}
	for _, l := range s.LoRAs {
		if l.Scale == 0 {
			continue // does nothing
		}
		o.LoRAs = append(o.LoRAs, LoRA{Path: recordedLoRA(l), Scale: l.Scale})
	}
	return o
}

// recordedLoRA is the name of a LoRA of settings, at the commit that they have if
// that is on this machine.
func recordedLoRA(l picture.LoRA) string {
	if repo, _, file, ok := hub.ParseAddress(l.Path); ok && hub.IsRevision(l.Revision) {
		pinned := hub.Address(repo, l.Revision, file)
		if _, err := catalog.FindLoRA(pinned); err == nil {
			return pinned
		}
	}
	return l.Path
}

// change finds LoRAs, and notes how the options change the weights.
func (m *Model) change(o *OpenOptions, q *mlx.Quantization) (specs []lora.Spec, runtime bool, err error) {
	if q != nil {
		m.changes.Quantize = component.QuantizationName(*q)
		if usual, err := component.ParseQuantization(m.changes.Quantize, 0); err == nil && q.Group != usual.Group {
			m.changes.GroupSize = q.Group
		}
	}
	if o == nil {
		return nil, false, nil
	}
	if specs, m.changes.LoRAs, err = findLoRAs(o.LoRAs); err != nil {
		return nil, false, err
	}
	m.changes.RuntimeLoRA = o.RuntimeLoRA && len(specs) > 0
	return specs, o.RuntimeLoRA, nil
}

// findLoRAs finds the files of LoRAs, and says what is recorded of them.
func findLoRAs(list []LoRA) (specs []lora.Spec, recorded []picture.LoRA, err error) {
	for _, l := range list {
		scale := cmp.Or(l.Scale, 1)
		if math.IsNaN(scale) || math.IsInf(scale, 0) {
			return nil, nil, errs.Request(fmt.Errorf("LoRA %s: its scale is %v", l.Path, scale))
		}
		found, err := catalog.FindLoRA(l.Path)
		if err != nil {
			return nil, nil, err
		}
		specs = append(specs, lora.Spec{Path: found.Path, Scale: scale})
		recorded = append(recorded, picture.LoRA{Path: catalog.TildePath(found.Name), Revision: found.Revision, Scale: scale})
	}
	return specs, recorded, nil
}

// hashLoRAs puts the hashes of files to what is recorded of them.
func hashLoRAs(ctx context.Context, specs []lora.Spec, recorded []picture.LoRA) (err error) {
	for i, spec := range specs {
		if recorded[i].SHA256, err = filehash.SHA256(ctx, spec.Path); err != nil {
			return fmt.Errorf("LoRA %s: %w", spec.Path, err)
		}
	}
	return nil
}
