package generate

import (
	"cmp"
	"context"
	"errors"
	"image"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/upscaler"
)

const upscaleHelp = `Upscale enlarges images by a network of the family of ESRGAN and Real-ESRGAN, or
by SeedVR2, a diffusion model of one step, and writes them to files, whose names
it prints. MODEL is a network that gomflux models lists, a safetensors file of
one, owner/name:file in the Hugging Face cache, a folder with SeedVR2's files,
or lanczos, which needs no network. Without --scale, --width and --height an
image becomes as large as the network makes it, with lanczos and SeedVR2 twice
as large. A smaller size is reduced from that; SeedVR2 works at any size.

Transparency is enlarged too, for SeedVR2 by lanczos. Where memory is short,
the layers are computed for parts of the image, with as many rows around them
as have an influence: there are no seams.

With several images the name after --output has {name}, the name of the image
without its extension. An existing file is kept: the new one is named
image_1.png and so on, unless --overwrite is given. The settings with which an
image was generated stay in it, with the upscaler and the new size.

REFINING
With --refine the enlarged image is generated again by image-to-image with the
model of --refine-model, for --prompt or the prompt in the image's settings; the
number is how much of it is new, from 0 to 1. An image that is larger than
--tile is generated in tiles, which are blended. Each has a seed of its own:
--seed and the numbers after it.

JSON
With --json there is one line of JSON for each image: message_type (image),
file, source, width, height, from_width, from_height, model, class, scale,
device, dtype, seed (with --refine or SeedVR2), seconds (upscale, refine, save)
and peak_memory_bytes. Warnings and errors have lines too.
` + cli.ExitStatus

// upscaleOptions are the flags of gomflux upscale.
type upscaleOptions struct {
	cli.ModelFlags // of --refine-model
	cli.FileFlags
	cli.OutputFlags
	weights       cli.WeightFlags
	upscaler      string
	scale         cli.Optional[float64]
	height, width cli.Optional[int]
	colours       cli.Optional[string]
	noMetadata    bool
	lowRAM        bool

	refine           cli.Optional[float64]
	prompt, negative string
	seed             cli.SeedList
	steps            cli.Optional[int]
	guidance         cli.Optional[float64]
	tile             cli.Optional[int]
}

// refineFlags are the flags that need --refine.
var refineFlags = []string{"refine-model", "prompt", "negative-prompt", "steps", "guidance", "tile", "base-model", "quantize",
	"group-size", "lora", "lora-partial", "no-bake-lora", "low-ram"}

func NewUpscaleCommand() *cobra.Command {
	o := &upscaleOptions{
		ModelFlags: cli.NewModelFlags(), weights: cli.NewWeightFlags(), scale: cli.Scale("number"), height: cli.Count("pixels"),
		width: cli.Count("pixels"), refine: cli.Strength("strength"), steps: cli.Count("steps"), guidance: cli.Scale("scale"),
		tile: cli.Count("pixels"), colours: cli.OneOf("way", upscaler.LAB, upscaler.Wavelet),
	}
	cmd := &cobra.Command{
		Use:   "upscale IMAGE... [--model MODEL]",
		Short: "Enlarge images",
		Long:  upscaleHelp,
		Example: `  gomflux upscale photo.jpg --scale 2
  gomflux upscale *.png -m ./4x-Nomos8k.safetensors -o 'large/{name}.webp'
  gomflux upscale image.png --height 2160 --refine 0.25 --refine-model flux2-klein-4b`,
		Args: cli.SomeArgs("give an image, or several"),
		RunE: o.Lines(func(cmd *cobra.Command, out *ui.Output, args []string) error {
			if err := o.validate(cmd.Flags().Changed, args); err != nil {
				return err
			}
			return o.run(cmd.Context(), out, args)
		}),
	}
	o.addFlags(cmd.Flags())
	if err := cmd.RegisterFlagCompletionFunc("model", cli.CompleteUpscaler); err != nil {
		panic(err) // the command does not have the flag
	}
	return cmd
}

