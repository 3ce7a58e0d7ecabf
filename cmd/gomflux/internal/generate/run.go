package generate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/rank"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/termpic"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/parity/runs"
	"github.com/gomflux/gomflux/picture"
)

// A generation is a run of generate, edit or inpaint: its flags, which recorded settings
// complete, and what follows from them.
type generation struct {
	*generateOptions
	out    *ui.Output
	report *report

	options    gomflux.Options // of all images; prompt and seed are those of the next one
	allPrompts []string
	rewritten  []rewritten // where the prompts are from; nil if they are as typed
	typed      *typedPrompt
	knownSeeds []uint64 // given seeds, or those drawn so far
	each       int      // images of a prompt
	total      int      // images in all

	recorded      *picture.Found       // settings of --config-from-metadata
	modelRecorded bool                 // the model is from the recorded settings
	guidanceUnit  picture.GuidanceUnit // of the recorded guidance scale, "" for that of the flag
	fields        []string             // of the recorded settings that are used
	lorasRecorded bool                 // the LoRAs are from the recorded settings
	sources       []picture.SourceImage
	transparent   []string              // input images with transparent pixels, without one to inpaint
	recordedFrom  []picture.SourceImage // input images of the recorded settings, nil if --image is given
	input         *gomflux.Masked       // nil without a mask
	maskSource    *picture.SourceImage  // nil without a mask
	recordedMask  *picture.SourceImage  // of the recorded settings, nil if --mask is given

	group  *gomflux.Group // nil for a process that is alone
	random *rand.Rand     // draws seeds; nil for a process that is alone
	done   []int          // the images that an earlier start of the same run has written

	model             *gomflux.Model
	debugger          *record.Host       // nil without a debugging session
	previews, results *termpic.Terminal  // nil: images are not shown
	saved             map[string]bool    // names of saved images
	cuts              map[promptCut]bool // cuts that a warning was printed for
}

func newGeneration(o *generateOptions, out *ui.Output) *generation {
	return &generation{
		generateOptions: o, out: out, report: &report{out: out}, saved: map[string]bool{}, cuts: map[promptCut]bool{},
	}
}

// run generates all images.
func (g *generation) run(ctx context.Context, stdin io.Reader) (err error) {
	if g.debug.Options.Records() {
		g.out.Log = &g.debug.Log
	}
	if err := g.join(ctx); err != nil {
		return err
	}
	// cheap checks come first: loading a model can take minutes
	if err := g.prepare(ctx, stdin); err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	if err := g.chooseSplit(ctx); err != nil {
		return err
	}
	g.debugger = record.HostOf(ctx)
	if err := g.debugger.Begin(ctx, false); err != nil {
		return err
	}
	done := false
	if g.stepwise != "" && g.group.Rank() == 0 {
		made, err := makeFolder(g.stepwise)
		if err != nil {
			return cli.Coded(cli.ExitUsage, err)
		}
		defer func() {
			if made && !done {
				os.Remove(g.stepwise) // if it is empty
			}
		}()
	}
	defer func() { g.debug.Interrupt(err) }()
	defer func() { err = g.profile.End(g.report.profile, err) }()
	if err := g.open(ctx); err != nil {
		return err
	}
	defer g.model.Close()
	if err := g.generateAll(ctx); err != nil && !errors.Is(err, runs.ErrExit) {
		return cli.ModelError(err)
	}
	done = true
	return g.debug.End()
}

