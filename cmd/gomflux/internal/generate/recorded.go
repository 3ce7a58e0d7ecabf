package generate

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/inpaint"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
)

// useRecorded sets the flags that are not given to the recorded settings. Invalid
// settings are refused as the flags refuse them.
func (g *generation) useRecorded() error {
	f, o := g.recorded, g.generateOptions
	s := f.Settings
	if err := g.useImages(&s); err != nil {
		return err
	}
	g.useRecordedMask(&s)
	if f.Has("model") && o.Model == "" {
		o.Model, g.modelRecorded = s.Model, true
		if o.Base == "" {
			o.Base = s.BaseModel
		}
	}
	if f.Has("prompt") && !o.promptGiven {
		g.allPrompts, g.rewritten = []string{s.Prompt}, []rewritten{{s.OriginalPrompt, s.EnhancedBy}}
	}
	if f.Has("seed") && len(o.seeds) == 0 && !o.autoSeeds.Given() {
		o.seeds = cli.SeedList{s.Seed}
	}
	g.useLoRAs(f)
	if !o.guidance.Given() {
		g.guidanceUnit = s.GuidanceUnit
	}
	for _, v := range g.recordedFlags(&s) {
		text := fmt.Sprint(v.value)
		if !v.use || !f.Has(v.field) || text == "" || v.flag.Given() {
			continue
		}
		if err := v.flag.Set(text); err != nil {
			flag := strings.ReplaceAll(v.field, "_", "-")
			return fmt.Errorf("%s: %s %s: %w (give another one with --%s)", o.config, v.field, quote.Printable(text), err, flag)
		}
		g.fields = append(g.fields, v.field)
	}
	return nil
}

// leaveOut leaves out the recorded setting that an error of the model is about, with a warning. If the image
// cannot do without it, or nothing of the file is the cause, it returns an error instead.
func (g *generation) leaveOut(err error) error {
	if !errors.Is(err, gomflux.ErrRequest) {
		return err
	}
	o, text := &g.options, err.Error()
	about := func(field string) bool {
		return strings.HasPrefix(strings.ToLower(text), strings.ReplaceAll(field, "_", " ")+" ")
	}
	scales := o.GuidanceUnit == picture.DistilledCFGScale && o.TrueCFGScale != 0
	if scales && about("guidance") { // one of them is used as the other
		g.fields = append(g.fields, "guidance")
	}
	// a longer name first: guidance interval
	i := slices.IndexFunc(slices.SortedFunc(slices.Values(g.fields), func(a, b string) int { return len(b) - len(a) }), about)
	if i < 0 {
		return err
	}
	option := map[string]any{
		"guidance": &o.Guidance, "true_cfg_scale": &o.TrueCFGScale, "cfg_normalization": &o.CFGNormalization,
		"cfg_truncation": &o.CFGTruncation, "guidance_interval": &o.GuidanceInterval, "step_cache": &o.StepCache, "sigmas": &o.Sigmas,
		"max_sequence_length": &o.MaxSequenceLength, "background": &o.Background, "layers": &o.Layers,
	}[g.fields[i]]
	if option == nil {
		return fmt.Errorf("%s: %w", g.config, err)
	}
	reflect.ValueOf(option).Elem().SetZero()
	if scales && g.fields[i] == "guidance" {
		o.TrueCFGScale = 0
	}
	what, why, _ := strings.Cut(text, ": ")
	why, _, _ = strings.Cut(why, " (")
	g.out.Warn("%s: %s is not used: %s", g.config, what, why)
	g.fields = slices.Delete(g.fields, i, i+1)
	return nil
}

// A recordedFlag is a flag and the recorded setting for it.
type recordedFlag struct {
	field string
	flag  cli.OptionalFlag
	value any
	use   bool
}