func (o *upscaleOptions) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.VarP((*cli.ModelName)(&o.upscaler), "model", "m", "`name` of a network, a safetensors file, or lanczos (default: "+
		gomflux.DefaultUpscaler+")")
	f.Var(&o.scale, "scale", "how many times to enlarge, up to the scale of the network (default: that)")
	f.VarP(&o.height, "height", "H", "height in pixels")
	f.VarP(&o.width, "width", "W", "width in pixels; of height and width, one is enough")
	o.AddFile(f, "", "output `file` (default: the image's name with _upscaled.png, in the current folder)")
	f.Var(&o.colours, "color-correction", "how SeedVR2's result gets the image's colours: lab, or as its makers do (default: lab)")
	f.BoolVar(&o.noMetadata, "no-metadata", false, "write no settings to the image")
	f.Var(&o.refine, "refine", "generate the enlarged image again, with so much new: above 0 and below 1")
	f.Var((*cli.ModelName)(&o.ModelFlags.Model), "refine-model", "model for that (default: "+o.Fallback+")")
	cli.AddBaseModel(f, &o.Base)
	f.StringVarP(&o.prompt, "prompt", "p", "", "`text` that describes the image (default: the prompt in its settings)")
	f.StringVar(&o.negative, "negative-prompt", "", "`text` that describes what the image should not contain")
	f.VarP(&o.seed, "seed", "S", "seed of the first tile (default: random), or of SeedVR2 (default: 0)")
	f.VarP(&o.steps, "steps", "s", "number of denoising steps, of which --refine leaves a part (default: the model's)")
	f.VarP(&o.guidance, "guidance", "g", "guidance scale (default: the model's)")
	f.Var(&o.tile, "tile", "largest height and width to generate at once (default: the model's size)")
	o.weights.Add(f, true)
	cli.AddLowRAM(f, &o.lowRAM)
	o.AddCompute(f)
	o.AddJSON(f, "JSON lines")
	o.AddQuiet(f, "", "names of files, warnings and errors")
}

func (o *upscaleOptions) validate(given func(string) bool, args []string) error {
	if !o.refine.Given() {
		if err := cli.Without("refine", given, refineFlags...); err != nil {
			return err
		}
	}
	if o.scale.Given() && (o.height.Given() || o.width.Given()) {
		return cli.UsageErrorf("--scale and --height or --width exclude each other")
	}
	if scale := o.scale.OrZero(); o.scale.Given() && scale < 1 {
		return cli.UsageErrorf("--scale %g: must be 1 or more", scale)
	}
	if len(o.seed) > 1 {
		return cli.UsageErrorf("--seed: expected one number")
	}
	if len(args) > 1 && o.Output != "" && !strings.Contains(filepath.Base(o.Output), "{name}") {
		return cli.UsageErrorf("output %s: is one file for %d images (put {name} into it)", o.Output, len(args))
	}
	for _, arg := range args {
		if err := cli.CheckOutput(o.fileName(arg)); err != nil {
			return cli.Coded(cli.ExitUsage, err)
		}
	}
	return o.weights.Validate(given)
}

// fileName returns the name of the file for an image.
func (o *upscaleOptions) fileName(arg string) string {
	base := filepath.Base(arg)
	name := strings.TrimSuffix(base, filepath.Ext(base))
	dir, file := filepath.Split(cmp.Or(o.Output, "{name}_upscaled.png"))
	return filepath.Join(dir, strings.ReplaceAll(file, "{name}", name))
}

// An upscaled is what upscale prints of an image.
type upscaled struct {
	MessageType string         `json:"message_type"` // image
	File        string         `json:"file"`
	Source      string         `json:"source"`
	Width       int            `json:"width"`
	Height      int            `json:"height"`
	FromWidth   int            `json:"from_width"`
	FromHeight  int            `json:"from_height"`
	Model       string         `json:"model"`
	Class       string         `json:"class,omitempty"`
	Scale       int            `json:"scale"`
	Device      string         `json:"device"`
	Dtype       string         `json:"dtype"`
	Seed        *uint64        `json:"seed,omitempty"`
	Seconds     upscaleSeconds `json:"seconds"`
	PeakMemory  int            `json:"peak_memory_bytes"`
}

