package parity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/parity"
	"github.com/gomflux/gomflux/parity/report"
)

const parityLiveHelp = `Live compares gomflux with the reference while both run, for models whose
tensors do not fit on a disk. It starts the reference, whose tensors come
through a pipe and are compared as soon as gomflux has computed its own. Nothing
is written.

It makes the reading of every module by itself, in one pass: each tensor is
replaced by the reference's after comparison, so that a module's error is that
of its own arithmetic. The report and the verdict are those of gomflux parity
run --isolated, without the errors of modules as a whole.

MEMORY
Both programs hold the model, and work at the same time. Besides, gomflux holds
the reference's tensors that it has not compared yet, at most --max-memory; if
there is room, older ones stay for hints. The reference waits where it is ahead.
A reference that computes both prompts in one batch is a pass ahead: all tensors
of a step are held until the negative prompt's pass. If --max-memory is not
enough, the error names the tensor that gomflux waits for, and the one that does
not fit. gomflux parity bisect does without a dump of everything: it needs more
runs and little memory.

REFERENCE
The reference is run by a shell as

  COMMAND stream MODEL --prompt TEXT --steps N ...

COMMAND is --reference, which may include arguments. The default is
gomflux-reference (pip install ./scripts/reference), or in a checkout
scripts/reference/run.sh, which installs PyTorch first. It sends the tensors to
its standard output, and ends when its standard input is closed. MODEL is
--reference-model, or the folder of --model. LoRAs are applied on both sides.
With --mask, diffusers' pipeline for inpainting runs.
` + parityStatus

// parityLiveOptions are the flags of gomflux parity live, but for those that only go to the reference.
type parityLiveOptions struct {
	replayFlags
	image, mask               string
	references                []string
	memory                    cli.Optional[int64]
	reference, referenceModel string
}

func newParityLiveCommand() *cobra.Command {
	o := &parityLiveOptions{replayFlags: newReplayFlags(), memory: cli.Parsed("size", cli.ParseSize)}
	cmd := &cobra.Command{
		Use:   "live --model MODEL --prompt TEXT --steps N --height N --width N",
		Short: "Compare with the reference while both run, without a dump",
		Long:  parityLiveHelp,
		Example: `  gomflux parity live -m ./model -p "a lighthouse" -s 4 -H 1024 -W 1024 --max-memory 16GB
  gomflux parity live -m ./model -p "a lighthouse" -s 2 -H 512 -W 512 --reference "ssh gpu gomflux-reference" --reference-device cuda`,
		Args: cli.NoArgs(" (see gomflux parity live --help)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := o.validate(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), o.Out(cmd), cmd.Flags(), p)
		},
	}
	o.addFlags(cmd)
	return cmd
}

func (o *parityLiveOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.Model, "model", "m", "", "`name` of a published model in the Hugging Face cache, or its folder")
	text := func(s string) (string, error) { return s, nil }
	f.VarP(new(cli.Parsed("text", text)), "prompt", "p", "text that describes the image")
	f.VarP(new(cli.Parsed("text", text)), "negative-prompt", "n", "text that describes what to avoid")
	f.VarP(new(cli.Count("number")), "steps", "s", "number of denoising steps")
	seed := cli.Parsed("number", func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) })
	f.VarP(&seed, "seed", "S", "seed of the initial noise (default: 0)")
	f.VarP(new(cli.Count("pixels")), "height", "H", "height of the image")
	f.VarP(new(cli.Count("pixels")), "width", "W", "width of the image")
	f.VarP(new(cli.Scale("scale")), "guidance", "g", "guidance scale (default: 0)")
	new(cli.NewCFGFlags()).Add(f)
	f.Var(new(cli.Count("tokens")), "max-sequence-length", "maximum length of the prompt (default: 512)")
	f.Var(new(cli.Parsed("name", cli.SchedulerOf)), "scheduler", "linear or flow_match_heun_discrete (default: the model's)")
	f.StringVarP(&o.image, "image", "i", "", "start from this image `file`")
	f.Var(new(cli.Strength("strength")), "image-strength",
		"how much of the image is kept, above 0 and below 1 (default: 0.4, with --mask nothing)")
	f.StringVar(&o.mask, "mask", "", "inpaint the part of the image that is white in this `file`")
	f.Var(new(cli.WholeFrom(0, "padding")), "mask-crop",
		"show the model only the part around the mask, enlarged, with this padding in pixels")
	f.StringArrayVar(&o.references, "references", nil, "edit this image `file` (can be repeated)")
	f.Var(&o.memory, "max-memory", "memory for the reference's tensors, such as 500MB or 16GB (default: 4GB)")
	f.StringVar(&o.reference, "reference", "", "the reference's `command` (default: gomflux-reference, or scripts/reference/run.sh)")
	f.StringVar(&o.referenceModel, "reference-model", "", "the reference's model, a `folder` or a name on the hub (default: --model)")
	f.String("reference-device", "", "the reference's `device`, such as cuda or mps (default: cpu)")
	f.Var(new(cli.OneOf("dtype", gomflux.Float32, gomflux.BFloat16, gomflux.Float16)), "reference-dtype",
		"the reference's dtype: float32, bfloat16 or float16 (default: float32)")
	o.add(cmd)
}

