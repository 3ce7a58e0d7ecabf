// Package models puts a model folder's components together as its pipeline
// class does, and runs it. What all pipelines share is here and in
// generate.go; what one has of its own is in a file named after it.
package models

import (
	"errors"
	"fmt"
	"image"
	"io/fs"
	"maps"
	"path"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/textenc/tokenizer"
	"github.com/gomflux/gomflux/vae"
)

// ErrUnsupported is wrapped by errors about models that are no fault of the
// files: a pipeline class or a config that this version cannot run.
var ErrUnsupported = errors.New("not supported")

// A Pipeline is a loaded model.
type Pipeline struct {
	*Autoencoder
	Class    string // of model_index.json
	Defaults Defaults

	family     family
	scheduler  scheduler.FlowMatchEulerConfig
	tokenizers map[string]*tokenizer.Tokenizer // by their folders
	encodings  recent[encoding]
	seen       recent[seen]
	without    map[string]bool // the components that were not loaded
	loader     *loader
	parts      map[string]*part // by their folders, without those
	lowRAM     bool             // only one of them is in memory at a time, beside the autoencoder,
	alone      bool             // and none while that decodes
	near       bool             // a GPU is given less work in advance
	limit      int              // MLX's own limit of memory, during a run on CUDA,
	ahead      int              // and what it may take then beyond what there is
	loading    bool             // one of them is being loaded
	compiled   []func()         // which free what is compiled of a run

	compileOnCPU bool  // of tests
	memory       int64 // of tests, instead of what there is for the model
}

// Defaults are the settings a model is meant to be run with.
type Defaults struct {
	Steps             int
	Guidance          float64
	NegativePrompt    string
	Height, Width     int
	MaxSequenceLength int
}

// family is what one pipeline class has of its own. Its methods run on the MLX
// thread.
type family interface {
	// configure reads the configs of its components and declares them: all but
	// scheduler, tokenizers and vae. The other methods count on it.
	configure(l *loader) ([]component, error)
	defaults() Defaults
	// texts are what a prompt goes through, with the pictures that it speaks about.
	texts(references []image.Image) []text
	// latentShape is that of one picture's latents in diffusers, [C, h, w] for
	// a latent size of h×w.
	latentShape(h, w int) []int
	// multiple is what the latents' sides must be a multiple of.
	multiple() int
	// fits says what is too large about a latent size of h×w and a prompt of
	// some tokens.
	fits(h, w, tokens int) error
	// guidance says whether a scale asks for a prediction for the negative prompt
	// too, or what is wrong with it.
	guidance(scale float64) (negative bool, err error)
	// sigmas is the schedule before the scheduler's shift, and mu the shift of a
	// picture of so many tokens.
	sigmas(steps int) []float32
	mu(c *scheduler.FlowMatchEulerConfig, tokens, steps int) float64
	// predictor prepares to predict for a latent size of h×w. What it runs at
	// every step goes through compile.
	predictor(c conditions, h, w int, compile compiler) (predictor, error)
	// denoiser and encoder are the blocks of the transformer and of the text encoder
	// in a folder, for estimates of memory.
	denoiser() stack
	encoder(dir string) stack
	// guide joins the predictions for prompt and negative prompt.
	guide(positive, negative *mlx.Array, scale float64) *mlx.Array
}

// A packer is a family whose noise mflux draws in the transformer's form, so
// that the same seed gives the same picture.
type packer interface {
	// packed is that form of latents of h×w, and unpack takes it to theirs.
	packed(h, w int) []int
	unpack(x *mlx.Array, h, w int) *mlx.Array
}

// An editor is a family that can be shown pictures.
type editor interface {
	// checkReferences says what is wrong with a number of pictures, and
	// checkReference with one of some size.
	checkReferences(n int) error
	checkReference(size image.Point) error
	// reference is a picture as the autoencoder gets it, of the size that
	// referenceSize says, with sides of a multiple.
	reference(img *image.RGBA, multiple int) *image.RGBA
	referenceSize(size image.Point, multiple int) image.Point
	// editSize is the size of what is made of pictures of some sizes.
	editSize(sizes []image.Point, multiple int) image.Point
	// referenceName is what the model knows pictures by, before their numbers.
	referenceName() string
}

