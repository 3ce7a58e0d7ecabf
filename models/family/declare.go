package family

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/vae"
)

// A Declared is a pipeline of which only the configs have been read.
type Declared struct {
	Class      *Class
	Pipeline   Pipeline
	Scheduler  scheduler.ModelConfig
	VAE        vae.Autoencoder
	Components []component.Component // components with weights, the autoencoder last
	// Unfilled are the folders of components for which a new family has no code yet, with its place.
	Unfilled map[string]string
}

// Declare reads the configs of a model folder with an index, and declares the components that have
// weights.
func Declare(f *component.Folder, x index.Index) (*Declared, error) {
	class, err := Of(f.FS, x)
	if err != nil {
		return nil, err
	}
	d := &Declared{Class: class}
	configs := &Configs{Folder: f}
	pipeline, networks := class.Configure(configs)
	if err := d.readScheduler(f, x); err != nil {
		return nil, err
	}
	if configs.err != nil {
		return nil, configs.err
	}
	d.Pipeline, d.Unfilled = pipeline, configs.unfilled
	d.Components = class.components(networks)
	var autoencoder component.Component
	if d.VAE, autoencoder, err = component.DeclareAutoencoder(f, component.Autoencoders); err != nil {
		return nil, err
	}
	Adapt(class.Name, d.VAE)
	d.Components = append(d.Components, autoencoder)
	if err := d.checkClasses(x); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errs.ErrUnsupported, checkpoint.FullName(f.FS, index.Name(f.FS)), err)
	}
	if f.Absent[component.Transformers] {
		return d, nil
	}
	return d, d.checkLatents(autoencoder.Class)
}

// readScheduler reads the scheduler's config. The blocks of a modular pipeline make the scheduler that its index does
// not name: it is as in the published models of the class.
func (d *Declared) readScheduler(f *component.Folder, x index.Index) error {
	const folder = "scheduler"
	if x.Components[folder] != "" || index.Name(f.FS) != index.ModularFile {
		return f.ConfigAt(path.Join(folder, index.ConfigFile(component.FlowMatchEulerDiscreteScheduler.Name)), &d.Scheduler)
	}
	m, _ := d.Class.Member(folder)
	config := map[string]any{"_class_name": m.ClassName()}
	maps.Copy(config, d.Class.published().Scheduler)
	text, err := json.Marshal(config)
	if err == nil {
		err = json.Unmarshal(text, &d.Scheduler)
	}
	return err
}

// published returns a published model of the class, or one without values.
func (c *Class) published() Model {
	for _, f := range All {
		for _, m := range f.Models {
			if m.Class == c.Name {
				return m
			}
		}
	}
	return Model{}
}

// Adapt changes a declared autoencoder as a pipeline class does (see [Class.Autoencoder]).
func Adapt(class string, a vae.Autoencoder) {
	if c := Find(class); c != nil && c.Autoencoder != nil {
		c.Autoencoder(a)
	}
}

// checkClasses returns an error if the index names another class of a component than the one that runs,
// which diffusers would load.
func (d *Declared) checkClasses(x index.Index) error {
	for _, m := range d.Class.Components {
		own, runs := x.Components[m.Folder], m.ClassName()
		class := component.Find(own)
		ok := class == m.Class
		switch m.Class.Role {
		case component.Scheduler:
			if runs = d.Scheduler.ClassName(); runs == "" {
				runs = m.ClassName()
			}
			ok = own == runs
		case component.Autoencoder: // its config.json decides
			ok = class != nil && class.Role == component.Autoencoder
		case component.Tokenizer, component.Processor:
			continue
		}
		if own != "" && own != runs && !ok {
			return fmt.Errorf("%s is %q, expected %s", m.Folder, own, runs)
		}
	}
	return nil
}

// components returns the components with some networks, by their folders.
func (c *Class) components(networks Networks) (all []component.Component) {
	for _, m := range c.Components {
		network := networks[m.Folder]
		if network == nil {
			continue
		}
		d := component.Component{Class: m.Class, Name: m.Folder, Dir: m.Folder, Model: network, MFlux: m.MFlux, Dense: m.Dense}
		if m.headed() {
			d.Name += ".model"
		}
		if m.Class.Prefix != "" {
			d.Prefixes = []string{m.Class.Prefix}
		}
		if n, ok := network.(interface{ Unused() []string }); ok {
			d.Ignore = n.Unused()
		}
		all = append(all, d)
	}
	return all
}

// headed reports whether the member's class puts a head on a network, which is in its attribute
// model then: transformers names such classes XForY.
func (m Member) headed() bool { return strings.Contains(m.ClassName(), "For") }

// checkLatents returns an error if the latents of the autoencoder and of the transformer differ in
// shape. Both may use patches of latents.
func (d *Declared) checkLatents(autoencoder *component.Class) error {
	latent, unscaled := d.Pipeline.LatentShape(1, 1)[0], d.VAE.Unscaled(1, 1)[0]
	patch, in := d.VAE.LatentChannels()/unscaled, latent
	if p, ok := d.Pipeline.(NoisePacker); ok {
		shape := p.PackedShape(2, 2)
		in = shape[len(shape)-1]
		patch *= in / latent
	}
	what := "the vae's " + autoencoder.LatentKey
	if patch > 1 {
		what = fmt.Sprintf("%d times %s, %d,", patch, what, unscaled)
	}
	return component.SameSize(what, patch*unscaled, "the transformer's in_channels", in)
}

// Transformer returns the component that denoises.
func (d *Declared) Transformer() component.Component {
	for _, c := range d.Components {
		if c.Dir == component.Transformers {
			return c
		}
	}
	panic("family: " + d.Class.Name + " has no transformer")
}
