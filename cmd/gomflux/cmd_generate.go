package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/termpic"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/parity/debug"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
)

func newGenerateOptions() *generateOptions {
	return &generateOptions{
		modelFlags: newModelFlags(), weightFlags: newWeightFlags(),
		negative:  parsed("text", func(s string) (string, error) { return s, nil }),
		autoSeeds: count("count"), batchSize: count("count"), steps: count("number"), height: count("pixels"), width: count("pixels"), guidance: scale("scale"),
		maxSequenceLength: count("tokens"), scheduler: parsed("name", schedulerOf), rng: oneOf("name", convert[gomflux.RNG](scheduler.RNGs)...), imageStrength: strength("strength"),
		preview: parsed("protocol", termpic.ParseProtocol), show: parsed("protocol", termpic.ParseProtocol),
		made: map[string]bool{}, cut: map[promptCut]bool{},
	}
}

// schedulerOf reads a scheduler's name, short name or class.
func schedulerOf(s string) (gomflux.Scheduler, error) {
	name, err := scheduler.Name(s)
	return gomflux.Scheduler(name), err
}

func newGenerateCommand() *cobra.Command {
	return newGenerateOptions().command(&cobra.Command{
		Use:   "generate [--model MODEL] --prompt TEXT",
		Short: "Make pictures from a prompt",
		Long: `Generate makes pictures from a prompt, one for each seed, and writes them to
files, whose names it prints on standard output. Everything else it has to say
goes to standard error.

The model is a built-in one (shapes), a folder in the layout of Hugging Face
diffusers, or a published model that is in the Hugging Face cache, by its
repository (owner/name) or a short name (gomflux models lists what there is).
Without --model it is ` + defaultModel + `. What is not given (steps, size, guidance)
is as the model's makers recommend. The same seed, settings and machine make the
same picture, to the bit if it is made alone or in a batch of the same size.

With several prompts each of them makes a picture of every seed: all pictures of
the first, then those of the next.

On a GPU small pictures of one prompt are made several at once, which is faster.
On an H200 a transformer of 4 billion weights made 8 pictures of 256x256 1.36
times as fast as one by one, 4 of 512x512 1.13 times, and of 1024x1024 1.05
times. On the CPU nothing is gained. Memory grows with their number, and their
pixels can differ by rounding from those of pictures made alone. --batch-size 1
makes one by one; another number is the most that are made at once. Without it
there are up to 8 of 256x256 pixels, up to 4 of 512x512, where the pictures of
an edit count too, and one of any larger size, and one where a flag looks into
the run or shows its steps.

The end of a prompt that is longer than the model takes (--max-sequence-length)
is cut off, as diffusers does it, with a warning that shows what is lost. With
--refuse-long-prompts it is an error.

With --image the picture starts from another one, of which --image-strength is
kept: 0.1 changes nearly everything, 0.9 next to nothing. Without --height and
--width it is as large as that picture.

With --quantize the weights take less memory: 4 bits about a third of what 16
take. With --lora they are changed by what a LoRA has learned; several can be
given, and of each how much. A LoRA that does not fit the model is an error.
gomflux help weights has more.

A file that is there already is kept: the new one is named image_1.png,
image_2.png and so on, unless --overwrite is given. The name's end chooses the
format, .png or .jpg. The name may have {seed}, {index}, {prompt}, {model},
{steps}, {guidance}, {scheduler}, {height}, {width}, {date} and {time} in it.
Several pictures get their seeds at its end unless it has {seed} or {index}, and
those of several prompts their number too unless it has {prompt}.

A picture carries the settings that made it, unless --no-metadata is given:
gomflux info shows them, and --config-from-metadata uses them again, with what
other flags say in their place. It takes the files of mflux too, and pictures
with the parameters text that many programs write. gomflux help metadata has
more.

With --debug-save and the flags after it a run can be looked into, and its
tensors replaced by those of another program; what a replaced tensor makes
unnecessary is neither run nor loaded. Names are those of diffusers' modules:
transformer.layers.3.attention@0 is what a module returned in the first step,
prompt.embeds, latents@7 and vae.decode.in are values between them. gomflux
tensors shows what was saved.

Ctrl-C ends the run at the next chance and leaves no half-written file; a
second one ends it at once.
` + exitStatus,
		Example: `  gomflux generate --model shapes --prompt "a red circle left of a blue square"
  gomflux generate -m flux1-schnell -p "a lighthouse at dusk" --steps 4 --seed 42 -o lighthouse.png
  gomflux generate -m ./my-model -p "a lighthouse at dusk" --height 512 --width 768
  gomflux generate -p "a lighthouse at dusk" --seed 1 2 3 -o "{prompt}-{seed}.png"
  gomflux generate -p "a lighthouse at dusk" -p "the same at dawn" -S 42 -o "{prompt}.png"
  gomflux generate -C lighthouse.png --seed 43
  gomflux generate -m flux1-dev -q 4 --lora ink.safetensors 0.8 -p "a lighthouse"
  gomflux generate -p "the same in winter" --image lighthouse.png --image-strength 0.5
  echo "a green star" | gomflux generate -m shapes -p -`,
	})
}

