package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
)

// Unusable returns why this machine, with the memory that models run on, or this version may be
// unable to use a download.
func Unusable(plan *hub.Plan, memory int64) (warnings []string) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	var index struct {
		Class string `json:"_class_name"`
	}
	sizes, files := map[string]int64{}, 0
	for _, f := range plan.Files {
		if strings.HasSuffix(f.Path, ".safetensors") {
			sizes[path.Dir(f.Path)] += f.Size
			files++
		}
	}
	repo := plan.Info.Repo
	_, transformer := sizes["transformer"]
	switch noIndex := plan.Index == nil && !plan.Adapter; {
	case noIndex && transformer: // as mflux saves it
		warn("%s has no model_index.json: its other components come from the base model, which must be downloaded too", repo)
	case noIndex && files == 1 && sizes["."] > 0:
		warn("%s has no model_index.json but one file: unless it is a LoRA or an autoencoder, "+
			"its other components come from the base model, which must be downloaded too", repo)
	case noIndex:
		warn("%s has no model_index.json: it is not a pipeline in the diffusers layout", repo)
	case plan.Index != nil && json.Unmarshal(plan.Index, &index) == nil && family.Find(index.Class) == nil:
		warn("%s is a %s, which this version cannot run", repo, quote.Printable(index.Class))
	}
	for _, dir := range SortedKeys(plan.Configs) {
		if method, instead := checkpoint.QuantizationMethod(plan.Configs[dir]); instead != "" {
			warn("%s/config.json: quantization %s, which this version does not read; %s",
				path.Join(repo, dir), quote.Printable(method), instead)
		}
	}
	w := weights{sizes: sizes, quantized: transformer && plan.Index == nil, ofTime: catalog.TimeLayersShare(repo, index.Class)}
	if text := w.fitWarning(memory); text != "" {
		warn("%s", text)
	}
	return warnings
}

// ModelMemory returns the memory of the device that models run on, in bytes, 0 if
// unknown.
func ModelMemory(ctx context.Context) (n int64) {
	n = int64(SystemMemory())
	if _, err := mlx.Open(); err != nil {
		return n
	}
	mlx.Do(ctx, func() error { // if it fails, system memory is returned
		if gpu, _ := deviceInfo(mlx.GPU); gpu.Memory > 0 {
			n = int64(gpu.Memory)
		}
		return nil
	})
	return n
}

// weights are those of a pipeline. Before the download only file sizes are known: weights are
// assumed to have 16 bits and to be quantizable, unless mflux saved them, which are usually
// quantized.
type weights struct {
	sizes     map[string]int64 // in bytes by component folder
	quantized bool
	ofTime    float64 // see catalog.TimeLayersShare
}

// fitWarning compares weights with a device's memory, and names the flags that make them fit.
func (w weights) fitWarning(memory int64) string {
	var all int64
	for _, n := range w.sizes {
		all += n
	}
	if memory == 0 || all == 0 {
		return ""
	}
	var fitting []string
	oneAtATime := false
	for _, f := range fits {
		if w.quantized && f.scale < 1 {
			break
		}
		need := f.memory(w)
		if need > memory {
			continue
		}
		if f.flags == "" {
			return ""
		}
		fitting = append(fitting, fmt.Sprintf("%s (about %s)", f.flags, units.Bytes(need)))
		oneAtATime = oneAtATime || f.oneAtATime
		if !f.oneAtATime || len(fitting) == 2 {
			break
		}
	}
	text := fmt.Sprintf("the model may not fit into memory: its weights have %s, and this machine has %s for weights and computation; ",
		units.Bytes(all), units.Bytes(memory))
	if len(fitting) == 0 {
		least := fits[len(fits)-1].flags
		if w.quantized {
			least = "--low-ram"
		}
		return text + "it does not fit even with " + least
	}
	text += "it fits with " + strings.Join(fitting, " or ")
	if oneAtATime {
		text += "; --low-ram has one component in memory at a time"
		if w.ofTime > 0 {
			text += ", and frees the transformer's layers for the timestep before the steps"
		}
	}
	return text
}

// A fit is a set of flags and the memory that a model takes with it.
type fit struct {
	flags      string
	scale      float64 // of the weights' size
	oneAtATime bool    // components are loaded one at a time
}

var fits = []fit{
	{"", 1, false},
	{"--low-ram", 1, true},
	{"-q 8", 8.5 / 16, false},
	{"-q 8 --low-ram", 8.5 / 16, true},
	{"-q 4", 4.5 / 16, false},
	{"-q 4 --low-ram", 4.5 / 16, true},
}

// memory returns the memory for weights and computation, in bytes.
func (f fit) memory(w weights) int64 {
	var sum, largest, vae float64
	for dir, n := range w.sizes {
		switch {
		case dir == component.Autoencoders:
			vae += float64(n)
			continue
		case dir == component.Transformers && f.oneAtATime: // these layers are freed before the first step
			n = int64(float64(n) * max(w.ofTime, 1-w.ofTime))
		}
		sum += float64(n) * f.scale
		largest = max(largest, float64(n)*f.scale)
	}
	if f.oneAtATime {
		sum = largest
	}
	const computation = 1.25
	return int64((vae + sum) * computation)
}