// validate refuses flags that are missing or contradict each other, and returns the options.
func (o *parityLiveOptions) validate(given func(string) bool) (p parity.Options, err error) {
	switch {
	case o.Model == "":
		return p, cli.UsageErrorf("no model (give one with --model)")
	case !given("prompt"):
		return p, cli.UsageErrorf("no prompt (give one with --prompt)")
	case !given("steps") || !given("height") || !given("width"):
		return p, cli.UsageErrorf("give --steps, --height and --width, which are the same on both sides")
	}
	if err := o.validateImages(given); err != nil {
		return p, err
	}
	return o.options(given)
}

// validateImages is validate for the input images.
func (o *parityLiveOptions) validateImages(given func(string) bool) error {
	switch {
	case given("image") && o.image == "" || given("mask") && o.mask == "" || slices.Contains(o.references, ""):
		return cli.UsageErrorf("--image, --mask, --references: the file name is empty")
	case o.mask != "" && o.image == "":
		return cli.UsageErrorf("--mask needs an image to inpaint (give it with --image)")
	case given("mask-crop") && o.mask == "":
		return cli.UsageErrorf("--mask-crop has no effect without --mask")
	case o.image != "" && o.mask == "" && len(o.references) > 0:
		return cli.UsageErrorf("give either --image or --references, or a --mask for the image")
	case given("image-strength") && o.image == "":
		return cli.UsageErrorf("--image-strength has no effect without --image")
	}
	for _, name := range append(slices.Clone(o.references), o.image, o.mask) {
		if name == "" {
			continue
		}
		if _, err := os.Stat(name); err != nil {
			return cli.UsageErrorf("%s: %w", name, oserr.Bare(err))
		}
	}
	return nil
}

// toReference lists the flags that go to the reference as they are, and their names there if they differ.
var toReference = [][]string{
	{"prompt"}, {"negative-prompt"}, {"steps"}, {"seed"}, {"height"}, {"width"}, {"guidance"}, {"true-cfg-scale"}, {"cfg-normalization"},
	{"cfg-truncation"}, {"max-sequence-length"}, {"scheduler"}, {"image-strength"}, {"mask-crop"}, {"reference-device", "device"},
	{"reference-dtype", "compute"},
}

// arguments returns those of the reference, given its model.
func (o *parityLiveOptions) arguments(flags *pflag.FlagSet, model string, p parity.Options) ([]string, error) {
	args := []string{model}
	for _, names := range toReference {
		if f := flags.Lookup(names[0]); f.Changed {
			args = append(args, "--"+names[len(names)-1]+"="+f.Value.String())
		}
	}
	if o.mask != "" && !flags.Changed("image-strength") { // the reference's own default is that of image-to-image
		args = append(args, "--image-strength=0")
	}
	var failed error
	file := func(name string) string { // the reference may run in another folder
		path, err := filepath.Abs(name)
		failed = cmp.Or(failed, err)
		return path
	}
	if o.image != "" {
		args = append(args, "--picture="+file(o.image))
	}
	if o.mask != "" {
		args = append(args, "--mask="+file(o.mask))
	}
	for i, name := range o.references {
		if i == 0 {
			args = append(args, "--references")
		}
		args = append(args, file(name))
	}
	for _, l := range p.LoRAs {
		args = append(args, "--lora", file(l.Path), strconv.FormatFloat(l.Scale, 'g', -1, 64))
	}
	return args, failed
}

// findModel returns the reference's model.
func (o *parityLiveOptions) findModel() (string, error) {
	source, err := cli.FindWith(o.Model, "")
	switch {
	case catalog.PublishedUpscaler(o.Model) != nil || catalog.OnlyUpscaler(o.Model) != nil:
		return "", cli.UsageErrorf("%s enlarges images, which no pipeline of diffusers does: record it with %s dump --framework, and "+
			"compare with gomflux parity run or bisect", o.Model, referenceName)
	case err != nil:
		return "", err
	case o.referenceModel != "":
		return o.referenceModel, nil
	case source.Path() == "" || !disk.IsFolder(source.Path()):
		return "", cli.UsageErrorf("%s: the reference needs the folder of a model (give one with --reference-model)", o.Model)
	}
	return filepath.Abs(source.Path())
}

func (o *parityLiveOptions) run(ctx context.Context, out *ui.Output, flags *pflag.FlagSet, p parity.Options) error {
	model, err := o.findModel()
	if err != nil {
		return err
	}
	command, err := findReference(o.reference)
	if err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	args, err := o.arguments(flags, model, p)
	if err != nil {
		return err
	}
	live := func(ctx context.Context, run string, p parity.Options) (*report.Report, error) {
		out.Status("the reference loads its model")
		stream, err := startReference(ctx, command, args, out.Stderr)
		if err != nil {
			return nil, err
		}
		p.Progress = func(int, int) {
			out.ClearStatus()
			out.Status("comparing")
		}
		r, err := parity.Live(ctx, run, stream.tensors, o.memory.OrElse(parity.DefaultLiveMemory), p)
		if err = stream.end(err); err != nil {
			return nil, memoryHint(err)
		}
		return r, nil
	}
	return o.replay(ctx, out, "live", p, live)
}

// memoryHint adds what can be done about too little memory.
func memoryHint(err error) error {
	if _, ok := errors.AsType[*parity.MemoryError](err); ok {
		return fmt.Errorf("%w (give more with --max-memory; gomflux parity bisect does without a dump of everything)", err)
	}
	return err
}