// prepare reads prompts, recorded settings and images, and checks them without a
// model.
func (g *generation) prepare(ctx context.Context, stdin io.Reader) (err error) {
	if g.allPrompts, err = g.readPrompts(ctx, stdin); err == nil {
		err = g.FindFolder(g.out)
	}
	if err != nil {
		return err
	}
	if g.config != "" {
		if g.recorded, err = picture.ReadSettingsFile(g.config); err != nil {
			return err
		}
		if err := g.useRecorded(); err != nil {
			return err
		}
	}
	if len(g.allPrompts) == 0 && g.layers.Given() {
		g.allPrompts = []string{""}
	}
	if len(g.allPrompts) == 0 {
		return fmt.Errorf("%s: has no prompt (give one with --prompt)", g.config)
	}
	if err := checkText(g.negative.OrZero()); err != nil {
		return fmt.Errorf("negative prompt: %w", err)
	}
	g.knownSeeds = slices.Clone(g.seeds)
	g.each = max(1, len(g.seeds), g.autoSeeds.OrZero())
	g.total = g.each * len(g.allPrompts)
	name, err := g.fileName(picture.Settings{Seed: g.seed(0), Prompt: g.prompt(0), Model: g.ModelFlags.Model}, 0)
	if err != nil {
		return err
	}
	if g.group.Rank() == 0 {
		if err := cli.CheckOutput(name); err != nil {
			return err
		}
	}
	if picture.IsOpenRaster(name) && !g.edits {
		return fmt.Errorf("output %s: OpenRaster is for layers, into which gomflux edit splits an image", name)
	}
	if isJPEG(name) && g.background.OrZero() == gomflux.TransparentBackground {
		return fmt.Errorf("output %s: JPEG has no transparency, which --background transparent asks for (.png and .webp have it)", name)
	}
	if len(g.images) == 0 && g.imageStrength.Given() {
		return errors.New("--image-strength has no effect without --image")
	}
	g.options = gomflux.Options{
		Prompt: g.prompt(0), NegativePrompt: g.negative.OrZero(), Height: g.height.OrZero(), Width: g.width.OrZero(),
		Steps: g.steps.OrZero(), Guidance: g.guidance.Value, GuidanceUnit: g.guidanceUnit, GuidanceInterval: g.guidanceInterval.OrZero(),
		TrueCFGScale: g.cfg.TrueScale.OrZero(), CFGNormalization: g.cfg.Normalization.OrZero(), CFGTruncation: g.cfg.Truncation.OrZero(),
		StepCache: g.stepCache.String(), Sigmas: g.sigmas.OrZero(),
		MaxSequenceLength: g.maxSequenceLength.OrZero(),
		RefuseLongPrompts: g.refuseLongPrompts, Scheduler: g.scheduler.OrZero(), RNG: g.rng.OrZero(),
		Background: g.background.OrZero(), Layers: g.layers.OrZero(), ImageStrength: g.imageStrength.OrZero(), Progress: g.progress,
		Enlarge: g.enlargeFlags.options(),
	}
	images, err := g.readImages()
	switch {
	case g.edits && !g.masked():
		g.options.References = images
	case len(images) > 0:
		g.options.Image, g.options.References = images[0], images[1:]
	}
	g.options.PrepareImages()
	return err
}

// open finds and loads the model.
func (g *generation) open(ctx context.Context) error {
	source, err := g.findModel()
	if err != nil {
		if g.recorded != nil && g.recorded.Has("model") && g.recorded.Settings.Model == g.ModelFlags.Model {
			err = cli.Coded(cli.ExitModel,
				fmt.Errorf("%s was generated with a model that is not available (choose another with --model): %w", g.config, err))
		}
		return err
	}
	lib, err := g.OpenTuned(ctx, g.out, g.recorded)
	if err != nil {
		return err
	}
	if g.recorded != nil {
		g.compare(ctx, source)
	}
	g.WarnQuantized(source, g.out)
	g.openTerminals(ctx)
	if err := g.debug.Begin(g.out); err != nil {
		return err
	}
	if err := g.profile.Begin(ctx); err != nil {
		return err
	}
	g.attach()
	if err := g.enhancePrompts(ctx, source); err != nil {
		return err
	}
	began := time.Now()
	for err := g.load(ctx, source); err != nil; err = g.load(ctx, source) {
		if err = g.leaveOut(err); err != nil {
			return err
		}
	}
	g.debugger.Loaded(g.model)
	g.profile.Loaded(g.model)
	if g.recorded != nil {
		g.compareLoRAs(g.model.Settings(g.options).LoRAs)
	}
	if err := g.checkLayers(); err != nil {
		return err
	}
	g.chooseTyped()
	if err := g.weighSplit(ctx); err != nil {
		return err
	}
	g.warnNegative()
	g.noteTransparent()
	g.describeModel(lib, time.Since(began))
	return nil
}

// load loads the model.
func (g *generation) load(ctx context.Context, source *gomflux.Source) (err error) {
	g.report.begin(ctx, g.previews)
	defer g.report.end()
	open := g.OpenOptions()
	g.WeightFlags.Open(open)
	open.Progress, open.LowRAM, open.Batch = g.options.Progress, g.lowRAM, g.batchSize.OrZero()
	g.PromptCacheFlags.Open(open)
	open.PreviewDecoder, open.Group = g.previewDecoder, g.group
	open.Warn = func(message string) { g.out.Warn("%s", message) }
	for _, prompt := range g.allPrompts {
		options := g.options
		options.Prompt = prompt
		open.For = append(open.For, options)
	}
	g.model, err = source.Open(ctx, open)
	if e, ok := errors.AsType[*gomflux.ReferenceError](err); ok {
		names := g.images
		if g.masked() {
			names = names[1:]
		}
		return cli.UsageErrorf("%s: %w", names[e.Index], e.Err)
	}
	if errors.Is(err, gomflux.ErrNotFound) && g.lorasRecorded {
		const missing = "was generated with a LoRA that is not available (choose others with --lora, or give --lora none)"
		err = fmt.Errorf("%s %s: %w", g.config, missing, err)
	}
	return cli.Coded(cli.ExitModel, cli.ModelError(err))
}

