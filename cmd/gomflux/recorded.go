package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
)

// take uses recorded settings where no flag says otherwise. Flags refuse of them
// what they refuse when they are given.
func (o *generateOptions) take(f *picture.Found, prompt *string) error {
	s := f.Settings
	r := gomflux.OptionsFrom(&s)
	if f.Has("model") && o.model == "" {
		o.model = s.Model
	}
	if f.Has("prompt") && !o.promptGiven {
		*prompt = s.Prompt
	}
	if f.Has("seed") && len(o.seeds) == 0 && o.autoSeeds.value == nil {
		o.seeds = seedList{s.Seed}
	}
	if f.Has("image") && s.Image != nil && o.image == "" {
		o.image, o.recordedFrom = models.ExpandHome(s.Image.Path), s.Image
	}
	_, err := scheduler.Name(s.Scheduler)
	knownScheduler := err == nil // compare warns of another one
	// of height and width alone, the other may be meant to follow the picture
	noSize := o.height.value == nil && o.width.value == nil
	for _, v := range []struct {
		field string
		flag  interface {
			pflag.Value
			given() bool
		}
		value any
		use   bool
	}{
		{"negative_prompt", &o.negative, r.NegativePrompt, true},
		{"steps", &o.steps, r.Steps, true},
		{"guidance", &o.guidance, *r.Guidance, true},
		{"max_sequence_length", &o.maxSequenceLength, r.MaxSequenceLength, true},
		{"scheduler", &o.scheduler, r.Scheduler, knownScheduler},
		{"rng", &o.rng, r.RNG, true},
		{"dtype", &o.dtype, s.Dtype, true},
		{"height", &o.height, r.Height, noSize},
		{"width", &o.width, r.Width, noSize},
		{"image_strength", &o.imageStrength, r.ImageStrength, o.image != ""},
	} {
		text := fmt.Sprint(v.value)
		if !v.use || !f.Has(v.field) || text == "" || v.flag.given() {
			continue
		}
		if err := v.flag.Set(text); err != nil {
			return fmt.Errorf("%s: %s %s: %w (give another one with --%s)", o.config, v.field, printable(text), err, strings.ReplaceAll(v.field, "_", "-"))
		}
	}
	return nil
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
