// Package generate has the commands generate, edit and inpaint.
package generate

import (
	"cmp"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

const generateHelp = `Generate creates images from a prompt, one for each seed, and writes them to
files, whose names it prints on standard output. Everything else goes to
standard error.

MODEL
The model is built in (shapes), a folder in the diffusers layout, or a published
model in the Hugging Face cache, by repository (owner/name) or short name
(gomflux models lists them). The default is ` + cli.DefaultModel + `. Steps, size and
guidance default to the recommendations of the model's makers. gomflux help
model has more.

PROMPTS AND SEEDS
Several prompts generate an image for every seed each: all images of the first
prompt, then those of the next. The same seed, settings and machine give the
same image, bit for bit, if it is generated alone or in a batch of the same
size.

The end of a prompt that is longer than --max-sequence-length is cut off, as in
diffusers, with a warning that shows the lost text. With --refuse-long-prompts
it is an error.

REWRITING PROMPTS
With --enhance a language model rewrites each prompt first, with more detail:
the text encoder of the model, if it is a language model with its head, or with
--enhance=MODEL that of another model, or the folder of a language model. The
text is shown while it is written; Ctrl-C once keeps the prompt as it was typed.
If the language model changes a text in quotation marks, it is asked again, and
then the prompt stays, with a warning. If it writes nothing or repeats itself
endlessly, it is asked again, and then that is an error: no image is generated.
The language model is loaded once for all prompts, and freed before the rest is
loaded. Images record the rewritten prompt, so that --config-from-metadata needs
no language model, and the original one. Language models that were made to think
first do so with --enhance-thinking 4096. With --boxes FILE elements get places,
if prompts for the model can have boxes.

BATCHES
On a GPU small images of one prompt are generated several at a time, which is
faster. On an H200 a transformer of 4 billion weights generated 8 images of
256x256 1.36 times as fast as one by one, 4 of 512x512 1.13 times, and of
1024x1024 1.05 times. On the CPU batches are not faster. Memory grows with the
batch, and pixels can differ by rounding from those of images generated alone.

The default on a GPU is up to 8 images of 256x256 pixels, up to 4 of 512x512
(reference images count too), and 1 of larger sizes, with debugging flags, and
when steps are shown. --batch-size sets another maximum.

STARTING FROM AN IMAGE
With --image generation starts from an image, and --image-strength is how much
of it is kept: 0.1 changes nearly everything, 0.9 almost nothing. The default
size is that of the image. gomflux help images has more.

WEIGHTS
--quantize reduces memory: 4-bit weights need about a third of 16-bit weights.
--lora applies a LoRA; it can be repeated, each with a scale. A LoRA that does
not fit the model is an error. gomflux help weights has more.

OUTPUT FILES
Existing files are kept: the new file is named image_1.png, image_2.png and so
on, unless --overwrite is given. The extension sets the format: .png, .jpg
or .webp, which is without loss, as PNG is, and usually smaller.
The name can contain {seed}, {index}, {prompt}, {model}, {steps}, {guidance},
{scheduler}, {height}, {width}, {date} and {time}. For several seeds
_seed_{seed} is appended unless the name has {seed} or {index}, and for several
prompts _{index} unless it has {prompt} or {index}.

Images contain the settings that made them, unless --no-metadata is given.
gomflux info shows them, and --config-from-metadata uses them again; other flags
override them. It also reads mflux's files, and the parameters text that many
programs write. gomflux help metadata has more.

DEBUGGING
--debug-save saves tensors of a run, and --debug-load replaces tensors, for
example by those of another program; what a replaced tensor makes unnecessary is
neither run nor loaded. Names are those of diffusers' modules:
transformer.layers.3.attention@0 is the output of a module in the first step;
prompt.embeds, latents@7 and vae.decode.in are values between modules. gomflux
tensors shows saved tensors.

--debug-stats records only ranges, means and first values, which takes little
space; gomflux tensors ranges prints them in the order of execution. If nothing
can be recorded, because the disk is full, say, the image is made all the same.

PROFILING
--profile FILE evaluates every module by itself, and writes the times, with
MLX's active, peak and cache memory, as a trace that ui.perfetto.dev and
chrome://tracing open. Tables on standard error have the phases, and the classes
and modules with the longest times; self is without the modules inside. Modules
that differ in their numbers, but not in the shape of their output, share a row.
--quiet leaves the tables out. The run is slower, but on the CPU its image is
the same. If it fails or is interrupted, the trace has what has run.

Ctrl-C ends the run as soon as possible and leaves no partial file; a second
Ctrl-C ends it immediately.
` + cli.ExitStatus

func NewCommand() *cobra.Command {
	return newGenerateOptions().command(&cobra.Command{
		Use:   "generate [--model MODEL] --prompt TEXT",
		Short: "Generate images from a prompt",
		Long:  generateHelp,
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

// command completes a command with what generate, edit and inpaint share.
func (o *generateOptions) command(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cli.NoArgs(" (a prompt of several words needs quotes, and --prompt before it)")
	cmd.RunE = o.Lines(func(cmd *cobra.Command, out *ui.Output, _ []string) error {
		signal.Ignore(syscall.SIGPIPE) // images are generated even when nobody reads their names
		if err := cmp.Or(o.validate(cmd.Flags().Changed), o.validateSession(cmd.Context())); err != nil {
			return err
		}
		return newGeneration(o, out).run(cmd.Context(), cmd.InOrStdin())
	})
	o.addFlags(cmd.Flags())
	return cmd
}