// command gives a command what generate and edit share.
func (o *generateOptions) command(cmd *cobra.Command) *cobra.Command {
	cmd.Args = noArgs(" (a prompt of several words needs quotes, and --prompt before it)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.promptGiven = cmd.Flags().Changed("prompt") || cmd.Flags().Changed("prompt-file")
		p := &printer{stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(), json: o.json, quiet: o.quiet, verbose: o.verbose}
		err := o.checkFlags(cmd)
		if err == nil {
			err = o.run(cmd.Context(), cmd.InOrStdin(), p)
		}
		p.failed(err)
		return err
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.SetNormalizeFunc(normalizeFlag(o.edits))
	o.addModel(f)
	if o.edits {
		f.VarP(&o.images, "image", "i", "a picture to edit (PNG, JPEG or WebP), or several: -i A B or one by one")
	}
	f.StringArrayVarP(&o.prompts, "prompt", "p", nil, "what the picture shows (`text`); - reads standard input (can be repeated, for several pictures)")
	f.StringArrayVar(&o.promptFiles, "prompt-file", nil, "a `file` with the prompt, all of it (likewise)")
	f.VarP(&o.negative, "negative-prompt", "n", "what it does not show, where the model uses guidance")
	f.VarP(&o.seeds, "seed", "S", "where the noise starts from, for one picture or several (1 2 3 or 1,2,3); without it a random one, which is printed")
	f.Var(&o.autoSeeds, "auto-seeds", "make this many pictures from random seeds")
	f.Var(&o.batchSize, "batch-size", "make at most this many pictures of a prompt at once (default: as many as are fastest, 1 on the CPU)")
	f.VarP(&o.steps, "steps", "s", "denoising steps")
	f.VarP(&o.height, "height", "H", "height of the picture")
	f.VarP(&o.width, "width", "W", "width of the picture")
	f.VarP(&o.guidance, "guidance", "g", "how closely the prompt is followed, as the model counts it: "+strings.Join(helpOf(func(h family.Help) string { return h.Guidance }), "; "))
	f.Var(&o.maxSequenceLength, "max-sequence-length", "how many tokens the prompt may have, with those of the model's template")
	f.BoolVar(&o.refuseLongPrompts, "refuse-long-prompts", false, "make a prompt that is too long an error, and do not cut it")
	f.Var(&o.scheduler, "scheduler", "how noise becomes a picture: "+strings.Join(scheduler.Names(), ", ")+" (default: the model's)")
	f.Var(&o.rng, "rng", "what draws the noise: mlx, as in mflux, or torch, for the noise of diffusers with a CPU generator (default: mlx)")
	if !o.edits {
		f.VarP(&o.images, "image", "i", "a picture to start from (PNG, JPEG or WebP)")
		f.Var(&o.imageStrength, "image-strength", "how much of it is kept, above 0 and below 1 (default: 0.4); diffusers counts the other way round")
	}
	o.weightFlags.add(f, true)
	o.addPlace(f)
	f.BoolVar(&o.lowRAM, "low-ram", false, "keep only one of the text encoders and the transformer in memory at a time, and none while decoding; every picture takes longer (done anyway as far as they do not fit)")
	f.StringVarP(&o.output, "output", "o", "image.png", "the `file` to write")
	f.BoolVar(&o.overwrite, "overwrite", false, "replace files that are there")
	f.BoolVar(&o.sidecar, "metadata", false, "write the settings beside the picture too (image.metadata.json)")
	f.BoolVar(&o.noMetadata, "no-metadata", false, "keep the settings out of the picture")
	f.StringVarP(&o.config, "config-from-metadata", "C", "", "take what is not given from a picture or a sidecar (`file`)")
	f.StringVar(&o.stepwise, "stepwise-image-output-dir", "", "write the picture of every step and all of them on one sheet into this `folder`")
	f.Var(&o.preview, "preview", "show in the terminal how the picture emerges, if it can: auto, kitty, iterm2, sixel or none")
	f.Lookup("preview").NoOptDefVal = string(termpic.Auto)
	f.Var(&o.show, "show", "show the picture in the terminal, likewise")
	f.Lookup("show").NoOptDefVal = string(termpic.Auto)
	o.inside.add(f)
	f.BoolVar(&o.json, "json", false, "print what happens as lines of JSON (gomflux help json)")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "print times, memory and libraries")
	f.BoolVar(&o.quiet, "quiet", false, "print nothing but the seed, warnings and errors")
	return cmd
}