// recordedFlags returns the flags that recorded settings set.
func (g *generation) recordedFlags(s *picture.Settings) []recordedFlag {
	o := g.generateOptions
	r := gomflux.OptionsFrom(s)
	_, err := scheduler.Name(s.Scheduler)
	knownScheduler := err == nil // compare warns of an unknown one
	// with only one of height and width, the other one may follow the input image
	noSize := !o.height.Given() && !o.width.Given()
	noQuantize := !o.Quantize.Given() // the group size belongs to it
	return []recordedFlag{
		{"negative_prompt", &o.negative, r.NegativePrompt, true},
		{"steps", &o.steps, r.Steps, true},
		{"guidance", &o.guidance, *r.Guidance, true},
		{"guidance_interval", &o.guidanceInterval, scheduler.Part(r.GuidanceInterval), true},
		{"true_cfg_scale", &o.cfg.TrueScale, r.TrueCFGScale, r.TrueCFGScale != 0},
		{"cfg_normalization", &o.cfg.Normalization, r.CFGNormalization, r.CFGNormalization != 0},
		{"cfg_truncation", &o.cfg.Truncation, r.CFGTruncation, r.CFGTruncation != 0},
		{"step_cache", &o.stepCache, r.StepCache, true},
		{"sigmas", &o.sigmas, scheduler.Sigmas(r.Sigmas), r.Sigmas != nil && (!o.steps.Given() || o.steps.OrZero() == len(r.Sigmas))},
		{"max_sequence_length", &o.maxSequenceLength, r.MaxSequenceLength, true},
		{"scheduler", &o.scheduler, r.Scheduler, knownScheduler},
		{"rng", &o.rng, r.RNG, true},
		{"background", &o.background, r.Background, true},
		{"layers", &o.layers, r.Layers, o.edits && r.Layers > 0},
		{"dtype", &o.Dtype, s.Dtype, true},
		{"height", &o.height, r.Height, noSize},
		{"width", &o.width, r.Width, noSize},
		{"quantize", &o.Quantize, s.Quantize, noQuantize},
		{"group_size", &o.GroupSize, s.GroupSize, noQuantize},
		{"image_strength", &o.imageStrength, r.ImageStrength, g.usesStrength(s)},
		{"invert_mask", &o.invertMask, r.Inpaint.Invert, o.masked() && (g.recordedMask != nil || s.Mask == nil)},
		{"mask_blur", &o.maskBlur, numberText(s.MaskBlur), o.masked()},
		{"mask_crop", &o.maskCrop, numberText(s.MaskCrop), o.masked()},
		{"no_paste_back", &o.noPasteBack, s.NoPasteBack, o.masked()},
	}
}

// usesStrength reports whether a recorded strength is used: that of an image with a mask for another
// one, and that of an image to start from. A parameters text names neither.
func (g *generation) usesStrength(s *picture.Settings) bool {
	if g.masked() {
		return cli.Inpainted(s) || !g.recorded.Source.NamesModel()
	}
	return !g.edits && len(g.images) > 0
}

// numberText returns a number as text, "" without one.
func numberText(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}

// useRecordedMask uses the recorded mask and border if no flag has others.
func (g *generation) useRecordedMask(s *picture.Settings) {
	o := g.generateOptions
	if !o.edits && !o.inpaints {
		return
	}
	if s.Mask != nil && s.Mask.Path != "" && !o.mask.Given() {
		g.recordedMask = s.Mask
		path := disk.ExpandHome(s.Mask.Path)
		o.mask.Value = &path
	}
	if e := s.Expand; len(e) == 4 && !o.expand.Given() && !o.canvas.Given() {
		o.expand.Value = &inpaint.Border{Left: e[0], Top: e[1], Right: e[2], Bottom: e[3]}
	}
}

// useImages uses the recorded input images if --image is not given. Only edit
// generates the image of an edit again, only edit and inpaint one with a mask, and only
// generate other images.
func (g *generation) useImages(s *picture.Settings) error {
	o, recorded := g.generateOptions, s.References
	switch {
	case !o.edits && !o.inpaints && cli.Inpainted(s):
		return fmt.Errorf("%s is the result of inpainting (use gomflux inpaint --config-from-metadata)", o.config)
	case cli.Inpainted(s) || o.inpaints:
		if s.Image != nil && s.Image.Path != "" {
			recorded = slices.Concat([]picture.SourceImage{*s.Image}, recorded)
		}
		if len(o.images) == 0 && len(recorded) == 0 {
			if !g.recorded.Source.NamesModel() {
				return fmt.Errorf("%s does not name the image to inpaint (give it with --image)", o.config)
			}
			return fmt.Errorf("%s is not the result of inpainting (give the image to inpaint with --image)", o.config)
		}
	case o.edits && len(o.images) == 0 && len(recorded) == 0:
		return fmt.Errorf("%s is not the result of an edit (give the images to edit with --image, or use gomflux generate)", o.config)
	case !o.edits && len(recorded) > 0:
		return fmt.Errorf("%s is the result of an edit (use gomflux edit --config-from-metadata)", o.config)
	case !o.edits && s.Image != nil && s.Image.Path != "":
		recorded = []picture.SourceImage{*s.Image}
	}
	if len(o.images) > 0 {
		return nil
	}
	g.recordedFrom = recorded
	for _, source := range recorded {
		o.images = append(o.images, disk.ExpandHome(source.Path))
	}
	return nil
}

