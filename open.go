package gomflux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/promptcache"
)

// OpenOptions configure how a model is loaded. The zero value and nil stand for the
// defaults.
type OpenOptions struct {
	// Device is the device that the model runs on. Metal and CUDA are an error on a
	// machine without such a GPU.
	Device Device
	// Dtype is the dtype of computations. "" stands for float32 on the CPU and for bfloat16
	// on a GPU, or float16 if the GPU has no bfloat16 hardware (Apple's M1 and M2, NVIDIA's
	// before compute capability 8.0).
	Dtype Dtype
	// Defaults, if set, override the model's default settings.
	Defaults *Defaults
	// For lists the options that the model will be used with. Options that the model does
	// not support are an error before weights are loaded. Components that are not needed
	// because of Options.Values, which must be the same in all of them, are not loaded and
	// need not exist.
	For []Options
	// LowRAM keeps at most one of the text encoders and the transformer in memory at a
	// time, and neither while an image is decoded. They are loaded when they are needed,
	// which a run reports to Options.Progress; that callback must not run the model then.
	// If the components do not fit into memory together, this is done in any case.
	LowRAM bool
	// Quantize quantizes the weights while they are loaded; "" leaves them as they are.
	// Some layers keep more bits, and the autoencoder is not quantized. Weights that are
	// quantized in the model's files are not changed.
	Quantize Quantization
	// GroupSize is the number of weights that share a scale: 32, 64 or 128. 0 stands for
	// 64. MXFP4, MXFP8 and NVFP4 have a fixed group size.
	GroupSize int
	// LoRAs are baked into the weights before quantization. Changes of weights that are
	// quantized in the model's files are computed next to them at run time instead.
	LoRAs []LoRA
	// RuntimeLoRA computes the changes of all LoRAs at run time, which is slower.
	RuntimeLoRA bool
	// BaseModel is the base model for [FindWith], used by [Open] and [OpenVAE].
	BaseModel string
	// Batch is the number of images that will be generated at once, for the memory
	// estimate. 0 stands for 1.
	Batch int
	// PreviewDecoder selects how [Model.Preview] decodes latents. LinearPreviews and "" stand
	// for a linear function of the latents. TinyPreviews stands for the published tiny
	// autoencoder (diffusers' AutoencoderTiny) that fits the model, if it is in the Hugging
	// Face cache; otherwise Warn is called, and previews are linear. All other values name an
	// autoencoder: its folder, file or repository. An autoencoder for other latents is an
	// [ErrRequest]. Previews never change the image. OpenVAE ignores this option.
	PreviewDecoder string
	// PromptCache, if set, is a folder where prompt embeddings are kept for later
	// processes, see [PromptCacheFolder]. It is created with mode 0700. Text encoders are
	// then loaded only if For has a prompt that is not there, and otherwise when a prompt
	// needs them, which a run reports to Options.Progress; that callback must not run the
	// model then. Runs with Options.Hook or Options.Values do not use the folder.
	PromptCache string
	// PromptCacheSize limits the size of the files in PromptCache, in bytes, by removing
	// those that were used least recently. 0 stands for 512 MB.
	PromptCacheSize int64
	// Group, if set, are the processes that load the model together, from [Join]. They compare their versions,
	// options and files of the model before weights are loaded; a difference is an error in all of them.
	Group *Group
	// Warn, if set, is called before weights are loaded if the runs in For, or a run with
	// the default settings, need more memory than is free. The message includes what
	// would fit. It is also called if PreviewDecoder is TinyPreviews and there is no such
	// autoencoder, and once if PromptCache cannot be used or has a damaged file; the prompts
	// are then encoded as without it.
	Warn func(string)
	// Progress, if set, is called on the caller's goroutine while the model is loaded.
	Progress func(Progress)
}

// Values of [OpenOptions].PreviewDecoder.
const (
	LinearPreviews = "linear" // colours that are a linear function of the latents
	TinyPreviews   = "tiny"   // the published tiny autoencoder for the model's latents
)

// findPreviewDecoder returns a function that finds the autoencoder for previews and stores
// its name, nil if previews are linear.
func (o *OpenOptions) findPreviewDecoder(name *string) func(component.Component) (fs.FS, error) {
	if o.PreviewDecoder == "" || o.PreviewDecoder == LinearPreviews {
		return nil
	}
	return func(own component.Component) (fs.FS, error) {
		if o.PreviewDecoder != TinyPreviews {
			*name = o.PreviewDecoder
			return catalog.FindAutoencoder(o.PreviewDecoder)
		}
		fsys, found, err := catalog.FindTiny(own)
		switch {
		case err == nil:
			*name = found
		case errors.Is(err, errs.ErrNotFound):
			if o.Warn != nil {
				mlx.Call(func() { o.Warn(err.Error() + "; previews are linear") })
			}
			return nil, nil
		}
		return fsys, err
	}
}

