package generate

import (
	"cmp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/profile"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
	"github.com/gomflux/gomflux/internal/termpic"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/stepcache"
	"github.com/gomflux/gomflux/scheduler"
)

// generateOptions are the flags of gomflux generate, gomflux edit and gomflux inpaint, in
// the order of the help.
type generateOptions struct {
	edits    bool // for gomflux edit
	inpaints bool // for gomflux inpaint
	cli.ModelFlags
	promptFlags
	samplingFlags
	imageFlags
	enlargeFlags
	maskFlags
	cli.WeightFlags
	lowRAM bool
	cli.PromptCacheFlags
	cli.FileFlags
	metadataFlags
	stepFlags
	profile profile.Flags
	debug   record.Flags
	cli.OutputFlags
}

// promptFlags are the flags for prompts.
type promptFlags struct {
	prompts, promptFiles []string
	negative             cli.Optional[string]
	refuseLongPrompts    bool
	noLoRATags           bool
	enhance              string // the language model that rewrites prompts, "" for none
	enhanceThinking      cli.Optional[int]
	boxes                string // file, "" without boxes

	promptGiven bool // by a flag
}

// samplingFlags are the flags for seeds, size and sampling.
type samplingFlags struct {
	seeds                cli.SeedList
	autoSeeds, batchSize cli.Optional[int]
	steps                cli.Optional[int]
	height, width        cli.Optional[int]
	guidance             cli.Optional[float64]
	guidanceInterval     cli.Optional[scheduler.Part]
	cfg                  cli.CFGFlags
	stepCache            cli.Optional[stepcache.Rule]
	sigmas               cli.Optional[scheduler.Sigmas]
	maxSequenceLength    cli.Optional[int]
	scheduler            cli.Optional[gomflux.Scheduler]
	rng                  cli.Optional[gomflux.RNG]
	background           cli.Optional[gomflux.Background]
	layers               cli.Optional[int]
	split                cli.SplitFlag
}

// imageFlags are the flags for input images.
type imageFlags struct {
	images        []string // the image to start from, or those to edit
	imageStrength cli.Optional[float64]
}

// metadataFlags are the flags for settings in and from images.
type metadataFlags struct {
	sidecar, noMetadata bool
	config              string
}

// stepFlags are the flags that show the steps and the result.
type stepFlags struct {
	stepwise       string
	preview, show  cli.Optional[termpic.Protocol]
	previewDecoder string
}

func newGenerateOptions() *generateOptions {
	return &generateOptions{
		ModelFlags: cli.NewModelFlags(), WeightFlags: cli.NewWeightFlags(),
		promptFlags: promptFlags{negative: cli.Parsed("text", func(s string) (string, error) { return s, nil })},
		samplingFlags: samplingFlags{
			autoSeeds: cli.Count("count"), batchSize: cli.Count("count"), steps: cli.Count("number"), height: cli.Count("pixels"),
			width: cli.Count("pixels"), guidance: cli.Scale("scale"), maxSequenceLength: cli.Count("tokens"),
			guidanceInterval: cli.Parsed("start,stop", scheduler.ParsePart), stepCache: cli.Parsed("rule", stepcache.ParseRule),
			sigmas:    cli.Parsed("list", scheduler.ParseSigmas),
			cfg:       cli.NewCFGFlags(),
			scheduler: cli.Parsed("name", cli.SchedulerOf), rng: cli.OneOf("name", cli.Convert[gomflux.RNG](scheduler.RNGs)...),
			layers: cli.Count("count"), split: cli.NewSplitFlag(),
			background: cli.OneOf("kind", cli.Convert[gomflux.Background](models.Backgrounds)...),
		},
		imageFlags: imageFlags{imageStrength: cli.Strength("strength")}, maskFlags: NewMaskFlags(), enlargeFlags: newEnlargeFlags(),
		stepFlags: stepFlags{preview: cli.Parsed("protocol", termpic.ParseProtocol), show: cli.Parsed("protocol", termpic.ParseProtocol)},
	}
}

