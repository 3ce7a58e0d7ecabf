package main

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
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
	modelFlags
	promptFlags
	samplingFlags
	imageFlags
	maskFlags
	weightFlags
	lowRAM bool
	promptCacheFlags
	fileFlags
	metadataFlags
	stepFlags
	profile profileFlags
	debug   debugFlags
	outputFlags
}

// promptFlags are the flags for prompts.
type promptFlags struct {
	prompts, promptFiles []string
	negative             optional[string]
	refuseLongPrompts    bool

	promptGiven bool // by a flag
}

// samplingFlags are the flags for seeds, size and sampling.
type samplingFlags struct {
	seeds                seedList
	autoSeeds, batchSize optional[int]
	steps                optional[int]
	height, width        optional[int]
	guidance             optional[float64]
	guidanceInterval     optional[scheduler.Part]
	stepCache            optional[stepcache.Rule]
	maxSequenceLength    optional[int]
	scheduler            optional[gomflux.Scheduler]
	rng                  optional[gomflux.RNG]
	background           optional[gomflux.Background]
}

// imageFlags are the flags for input images.
type imageFlags struct {
	images        fileNames // the image to start from, or those to edit
	imageStrength optional[float64]
}

// metadataFlags are the flags for settings in and from images.
type metadataFlags struct {
	sidecar, noMetadata bool
	config              string
}

// stepFlags are the flags that show the steps and the result.
type stepFlags struct {
	stepwise       string
	preview, show  optional[termpic.Protocol]
	previewDecoder string
}

func newGenerateOptions() *generateOptions {
	return &generateOptions{
		modelFlags: newModelFlags(), weightFlags: newWeightFlags(),
		promptFlags: promptFlags{negative: parsed("text", func(s string) (string, error) { return s, nil })},
		samplingFlags: samplingFlags{
			autoSeeds: count("count"), batchSize: count("count"), steps: count("number"), height: count("pixels"),
			width: count("pixels"), guidance: scale("scale"), maxSequenceLength: count("tokens"),
			guidanceInterval: parsed("start,stop", scheduler.ParsePart), stepCache: parsed("rule", stepcache.ParseRule),
			scheduler: parsed("name", schedulerOf), rng: oneOf("name", convert[gomflux.RNG](scheduler.RNGs)...),
			background: oneOf("kind", convert[gomflux.Background](models.Backgrounds)...),
		},
		imageFlags: imageFlags{imageStrength: strength("strength")}, maskFlags: newMaskFlags(),
		stepFlags: stepFlags{preview: parsed("protocol", termpic.ParseProtocol), show: parsed("protocol", termpic.ParseProtocol)},
	}
}

func (o *generateOptions) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.SetNormalizeFunc(normalizeFlag(o.imageNames(), o.edits || o.inpaints))
	o.addModel(f)
	switch {
	case o.edits:
		f.VarP(&o.images, "image", "i", "image to edit (PNG, JPEG or WebP); several: -i A B, or repeated")
	case o.inpaints:
		f.VarP(&o.images, "image", "i",
			"image of which a part is generated (PNG, JPEG or WebP), and reference images: -i A B, or repeated")
	}
	o.promptFlags.add(f)
	o.samplingFlags.add(f)
	switch {
	case o.inpaints:
		o.imageStrength = fraction("strength")
		f.Var(&o.imageStrength, "image-strength",
			"how much of the masked part is kept, 0 or more and below 1 (default: 0); diffusers' strength is 1 minus this")
	case !o.edits:
		f.VarP(&o.images, "image", "i", "image to start from (PNG, JPEG or WebP)")
		f.Var(&o.imageStrength, "image-strength",
			"how much of the image is kept, above 0 and below 1 (default: 0.4); diffusers' strength is 1 minus this")
	}
	if o.edits || o.inpaints {
		o.maskFlags.add(f)
	}
	o.weightFlags.add(f, true)
	o.addCompute(f)
	addLowRAM(f, &o.lowRAM)
	o.promptCacheFlags.add(f)
	o.addFile(f, "image.png", "output `file`, .png, .jpg or .webp; can contain {seed}, {prompt} and other fields")
	o.metadataFlags.add(f)
	o.stepFlags.add(f)
	o.profile.add(f)
	o.debug.add(f)
	o.addJSON(f, "JSON lines (gomflux help json)")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "print times, memory and libraries")
	o.addQuiet(f, "", "seeds, file names, warnings and errors")
}

