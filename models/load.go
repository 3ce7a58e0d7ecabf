package models

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/models/promptcache"
	"github.com/gomflux/gomflux/models/tuning"
	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// LoadOptions are the options of [Load].
type LoadOptions struct {
	Device   *mlx.Device      // nil: a GPU if there is one
	Dtype    *mlx.Dtype       // nil: the device's default
	Defaults *family.Defaults // nil: the defaults of the pipeline class
	Progress func(Progress)
	// Requests, if set, returns the requests that the pipeline is opened for, once its configs
	// are read. A request that cannot be run is an error before the weights are read, and
	// components that no request needs are not loaded.
	Requests func(*Pipeline) []Request
	// Overrides are those of the requests. Files that only lead to overridden values need not
	// be there.
	Overrides Overrides
	// Quantize, if set, is how weights are quantized while they are loaded, except in layers for
	// which their class has a rule. Weights that are quantized in the model's files stay as they
	// are.
	Quantize *mlx.Quantization
	// LoRAs change the weights of text encoders and transformer before these are quantized.
	LoRAs []lora.Spec
	// RuntimeLoRA computes LoRAs next to the layers instead of adding them to the weights.
	// Layers whose weights are quantized in the model's files always do so.
	RuntimeLoRA bool
	// LowRAM loads text encoders and the transformer when they are needed, and frees each before
	// the next one and before decoding, even if there is memory for all of them.
	LowRAM bool
	// Batch is the number of images that a run generates at once, for the memory estimate; 0 for
	// one.
	Batch int
	// MakeRoom, if set, is called before a language model is loaded that needs more memory than is free.
	MakeRoom func()
	// PromptCache, if set, keeps prompt embeddings on disk. Text encoders are then loaded only for
	// Requests whose prompts are not there, and otherwise when a run needs them.
	PromptCache *promptcache.Cache
	// Group, if set, are the processes that load the same model, which they compare before they read weights,
	// and generate images together.
	Group *mlx.Group
	// Random, if set, draws the weights at random. The folder needs only configs, no weights and
	// no tokenizers. Prompts get random tokens, and a run that does not fit into memory is an
	// error.
	Random *Random
	// BlockMemory, if set, replaces the memory constants of component classes in estimates.
	BlockMemory func(component.Component) component.BlockMemory
	// Partial, if set, is the pipeline class of a folder that need not have an index. Of a class that no
	// family describes the autoencoder alone is loaded.
	Partial string
	// PreviewDecoder, if set, is called with the model's autoencoder, and returns the folder of the
	// autoencoder that decodes previews, or nil for projections of the latents.
	PreviewDecoder func(component.Component) (fs.FS, error)
	// Warn, if set, is called before the weights are read if the runs may need more memory than
	// is free, with a message that suggests settings that fit, and about tensors of LoRAs that are
	// left out.
	Warn func(string)

	headersOnly bool            // reads no weights
	memory      int64           // see Pipeline
	mac         *mlx.DeviceInfo // see Pipeline, with headersOnly only
}

// readAhead is [component.Loader]'s ReadAhead. On two cores, 128 MiB made loading 3.4 GB of tensors of
// 42 MB 1.5 times as fast as reading one after the other.
var readAhead int64 = 128 << 20

// Load reads a model folder in diffusers' layout. It must run on the MLX thread.
// Callers must close the pipeline.
func Load(fsys fs.FS, o LoadOptions) (*Pipeline, error) {
	x, err := readIndex(fsys, o.Partial)
	if err != nil {
		return nil, err
	}
	class, err := family.Of(fsys, x)
	if err != nil {
		return nil, err
	}
	missing := x.Missing(fsys, true)
	if o.Random != nil {
		missing = slices.DeleteFunc(missing, func(name string) bool { return index.IsTokenizer(x.Components[path.Dir(name)]) })
	}
	if o.Requests == nil || o.Overrides == nil {
		if err := index.MissingError(fsys, missing); err != nil {
			return nil, err
		}
	}
	p := &Pipeline{
		Autoencoder: &Autoencoder{}, Class: class.Name, random: o.Random,
		notLoaded: map[string]bool{}, loadables: map[string]*loadable{},
	}
	if err := p.chooseDevice(o); err != nil {
		return nil, err
	}
	p.loader = &component.Loader{
		Folder:   component.Folder{FS: fsys, Points: &p.points, Dtype: p.dtype, Absent: absent(missing)},
		Quantize: o.Quantize, RuntimeLoRA: o.RuntimeLoRA, ReadAhead: readAhead,
	}
	complete := false
	defer closeUnless(&complete, p.close)
	if err := p.load(x, o, missing); err != nil {
		return nil, err
	}
	complete = true
	return p, nil
}