func (o *generateOptions) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.SetNormalizeFunc(cli.NormalizeFlag(o.imageNames(), o.edits || o.inpaints))
	o.AddModel(f)
	switch {
	case o.edits:
		f.StringArrayVarP(&o.images, "image", "i", nil, "image `files` to edit (PNG, JPEG or WebP); several: -i A B, or repeated")
		f.Var(&o.layers, "layers", "split the image into so many layers, with a model for that, which needs no prompt (default: 4)")
	case o.inpaints:
		f.StringArrayVarP(&o.images, "image", "i", nil,
			"image `files`: the one of which a part is generated (PNG, JPEG or WebP), and reference images: -i A B, or repeated")
	}
	o.promptFlags.add(f)
	o.samplingFlags.add(f)
	switch {
	case o.inpaints:
		o.imageStrength = cli.Fraction("strength")
		f.Var(&o.imageStrength, "image-strength",
			"how much of the masked part is kept, 0 or more and below 1 (default: 0); diffusers' strength is 1 minus this")
	case !o.edits:
		f.FuncP("image", "i", "image `file` to start from (PNG, JPEG or WebP)", func(name string) error {
			o.images = []string{name} // the last one given
			return nil
		})
		f.Var(&o.imageStrength, "image-strength",
			"how much of the image is kept, above 0 and below 1 (default: 0.4); diffusers' strength is 1 minus this")
	}
	if o.edits || o.inpaints {
		o.maskFlags.Add(f)
	}
	o.enlargeFlags.add(f)
	o.WeightFlags.Add(f, true)
	o.AddCompute(f)
	cli.AddLowRAM(f, &o.lowRAM)
	cli.AddSplit(f, &o.split)
	o.PromptCacheFlags.Add(f)
	formats := ".png, .jpg or .webp"
	if o.edits {
		formats = ".png, .jpg, .webp or, of layers, .ora"
	}
	o.AddFile(f, "image.png", "output `file`, "+formats+"; can contain {seed}, {prompt} and other fields")
	o.metadataFlags.add(f)
	o.stepFlags.add(f)
	o.profile.Add(f)
	o.debug.Add(f)
	o.AddJSON(f, "JSON lines (gomflux help json)")
	f.BoolVarP(&o.Verbose, "verbose", "v", false, "print times, memory and libraries")
	o.AddQuiet(f, "", "seeds, file names, warnings and errors")
}

// imageNames returns mflux's names for --image.
func (o *generateOptions) imageNames() []string {
	switch {
	case o.edits:
		return []string{cli.MfluxEdit}
	case o.inpaints:
		return []string{cli.MfluxStart, cli.MfluxEdit}
	}
	return []string{cli.MfluxStart}
}

// masked reports whether only a part of the first input image is generated.
func (o *generateOptions) masked() bool { return o.inpaints || o.maskFlags.inpaints() }

func (o *promptFlags) add(f *pflag.FlagSet) {
	f.StringArrayVarP(&o.prompts, "prompt", "p", nil, "`text` that describes the image; - reads standard input (can be repeated)")
	f.StringArrayVar(&o.promptFiles, "prompt-file", nil, "`file` that contains the prompt (can be repeated)")
	f.VarP(&o.negative, "negative-prompt", "n", "text that describes what to avoid, for models with classifier-free guidance")
	addEnhance(f, o)
	f.BoolVar(&o.refuseLongPrompts, "refuse-long-prompts", false, "make a prompt that is too long an error instead of cutting it off")
	f.BoolVar(&o.noLoRATags, "no-lora-tags", false, "leave <lora:name:0.8> in prompts as text, instead of applying that LoRA")
}

func (o *samplingFlags) add(f *pflag.FlagSet) {
	guidance := strings.Join(cli.HelpOf(func(h family.Help) string { return h.Guidance }), "; ")
	f.VarP(&o.seeds, "seed", "S", "random seed, or several (1 2 3 or 1,2,3), one image each (default: random, and printed)")
	f.Var(&o.autoSeeds, "auto-seeds", "number of images from random seeds")
	f.Var(&o.batchSize, "batch-size", "largest number of images generated at once (default: the fastest; 1 on the CPU)")
	f.VarP(&o.steps, "steps", "s", "number of denoising steps")
	f.VarP(&o.height, "height", "H", "height of the image")
	f.VarP(&o.width, "width", "W", "width of the image")
	f.VarP(&o.guidance, "guidance", "g", "guidance scale: how closely to follow the prompt ("+guidance+")")
	f.Var(&o.guidanceInterval, "guidance-interval",
		"the part of the steps with classifier-free guidance, in fractions: 0,0.6 is the first 60 %, and later steps take half "+
			"of the time (default: 0,1)")
	o.cfg.Add(f)
	f.Var(&o.stepCache, "step-cache",
		"leave out work in steps that change little: first-block:0.1 or easy:0.05, where a larger number leaves out more; "+
			"for 12 steps and more")
	f.Var(&o.sigmas, "sigmas",
		"noise levels of the steps, as 1,0.6,0.2, before the scheduler shifts them; their number is that of the steps "+
			"(default: the model's)")
	f.Var(&o.maxSequenceLength, "max-sequence-length", "maximum length of the prompt, including the model's template")
	f.Var(&o.scheduler, "scheduler", "sampling method: "+strings.Join(scheduler.Names(), ", ")+" (default: the model's)")
	f.Var(&o.rng, "rng",
		"random number generator of the noise: mlx, as in mflux, or torch, as in diffusers with a CPU generator (default: mlx)")
	f.Var(&o.background, "background",
		"for models that generate transparency: auto, as they make it, transparent, an error for other models, or opaque, on white "+
			"(default: auto)")
}

