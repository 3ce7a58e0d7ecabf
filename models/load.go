package models

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// LoadOptions say how to load a model.
type LoadOptions struct {
	Device   *mlx.Device      // nil: a GPU if there is one
	Dtype    *mlx.Dtype       // nil: the device's own
	Defaults *family.Defaults // nil: those of the pipeline class
	Progress func(Progress)
	// For, if set, are the runs that the pipeline is for, once its configs are read:
	// what it cannot do of them is an error before its weights are read.
	For func(*Pipeline) []Request
	// Given are values that these runs are given. What they do not need then is
	// not loaded, and need not be there.
	Given Given
	// Quantize, if set, is how the weights are packed while they are loaded: all
	// layers but those that their classes have rules of. What a model's files have
	// quantized already stays as it is.
	Quantize *mlx.Quantization
	// LoRAs change the weights of text encoders and transformer, before these are
	// quantized. With RuntimeLoRA they are computed beside them instead, as they are
	// in any case where the files have the weights quantized.
	LoRAs       []lora.Spec
	RuntimeLoRA bool
	// LowRAM loads text encoders and the transformer when they are needed, and
	// frees one before the next, and before the autoencoder decodes, even if there
	// is memory for all.
	LowRAM bool
	// Batch is how many pictures of a run are made at once, 0 for one. It counts
	// for the estimate of memory only.
	Batch int
	// Stack, if set, describes the blocks of a component for estimates of memory,
	// instead of its class.
	Stack func(component.Component) component.Stack
	// Warn, if set, is told before weights are read that the runs may need more
	// memory than is free, and what would fit.
	Warn func(string)

	headersOnly bool  // no weights are read
	memory      int64 // see Pipeline
}

// Load reads a model folder in diffusers' layout. It must run on the MLX
// thread; its arrays live as long as the pipeline is referred to.
func Load(fsys fs.FS, o LoadOptions) (*Pipeline, error) {
	x, err := index.Read(fsys)
	if err != nil {
		return nil, err
	}
	class, err := family.Of(fsys, x)
	if err != nil {
		return nil, err
	}
	missing := x.Missing(fsys, true)
	if o.For == nil || o.Given == nil {
		if err := index.MissingError(fsys, missing); err != nil {
			return nil, err
		}
	}
	p := &Pipeline{Autoencoder: &Autoencoder{}, Class: class.Name, without: map[string]bool{}, parts: map[string]*part{}}
	if err := p.choose(o); err != nil {
		return nil, err
	}
	p.loader = &component.Loader{
		Folder:   component.Folder{FS: fsys, Points: &p.points, Dtype: p.dtype, Absent: absent(missing)},
		Quantize: o.Quantize, RuntimeLoRA: o.RuntimeLoRA,
	}
	whole := false
	defer func() { // after a panic too, which is how a job is interrupted
		if !whole {
			p.Close()
		}
	}()
	if err := p.load(x, o, missing); err != nil {
		return nil, err
	}
	whole = true
	return p, nil
}

// absent are the folders of the components of which files are missing.
func absent(missing []string) map[string]bool {
	folders := map[string]bool{}
	for _, name := range missing {
		dir, _ := path.Split(name)
		folders[strings.TrimSuffix(dir, "/")] = true
	}
	return folders
}

// load reads all small files and all headers before the first tensor, so that
// what is wrong with a folder is said before gigabytes are read.
func (p *Pipeline) load(x index.Index, o LoadOptions, missing []string) error {
	if err := p.declare(x, o.Defaults); err != nil {
		return err
	}
	if err := p.loader.OpenLoRAs(o.LoRAs, p.declared.Components); err != nil {
		return err
	}
	runs, needs, err := p.purpose(o)
	if err != nil {
		return err
	}
	needed := slices.DeleteFunc(missing, func(name string) bool { return !needs(path.Dir(name)) })
	if err := index.MissingError(p.loader.FS, needed); err != nil {
		return err
	}
	for dir := range p.loader.Absent {
		p.without[dir] = true
	}
	if err := p.loadTokenizers(needs); err != nil {
		return err
	}
	if err := p.measure(needs); err != nil {
		return err
	}
	for _, r := range runs {
		if err := r.complete(); err != nil {
			return err
		}
	}
	p.stack = o.Stack
	p.way, p.memory = way{near: o.LowRAM, lowRAM: o.LowRAM, alone: o.LowRAM}, o.memory
	if o.headersOnly {
		return nil
	}
	if err := p.checkPacking(); err != nil {
		return err
	}
	p.checkFit(runs, o.Batch, o.Warn)
	for _, c := range p.declared.Components {
		if p.way.lowRAM && c.Dir != component.Autoencoders {
			continue
		}
		if err := p.ensure(c.Dir, o.Progress); err != nil {
			return err
		}
	}
	return nil
}