// conditions are what a picture is predicted from.
type conditions struct {
	text       []*mlx.Array // what each of the family's texts makes of the prompt
	references []*mlx.Array // latents [C, h, w] of pictures
	guidance   float64
	// keep keeps arrays of one step for later ones.
	keep func(...*mlx.Array)
}

// A predictor predicts from latents [B, C, h, w] the velocity, float32 in their
// shape, at a timestep of the schedule.
type predictor func(latents *mlx.Array, timestep float32) *mlx.Array

// A compiler is mlx.Compile, or nothing at all.
type compiler func(func([]*mlx.Array) []*mlx.Array) func([]*mlx.Array) []*mlx.Array

// classes holds every pipeline class by its name in model_index.json.
var classes = map[string]func() family{
	"Flux2KleinKVPipeline":      func() family { return &flux2{cached: true} },
	"Flux2KleinPipeline":        func() family { return &flux2{} },
	"FluxPipeline":              func() family { return &flux{} },
	"QwenImagePipeline":         func() family { return &qwenImage{} },
	"QwenImageEditPipeline":     func() family { return &qwenEdit{} },
	"QwenImageEditPlusPipeline": func() family { return &qwenEdit{plus: true} },
	"ZImagePipeline":            func() family { return &zimage{} },
}

// LoadOptions say how to load a model.
type LoadOptions struct {
	Device   *mlx.Device // nil: a GPU if there is one
	Dtype    *mlx.Dtype  // nil: the device's own
	Defaults *Defaults   // nil: those of the pipeline class
	Progress func(Progress)
	// For, if set, are the runs that the pipeline is for, once its configs are read:
	// what it cannot do of them is an error before its weights are read.
	For func(*Pipeline) []Request
	// Given are values that these runs are given. What they do not need then is
	// not loaded, and need not be there.
	Given Given
	// Quantize, if set, is how the weights are packed while they are loaded: all
	// layers but those that quantization.json says otherwise of. What a model's files
	// have quantized already stays as it is.
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
	// Warn, if set, is told before weights are read that the runs may need more
	// memory than is free, and what would fit.
	Warn func(string)

	headersOnly bool  // no weights are read
	memory      int64 // see Pipeline
}

// Load reads a model folder in diffusers' layout. It must run on the MLX
// thread; its arrays live as long as the pipeline is referred to.
func Load(fsys fs.FS, o LoadOptions) (*Pipeline, error) {
	index, err := readIndex(fsys)
	if err != nil {
		return nil, err
	}
	newFamily, err := index.family(fsys)
	if err != nil {
		return nil, err
	}
	missing := index.missing(fsys)
	if o.For == nil || o.Given == nil {
		if err := index.incomplete(fsys, missing); err != nil {
			return nil, err
		}
	}
	p := &Pipeline{Autoencoder: &Autoencoder{}, Class: index.class, family: newFamily(), without: map[string]bool{}}
	if err := p.place(o); err != nil {
		return nil, err
	}
	l := &loader{fsys: fsys, points: &p.points, dtype: p.dtype, report: o.Progress, absent: absentDirs(missing), quantize: o.Quantize, runtimeLoRA: o.RuntimeLoRA}
	p.loader, p.parts = l, map[string]*part{}
	whole := false
	defer func() { // after a panic too, which is how a job is interrupted
		if !whole {
			p.Close()
		}
	}()
	if err := p.load(l, o, func(needs func(string) bool) error {
		return index.incomplete(fsys, slices.DeleteFunc(missing, func(name string) bool { return !needs(path.Dir(name)) }))
	}); err != nil {
		return nil, err
	}
	whole = true
	return p, nil
}