// PromptCacheFolder returns the folder for OpenOptions.PromptCache that the command
// uses: gomflux/prompts in the user's cache folder.
func PromptCacheFolder() (string, error) { return promptcache.DefaultFolder() }

// load converts the options to those of package models.
func (o *OpenOptions) load() (l models.LoadOptions, err error) {
	o = cmp.Or(o, &OpenOptions{})
	l = models.LoadOptions{Defaults: (*family.Defaults)(o.Defaults), LowRAM: o.LowRAM, Batch: o.Batch, Progress: onCaller(o.Progress)}
	if o.Group != nil {
		l.Group = o.Group.group
	}
	if warn := o.Warn; warn != nil {
		l.Warn = func(message string) { mlx.Call(func() { warn(message) }) }
	}
	if o.PromptCache != "" {
		if o.PromptCacheSize < 0 {
			return l, errs.Request(fmt.Errorf("prompt cache of %d bytes: must be a positive number", o.PromptCacheSize))
		}
		l.PromptCache = promptcache.New(o.PromptCache, cmp.Or(o.PromptCacheSize, promptcache.DefaultSize), l.Warn)
	}
	if l.Device, err = o.Device.device(); err != nil {
		return l, err
	}
	if l.Dtype, err = o.Dtype.compute(); err != nil {
		return l, err
	}
	if len(o.For) > 0 {
		l.Overrides = overridesOf(o.For[0].Values)
		inputs, err := inpaintAll(o.For)
		if err != nil {
			return l, err
		}
		l.Requests = func(p *models.Pipeline) (runs []models.Request) {
			for i, options := range o.For {
				r := request(p, options)
				r.Inpaint = inputs[i]
				runs = append(runs, r)
			}
			return runs
		}
	}
	l.Quantize, err = o.Quantize.internal(o.GroupSize)
	return l, err
}

// internal returns the engine's quantization with a group size, nil if q is empty.
func (q Quantization) internal(group int) (*mlx.Quantization, error) {
	switch {
	case q != "":
		return component.ParseQuantization(string(q), group)
	case group != 0:
		return nil, errs.Request(errors.New("a group size needs a quantization"))
	}
	return nil, nil
}

// Open finds a model by its name, like [Find], and loads it.
func Open(ctx context.Context, model string, o *OpenOptions) (*Model, error) {
	o = cmp.Or(o, &OpenOptions{})
	source, err := FindWith(model, o.BaseModel)
	if err != nil {
		return nil, o.Group.agree(err)
	}
	return source.Open(ctx, o)
}

// OpenFS loads a model from a file system, such as an embed.FS, that contains a model
// folder in diffusers' layout.
func OpenFS(ctx context.Context, fsys fs.FS, o *OpenOptions) (*Model, error) {
	return SourceFS(fsys).Open(ctx, o)
}

// Open loads the model.
func (s *Source) Open(ctx context.Context, o *OpenOptions) (*Model, error) {
	o = cmp.Or(o, &OpenOptions{})
	m, err := s.open(ctx, o)
	if err != nil {
		err = o.Group.agree(err) // the others are about to compare the model
	}
	return m, err
}

func (s *Source) open(ctx context.Context, o *OpenOptions) (*Model, error) {
	if s.found.Err != nil {
		return nil, s.found.Err
	}
	load, err := o.load()
	if err != nil {
		return nil, err
	}
	if load.Defaults == nil {
		load.Defaults = s.found.Defaults
	}
	m := &Model{source: s, previews: LinearPreviews, group: o.Group}
	load.PreviewDecoder = o.findPreviewDecoder(&m.previews)
	if load.LoRAs, load.RuntimeLoRA, err = m.change(o, load.Quantize); err != nil {
		return nil, err
	}
	if m.pipeline, err = onMLX(ctx, func() (*models.Pipeline, error) { return models.Load(s.found.FS, load) }); err != nil {
		return nil, err
	}
	m.VAE.autoencoder = m.pipeline.Autoencoder
	if err := hashLoRAs(ctx, load.LoRAs, m.changes.LoRAs); err != nil {
		m.Close()
		return nil, &models.GroupError{Err: err, Broken: true} // the others have opened theirs
	}
	return m, nil
}
