package family

import (
	"fmt"

	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/vae"
)

// A Declared is a pipeline whose configs were read, and nothing else.
type Declared struct {
	Class      *Class
	Pipeline   Pipeline
	Scheduler  scheduler.FlowMatchEulerConfig
	VAE        vae.Autoencoder
	Components []component.Component // that have weights, the autoencoder last
}

// Declare reads the configs of a model folder, which has an index, and declares the
// components that have weights.
func Declare(f *component.Folder, x index.Index) (*Declared, error) {
	class, err := Of(f.FS, x)
	if err != nil {
		return nil, err
	}
	d := &Declared{Class: class, Pipeline: class.New(), Scheduler: scheduler.DefaultFlowMatchEulerConfig()}
	if err := f.ConfigAt("scheduler/scheduler_config.json", &d.Scheduler); err != nil {
		return nil, err
	}
	if d.Components, err = d.Pipeline.Configure(f); err != nil {
		return nil, err
	}
	var autoencoder component.Component
	if d.VAE, autoencoder, err = component.DeclareAutoencoder(f, component.Autoencoders); err != nil {
		return nil, err
	}
	d.Components = append(d.Components, autoencoder)
	if f.Absent[component.Transformers] {
		return d, nil
	}
	return d, d.sameLatents(autoencoder.Class)
}

// sameLatents returns an error if the autoencoder and the transformer mean different
// things by latents. Either may see patches of them.
func (d *Declared) sameLatents(autoencoder *component.Class) error {
	latent, own := d.Pipeline.LatentShape(1, 1)[0], d.VAE.Unscaled(1, 1)[0]
	patch, in := d.VAE.LatentChannels()/own, latent
	if p, ok := d.Pipeline.(Packer); ok {
		shape := p.Packed(2, 2)
		in = shape[len(shape)-1]
		patch *= in / latent
	}
	what := "the vae's " + autoencoder.LatentKey
	if patch > 1 {
		what = fmt.Sprintf("%d times %s, %d,", patch, what, own)
	}
	return component.SameSize(what, patch*own, "the transformer's in_channels", in)
}

// Transformer is the component that denoises.
func (d *Declared) Transformer() component.Component {
	for _, c := range d.Components {
		if c.Dir == component.Transformers {
			return c
		}
	}
	panic("family: " + d.Class.Name + " has no transformer")
}
