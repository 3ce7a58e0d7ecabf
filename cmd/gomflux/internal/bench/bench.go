// Package bench has the command bench.
package bench

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/profile"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/stepcache"
	"github.com/gomflux/gomflux/scheduler"
)

const benchHelp = `Bench measures how long the phases of a generation take on this machine:
loading, encoding the prompt and reference images, a denoising step, and
decoding. It generates an image once, which includes what only a first run does,
such as compiling, and then --repeat times.

MODEL
--model names a model on this machine, as in gomflux generate. --random needs no
weights and no network: it takes the name of a published model (gomflux models
lists them) or a folder with the configs of a model, draws weights of that size
at random, in bfloat16 or the dtype of --dtype, and tokens instead of a prompt.
After that it runs the same code. A model that does not fit into memory is an
error.

RESULTS
  first     the first run; of a step, its first step
  steady    the median of the other runs; of a step, that of all steps except
            the first of each run, which compiles
  TFLOP     two for each multiply-add of linear layers, convolutions and
            attention
  matmul    a product of two large square matrices in the same dtype, the faster
            of two measurements, before and after the runs
  of matmul speed of the phase as a part of that
  memory    the weights, and the peak of MLX's arrays in a run
  load      the size of the weights in files, and how fast they were read

TEXT
--text-tokens N generates no image: the model's text encoder, or the language
model in a folder of its own, reads --prompt-tokens tokens and writes N, as for
--enhance. The phases are load, read and token. Each token reads all weights
from memory once.

A phase of a model with --low-ram includes loading components.

On a machine with other work only ratios are meaningful: measure alternately,
and in new processes.

TUNING
--tune generates nothing. It compares, in a minute or two, what can only be
known on the machine, for the device of --device: products of 1, 8, 64, 512
and 4096 rows with quantized matrices as they are (packed) and dequantized first
(unpacked), in bfloat16 and float16, compiled and not, and each kernel of
gomflux with MLX's operations. What a device cannot do is left out. The
candidates take turns, --repeat times forwards and backwards. Where something is
clearly faster than the default, it is used from then on by generate, edit and
bench, on this machine with the same versions of MLX, driver and kernels.

The result is a file in the user's cache folder, which gomflux doctor shows.
GOMFLUX_TUNING=0 ignores it. Images record what differs from the defaults.

SEVERAL PROCESSES
Under gomflux launch the processes generate each image together, split by
passes, sequence or stages, and rank 0 prints the results. "exchange" is what
a process receives from the others in a step: the bytes, and how long they
take over links of 1 to 80 Gb/s, which is computed. A step takes that much
longer, but for what the library transfers while it computes.

PROFILE
--profile FILE runs the model once more, and measures every module, as in
gomflux generate. This run does not count for the results.

SHARE
--share prints a block of text for an issue: the machine's processor, memory,
operating system and GPU, versions, settings and results. It contains no names
of users, machines or folders.

JSON
With --json bench prints one object:

  model, random           the model, and whether its weights are random
  class                   pipeline class
  device, dtype           of the computation
  quantize                of the weights, "" for none
  low_ram                 whether components are loaded when they are needed
  compiled                whether the transformer was compiled
  tuning                  the choices of --tune that are used, if they are not
                          the defaults
  height, width, steps, guidance
  guidance_interval, step_cache
                          of the flags of these names
  skipped_steps, skipped_negative_steps
                          of the last run, as in gomflux help json
  prompt_tokens           tokens of the prompt that the transformer sees
  image_tokens            tokens of the image and the reference images
  references, repeat      numbers of reference images and of runs after the
                          first
  text_tokens             of --text-tokens
  split, processes        of gomflux launch
  exchanged_bytes         that a process receives in a step
  inpaint                 whether a part of an image was generated, with a mask
  phases                  an array with name (load, read, token, encode,
                          references, step, decode, and image for all but
                          load; with --guidance-interval or --step-cache also
                          steps, all steps of a run, and no tflop of a step),
                          first_s,
                          steady_s, min_s, max_s and, where known, tflop,
                          tflop_per_s, share_of_matmul, and operations, the
                          number of arrays in the graph of a step; of load
                          gb_per_s, read from the model's files
  matmul_tflop_per_s, matmul_size
  weights_bytes           of all components
  peak_memory_bytes       of a run
  estimated_memory_bytes  estimate of the peak before the run
  machine                 name, os, cpus, memory_bytes, device_name,
                          device_memory_bytes
  versions                gomflux, mlx, mlx_c, go, blas
  profile                 of --profile, as in gomflux help json

With --tune the object has

  tuning                  the choices as text, "" for the defaults
  file                    of the profile
  profile                 the profile: version, machine, created, seconds,
                          settings and measured, an array of comparisons with
                          name, left_out, chosen and cases (name, and times with
                          candidate, first_s, new_shape_s, median_s, samples)
  versions                as above
` + cli.ExitStatus

// defaultBenchModel needs no download.
const defaultBenchModel = "shapes"

// benchOptions are the flags of gomflux bench, in the order of the help.
type benchOptions struct {
	cli.ModelFlags
	random        string
	promptTokens  cli.Optional[int]
	textTokens    cli.Optional[int]
	size          cli.Optional[int]
	height, width cli.Optional[int]
	steps         cli.Optional[int]
	guidance      cli.Optional[float64]
	interval      cli.Optional[scheduler.Part]
	stepCache     cli.Optional[stepcache.Rule]
	references    cli.Optional[int]
	inpaint       bool
	repeat        int
	quantize      cli.Optional[gomflux.Quantization]
	lowRAM        bool
	share         bool
	split         cli.SplitFlag
	compare       bool
	profile       profile.Flags
	cli.OutputFlags
}