// checkFlags refuses flags that contradict each other.
func (o *generateOptions) checkFlags(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	switch {
	case given("prompt") && given("prompt-file"):
		return usageErrorf("give the prompt with either --prompt or --prompt-file")
	case given("config-from-metadata") && o.config == "":
		return usageErrorf("--config-from-metadata: the file's name is empty")
	case !o.promptGiven && o.config == "":
		return usageErrorf("give the prompt with either --prompt or --prompt-file (or all settings of another picture with --config-from-metadata)")
	case given("seed") && given("auto-seeds"):
		return usageErrorf("give either --seed or --auto-seeds")
	case o.verbose && o.quiet:
		return usageErrorf("give either --verbose or --quiet")
	case slices.Contains(o.images.names, ""):
		return usageErrorf("--image: the file's name is empty")
	case o.edits && len(o.images.names) == 0 && o.config == "":
		return usageErrorf("give the pictures to edit with --image")
	case slices.Contains(o.promptFiles, ""):
		return usageErrorf("--prompt-file: the file's name is empty")
	case given("stepwise-image-output-dir") && o.stepwise == "":
		return usageErrorf("--stepwise-image-output-dir: the folder's name is empty")
	}
	if err := o.weightFlags.check(cmd); err != nil {
		return err
	}
	if err := o.inside.check(given); err != nil {
		return err
	}
	if o.batchSize.orZero() > 1 && o.inside.options.Any() {
		return usageErrorf("--batch-size: flags that look into a run need one picture at a time (leave it out, or give 1)")
	}
	return nil
}

// prompt is that of a picture. All pictures of one follow one another, since
// the model keeps what its text encoder makes of it.
func (g *generation) prompt(i int) string { return g.prompts[i/g.each] }