// imageNames returns mflux's names for --image.
func (o *generateOptions) imageNames() []string {
	switch {
	case o.edits:
		return []string{mfluxEdit}
	case o.inpaints:
		return []string{mfluxStart, mfluxEdit}
	}
	return []string{mfluxStart}
}

// masked reports whether only a part of the first input image is generated.
func (o *generateOptions) masked() bool { return o.inpaints || o.maskFlags.inpaints() }

func (o *promptFlags) add(f *pflag.FlagSet) {
	f.StringArrayVarP(&o.prompts, "prompt", "p", nil, "`text` that describes the image; - reads standard input (can be repeated)")
	f.StringArrayVar(&o.promptFiles, "prompt-file", nil, "`file` that contains the prompt (can be repeated)")
	f.VarP(&o.negative, "negative-prompt", "n", "text that describes what to avoid, for models with classifier-free guidance")
	f.BoolVar(&o.refuseLongPrompts, "refuse-long-prompts", false, "make a prompt that is too long an error instead of cutting it off")
}

func (o *samplingFlags) add(f *pflag.FlagSet) {
	guidance := strings.Join(helpOf(func(h family.Help) string { return h.Guidance }), "; ")
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
	f.Var(&o.stepCache, "step-cache",
		"leave out work in steps that change little: first-block:0.1 or easy:0.05, where a larger number leaves out more; "+
			"for 12 steps and more")
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
		return usageErrorf("give either --prompt or --prompt-file")
	case given("config-from-metadata") && o.config == "":
		return usageErrorf("--config-from-metadata: the file name is empty")
	case !o.promptGiven && o.config == "":
		return usageErrorf("no prompt (give one with --prompt or --prompt-file, or the settings of an image with --config-from-metadata)")
	case given("seed") && given("auto-seeds"):
		return usageErrorf("give either --seed or --auto-seeds")
	case o.verbose && o.quiet:
		return usageErrorf("give either --verbose or --quiet")
	case slices.Contains(o.images.names, ""):
		return usageErrorf("--image: the file name is empty")
	case o.edits && len(o.images.names) == 0 && o.config == "":
		return usageErrorf("no image to edit (give one with --image)")
	case o.inpaints && len(o.images.names) == 0 && o.config == "":
		return usageErrorf("no image to inpaint (give one with --image)")
	case slices.Contains(o.promptFiles, ""):
		return usageErrorf("--prompt-file: the file name is empty")
	case given("stepwise-image-output-dir") && o.stepwise == "":
		return usageErrorf("--stepwise-image-output-dir: the folder name is empty")
	case given("preview-decoder") && o.previewDecoder == "":
		return usageErrorf("--preview-decoder: the name is empty")
	case given("preview-decoder") && !o.preview.given() && o.stepwise == "":
		return usageErrorf("--preview-decoder has no effect without --preview or --stepwise-image-output-dir")
	}
	if err := o.weightFlags.validate(given); err != nil {
		return err
	}
	if err := o.maskFlags.validate(o.inpaints); err != nil {
		return err
	}
	if err := o.debug.validate(given); err != nil {
		return err
	}
	if err := o.profile.validate(o.fileFlags, o.debug.options.Any(), given); err != nil {
		return err
	}
	if o.batchSize.orZero() > 1 && o.debug.options.Any() {
		return usageErrorf("--batch-size %d: debugging flags need one image at a time (leave it out, or give 1)", *o.batchSize.value)
	}
	return nil
}