// load reads all small files and all headers before the first tensor, so that
// what is wrong with a folder is said before gigabytes are read.
func (p *Pipeline) load(l *loader, o LoadOptions, complete func(needs func(string) bool) error) error {
	components, err := p.declare(l)
	if err != nil {
		return err
	}
	if o.Defaults != nil {
		p.Defaults = *o.Defaults
	}
	if err := l.openLoRAs(o.LoRAs, components); err != nil {
		return err
	}
	runs, needs, err := p.purpose(o)
	if err != nil {
		return err
	}
	if err := complete(needs); err != nil {
		return err
	}
	for dir := range l.absent {
		p.without[dir] = true
	}
	if err := p.loadTokenizers(l, needs); err != nil {
		return err
	}
	if err := p.measure(l, components, needs); err != nil {
		return err
	}
	for _, r := range runs {
		if err := p.Check(r); err != nil {
			return err
		}
	}
	p.near, p.lowRAM, p.alone, p.memory = o.LowRAM, o.LowRAM, o.LowRAM, o.memory
	if o.headersOnly {
		return nil
	}
	if err := p.checkPacking(o.Quantize); err != nil {
		return err
	}
	p.checkFit(runs, o)
	for _, c := range components {
		if p.lowRAM && c.dir != autoencoderDir {
			continue
		}
		if err := p.ensure(c.dir, o.Progress); err != nil {
			return err
		}
	}
	return nil
}

// purpose are the runs that the pipeline is for, none for any, and which components
// they need, by their folders.
func (p *Pipeline) purpose(o LoadOptions) (runs []Request, needs func(dir string) bool, err error) {
	if o.For == nil {
		return nil, func(string) bool { return true }, nil
	}
	var plans []plan
	runs = o.For(p)
	for _, r := range runs {
		if err := p.checkNumbers(r); err != nil {
			return nil, nil, err
		}
		schedule, err := p.schedule(&r)
		if err != nil {
			return nil, nil, err
		}
		plans = append(plans, p.plan(&r, schedule))
	}
	return runs, func(dir string) bool {
		return slices.ContainsFunc(plans, func(plan plan) bool { return plan.needs(dir) })
	}, nil
}

// measure declares the parts that are needed by the headers of their checkpoints.
func (p *Pipeline) measure(l *loader, components []component, needs func(dir string) bool) error {
	var damaged problems // all at once: each may be a download of hours
	for _, c := range components {
		if !needs(c.dir) {
			p.without[c.dir] = true
			continue
		}
		ck, err := c.open(l.fsys)
		if err != nil {
			damaged = append(damaged, err)
			continue
		}
		p.parts[c.dir], err = measure(c, ck)
		if err = errors.Join(err, ck.Close()); err != nil {
			return err
		}
	}
	if len(damaged) > 0 {
		return damaged
	}
	return nil
}

const autoencoderDir = "vae"

// declare reads the configs, declares the components that have weights, and sets
// the defaults.
func (p *Pipeline) declare(l *loader) ([]component, error) {
	p.scheduler = scheduler.DefaultFlowMatchEulerConfig()
	if err := l.config("scheduler/scheduler_config.json", &p.scheduler); err != nil {
		return nil, err
	}
	components, err := p.family.configure(l)
	if err != nil {
		return nil, err
	}
	p.Defaults = p.family.defaults()
	autoencoder, err := p.Autoencoder.configure(l, autoencoderDir)
	if err != nil {
		return nil, err
	}
	if !l.absent["transformer"] {
		err = p.sameLatents()
	}
	return append(components, autoencoder), err
}

// sameLatents says whether the autoencoder and the transformer mean the same by
// latents. Either may see patches of them.
func (p *Pipeline) sameLatents() error {
	latent, own := p.family.latentShape(1, 1)[0], p.vae.Unscaled(1, 1)[0]
	patch, in := p.vae.LatentChannels()/own, latent
	if f, ok := p.family.(packer); ok {
		shape := f.packed(2, 2)
		in = shape[len(shape)-1]
		patch *= in / latent
	}
	key := "latent_channels"
	if _, ok := p.vae.(*vae.KLQwenImage); ok {
		key = "z_dim"
	}
	what := "the vae's " + key
	if patch > 1 {
		what = fmt.Sprintf("%d times %s, %d,", patch, what, own)
	}
	return belong(what, patch*own, "the transformer's in_channels", in)
}

// belong compares two sizes of components that must be the same.
func belong(what string, size int, other string, otherSize int) error {
	if size != otherSize {
		return fmt.Errorf("%s is %d and %s %d: they belong to different models", what, size, other, otherSize)
	}
	return nil
}