func (o *generateOptions) run(ctx context.Context, stdin io.Reader, p *printer) error {
	signal.Ignore(syscall.SIGPIPE) // pictures are made when nobody reads their names, too
	// what is cheap to check comes first: a model can take minutes to load
	g, err := o.prepare(ctx, stdin, p)
	if err != nil {
		return coded(exitUsage, err)
	}
	done := false
	if o.stepwise != "" {
		made, err := makeFolder(o.stepwise)
		if err != nil {
			return coded(exitUsage, err)
		}
		defer func() {
			if made && !done {
				os.Remove(o.stepwise) // if there is nothing in it
			}
		}()
	}
	defer o.inside.end()
	model, err := o.open(ctx, g, p)
	if err != nil {
		return err
	}
	defer model.Close()
	most := o.atOnce(model, g)
	for i, n := 0, 0; i < g.pictures; i += n {
		n = min(most, g.each-i%g.each) // of one prompt
		seeds := g.batch(i, n)
		g.options.Prompt, g.options.Seed = g.prompt(i), &seeds[0]
		about := ""
		if len(g.prompts) > 1 {
			about = g.options.Prompt
		}
		p.start(seeds, i, g.pictures, about)
		err := o.inside.picture(o, model, &g.options, i, p)
		if err == nil {
			err = o.generate(ctx, model, g, i, seeds, p)
		}
		if errors.Is(err, debug.ErrExit) {
			break
		}
		if err != nil {
			return modelError(err)
		}
	}
	done = true
	return o.inside.end()
}

// atOnce is how many pictures of a prompt are made at once.
func (o *generateOptions) atOnce(model *gomflux.Model, g *generation) int {
	switch {
	case o.batchSize.given():
		return o.batchSize.orZero()
	case o.stepwise != "" || o.preview.given() || o.inside.options.Any():
		return 1
	case g.recorded != nil && slices.Contains(g.seeds, g.recorded.Settings.Seed):
		return 1 // most pictures are made alone
	}
	return model.BatchSize(g.options)
}

// prepare reads what there is to read, and refuses what cannot be.
func (o *generateOptions) prepare(ctx context.Context, stdin io.Reader, p *printer) (*generation, error) {
	prompts, err := o.readPrompts(ctx, stdin)
	if err != nil {
		return nil, err
	}
	g := &generation{prompts: prompts}
	if o.config != "" {
		if g.recorded, err = picture.ReadSettingsFile(o.config); err != nil {
			return nil, err
		}
		if err := o.take(g.recorded, g); err != nil {
			return nil, err
		}
	}
	if len(g.prompts) == 0 {
		return nil, fmt.Errorf("%s: has no prompt (give it with --prompt)", o.config)
	}
	if err := checkText(o.negative.orZero()); err != nil {
		return nil, fmt.Errorf("negative prompt: %w", err)
	}
	g.seeds = slices.Clone(o.seeds)
	g.each = max(1, len(o.seeds), o.autoSeeds.orZero())
	g.pictures = g.each * len(g.prompts)
	name, err := g.name(o.output, picture.Settings{Seed: g.seed(0), Prompt: g.prompt(0), Model: o.model}, 0)
	if err != nil {
		return nil, err
	}
	if err := checkOutput(name); err != nil {
		return nil, err
	}
	g.options = gomflux.Options{
		Prompt: g.prompt(0), NegativePrompt: o.negative.orZero(), Height: o.height.orZero(), Width: o.width.orZero(), Steps: o.steps.orZero(),
		Guidance: o.guidance.value, MaxSequenceLength: o.maxSequenceLength.orZero(), RefuseLongPrompts: o.refuseLongPrompts, Scheduler: o.scheduler.orZero(), RNG: o.rng.orZero(),
		ImageStrength: o.imageStrength.orZero(), Progress: p.progress,
	}
	if len(o.images.names) == 0 && o.imageStrength.value != nil {
		return nil, errors.New("--image-strength does nothing without --image")
	}
	images, err := o.readImages(p)
	if o.edits {
		g.options.References = images
	} else if len(images) > 0 {
		g.options.Image = images[0]
	}
	return g, err
}

