package component

import (
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/lora"
)

// A Loader loads the weights of the components in a folder.
type Loader struct {
	Folder
	// Quantize is the quantization of weights that are not quantized in the files; nil
	// leaves them as they are.
	Quantize *mlx.Quantization
	// LoRAs, if set, are baked into the weights before quantization. With RuntimeLoRA
	// they are computed at run time, next to their layers, where that is possible.
	LoRAs       *lora.Set
	RuntimeLoRA bool
	// Skip has the parameters that are not loaded, because other processes have them; see [nn.Stages].
	Skip map[*nn.Param]bool
	// ReadAhead is how many bytes may be read before they are needed.
	ReadAhead int64
	// Report, if set, is called with the number of bytes of a component that were read.
	Report func(component string, done, total int64)
}

// OpenLoRAs opens LoRAs and finds the parameters of the components that they change.
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
			Name: c.Dir, Class: c.Class.Name, Model: c.Model, Tables: c.Class.Tables(), Rules: c.Class.LoRA,
			UnusedLayers: c.Class.LoRAUnusedLayers, Padded: c.Class.LoRAPadded,
		})
	}
	l.LoRAs, err = lora.Load(specs, parts, loraHints()...)
	return err
}

// Load loads a component from its checkpoint.
func (l *Loader) Load(c Component, ck *checkpoint.Checkpoint) error {
	return l.LoadUsing(c, ck, nil, nil)
}

// LoadFiles is Load for a component whose checkpoint is not open.
func (l *Loader) LoadFiles(c Component) error {
	ck, err := c.Open(l.FS)
	if err != nil {
		return err
	}
	defer ck.Close()
	return l.Load(c, ck)
}

// LoadUsing is Load for a component that needs some modules only once: it loads these first, calls
// use, frees them, and then loads the rest.
func (l *Loader) LoadUsing(c Component, ck *checkpoint.Checkpoint, modules []any, use func()) error {
	o := nn.LoadOptions{
		Name: c.Name, Points: l.Points, Dtype: l.Dtype, Prefixes: c.Prefixes, Ignore: c.Ignore, Quantize: c.LayerQuantizer(l.Quantize),
		Random: c.Random != "", Skip: func(p nn.Parameter) bool { return l.Skip[p.Param] },
	}
	if !o.Random {
		o.ReadAhead = l.ReadAhead
	}
	if l.Report != nil {
		o.Progress = func(done, total int64) { l.Report(c.Name, done, total) }
	}
	if l.LoRAs != nil {
		o.Adapt = l.LoRAs.Bake(c.Dir, l.RuntimeLoRA)
	}
	if len(modules) > 0 {
		used := Parameters(modules)
		o.First = func(p nn.Parameter) bool { return used[p.Param] }
		o.Between = func() {
			l.attachLoRAs(c)
			use()
			for p := range used {
				p.Free()
			}
		}
	}
	if err := nn.Load(c.Model, ck, o); err != nil {
		return err
	}
	l.attachLoRAs(c)
	return nil
}

// attachLoRAs adds LoRAs that are not baked to the layers that are loaded.
func (l *Loader) attachLoRAs(c Component) {
	if l.LoRAs != nil {
		l.LoRAs.Attach(c.Dir, c.Model)
	}
}

// Parameters returns the parameters of modules.
func Parameters(modules []any) map[*nn.Param]bool {
	all := map[*nn.Param]bool{}
	for _, m := range modules {
		for _, p := range nn.Parameters(m) {
			all[p.Param] = true
		}
	}
	return all
}

// Unload frees the weights of a component. It can be loaded again.
func (l *Loader) Unload(c Component) {
	if l.LoRAs != nil {
		l.LoRAs.Detach(c.Model)
	}
	c.Unload()
}

// loraHints returns the hints of all classes.
func loraHints() (hints []lora.Hint) {
	for _, c := range All {
		if c.LoRAHint != nil {
			hint := *c.LoRAHint
			hint.Class = c.Name
			hints = append(hints, hint)
		}
	}
	return hints
}