type upscaleSeconds struct {
	Upscale float64 `json:"upscale"`
	Refine  float64 `json:"refine,omitempty"`
	Save    float64 `json:"save"`
}

// An upscaling is a run of upscale.
type upscaling struct {
	*upscaleOptions
	out      *ui.Output
	upscaler *gomflux.Upscaler
	model    *gomflux.Model // nil without --refine
}

func (o *upscaleOptions) run(ctx context.Context, out *ui.Output, args []string) error {
	images, left := make([]*picture.Picture, len(args)), keptPixels
	for i, arg := range args { // before a model is loaded, which can take minutes
		p, err := picture.ReadFile(arg)
		if err != nil {
			return cli.Coded(cli.ExitUsage, err)
		}
		if size := p.Image.Rect.Size(); size.X*size.Y <= left {
			images[i], left = p, left-size.X*size.Y
		}
		if o.refine.Given() && o.prompt == "" && settingsOf(arg).Prompt == "" {
			return cli.UsageErrorf("%s: has no prompt in its settings (give one with --prompt)", arg)
		}
	}
	if _, err := o.OpenTuned(ctx, out, nil); err != nil {
		return err
	}
	u := &upscaling{upscaleOptions: o, out: out}
	var err error
	open := o.OpenOptions()
	if u.upscaler, err = gomflux.OpenUpscaler(ctx, cmp.Or(o.upscaler, gomflux.DefaultUpscaler), open); err != nil {
		return cli.Coded(cli.ExitModel, cli.ModelError(err))
	}
	defer u.upscaler.Close()
	if len(o.seed) > 0 && !o.refine.Given() && !u.upscaler.Seeded() {
		return cli.UsageErrorf("--seed has no effect without --refine, except with SeedVR2")
	}
	if o.colours.Given() && !u.upscaler.Seeded() {
		return cli.UsageErrorf("--color-correction has no effect, except with SeedVR2")
	}
	if o.refine.Given() {
		if err := u.openModel(ctx); err != nil {
			return err
		}
		defer u.model.Close()
	}
	for i, arg := range args {
		if err := u.image(ctx, arg, images[i]); err != nil {
			return err
		}
		images[i] = nil
	}
	return nil
}

// keptPixels limits the images that are kept from their check to their turn. Others are decoded again.
const keptPixels = 32 << 20

// openModel loads the model of --refine.
func (u *upscaling) openModel(ctx context.Context) error {
	source, err := u.Find()
	if err != nil {
		return err
	}
	progress := u.out.StartProgress(ctx)
	defer progress.Close()
	open := u.OpenOptions()
	open.Progress, open.LowRAM = progress.Report, u.lowRAM
	u.weights.Open(open)
	open.Warn = func(message string) { u.out.Warn("%s", message) }
	u.model, err = source.Open(ctx, open)
	if err != nil {
		return cli.Coded(cli.ExitModel, cli.ModelError(err))
	}
	return nil
}