// open finds and loads the model.
func (o *generateOptions) open(ctx context.Context, g *generation, p *printer) (*gomflux.Model, error) {
	source, err := o.findModel(g.recorded)
	if err != nil {
		if g.recorded != nil && g.recorded.Has("model") && g.recorded.Settings.Model == o.model {
			err = coded(exitModel, fmt.Errorf("%s was made with another model than this machine has (give one with --model): %w", o.config, err))
		}
		return nil, err
	}
	lib, err := o.checkLibrary(ctx, p)
	if err != nil {
		return nil, err
	}
	if g.recorded != nil {
		o.compare(ctx, g.recorded, source, p)
	}
	o.warnQuantized(source, p)
	p.openTerminals(ctx, o.preview.orZero(), o.show.orZero())

	if err := o.inside.begin(p); err != nil {
		return nil, err
	}
	o.inside.into(&g.options)
	began := time.Now()
	p.begin(ctx)
	defer p.end()
	open := o.openOptions()
	open.Progress, open.LowRAM = p.progress, o.lowRAM
	o.weightFlags.open(open)
	open.Batch = o.batchSize.orZero()
	open.Warn = func(message string) { p.warn("%s", message) }
	for _, prompt := range g.prompts {
		options := g.options
		options.Prompt = prompt
		open.For = append(open.For, options)
	}
	model, err := source.Open(ctx, open)
	p.end()
	if e, ok := errors.AsType[*gomflux.ReferenceError](err); ok {
		return nil, usageErrorf("%s: %w", o.images.names[e.Index], e.Err)
	}
	if errors.Is(err, gomflux.ErrNotFound) && o.lorasRecorded {
		err = fmt.Errorf("%s was made with a LoRA that this machine does not have (give others with --lora, or --lora none): %w", o.config, err)
	}
	if err != nil {
		return nil, coded(exitModel, modelError(err))
	}
	if g.recorded != nil {
		o.compareLoRAs(g.recorded, model.Settings(g.options).LoRAs, p)
	}
	if g.options.NegativePrompt != "" && !model.UsesNegativePrompt(g.options) {
		o.warnNegative(model, g.options, p)
	}
	if o.verbose && !o.json {
		fmt.Fprintf(p.stderr, "%s on %s in %s, loaded in %s\n", model.Class(), model.Device(), model.Dtype(), seconds(time.Since(began)))
		fmt.Fprintf(p.stderr, "libraries %s\n", libraryPaths(lib))
		for _, l := range model.LoRAs() {
			fmt.Fprintln(p.stderr, quote.Printable(loraText(l)))
		}
	}
	return model, nil
}

// loraText says what a LoRA changes.
func loraText(l gomflux.LoRAReport) string {
	var parts []string
	for _, component := range sortedKeys(l.Modules) {
		parts = append(parts, fmt.Sprintf("%s of the %s", plural(l.Modules[component], "module"), component))
	}
	return fmt.Sprintf("LoRA %s, scale %v: %s", catalog.TildePath(l.Path), l.Scale, strings.Join(parts, ", "))
}

// warnNegative says why the negative prompt does nothing.
func (o *generateOptions) warnNegative(model *gomflux.Model, options gomflux.Options, p *printer) {
	strong := 5.0
	options.Guidance = &strong
	if model.UsesNegativePrompt(options) {
		p.warn("the negative prompt does nothing without guidance (--guidance)")
		return
	}
	p.warn("the negative prompt does nothing: this model has no classifier-free guidance")
}

// generate makes a picture of each seed, the first of an index, at once, and
// saves them.
func (o *generateOptions) generate(ctx context.Context, model *gomflux.Model, g *generation, first int, seeds []uint64, p *printer) error {
	p.begin(ctx)
	defer p.end()
	options := g.options
	options.OnCut = func(c gomflux.Cut) {
		o.warnCut(c, options.Prompt, model.Settings(options).MaxSequenceLength, p)
	}
	steps := make([][]sheetStep, len(seeds))
	if p.preview != nil || o.stepwise != "" {
		options.OnStep = func(s gomflux.Step) error {
			if p.preview != nil && s.Index == 0 {
				img, err := model.Preview(ctx, s.Denoised)
				if err != nil {
					return err
				}
				p.showPreview(img)
			}
			if o.stepwise == "" {
				return nil
			}
			img, err := model.Decode(ctx, s.Latents)
			if err != nil {
				return err
			}
			steps[s.Index] = append(steps[s.Index], newSheetStep(img, fmt.Sprintf("%d/%d", s.Step, s.Steps)))
			return o.saveStep(ctx, fmt.Sprintf("%s_step%dof%d.png", g.stepName(first+s.Index), s.Step, s.Steps), img)
		}
	}
	results, err := model.GenerateBatch(ctx, options, seeds)
	if err != nil {
		err = o.inside.failed(err, p)
		if errors.Is(err, gomflux.ErrMemory) && len(seeds) > 1 {
			err = fmt.Errorf("%w (--batch-size 1 makes one picture at a time)", err)
		}
		return err
	}
	for i, result := range results {
		if err := o.finish(ctx, g, first+i, result, steps[i], p); err != nil {
			return err
		}
	}
	return nil
}

