package gomflux

import (
	"context"
	"errors"
	"io/fs"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
)

// OpenOptions say how a model is loaded. The zero value, or nil, is sensible.
type OpenOptions struct {
	// Device is what the model runs on. Metal and CUDA are an error where a GPU is the
	// other one.
	Device Device
	// Dtype is what the model computes in; "" is float32 on the CPU and bfloat16 on a
	// GPU.
	Dtype Dtype
	// Defaults, if set, replace those of the model's pipeline class.
	Defaults *Defaults
	// For, if set, are options that the model is to be used with: what it cannot do of
	// them is an error before its weights are read. What they do not need, because of
	// their Values, which must be the same, is not read, and need not be there.
	For []Options
	// LowRAM keeps only one of the model's text encoders and its transformer in memory
	// at a time, and none while a picture is decoded, and loads them when they are
	// needed: a run's Progress tells of it, and must not run the model meanwhile. Where
	// they do not fit into memory beside each other that is done anyway.
	LowRAM bool
	// Quantize packs the weights while they are loaded; "" leaves them as they are.
	// Some layers keep more bits, and the autoencoder all. GroupSize is how many
	// weights share a scale: 32, 64 or 128, and 0 stands for 64; MXFP4, MXFP8 and
	// NVFP4 have their own. What the model's files have quantized already stays as it
	// is.
	Quantize  Quantization
	GroupSize int
	// LoRAs change the weights, before these are quantized. With RuntimeLoRA they are
	// computed beside the weights instead, which is slower. The changes that a
	// quantized file's weights get are always computed beside them.
	LoRAs       []LoRA
	RuntimeLoRA bool
	// BaseModel is the base model of [FindWith], for [Open] and [OpenVAE].
	BaseModel string
	// Batch is how many pictures are to be made at once, 0 for one, and Warn is told
	// before weights are read if the runs of For, or one with the model's own settings,
	// take more memory than is free, and what would fit.
	Batch int
	Warn  func(string)
	// Progress is called on the caller's goroutine while the model is loaded.
	Progress func(Progress)
}

func (o *OpenOptions) baseModel() string {
	if o == nil {
		return ""
	}
	return o.BaseModel
}

// load turns the options into those of package models.
func (o *OpenOptions) load() (l models.LoadOptions, err error) {
	if o == nil {
		o = &OpenOptions{}
	}
	l = models.LoadOptions{Defaults: o.Defaults.internal(), LowRAM: o.LowRAM, Batch: o.Batch, Progress: onCaller(o.Progress)}
	if warn := o.Warn; warn != nil {
		l.Warn = func(message string) { mlx.Call(func() { warn(message) }) }
	}
	if l.Device, err = o.Device.device(); err != nil {
		return l, err
	}
	if l.Dtype, err = o.Dtype.compute(); err != nil {
		return l, err
	}
	if len(o.For) > 0 {
		l.Given = givenOf(o.For[0].Values)
		l.For = func(p *models.Pipeline) (runs []models.Request) {
			for _, options := range o.For {
				runs = append(runs, request(p, options))
			}
			return runs
		}
	}
	if l.Quantize, err = o.Quantize.internal(o.GroupSize); err != nil {
		return l, err
	}
	return l, nil
}

// internal is the quantization with a group size, nil for none.
func (q Quantization) internal(group int) (*mlx.Quantization, error) {
	switch {
	case q != "":
		return component.ParseQuantization(string(q), group)
	case group != 0:
		return nil, errs.Request(errors.New("a group size says nothing without a quantization"))
	}
	return nil, nil
}

// Open finds a model by its name, as [Find] does, and loads it.
func Open(ctx context.Context, model string, o *OpenOptions) (*Model, error) {
	source, err := FindWith(model, o.baseModel())
	if err != nil {
		return nil, err
	}
	return source.Open(ctx, o)
}

// OpenFS loads the model in a file system, such as an embed.FS.
func OpenFS(ctx context.Context, fsys fs.FS, o *OpenOptions) (*Model, error) {
	return SourceFS(fsys).Open(ctx, o)
}

// Open loads the model.
func (s *Source) Open(ctx context.Context, o *OpenOptions) (*Model, error) {
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
	m := &Model{source: s}
	if load.LoRAs, load.RuntimeLoRA, err = m.change(o, load.Quantize); err != nil {
		return nil, err
	}
	err = mlx.Do(ctx, func() (err error) {
		m.pipeline, err = models.Load(s.found.FS, load)
		return err
	})
	if err != nil {
		return nil, public(err)
	}
	m.VAE.autoencoder = m.pipeline.Autoencoder
	if err := hashLoRAs(ctx, load.LoRAs, m.changes.LoRAs); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}