// Classes lists the pipeline classes that can be run.
func Classes() []string {
	return slices.Sorted(maps.Keys(classes))
}

// LoRAs says what was found in each of LoadOptions.LoRAs.
func (p *Pipeline) LoRAs() []lora.Report {
	if p.loader == nil || p.loader.loras == nil {
		return nil
	}
	return p.loader.loras.Reports()
}

// Close frees what is not the garbage collector's. Arrays are freed when
// nothing refers to the pipeline any more.
func (p *Pipeline) Close() {
	if p.loader != nil && p.loader.loras != nil {
		p.loader.loras.Close()
	}
	for _, t := range p.tokenizers {
		t.Close()
	}
}

// Multiple is what heights and widths must be a multiple of, in pixels.
func (p *Pipeline) Multiple() int { return p.ScaleFactor() * p.family.multiple() }

// A component is a part of a pipeline with weights.
type component struct {
	name     string // the root of its modules' names
	dir      string // its folder
	class    string // of diffusers or transformers
	model    any    // a pointer to a struct, for nn.Load
	prefixes []string
	ignore   []string
}

// open opens the component's checkpoint, whatever its tensors are called.
func (c component) open(fsys fs.FS) (*checkpoint.Checkpoint, error) {
	ck, err := checkpoint.OpenCheckpoint(fsys, c.dir)
	if err != nil || c.model == nil {
		return ck, err
	}
	shapes := map[string][]int{}
	for _, p := range nn.Parameters(c.model) {
		shapes[p.Name] = p.Stored()
	}
	view, _, err := layout.View(ck, c.class, shapes)
	if err != nil {
		ck.Close()
		return nil, err
	}
	return view, nil
}

// match finds the component's tensors in its checkpoint.
func (c component) match(ck *checkpoint.Checkpoint) ([]nn.Found, *nn.MismatchError) {
	return nn.Match(c.model, ck, nn.LoadOptions{Name: c.name, Prefixes: c.prefixes, Ignore: c.ignore})
}

// A loader reads the components of one folder.
type loader struct {
	fsys   fs.FS
	points *hooks.Points
	dtype  mlx.Dtype
	report func(Progress)
	absent map[string]bool // folders of components that are not there, and may not be needed

	quantize    *mlx.Quantization
	loras       *lora.Set // nil for none
	runtimeLoRA bool
}

// config reads a component's config over its defaults, which stay where the
// component is absent.
func (l *loader) config(name string, c interface{ Validate() error }) error {
	if l.absent[path.Dir(name)] {
		return nil
	}
	if err := checkpoint.ReadJSON(l.fsys, name, c); err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrUnsupported, checkpoint.FullName(l.fsys, name), err)
	}
	return nil
}

// weights fills a component from its checkpoint.
func (l *loader) weights(c component, ck *checkpoint.Checkpoint) error {
	o := nn.LoadOptions{Name: c.name, Points: l.points, Dtype: l.dtype, Prefixes: c.prefixes, Ignore: c.ignore, Quantize: c.quantization(l.quantize)}
	if l.report != nil {
		o.Progress = func(done, total int64) {
			l.report(Progress{Phase: PhaseLoad, Component: c.name, Bytes: done, TotalBytes: total})
		}
	}
	if l.loras != nil {
		o.Adapt = l.loras.Bake(c.dir)
		if l.runtimeLoRA {
			o.Adapt = l.loras.BakeFixed(c.dir)
		}
	}
	if err := nn.Load(c.model, ck, o); err != nil {
		return err
	}
	if l.loras != nil {
		l.loras.Attach(c.dir, c.model)
	}
	return nil
}

// openLoRAs finds what LoRAs change of the components.
func (l *loader) openLoRAs(specs []lora.Spec, components []component) (err error) {
	if len(specs) == 0 {
		return nil
	}
	var parts []lora.Component
	for _, c := range components {
		if c.dir != autoencoderDir {
			parts = append(parts, lora.Component{Name: c.dir, Class: c.class, Model: c.model})
		}
	}
	l.loras, err = lora.Load(specs, parts)
	return err
}

// unload frees a component, which can be loaded again.
func (l *loader) unload(c component) {
	if l.loras != nil {
		l.loras.Detach(c.model)
	}
	unload(c)
}