// readIndex reads a folder's index, or makes one for the pipeline class partial, unless that is "".
func readIndex(fsys fs.FS, partial string) (x index.Index, err error) {
	if partial == "" || index.Exists(fsys) {
		x, err = index.Read(fsys)
		if err != nil || partial == "" || family.Find(x.Class) != nil {
			return x, err
		}
	}
	return family.IndexOf(partial), nil
}

// absent returns the folders of components with missing files.
func absent(missing []string) map[string]bool {
	folders := map[string]bool{}
	for _, name := range missing {
		dir, _ := path.Split(name)
		folders[strings.TrimSuffix(dir, "/")] = true
	}
	return folders
}

// load reads all small files and all headers before the first tensor, so that errors in a folder
// are reported before gigabytes are read.
func (p *Pipeline) load(x index.Index, o LoadOptions, missing []string) error {
	if o.Group != nil && o.Group.Size() > 1 {
		p.group, p.files, p.divisions = o.Group, map[string]string{}, map[string]division{}
	}
	if err := p.declare(x, o.Defaults); err != nil {
		return err
	}
	if err := p.loader.OpenLoRAs(o.LoRAs, p.declared.Components); err != nil {
		return err
	}
	runs, needs, err := p.requestedRuns(o)
	if err != nil {
		return err
	}
	needed := slices.DeleteFunc(missing, func(name string) bool { return !needs(path.Dir(name)) })
	if err := index.MissingError(p.loader.FS, needed); err != nil {
		return err
	}
	var unfilled errs.List
	for _, dir := range sorted(p.declared.Unfilled) {
		if needs(dir) {
			unfilled = append(unfilled, fmt.Errorf("%s of %s is not filled in: %s", dir, p.Class, p.declared.Unfilled[dir]))
		}
	}
	if len(unfilled) > 0 {
		return fmt.Errorf("%w: %w", errs.ErrUnsupported, unfilled)
	}
	for dir := range p.loader.Absent {
		p.notLoaded[dir] = true
	}
	tokenizers := p.loadTokenizers(needs, o.PromptCache != nil)
	matched := p.matchWeights(needs)
	if err := cmp.Or(tokenizers(), matched); err != nil {
		return err
	}
	p.openDiskCache(o.PromptCache)
	for _, r := range runs {
		if err := r.tokenizePrompts(); err != nil {
			return err
		}
	}
	if err := p.loadPreviewer(o); err != nil {
		return err
	}
	p.blockMemory = o.BlockMemory
	p.memory, p.mac = o.memory, o.mac
	if p.mac != nil {
		p.memory = int64(p.mac.WorkingSet)
	}
	if o.LowRAM {
		p.setLowRAM()
	}
	if o.headersOnly {
		return nil
	}
	if err := p.agreeOnModel(runs, o); err != nil {
		return err
	}
	if p.group == nil {
		return p.loadWeights(runs, o)
	}
	if failed := mlx.Try(func() { err = p.loadWeights(runs, o) }); failed != nil {
		err = failed
	}
	return Agree(p.group, nil, err)
}

// Absent lists the folders of components that a folder or a new family lacks; see LoadOptions.Overrides.
func (p *Pipeline) Absent() []string { return sorted(p.loader.Absent) }

// AbsentValues returns the values that absent components would compute, by their names without a step, and the
// folder of each component. A run in which they are overridden does without the components.
func (p *Pipeline) AbsentValues() map[string]string {
	values := map[string]string{}
	add := func(dir string, names ...string) {
		for _, name := range names {
			if p.loader.Absent[dir] {
				values[name] = dir
			}
		}
	}
	add(component.Transformers, "latents", "vae.decode.in")
	add("scheduler", "sigmas", "timesteps")
	for _, t := range p.family.PromptEncodings(nil) {
		add(t.Tokenizer, "prompt."+t.IDs, "negative."+t.IDs)
		add(t.Encoder, "prompt."+t.Embeds, "negative."+t.Embeds)
	}
	return values
}