// attach sets the hooks and the replaced values of a run.
func (g *generation) attach() {
	var all []hooks.Func
	if s := g.debug.Session; s != nil {
		all = append(all, s.Hook)
		g.options.Values = cli.EngineValues{Overrides: s}
	}
	if g.debugger != nil {
		all = append(all, g.debugger.Session.Hook)
	}
	all = g.profile.AppendHook(all)
	if len(all) > 0 {
		g.options.Hook = cli.HookOf(hooks.Chain(all...))
	}
}

// progress shows the progress of loading or generating.
func (g *generation) progress(p gomflux.Progress) {
	g.debugger.Loading(p)
	g.profile.Progress(p)
	rank.Report(p)
	g.report.progress(p)
}

// describeModel prints what is loaded, with --verbose.
func (g *generation) describeModel(lib mlx.Library, took time.Duration) {
	if !g.out.Verbose {
		return
	}
	g.out.Say("%s on %s in %s, loaded in %s", g.model.Class(), g.model.Device(), g.model.Dtype(), ui.Duration(took))
	g.out.Say("libraries %s", cli.LibraryPaths(lib))
	if g.previewDecoder != "" {
		g.out.Say("preview decoder %s", quote.Printable(catalog.TildePath(g.model.PreviewDecoder())))
	}
	for _, l := range g.model.LoRAs() {
		g.out.Say("%s", quote.Printable(cli.LoRAText(l)))
	}
}

// warnNegative warns of a negative prompt without effect.
func (g *generation) warnNegative() {
	options := g.options
	if options.NegativePrompt == "" || g.model.UsesNegativePrompt(options) {
		return
	}
	guided, flag := 5.0, "--guidance"
	if c := family.Find(g.model.Class()); c.TrueCFG {
		options.TrueCFGScale, flag = guided, "--true-cfg-scale"
	} else {
		options.Guidance, options.GuidanceUnit = &guided, ""
	}
	if g.model.UsesNegativePrompt(options) {
		g.out.Warn("the negative prompt has no effect without guidance (%s)", flag)
		return
	}
	g.out.Warn("the negative prompt has no effect: this model has no classifier-free guidance")
}

// batch returns the largest number of images that are generated at once.
func (g *generation) batch() int {
	switch {
	case g.batchSize.Given():
		return g.batchSize.OrZero()
	case g.stepwise != "" || g.preview.Given() || g.debug.Options.Any() || g.debugger != nil:
		return 1
	case g.recorded != nil && slices.Contains(g.knownSeeds, g.recorded.Settings.Seed):
		return 1 // most images are generated alone
	}
	return min(g.model.BatchSize(g.options), (g.total-1)/g.parallel()+1)
}

// begin sets the options of a chunk, and announces it.
func (g *generation) begin(ctx context.Context, c chunk) (seeds []uint64, err error) {
	for i := range c.n {
		seeds = append(seeds, g.seed(c.first+i))
	}
	g.options.Prompt, g.options.Seed = g.prompt(c.first), &seeds[0]
	if i := c.first / g.each; i < len(g.rewritten) {
		g.options.OriginalPrompt, g.options.EnhancedBy = g.rewritten[i].Original, g.rewritten[i].By
	}
	about := ""
	if len(g.allPrompts) > 1 {
		about = g.options.Prompt
	}
	if err := g.beginRecording(c.first); err != nil {
		return nil, err
	}
	g.report.start(seeds, c.first, g.total, about)
	g.report.begin(ctx, g.previews)
	return seeds, nil
}

// generate generates the images of a chunk, and returns them with the images of steps. The report ends with an
// error.
func (g *generation) generate(ctx context.Context, c chunk) (results []*gomflux.Result, steps [][]sheetStep, err error) {
	seeds, err := g.begin(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			g.report.end()
		}
	}()
	options := g.options
	options.OnCut = func(c gomflux.Cut) { g.warnCut(c, options) }
	steps = make([][]sheetStep, c.n)
	if g.group.Rank() == 0 && (g.previews != nil || g.stepwise != "") {
		options.OnStep = func(s gomflux.Step) error { return g.step(ctx, c.first, s, steps) }
	}
	results, err = g.profile.Generate(seeds, func() ([]*gomflux.Result, error) {
		return g.model.GenerateBatch(ctx, options, seeds)
	})
	if err != nil {
		err = g.explain(err)
		if errors.Is(err, gomflux.ErrMemory) && c.n > 1 {
			err = fmt.Errorf("%w (--batch-size 1 generates one image at a time)", err)
		}
	}
	return results, steps, err
}
