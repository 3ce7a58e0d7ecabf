package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
)

// take uses recorded settings where no flag says otherwise. Flags refuse of them
// what they refuse when they are given.
func (o *generateOptions) take(f *picture.Found, g *generation) error {
	s := f.Settings
	r := gomflux.OptionsFrom(&s)
	if err := o.takeImages(&s); err != nil {
		return err
	}
	if f.Has("model") && o.model == "" {
		o.model, o.modelRecorded = s.Model, true
		if o.base == "" {
			o.base = s.BaseModel
		}
	}
	if s.Prompt != "" && !o.promptGiven {
		g.prompts = []string{s.Prompt}
	}
	if f.Has("seed") && len(o.seeds) == 0 && o.autoSeeds.value == nil {
		o.seeds = seedList{s.Seed}
	}
	o.takeLoRAs(f)
	_, err := scheduler.Name(s.Scheduler)
	knownScheduler := err == nil // compare warns of another one
	// of height and width alone, the other may be meant to follow the picture
	noQuantize := !o.quantize.given() // of which the group is one
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
		{"quantize", &o.quantize, s.Quantize, noQuantize},
		{"group_size", &o.groupSize, s.GroupSize, noQuantize},
		{"image_strength", &o.imageStrength, r.ImageStrength, !o.edits && len(o.images.names) > 0},
	} {
		text := fmt.Sprint(v.value)
		if !v.use || !f.Has(v.field) || text == "" || v.flag.given() {
			continue
		}
		if err := v.flag.Set(text); err != nil {
			return fmt.Errorf("%s: %s %s: %w (give another one with --%s)", o.config, v.field, quote.Printable(text), err, strings.ReplaceAll(v.field, "_", "-"))
		}
	}
	return nil
}

// takeImages uses the recorded pictures where none are given. What an edit made
// can only be made again by an edit, and the reverse.
func (o *generateOptions) takeImages(s *picture.Settings) error {
	recorded := s.References
	switch {
	case o.edits && len(o.images.names) == 0 && len(recorded) == 0:
		return fmt.Errorf("%s was not made by an edit (give the pictures to edit with --image, or make it again with gomflux generate)", o.config)
	case !o.edits && len(recorded) > 0:
		return fmt.Errorf("%s was made by an edit (gomflux edit --config-from-metadata makes it again)", o.config)
	case !o.edits && s.Image != nil && s.Image.Path != "":
		recorded = []picture.SourceImage{*s.Image}
	}
	if len(o.images.names) > 0 {
		return nil
	}
	o.recordedFrom = recorded
	for _, source := range recorded {
		o.images.names = append(o.images.names, catalog.ExpandHome(source.Path))
	}
	return nil
}

// takeLoRAs uses the recorded LoRAs where none are given, nor that there be none.
func (o *generateOptions) takeLoRAs(f *picture.Found) {
	if o.loras.given() || !f.Has("loras") {
		return
	}
	open := gomflux.OpenOptionsFrom(&f.Settings)
	o.loras.list = open.LoRAs
	o.noBake = o.noBake || open.RuntimeLoRA
	o.lorasRecorded = len(o.loras.list) > 0
}

// compareLoRAs warns of files that have changed since they were recorded.
func (o *generateOptions) compareLoRAs(f *picture.Found, found []picture.LoRA, p *printer) {
	if !o.lorasRecorded {
		return
	}
	i := 0
	for _, l := range f.Settings.LoRAs {
		if l.Scale == 0 {
			continue // does nothing
		}
		if l.SHA256 != "" && l.SHA256 != found[i].SHA256 {
			p.warn("%s is not the LoRA that %s was made with: it has changed since", quote.Printable(found[i].Path), o.config)
		}
		i++
	}
}

// findModel looks for the model: that of recorded settings at the commit that
// they have, if it is on this machine.
func (o *generateOptions) findModel(f *picture.Found) (*gomflux.Source, error) {
	if !o.modelRecorded || f.Source != picture.SourceGomflux || f.Settings.Revision == "" {
		return o.find()
	}
	repo, _, file, ok := hub.ParseAddress(f.Settings.Model)
	if !ok || !hub.IsRevision(f.Settings.Revision) {
		return o.find()
	}
	s, err := gomflux.FindWith(hub.Address(repo, f.Settings.Revision, file), o.base)
	if errors.Is(err, gomflux.ErrNotFound) {
		if other, otherErr := o.find(); otherErr == nil {
			return other, nil // of which compare warns
		}
	}
	return s, coded(exitModel, err)
}

// compare warns of what will make another picture than the recorded one.
func (o *generateOptions) compare(ctx context.Context, f *picture.Found, source *gomflux.Source, p *printer) {
	s := f.Settings
	if s.Scheduler != "" && o.scheduler.value == nil {
		p.warn("%s was made with the scheduler %s, which this version does not know: the model's own is used", o.config, quote.Printable(s.Scheduler))
	}
	if f.Source != picture.SourceGomflux {
		p.warn("%s is not from gomflux (%s): its settings are used, but seeds give other pictures here", o.config, f.Source)
		return
	}
	together := min(o.batchSize.orZero(), len(o.seeds))
	if s.Batch > 1 && s.Batch != together && slices.Contains(o.seeds, s.Seed) {
		p.warn("%s was made in a batch of %d: alone, or in another batch, its pixels may differ by rounding", o.config, s.Batch)
	}
	if s.Revision != "" && source.Revision() != "" && s.Revision != source.Revision() {
		that := hub.Address(source.Name(), s.Revision, "")
		if repo, _, file, ok := hub.ParseAddress(source.Name()); ok {
			that = hub.Address(repo, s.Revision, file)
		}
		hint := "to get the former: gomflux pull " + that
		if _, err := gomflux.Find(that); err == nil {
			hint = "--model " + that + " is the former"
		}
		p.warn("%s was made with revision %s of %s, and %s is used (%s)", o.config, quote.Printable(s.Revision), source.Name(), source.Revision(), quote.Printable(hint))
	}
	var device, version string
	if err := mlx.Do(ctx, func() error {
		d := mlx.CurrentDevice()
		given, _, err := o.place()
		if given != nil {
			d = *given
		}
		device, version = d.String(), mlx.Version()
		return err
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