// image enlarges an image, which is decoded if p is nil.
func (u *upscaling) image(ctx context.Context, name string, p *picture.Picture) (err error) {
	if p == nil {
		if p, err = picture.ReadFile(name); err != nil {
			return cli.Coded(cli.ExitUsage, err)
		}
	}
	settings := settingsOf(name)
	from := p.Image.Rect.Size()
	r := &upscaled{
		MessageType: "image", Source: name, FromWidth: from.X, FromHeight: from.Y, Model: u.upscaler.Name(), Class: u.upscaler.Class(),
		Scale: u.upscaler.Scale(), Device: string(u.upscaler.Device()), Dtype: string(u.upscaler.Dtype()),
	}
	options := &gomflux.UpscaleOptions{Scale: u.scale.OrZero(), Width: u.width.OrZero(), Height: u.height.OrZero(),
		ColorCorrection: u.colours.OrZero()}
	if u.upscaler.Seeded() {
		r.Seed = &options.Seed
		if len(u.seed) > 0 {
			options.Seed = u.seed[0]
		}
	}
	if _, _, err := u.upscaler.Size(from.X, from.Y, options); err != nil {
		return u.failed(name, err)
	}
	if need := u.upscaler.Memory(from.X, from.Y, options); need > 0 {
		u.out.Note("%dx%d: about %s of memory", from.X, from.Y, units.Bytes(need))
		cli.WarnMemory(ctx, u.out, "enlarging", u.upscaler.Device(), need, from.Y, from.X)
	}
	progress := u.out.StartProgress(ctx)
	defer progress.Close()
	options.Progress = progress.Report
	start := time.Now()
	img, err := u.upscaler.Upscale(ctx, p.Pixels(), options)
	if err != nil {
		return u.failed(name, err)
	}
	r.Seconds.Upscale = ui.Seconds(time.Since(start))
	if u.refine.Given() {
		if img, settings, err = u.refined(ctx, img, settings, progress, r); err != nil {
			return u.failed(name, err)
		}
	}
	start = time.Now()
	size := img.Bounds().Size()
	r.Width, r.Height = size.X, size.Y
	settings.Upscaler, settings.UpscaledWidth, settings.UpscaledHeight = catalog.TildePath(u.upscaler.Name()), size.X, size.Y
	saver := cli.Saver{Overwrite: u.Overwrite}
	if !u.noMetadata && settings.Check() == nil {
		saver.Settings = settings
	}
	if r.File, err = saver.Save(ctx, u.fileName(name), img); err != nil {
		return err
	}
	r.Seconds.Save = ui.Seconds(time.Since(start))
	progress.Close()
	if r.PeakMemory, err = cli.PeakMemory(ctx); err != nil {
		return err
	}
	u.out.Event(r)
	took := time.Duration((r.Seconds.Upscale + r.Seconds.Refine + r.Seconds.Save) * float64(time.Second))
	u.out.Note("%dx%d from %dx%d, %s in all, peak memory %s", size.X, size.Y, from.X, from.Y, ui.Duration(took),
		units.Bytes(int64(r.PeakMemory)))
	if u.out.Format == ui.Text {
		u.out.Wrote(u.out.Line(r.File))
	}
	return unreported(u.out, r.File)
}

// settingsOf returns the settings in an image, or zero ones.
func settingsOf(name string) *picture.Settings {
	if found, err := picture.ReadSettingsFile(name); err == nil {
		return &found.Settings
	}
	return &picture.Settings{}
}

// failed gives an error about an image its exit code.
func (u *upscaling) failed(name string, err error) error {
	if errors.Is(err, gomflux.ErrRequest) {
		return cli.UsageErrorf("%s: %w", name, err)
	}
	return cli.ModelError(err)
}

// refined generates an enlarged image again.
func (u *upscaling) refined(
	ctx context.Context, img image.Image, settings *picture.Settings, progress *ui.Progress, r *upscaled,
) (image.Image, *picture.Settings, error) {
	start := time.Now()
	o := gomflux.Options{
		Prompt:         cmp.Or(u.prompt, settings.Prompt),
		NegativePrompt: u.negative, Steps: u.steps.OrZero(), Guidance: u.guidance.Value, Progress: progress.Report,
	}
	if len(u.seed) > 0 {
		o.Seed = &u.seed[0]
	}
	result, err := u.model.Refine(ctx, img, o, gomflux.RefineOptions{Strength: *u.refine.Value, Tile: u.tile.OrZero()})
	if err != nil {
		return nil, nil, err
	}
	r.Seconds.Refine, r.Seed = ui.Seconds(time.Since(start)), &result.Settings.Seed
	result.Settings.Refine = *u.refine.Value
	result.Settings.Image = &picture.SourceImage{Path: catalog.TildePath(r.Source)}
	return result.Pixels(), &result.Settings, nil
}