func NewCommand() *cobra.Command {
	o := &benchOptions{
		ModelFlags: cli.NewModelFlags(), promptTokens: cli.Count("tokens"),
		textTokens: cli.Count("tokens"), size: cli.Count("pixels"), height: cli.Count("pixels"),
		width: cli.Count("pixels"), steps: cli.Count("number"), guidance: cli.Scale("scale"),
		interval: cli.Parsed("start,stop", scheduler.ParsePart), stepCache: cli.Parsed("rule", stepcache.ParseRule),
		references: cli.WholeFrom(0, "count"),
		split:      cli.NewSplitFlag(),
		quantize:   cli.OneOf("level", cli.Convert[gomflux.Quantization](component.Quantizations)...),
	}
	o.Fallback = defaultBenchModel
	repeat := cli.Count("count")
	cmd := &cobra.Command{
		Use:   "bench [--model MODEL | --random MODEL | --tune]",
		Short: "Measure the speed of a model on this machine",
		Long:  benchHelp,
		Example: `  gomflux bench
  gomflux bench --random z-image-turbo --quantize 4 --share
  gomflux bench --model ./my-model --size 512 --repeat 10 --json
  gomflux bench --tune`,
		Args: cli.NoArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.repeat = repeat.OrElse(3)
			if o.compare {
				return o.runTune(cmd)
			}
			if err := o.validate(cmd.Flags().Changed); err != nil {
				return err
			}
			b := &benchmark{benchOptions: o, out: o.Out(cmd)}
			if err := b.run(cmd.Context()); err != nil {
				return err
			}
			return b.out.Result(&b.report)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.AddModel(f)
	f.Var((*cli.ModelName)(&o.random), "random", "random weights of the size of this published model, or of the configs in this folder")
	f.Var(&o.promptTokens, "prompt-tokens", "number of tokens of the prompt, with --random (default: 32)")
	f.Var(&o.textTokens, "text-tokens", "measure the text encoder as a language model, which writes so many tokens")
	f.Var(&o.size, "size", "height and width of the image (default: the model's)")
	f.VarP(&o.height, "height", "H", "height of the image")
	f.VarP(&o.width, "width", "W", "width of the image")
	f.VarP(&o.steps, "steps", "s", "number of denoising steps (default: the model's, at most 4)")
	f.VarP(&o.guidance, "guidance", "g", "guidance scale (default: the model's)")
	f.Var(&o.interval, "guidance-interval", "the part of the steps with classifier-free guidance, in fractions (default: 0,1)")
	f.Var(&o.stepCache, "step-cache", "leave out work in steps that change little: first-block:0.1 or easy:0.05; for 12 steps and more")
	f.Var(&o.references, "references", "number of reference images of the same size (default: as few as the model takes)")
	f.BoolVar(&o.inpaint, "inpaint", false, "inpaint the left half of a random image (models for filling always do)")
	f.Var(&repeat, "repeat", "number of runs after the first, or of turns with --tune (default: 3)")
	f.VarP(&o.quantize, "quantize", "q", "quantize the weights to 3, 4, 5, 6 or 8 bits, mxfp4, mxfp8 or nvfp4 (see gomflux help weights)")
	o.AddCompute(f)
	f.BoolVar(&o.compare, "tune", false, "compare ways to compute on this machine, and use the fastest from then on")
	f.BoolVar(&o.lowRAM, "low-ram", false, "keep only one text encoder or the transformer in memory at a time, and none while decoding")
	cli.AddSplit(f, &o.split)
	o.profile.Add(f)
	o.AddJSON(f, "a JSON object")
	f.BoolVar(&o.share, "share", false, "print a block of text for an issue, without anything personal")
	o.AddQuiet(f, "", "results, warnings and errors")
	return cmd
}

// validate refuses flags that contradict each other.
func (o *benchOptions) validate(given func(string) bool) error {
	switch {
	case given("model") && given("random"):
		return cli.UsageErrorf("give either --model or --random")
	case given("base-model") && given("random"):
		return cli.UsageErrorf("--base-model has no effect with --random")
	case given("prompt-tokens") && !given("random") && !given("text-tokens"):
		return cli.UsageErrorf("--prompt-tokens has no effect without --random or --text-tokens")
	case given("text-tokens"):
		if o.textTokens.OrZero() < 2 {
			return cli.UsageErrorf("--text-tokens %d: must be at least 2 (the first is drawn with the prompt)", o.textTokens.OrZero())
		}
		for _, name := range []string{"size", "height", "width", "steps", "guidance", "guidance-interval", "step-cache", "references",
			"inpaint", "low-ram", "profile", "tune"} {
			if given(name) {
				return cli.UsageErrorf("--%s has no effect with --text-tokens", name)
			}
		}
	case o.split.OrZero() == gomflux.SplitPictures:
		return cli.UsageErrorf("--split pictures: bench measures one image at a time")
	case given("size") && (given("height") || given("width")):
		return cli.UsageErrorf("give either --size or --height and --width")
	case o.JSON && o.share:
		return cli.UsageErrorf("give either --json or --share")
	case given("profile"):
		if err := o.profile.ValidateFile(); err != nil {
			return err
		}
	}
	if o.size.Given() {
		o.height, o.width = o.size, o.size
	}
	return nil
}