// warnCut warns of what is lost of a prompt, once for several seeds. most is how many
// tokens the settings allow.
func (o *generateOptions) warnCut(c gomflux.Cut, prompt string, most int, p *printer) {
	this := promptCut{Cut: c}
	if c.Prompt == "prompt" {
		this.prompt = prompt
	}
	if o.cut[this] {
		return
	}
	o.cut[this] = true
	const shown = 100 // characters
	text := []rune(strings.Join(strings.Fields(c.Text), " "))
	if len(text) > shown {
		text = append(text[:shown], '…')
	}
	lost := "the end of the model's template"
	if len(text) > 0 {
		lost = strconv.Quote(string(text))
	}
	hint := ""
	if c.Limit == most {
		hint = " (shorten it, or raise --max-sequence-length)"
	}
	p.warn("the %s is %s too long for %s, which takes %d; lost is %s%s", c.Prompt, plural(c.Tokens, "token"), c.Encoder, c.Limit, lost, hint)
}

// finish saves a picture that was made, and shows it.
func (o *generateOptions) finish(ctx context.Context, g *generation, index int, result *gomflux.Result, steps []sheetStep, p *printer) error {
	p.saving(index)
	if o.edits {
		result.Settings.References = o.sources
	} else if len(o.sources) > 0 {
		result.Settings.Image = &o.sources[0]
	}
	start := time.Now()
	file, err := o.save(ctx, result, g, index, p)
	if err != nil {
		return err
	}
	var sheetErr error // which must not hide that the picture is there
	if len(steps) > 0 {
		sheetErr = o.saveStep(ctx, g.stepName(index)+"_composite.png", contactSheet(steps))
	}
	took := time.Since(start)
	p.end()
	if err := cmp.Or(p.picture(file, result, took), sheetErr); err != nil {
		return err
	}
	if err := p.show.Show(result.Image); err != nil {
		p.warn("the picture cannot be shown: %v", oserr.Bare(err)) // which is no reason to end the run
	}
	return o.inside.done(result, p)
}

// save writes a picture with its settings, and returns its name.
func (o *generateOptions) save(ctx context.Context, result *gomflux.Result, g *generation, index int, p *printer) (string, error) {
	name, err := g.name(o.output, result.Settings, index)
	if err != nil {
		return "", coded(exitUsage, err)
	}
	s := saver{overwrite: o.overwrite && !o.made[name]} // prompts may begin alike
	if err := result.Settings.Check(); err == nil {
		if !o.noMetadata {
			// no times, so that what makes the same picture makes the same file
			settings := result.Settings
			settings.Created, settings.Seconds = time.Time{}, 0
			s.settings = &settings
		}
		if o.sidecar {
			s.sidecar = &result.Settings
		}
	} else if o.sidecar || !o.noMetadata {
		p.warn("the picture is saved without its settings: %v", err)
	}
	o.made[name] = true
	return s.save(ctx, name, result.Image)
}

// name is that of a picture's file.
func (g *generation) name(template string, s picture.Settings, index int) (string, error) {
	return expandName(template, s, index, g.pictures, len(g.prompts))
}