// useLoRAs uses the recorded LoRAs if --lora is not given.
func (g *generation) useLoRAs(f *picture.Found) {
	o := g.generateOptions
	if o.LoRAs.Given() || !f.Has("loras") {
		return
	}
	open := gomflux.OpenOptionsFrom(&f.Settings)
	o.LoRAs.List = open.LoRAs
	for i := range o.LoRAs.List {
		if l := &o.LoRAs.List[i]; !f.Source.NamesModel() {
			l.Path = catalog.NamedLoRA(picture.LoRA{Path: l.Path})
		}
	}
	o.NoBake = o.NoBake || open.RuntimeLoRA
	g.lorasRecorded = len(o.LoRAs.List) > 0
}

// compareLoRAs warns of files that have changed since they were recorded.
func (g *generation) compareLoRAs(found []picture.LoRA) {
	if !g.lorasRecorded {
		return
	}
	i := 0
	for _, l := range g.recorded.Settings.LoRAs {
		if l.Scale == 0 {
			continue // without effect
		}
		if l.SHA256 != "" && l.SHA256 != found[i].SHA256 {
			g.out.Warn("LoRA %s has changed since %s was generated with it", quote.Printable(found[i].Path), g.config)
		}
		i++
	}
}

// findModel finds the model: that of recorded settings at the recorded commit, if it
// is downloaded.
func (g *generation) findModel() (*gomflux.Source, error) {
	f, o := g.recorded, g.generateOptions
	if !g.modelRecorded || f.Source != picture.SourceGomflux || f.Settings.Revision == "" {
		return o.Find()
	}
	repo, _, file, ok := hub.ParseAddress(f.Settings.Model)
	if !ok || !hub.IsRevision(f.Settings.Revision) {
		return o.Find()
	}
	s, err := gomflux.FindWith(hub.Address(repo, f.Settings.Revision, file), o.Base)
	if errors.Is(err, gomflux.ErrNotFound) {
		if other, otherErr := o.Find(); otherErr == nil {
			return other, nil // compare warns of it
		}
	}
	return s, cli.Coded(cli.ExitModel, err)
}

// compare warns of differences that lead to another image than the recorded one.
func (g *generation) compare(ctx context.Context, source *gomflux.Source) {
	s := g.recorded.Settings
	for _, l := range g.recorded.NotUsed {
		g.out.Warn("%s: %s %s is not used", g.config, quote.Printable(l.Field), quote.Printable(l.Value))
	}
	if s.Scheduler != "" && !g.scheduler.Given() {
		g.out.Warn("%s was generated with the scheduler %s, which this version does not know: the model's default is used",
			g.config, quote.Printable(s.Scheduler))
	}
	if g.recorded.Source != picture.SourceGomflux {
		g.out.Warn("%s was not generated by gomflux (%s metadata): its settings are used, but seeds give other images here",
			g.config, g.recorded.Source)
		return
	}
	batch := min(g.batchSize.OrZero(), len(g.seeds))
	if s.Batch > 1 && s.Batch != batch && slices.Contains(g.seeds, s.Seed) {
		g.out.Warn("%s was generated in a batch of %d: alone or in another batch, pixels may differ by rounding", g.config, s.Batch)
	}
	if s.Revision != "" && source.Revision() != "" && s.Revision != source.Revision() {
		g.warnRevision(source)
	}
	g.compareDevice(ctx)
}

// warnRevision warns of another revision of the model.
func (g *generation) warnRevision(source *gomflux.Source) {
	s := g.recorded.Settings
	recorded := hub.Address(source.Name(), s.Revision, "")
	if repo, _, file, ok := hub.ParseAddress(source.Name()); ok {
		recorded = hub.Address(repo, s.Revision, file)
	}
	hint := "to download it: gomflux pull " + recorded
	if _, err := gomflux.Find(recorded); err == nil {
		hint = "to use it: --model " + recorded
	}
	g.out.Warn("%s was generated with revision %s of %s, but revision %s is used (%s)",
		g.config, quote.Printable(s.Revision), source.Name(), source.Revision(), quote.Printable(hint))
}

// compareDevice warns of another device or version.
func (g *generation) compareDevice(ctx context.Context) {
	s := g.recorded.Settings
	var device, version string
	if err := mlx.Do(ctx, func() error {
		d := mlx.CurrentDevice()
		given, _, err := g.Place()
		if given != nil {
			d = *given
		}
		device, version = d.String(), mlx.Version()
		return err
	}); err != nil {
		return
	}
	if s.Device != "" && s.Device != device {
		g.out.Warn("%s was generated on %s, and this runs on %s: the image will not be identical", g.config, s.Device, device)
	}
	otherVersion := s.MLX != "" && s.MLX != version || s.Generator != "" && s.Generator != "gomflux "+gomflux.Version()
	if otherVersion && g.out.Verbose {
		g.out.Warn("%s was generated by %s with MLX %s, and this is gomflux %s with MLX %s: the image may differ slightly",
			g.config, s.Generator, s.MLX, gomflux.Version(), version)
	}
}