// setLowRAM makes runs use as little memory as they can.
func (p *Pipeline) setLowRAM() {
	p.residency = leastMemory
	if p.device != mlx.CPU {
		p.budget = 1 << 30
	}
}

// loadWeights reads the weights of all components, or with low RAM those of the autoencoder. With
// a cache of prompt embeddings it reads only the text encoders that the runs need.
func (p *Pipeline) loadWeights(runs []*Run, o LoadOptions) error {
	if err := p.checkQuantizations(); err != nil {
		return err
	}
	fitting := runs
	if len(runs) == 0 {
		if r, err := p.defaultRun(); err == nil {
			fitting = []*Run{r}
		}
	}
	if err := p.chooseStages(fitting, o.Batch, o.Warn); err != nil {
		return err
	}
	p.staged = len(fitting) > 0 && !slices.ContainsFunc(fitting, func(r *Run) bool { return r.Split != SplitStages })
	if err := p.checkFit(fitting, o.Batch, o.Warn); err != nil {
		return err
	}
	for _, l := range p.LoRAs() {
		for _, warning := range l.Warnings {
			if o.Warn != nil {
				o.Warn(warning)
			}
		}
	}
	for _, c := range p.declared.Components {
		if p.residency.lowRAM && c.Dir != component.Autoencoders {
			continue
		}
		encodes := func(r *Run) bool { return r.plan.needs(c.Dir) && !r.cached[c.Dir] }
		if p.disk != nil && p.isTextEncoder(c.Dir) && !slices.ContainsFunc(runs, encodes) {
			continue
		}
		if err := p.ensureLoaded(c.Dir, nil, o.Progress); err != nil {
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
	if p.random != nil {
		for i := range components {
			components[i].Random = p.random.Dtype
		}
	}
	p.Autoencoder.setVAE(p.declared.VAE, components[len(components)-1], p.loader)
	return nil
}

// requestedRuns returns the runs that the pipeline is opened for, without their tokens, and a
// function that reports whether they need the component in a folder. Without requests there are no
// runs, and every component is needed.
func (p *Pipeline) requestedRuns(o LoadOptions) (runs []*Run, needs func(dir string) bool, err error) {
	if o.Requests == nil {
		return nil, func(string) bool { return true }, nil
	}
	for _, r := range o.Requests(p) {
		run, err := p.newCheckedRun(r)
		if err != nil {
			return nil, nil, err
		}
		runs = append(runs, run)
	}
	return runs, func(dir string) bool {
		return slices.ContainsFunc(runs, func(r *Run) bool { return r.plan.needs(dir) })
	}, nil
}

// matchWeights matches the components that are needed with the headers of their checkpoints.
func (p *Pipeline) matchWeights(needs func(dir string) bool) error {
	var damaged errs.List // all at once, since each may be hours of downloading
	for _, c := range p.declared.Components {
		if !needs(c.Dir) {
			p.notLoaded[c.Dir] = true
			continue
		}
		ck, err := c.Open(p.loader.FS)
		if err != nil {
			damaged = append(damaged, err)
			continue
		}
		l, err := newLoadable(c, ck)
		err = errors.Join(err, p.identify(c, ck))
		if err = errors.Join(err, ck.Close()); err != nil {
			return err
		}
		p.loadables[c.Dir] = l
	}
	return damaged.Err()
}

// A lazyTokenizer is a tokenizer that is loaded when it is needed, or ahead of that.
type lazyTokenizer struct {
	fsys fs.FS
	dir  string
	once sync.Once
	t    *tokenizer.Tokenizer
	err  error
}

// load returns the tokenizer. Several goroutines may call it.
func (l *lazyTokenizer) load() (*tokenizer.Tokenizer, error) {
	l.once.Do(func() { l.t, l.err = tokenizer.Load(l.fsys, l.dir) })
	return l.t, l.err
}

// loadTokenizers begins to load the tokenizers that are needed. The function that it returns waits for
// all of them. With a cache of prompt embeddings they are only loaded for a prompt that is not there.
func (p *Pipeline) loadTokenizers(needs func(dir string) bool, lazy bool) (wait func() error) {
	p.tokenizers = map[string]*lazyTokenizer{}
	for _, t := range p.family.PromptEncodings(nil) {
		switch {
		case p.random != nil:
		case needs(t.Tokenizer):
			p.tokenizers[t.Tokenizer] = &lazyTokenizer{fsys: p.loader.FS, dir: t.Tokenizer}
		default:
			p.notLoaded[t.Tokenizer] = true
		}
	}
	var ahead []*lazyTokenizer
	for _, dir := range sorted(p.tokenizers) {
		if l := p.tokenizers[dir]; !lazy {
			ahead = append(ahead, l)
			go l.load()
		}
	}
	return func() (first error) {
		for _, l := range ahead {
			_, err := l.load()
			first = cmp.Or(first, err)
		}
		return first
	}
}

// EstimateModel estimates the memory of the first of o.Requests, or of a run with the model's
// defaults, as it is opened and in low RAM. It returns how much memory is available for it in bytes,
// 0 if that is unknown. It reads only configs, tokenizers and headers. It must run on the MLX thread.
func EstimateModel(fsys fs.FS, o LoadOptions) (e, low Estimate, available int64, err error) {
	o.headersOnly = true
	p, err := Load(fsys, o)
	if err != nil {
		return e, low, 0, err
	}
	defer p.Close()
	r, err := p.defaultRun()
	if err != nil {
		return e, low, 0, err
	}
	if o.Requests != nil {
		if requests := o.Requests(p); len(requests) > 0 {
			if r, err = p.Prepare(requests[0], 1); err != nil {
				return e, low, 0, err
			}
		}
	}
	r.batch = max(1, o.Batch)
	e, available = r.Estimate(), p.available()
	p.setLowRAM()
	low = r.Estimate()
	e.Rewrite = r.estimateRewriting(o)
	low.Rewrite = e.Rewrite
	return e, low, available, nil
}

// LoadAutoencoder reads only the vae of a model folder, or a folder with a single vae. It must run
// on the MLX thread. Callers must close the autoencoder.
func LoadAutoencoder(fsys fs.FS, o LoadOptions) (*Autoencoder, error) {
	a := &Autoencoder{}
	if err := a.chooseDevice(o); err != nil {
		return nil, err
	}
	l := &component.Loader{
		Folder: component.Folder{FS: fsys, Points: &a.points, Dtype: a.dtype}, ReadAhead: readAhead, Report: LoadReport(o.Progress),
	}
	dir := component.Autoencoders
	if _, err := fs.Stat(fsys, dir); errors.Is(err, fs.ErrNotExist) {
		dir = "."
		if _, err := fs.Stat(fsys, component.ConfigFile); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("model folder %s: %w: vae/config.json, or config.json in a vae's own folder (is the download complete?)",
				checkpoint.FullName(fsys, ""), fs.ErrNotExist)
		}
	}
	v, c, err := component.DeclareAutoencoder(&l.Folder, dir)
	if err != nil {
		return nil, err
	}
	if x, err := index.Read(fsys); err == nil {
		family.Adapt(x.Class, v)
	}
	a.setVAE(v, c, l)
	complete := false
	defer closeUnless(&complete, a.close)
	if err := l.LoadFiles(c); err != nil {
		return nil, err
	}
	complete = true
	return a, nil
}

// chooseDevice sets the device and the dtype.
func (a *Autoencoder) chooseDevice(o LoadOptions) error {
	a.device = mlx.CurrentDevice()
	if o.Device != nil {
		if err := mlx.Use(*o.Device); err != nil {
			return err
		}
		a.device = *o.Device
	}
	a.dtype, a.tuned = tuning.Dtype(a.device), tuning.InUse(a.device)
	if o.mac != nil {
		a.device, a.tuned = o.mac.Device, tuning.Settings{}
		a.dtype, _ = o.mac.ComputeDtype()
	}
	if o.Dtype != nil {
		a.dtype = *o.Dtype
	}
	return nil
}

// closeUnless closes what was being loaded, unless that is complete. It is deferred, since a panic interrupts a job.
func closeUnless(complete *bool, close func()) {
	if !*complete {
		close()
	}
}