// stepName is how the names of the pictures of a picture's steps begin.
func (g *generation) stepName(index int) string {
	name := fmt.Sprintf("seed_%d", g.seed(index))
	if len(g.prompts) > 1 {
		name = fmt.Sprintf("%d_%s", index+1, name)
	}
	return name
}

// batch are the seeds of some pictures of a prompt, from an index on.
func (g *generation) batch(i, n int) []uint64 {
	seeds := make([]uint64, n)
	for k := range seeds {
		seeds[k] = g.seed(i + k)
	}
	return seeds
}

// seed is that of a picture; all prompts have the same. Random ones are drawn
// when they are needed, since there may be any number of them.
func (g *generation) seed(i int) uint64 {
	for i %= g.each; i >= len(g.seeds); {
		g.seeds = append(g.seeds, uint64(rand.Uint32())) // 32 bits: what people are used to typing again
	}
	return g.seeds[i]
}

// readImages reads the picture to start from, or those to edit.
func (o *generateOptions) readImages(p *printer) (images []image.Image, err error) {
	read := map[string]*picture.Picture{} // one may be given twice
	for i, name := range o.images.names {
		if read[name] == nil {
			if read[name], err = picture.ReadFile(name); err != nil {
				return nil, err
			}
		}
		hash := read[name].SHA256
		images = append(images, read[name].Image)
		o.sources = append(o.sources, picture.SourceImage{Path: catalog.TildePath(name), SHA256: hash})
		if o.recordedFrom != nil && o.recordedFrom[i].SHA256 != "" && o.recordedFrom[i].SHA256 != hash {
			p.warn("%s is not the picture that %s was made from: it has changed since", name, o.config)
		}
	}
	return images, nil
}

// saveStep writes a picture into the folder for them.
func (o *generateOptions) saveStep(ctx context.Context, name string, img image.Image) error {
	_, err := saver{overwrite: o.overwrite}.write(ctx, filepath.Join(o.stepwise, name), img)
	return err
}

// maxPrompt bounds what is read as a prompt, in bytes. No model takes as much.
const maxPrompt = 1 << 20

// readPrompts gets the prompts from where they are.
func (o *generateOptions) readPrompts(ctx context.Context, stdin io.Reader) (prompts []string, err error) {
	add := func(prompt, from string, err error) error {
		if err == nil && strings.TrimSpace(prompt) == "" {
			err = errors.New("is empty")
		}
		if err == nil {
			err = checkText(prompt)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		prompts = append(prompts, prompt)
		return nil
	}
	for _, name := range o.promptFiles {
		prompt, err := readTextFile(ctx, name)
		if err := add(prompt, "prompt file "+name, err); err != nil {
			return nil, err
		}
	}
	for _, prompt := range o.prompts {
		from := "prompt"
		var err error
		if prompt == "-" {
			from = "prompt on standard input"
			prompt, err = readText(ctx, stdin)
		}
		if err := add(prompt, from, err); err != nil {
			return nil, err
		}
	}
	return prompts, nil
}

func readTextFile(ctx context.Context, name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", oserr.Bare(err)
	}
	defer f.Close()
	return readText(ctx, f)
}

// readText reads all of r without the line end that editors and echo add. A
// read cannot be interrupted, so nobody waits for it when ctx is done.
func readText(ctx context.Context, r io.Reader) (string, error) {
	var data []byte
	done := make(chan error, 1)
	go func() {
		var err error
		data, err = io.ReadAll(io.LimitReader(r, maxPrompt+1))
		done <- err
	}()
	select {
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case err := <-done:
		if err != nil {
			return "", oserr.Bare(err)
		}
	}
	if len(data) > maxPrompt {
		return "", fmt.Errorf("is longer than %s", units.Bytes(maxPrompt))
	}
	text := strings.TrimSuffix(string(data), "\n")
	return strings.TrimSuffix(text, "\r"), nil
}

func checkText(s string) error {
	if !utf8.ValidString(s) {
		return errors.New("is not valid UTF-8")
	}
	if strings.ContainsRune(s, 0) {
		return errors.New("has a NUL character")
	}
	return nil
}
