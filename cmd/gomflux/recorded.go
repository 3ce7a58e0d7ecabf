package main

import (
	"context"
	"fmt"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
)

// take uses recorded settings where no flag says otherwise.
func (o *generateOptions) take(f *picture.Found, prompt *string) {
	s := f.Settings
	if f.Has("model") && o.model == "" {
		o.model = s.Model
	}
	if f.Has("prompt") && !o.promptGiven {
		*prompt = s.Prompt
	}
	takeValue(f, "negative_prompt", &o.negative, s.NegativePrompt)
	if f.Has("seed") && len(o.seeds) == 0 && o.autoSeeds.value == nil {
		o.seeds = seedList{s.Seed}
	}
	takeValue(f, "steps", &o.steps, s.Steps)
	takeValue(f, "guidance", &o.guidance, s.Guidance)
	takeValue(f, "max_sequence_length", &o.maxSequenceLength, s.MaxSequenceLength)
	if name, err := scheduler.Name(s.Scheduler); err == nil {
		takeValue(f, "scheduler", &o.scheduler, name)
	}
	takeValue(f, "rng", &o.rng, s.RNG)
	takeValue(f, "dtype", &o.dtype, s.Dtype)
	// of height and width alone, the other may be meant to follow the picture
	if o.height.value == nil && o.width.value == nil {
		takeValue(f, "height", &o.height, s.Height)
		takeValue(f, "width", &o.width, s.Width)
	}
	if f.Has("image") && s.Image != nil && o.image == "" {
		o.image, o.recordedFrom = models.ExpandHome(s.Image.Path), s.Image
	}
	if o.image != "" {
		takeValue(f, "image_strength", &o.imageStrength, s.ImageStrength)
	}
}

func takeValue[T any](f *picture.Found, field string, into *optional[T], value T) {
	if into.value == nil && f.Has(field) {
		into.value = &value
	}
}

// compare warns of what will make another picture than the recorded one.
func (o *generateOptions) compare(ctx context.Context, f *picture.Found, source *models.Source, p *printer) {
	s := f.Settings
	if s.Scheduler != "" && o.scheduler.value == nil {
		p.warn("%s was made with the scheduler %s, which this version does not know: the model's own is used", o.config, printable(s.Scheduler))
	}
	if f.Source != picture.SourceGomflux {
		p.warn("%s is not from gomflux (%s): its settings are used, but seeds give other pictures here", o.config, f.Source)
		return
	}
	if s.Revision != "" && source.Revision != "" && s.Revision != source.Revision {
		p.warn("%s was made with revision %s of %s, and this machine has %s", o.config, s.Revision, source.Name, source.Revision)
	}
	var device, version string
	if err := mlx.Do(ctx, func() error {
		d := mlx.CurrentDevice()
		if o.device.orZero() == "cpu" {
			d = mlx.CPU
		}
		device, version = d.String(), mlx.Version()
		return nil
	}); err != nil {
		return
	}
	if s.Device != "" && s.Device != device {
		p.warn("%s was made on %s, and this runs on %s: the picture will not be equal bit for bit", o.config, s.Device, device)
	}
	if s.MLX != "" && s.MLX != version || s.Generator != "" && s.Generator != "gomflux "+gomflux.Version() {
		made := fmt.Sprintf("%s with MLX %s", s.Generator, s.MLX)
		if o.verbose {
			p.warn("%s was made by %s, and this is gomflux %s with MLX %s: the picture may differ a little", o.config, made, gomflux.Version(), version)
		}
	}
}