func (o *metadataFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&o.sidecar, "metadata", false, "also write the settings to a JSON file next to the image (image.metadata.json)")
	f.BoolVar(&o.noMetadata, "no-metadata", false, "do not store the settings in the image")
	f.StringVarP(&o.config, "config-from-metadata", "C", "", "use the settings of an image or a metadata `file`; other flags override them")
}

func (o *stepFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.stepwise, "stepwise-image-output-dir", "", "write the image of every step, and a contact sheet, to this `folder`")
	f.Var(&o.preview, "preview", "show previews in the terminal: auto, kitty, iterm2, sixel or none")
	f.Lookup("preview").NoOptDefVal = string(termpic.Auto)
	f.StringVar(&o.previewDecoder, "preview-decoder", "",
		"decode previews and images of steps with this autoencoder: linear (the default, without one), "+
			"tiny (the published one for the model), or the `name`, folder or file of another")
	f.Var(&o.show, "show", "show the image in the terminal: auto, kitty, iterm2, sixel or none")
	f.Lookup("show").NoOptDefVal = string(termpic.Auto)
}

// validate refuses flags that are missing or contradict each other.
func (o *generateOptions) validate(given func(string) bool) error {
	o.promptGiven = given("prompt") || given("prompt-file")
	switch {
	case given("prompt") && given("prompt-file"):
		return cli.UsageErrorf("give either --prompt or --prompt-file")
	case given("config-from-metadata") && o.config == "":
		return cli.UsageErrorf("--config-from-metadata: the file name is empty")
	case !o.promptGiven && o.config == "" && !o.layers.Given():
		return cli.UsageErrorf("no prompt (give one with --prompt or --prompt-file, " +
			"or the settings of an image with --config-from-metadata)")
	case given("seed") && given("auto-seeds"):
		return cli.UsageErrorf("give either --seed or --auto-seeds")
	case o.Verbose && o.Quiet:
		return cli.UsageErrorf("give either --verbose or --quiet")
	case slices.Contains(o.images, ""):
		return cli.UsageErrorf("--image: the file name is empty")
	case o.edits && len(o.images) == 0 && o.config == "":
		return cli.UsageErrorf("no image to edit (give one with --image)")
	case o.inpaints && len(o.images) == 0 && o.config == "":
		return cli.UsageErrorf("no image to inpaint (give one with --image)")
	case slices.Contains(o.promptFiles, ""):
		return cli.UsageErrorf("--prompt-file: the file name is empty")
	case given("stepwise-image-output-dir") && o.stepwise == "":
		return cli.UsageErrorf("--stepwise-image-output-dir: the folder name is empty")
	case given("preview-decoder") && o.previewDecoder == "":
		return cli.UsageErrorf("--preview-decoder: the name is empty")
	case given("enhance-thinking") && o.enhance == "":
		return cli.UsageErrorf("--enhance-thinking has no effect without --enhance")
	case o.boxes != "" && o.enhance == "":
		return cli.UsageErrorf("--boxes has no effect without --enhance")
	case given("preview-decoder") && !o.preview.Given() && o.stepwise == "":
		return cli.UsageErrorf("--preview-decoder has no effect without --preview or --stepwise-image-output-dir")
	case o.batchSize.OrZero() > 1 && o.debug.Options.Any():
		return cli.UsageErrorf("--batch-size %d: debugging flags need one image at a time (leave it out, or give 1)", *o.batchSize.Value)
	}
	return cmp.Or(o.WeightFlags.Validate(given), o.maskFlags.validate(o.inpaints, given), o.enlargeFlags.validate(given),
		o.debug.Validate(given), o.profile.Validate(o.FileFlags, o.debug.Options.Any(), given))
}
