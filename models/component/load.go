package component

import (
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/lora"
)

// A Loader fills the components of a folder with weights.
type Loader struct {
	Folder
	// Quantize is how plain weights are packed; nil leaves them as they are.
	Quantize *mlx.Quantization
	// LoRAs change the weights before these are packed; nil for none. With
	// RuntimeLoRA they are computed beside the layers as far as possible.
	LoRAs       *lora.Set
	RuntimeLoRA bool
	// Report, if set, is told how many bytes of a component are read.
	Report func(component string, done, total int64)
}

// OpenLoRAs finds what LoRAs change of the components.
func (l *Loader) OpenLoRAs(specs []lora.Spec, components []Component) (err error) {
	if len(specs) == 0 {
		return nil
	}
	var parts []lora.Component
	for _, c := range components {
		if c.Class.Role == Autoencoder {
			continue
		}
		parts = append(parts, lora.Component{
			Name: c.Dir, Class: c.Class.Name, Model: c.Model, Tables: c.Class.Tables(), Rules: c.Class.LoRA, Beyond: c.Class.LoRABeyond,
		})
	}
	l.LoRAs, err = lora.Load(specs, parts, loraHints()...)
	return err
}

// Load fills a component from its checkpoint.
func (l *Loader) Load(c Component, ck *checkpoint.Checkpoint) error {
	o := nn.LoadOptions{Name: c.Name, Points: l.Points, Dtype: l.Dtype, Prefixes: c.Prefixes, Ignore: c.Ignore, Quantize: c.LayerQuantizer(l.Quantize)}
	if l.Report != nil {
		o.Progress = func(done, total int64) { l.Report(c.Name, done, total) }
	}
	if l.LoRAs != nil {
		o.Adapt = l.LoRAs.Bake(c.Dir)
		if l.RuntimeLoRA {
			o.Adapt = l.LoRAs.BakeFixed(c.Dir)
		}
	}
	if err := nn.Load(c.Model, ck, o); err != nil {
		return err
	}
	if l.LoRAs != nil {
		l.LoRAs.Attach(c.Dir, c.Model)
	}
	return nil
}

// Unload frees a component, which can be loaded again.
func (l *Loader) Unload(c Component) {
	if l.LoRAs != nil {
		l.LoRAs.Detach(c.Model)
	}
	c.Unload()
}

// loraHints are those of all classes.
func loraHints() (hints []lora.Hint) {
	for _, c := range All {
		if c.LoRAHint != nil {
			hints = append(hints, *c.LoRAHint)
		}
	}
	return hints
}