// declare reads the configs and declares the components that have weights.
func (p *Pipeline) declare(x index.Index, defaults *family.Defaults) (err error) {
	if p.declared, err = family.Declare(&p.loader.Folder, x); err != nil {
		return err
	}
	p.family, p.Defaults = p.declared.Pipeline, p.declared.Pipeline.Defaults()
	if defaults != nil {
		p.Defaults = *defaults
	}
	components := p.declared.Components
	p.Autoencoder.use(p.declared.VAE, components[len(components)-1], p.loader)
	return nil
}

// purpose are the runs that the pipeline is for, none for any, and which components
// they need, by their folders.
func (p *Pipeline) purpose(o LoadOptions) (runs []*Run, needs func(dir string) bool, err error) {
	if o.For == nil {
		return nil, func(string) bool { return true }, nil
	}
	for _, r := range o.For(p) {
		run, err := p.outline(r)
		if err != nil {
			return nil, nil, err
		}
		runs = append(runs, run)
	}
	return runs, func(dir string) bool {
		return slices.ContainsFunc(runs, func(r *Run) bool { return r.plan.needs(dir) })
	}, nil
}

// measure declares the parts that are needed by the headers of their checkpoints.
func (p *Pipeline) measure(needs func(dir string) bool) error {
	var damaged errs.List // all at once: each may be a download of hours
	for _, c := range p.declared.Components {
		if !needs(c.Dir) {
			p.without[c.Dir] = true
			continue
		}
		ck, err := c.Open(p.loader.FS)
		if err != nil {
			damaged = append(damaged, err)
			continue
		}
		p.parts[c.Dir], err = newPart(c, ck)
		if err = errors.Join(err, ck.Close()); err != nil {
			return err
		}
	}
	return damaged.Err()
}

// loadTokenizers reads those that are needed.
func (p *Pipeline) loadTokenizers(needs func(dir string) bool) error {
	p.tokenizers = map[string]*tokenizer.Tokenizer{}
	for _, t := range p.family.Texts(nil) {
		if !needs(t.Tokenizer) {
			p.without[t.Tokenizer] = true
			continue
		}
		loaded, err := tokenizer.Load(p.loader.FS, t.Tokenizer)
		if err != nil {
			return err
		}
		p.tokenizers[t.Tokenizer] = loaded
	}
	return nil
}

// EstimateModel is the estimate for the first of o.For's runs, or for a run with the
// model's own settings, and how much memory there is for it, 0 where that is not
// known. It reads configs and headers only. It must run on the MLX thread.
func EstimateModel(fsys fs.FS, o LoadOptions) (e Estimate, free int64, err error) {
	o.headersOnly = true
	p, err := Load(fsys, o)
	if err != nil {
		return Estimate{}, 0, err
	}
	defer p.Close()
	r, err := p.ownRun()
	if err != nil {
		return Estimate{}, 0, err
	}
	if o.For != nil {
		if runs := o.For(p); len(runs) > 0 {
			if r, err = p.Prepare(runs[0], 1); err != nil {
				return Estimate{}, 0, err
			}
		}
	}
	r.batch = max(1, o.Batch)
	return r.Estimate(), p.room(), nil
}

// LoadAutoencoder reads the vae of a model folder and nothing else of it, or a
// folder that is a vae's own. It must run on the MLX thread.
func LoadAutoencoder(fsys fs.FS, o LoadOptions) (*Autoencoder, error) {
	a := &Autoencoder{}
	if err := a.choose(o); err != nil {
		return nil, err
	}
	l := &component.Loader{Folder: component.Folder{FS: fsys, Points: &a.points, Dtype: a.dtype}, Report: reporter(o.Progress)}
	dir := component.Autoencoders
	if _, err := fs.Stat(fsys, dir); errors.Is(err, fs.ErrNotExist) {
		dir = "."
		if _, err := fs.Stat(fsys, component.ConfigFile); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("model folder %s: %w: vae/config.json, or config.json in a vae's own folder (is the download complete?)", checkpoint.FullName(fsys, ""), fs.ErrNotExist)
		}
	}
	v, c, err := component.DeclareAutoencoder(&l.Folder, dir)
	if err != nil {
		return nil, err
	}
	a.use(v, c, l)
	ck, err := c.Open(fsys)
	if err != nil {
		return nil, err
	}
	defer ck.Close()
	return a, l.Load(c, ck)
}

// choose chooses device and dtype.
func (a *Autoencoder) choose(o LoadOptions) error {
	a.device = mlx.CurrentDevice()
	if o.Device != nil {
		if err := mlx.Use(*o.Device); err != nil {
			return err
		}
		a.device = *o.Device
	}
	a.dtype = a.device.ComputeDtype()
	if o.Dtype != nil {
		a.dtype = *o.Dtype
	}
	return nil
}
