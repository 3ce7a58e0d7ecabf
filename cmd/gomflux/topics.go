package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/scheduler"
)

// newTopics are the texts of gomflux help TOPIC. A command that cannot be run
// is one to cobra.
func newTopics() []*cobra.Command {
	topics := []*cobra.Command{
		{Use: "environment", Short: "Environment variables that change what gomflux does", Long: environmentTopic},
		{Use: "exit-codes", Short: "What the exit codes mean", Long: exitCodesTopic},
		{Use: "json", Short: "The lines that --json prints", Long: jsonTopic},
		{Use: "metadata", Short: "How pictures carry the settings that made them", Long: metadataTopic},
		{Use: "model", Short: "What --model takes and where models are found", Long: modelTopic()},
		{Use: "pictures", Short: "Making a picture from a picture", Long: picturesTopic()},
		{Use: "schedulers", Short: "What --scheduler takes", Long: schedulersTopic()},
		{Use: "weights", Short: "Quantizing a model, LoRAs, and saving it", Long: weightsTopic},
	}
	for _, t := range topics {
		t.DisableFlagsInUseLine = true
		t.SetUsageTemplate("") // there is nothing to call
	}
	return topics
}

// checkTopics refuses gomflux help with what is no command and no topic: cobra
// answers that with the root's help and exit code 0.
func checkTopics(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, err := root.Find([]string{"help"})
	if err != nil {
		panic("cobra has no help command")
	}
	help.Args = func(_ *cobra.Command, args []string) error {
		if _, _, err := root.Find(args); err != nil {
			return usageErrorf("there is no help on %q (gomflux --help lists the commands and topics)", strings.Join(args, " "))
		}
		return nil
	}
}

const weightsTopic = `--quantize (-q) packs a model's weights while they are loaded, so that they take
less memory:

  8        8 bits and a scale and an offset for every 64 weights: 8.5 bits each.
           A layer's weights are off by less than 1 % of their length
  6, 5     6.5 and 5.5 bits each, off by 2 % and 5 %
  4        4.5 bits each, off by 9 %
  3        3.5 bits each, off by 20 %
  mxfp8, mxfp4, nvfp4
           floats of 8 or 4 bits with a scale for every 32 weights (nvfp4: 16),
           off by 3 %, 12 % and 10 %

--group-size says for how many weights there is a scale, 32, 64 or 128: fewer
are more exact and larger. Layers that a picture suffers most from, such as the
first and the last ones, keep 8 bits whatever is asked for, norms and the
autoencoder all of theirs. What a model's files have quantized already stays as
it is. A mode that MLX does not do properly on the device is an error.

gomflux save writes a quantized model to a folder, or one with LoRAs in it.
gomflux inspect QUANTIZED --against ORIGINAL says how far each weight is off.

--lora changes the weights by what a LoRA has learned:

  gomflux generate -m flux1-dev --lora ink.safetensors 0.8 --lora me/wash \
    -p "a lighthouse"

A LoRA is a safetensors file, a folder with one, or on the Hugging Face hub
owner/name or, where there are several in a repository, owner/name:file. gomflux
pull fetches it by that name. Of a name without a folder the folders that
LORA_LIBRARY_PATH lists are searched too. Pickle files (.bin, .ckpt, .pt) are
refused: to read one is to run it.

The number behind it is its scale, 1 if there is none. Less is weaker, a
negative one does the opposite. It is read under the names of diffusers and
PEFT, of kohya-ss' scripts, of LyCORIS (LoKr, LoHa), of ComfyUI and of the
models' makers; DoRA too. Tensors that fit nothing in the model are an error
that lists them: such a LoRA is for another model.

The weights are changed before they are quantized. With --no-bake-lora the
change is computed beside them instead, which is slower and, with --quantize,
more exact; so it is anyway where the files have the weights quantized already.

Both are recorded in the picture, LoRAs with their scales and hashes, and used
again by --config-from-metadata. -q none and --lora none turn them off.`

const environmentTopic = `Environment variables that change what gomflux does. gomflux doctor shows those
that are set.

Where things are

  GOMFLUX_MLX       the folder that holds libmlxc, or lib/libmlxc; no other
                    place is searched then. Otherwise it is looked for beside
                    the program, in lib/ there, in .setup/lib of a checkout,
                    and where the system keeps its libraries
  HF_HUB_CACHE      the Hugging Face cache in which published models are found;
                    otherwise it is $HF_HOME/hub, then
                    $XDG_CACHE_HOME/huggingface/hub, then
                    ~/.cache/huggingface/hub. Only gomflux pull and gomflux rm
                    write to it
  TMPDIR            where the built-in model's files are put while it is read,
                    and a picture that cannot be written where it should be;
                    otherwise it is /tmp
  LD_LIBRARY_PATH   where Linux looks for libraries first: OpenBLAS, and CUDA's
                    with MLX's CUDA build (DYLD_LIBRARY_PATH on Macs)

Tensors of runs (gomflux tensors)

  GOMFLUX_LOG_DIR   the folder that --debug-save saves to and in which names are
                    looked up, unless --log-dir is given; otherwise logs
  GOMFLUX_LOG_WARN, GOMFLUX_LOG_LIMIT
                    how many bytes it may hold before a run is warned of it (1
                    GB), and before nothing more is saved (10 GB)

LoRAs

  LORA_LIBRARY_PATH folders in which --lora finds files by their names, with
                    colons between them

Fetching models (gomflux pull)

  HF_TOKEN          the token for gated and private models; otherwise that in
                    the file $HF_TOKEN_PATH, then $HF_HOME/token, where
                    hf auth login leaves it. It is sent to the hub only
  HF_ENDPOINT       the URL of another hub than https://huggingface.co
  HF_HUB_OFFLINE=1  nothing is fetched
  HTTPS_PROXY, HTTP_PROXY, NO_PROXY
                    the proxy for what is fetched

Speed on the CPU

  OPENBLAS_NUM_THREADS, OMP_NUM_THREADS
                    how many threads a matrix product uses on Linux; all cores
                    if neither is set

GPUs

  CUDA_VISIBLE_DEVICES
                    which of several GPUs CUDA sees

MLX reads variables of its own. gomflux sets these unless they are set:

  MLX_ENABLE_TF32=0 float32 is exact on GPUs. With 1 it is faster there, and
                    has 10 bits of precision in products
  MLX_ENABLE_CACHE_THRASHING_CHECK=0, MLX_CUDA_GRAPH_CACHE_SIZE=4000
                    let programs that run long with changing sizes go on

The terminal

  TERM, TERM_PROGRAM, LC_TERMINAL, KITTY_WINDOW_ID, WEZTERM_PANE,
  GHOSTTY_RESOURCES_DIR, TMUX, STY, ZELLIJ
                    how pictures are shown in it with --preview and --show. With
                    TERM=dumb none are`

const exitCodesTopic = `Scripts can rely on these codes. Whatever is not 0 comes with one line on
standard error that says what was wrong and, where there is something, what to
do about it. With --quiet too.
` + exitStatus + `

What was given is checked before a model is loaded, as far as that is possible,
so 2 and 3 come early. After 1, pictures that were finished before the failure
are there, and no half-written file is.

The first Ctrl-C or SIGTERM ends a run at the next block or step, the second one
at once. Neither leaves a temporary file behind. That the terminal is closed
(SIGHUP) counts as one, unless the run was started with nohup.`

const jsonTopic = `With --json gomflux generate and gomflux edit print JSON on standard output, an
object a line, for programs that run them, and no progress on standard error.
message_type says what a line is. Later versions add fields and types, so pass
over those that you do not know.

  start      a picture begins
             seed, index (from 0), pictures (how many there will be). Of
             pictures that are made at once all lines of this type come first
  progress   a phase begins or goes on
             phase: load, encode, step, decode or save
             component, bytes, total_bytes: what is loaded
             step, steps: those done, of all; 0 is left out
             seconds_per_step, seconds_left: of the steps
             index: of the picture, in all phases but load
             count: where several are made at once, how many; index is that of
             the first. They are decoded and saved one by one
  picture    a picture is there
             file: its name
             settings: what made it, as gomflux help metadata has it
             seconds: encode, steps, decode and save
             peak_memory_bytes: of MLX's arrays. Of pictures that are made at
             once all have the whole batch's, the time of the steps is shared,
             and that of encoding is the first one's
             estimated_memory_bytes: what it was expected to be
             prompt_tokens: of the prompt, with those of the model's template
             text_tokens: of those and padding, which the transformer sees
             cut_tokens: of its end, which CLIP does not see; 0 is left out
  tensors    tensors were saved, or the run ended where it was asked to
             folder: of the run; saved: how many; ended_after: a tensor's name
  warning    message
  error      message, exit_code; it is the last line

The message of an error is on standard error too. A run that ends without a line
of the type error went well.

Other commands with --json print JSON of their own, which their help describes.

  gomflux generate --model shapes --prompt "a red circle" --json |
    jq -r 'select(.message_type == "picture") | .file'`

const metadataTopic = `A picture carries the settings that made it, in two forms:

  gomflux      everything, as JSON with a version number
  parameters   the text that AUTOMATIC1111's web UI began with and that
               galleries and many other programs show

In a PNG file these are text chunks with these names (iTXt; parameters is tEXt
if it has only Latin-1 characters), in a JPEG file a comment {"gomflux": {...}}
and the EXIF user comment. gomflux info FILE prints them.

--metadata also writes them to a JSON file of the picture's name:
picture.metadata.json beside picture.png, with the same object under "gomflux".

To make a picture again:

  gomflux generate --config-from-metadata picture.png

takes what is in the file (-C for short); flags that are given too win over it.
What gomflux edit made is made again by gomflux edit; the pictures it was shown
are read again, with a warning for one that has changed.
The same version of gomflux, model, dtype, machine and MLX make the same
picture, bit by bit; another machine makes one that looks the same, and so does
a batch of another size: what was made in a batch (batch, --batch-size) is made
again alone unless --batch-size is given, with a note. It reads
gomflux's own JSON, mflux's (in a picture or in a sidecar file) and, as far as
it goes, the parameters text, in PNG, JPEG and WebP files.

The fields of the JSON, in version 1. Later versions only add some.

  version                          of this form: 1
  generator                        the program and its version
  model, revision, class           what --model takes, the commit of its
                                   repository, its pipeline class
  base_model                       what a single file was completed from
  prompt, negative_prompt          as they were given
  seed, steps, guidance            as the flags of these names take them
  height, width                    in pixels
  max_sequence_length, scheduler,  as the flags of these names take them; no rng
  rng                              is mlx
  batch                            how many pictures were made at once, if more
                                   than one
  dtype, device, mlx               what was computed in, where, MLX's version
  image, image_strength            the picture that it began with (path, sha256)
                                   and how much of it was kept
  references                       the pictures that an edit was shown, each a
                                   path and a sha256
  quantize, group_size             as the flags of these names take them
  loras, runtime_lora              the LoRAs (path, revision, scale, sha256),
                                   and whether --no-bake-lora was given
  created, seconds                 when it was made (UTC), and how long it took

Privacy: prompts are in there, and so is the name of the model. A path in your
home folder is written with ~ in place of the folder's name. --no-metadata
writes a picture with nothing in it.`

func modelTopic() string {
	var b strings.Builder
	b.WriteString(`--model takes one of these, and looks for them in this order:

  a built-in model
`)
	builtins := catalog.Builtins()
	for _, name := range slices.Sorted(maps.Keys(builtins)) {
		b.WriteString("      " + name + ": " + builtins[name].About + "\n")
	}
	b.WriteString(`  a folder in the layout of Hugging Face diffusers: model_index.json, and a
  folder for each component that it names, or as mflux saves models. ~/ is your
  home folder
  a single safetensors file, of ComfyUI or of the models' makers. What it does
  not have comes from the model that it is made from, or from --base-model
  a published model's short name, or another name (gomflux models lists them)
`)
	for _, p := range catalog.Presets {
		b.WriteString("      " + p.Name + ": " + p.Repo + "\n")
	}
	b.WriteString(`  the repository of a model on the Hugging Face hub, owner/name
  a file of a repository: owner/name:file

The last three are looked for in the Hugging Face cache, and nowhere else: only
gomflux pull fetches anything. gomflux help environment says where that is.

  gomflux pull ` + catalog.Presets[0].Name + `

Some are gated: somebody with an account accepts the conditions on the model's
page first, and sets HF_TOKEN to a token of that account (hf auth login keeps
one too).

Of a repository the snapshot of its main branch is used. With @ and a branch, a
tag or a commit after the name it is another one, if that has been fetched:
z-image-turbo@main. One that is not complete is an error before anything is
loaded. The commit is recorded in the picture.

Without --model it is ` + defaultModel + `, and to gomflux edit ` + defaultEditModel + `.

A model that is known by name, is a snapshot of its repository, or lies in a
folder of that name runs with the settings that its makers recommend. Any other
one runs with those of its pipeline class:

  ` + strings.Join(family.Classes(), "\n  "))
	return b.String()
}

func picturesTopic() string {
	return `There are two ways to make a picture from others. gomflux generate --image
starts from one, with any model. gomflux edit shows one or more to a model that
was trained to edit.

With --image a run starts from a picture instead of from noise alone:

  gomflux generate --image sketch.png --image-strength 0.4 \
    --prompt "a lighthouse"

--image-strength says how much of the picture is kept, between 0 and 1; it is
0.4 if not given. Higher keeps more. So mflux counts. In diffusers, and in most
web interfaces, strength (or denoising strength) says how much is changed, which
is 1 minus this.

Strength S leaves out the first S x steps steps, rounded down but at least one:
of 8 steps with 0.4 the first 3. The picture gets as much noise as a run has
left after these steps. At 1 no step would be left, so that is refused.

The picture is a PNG, JPEG or WebP file. It is turned as its EXIF orientation
says and resized to --height and --width. With one of them the other keeps the
proportions; without both the new picture is as large as it, rounded down to
what the model can do, and at most of four times the area that the model is made
for.

gomflux roundtrip PICTURE shows what the model's autoencoder alone makes of a
picture: what no strength can keep.

An edit starts from noise, and the model sees the pictures at every step:

  gomflux edit --image cat.png --image mat.png \
    --prompt 'the cat of $1 on the mat of $2'

` + filled("", "The families that edit are "+family.Editors()+". $1 is the first picture, in single quotes since shells have a $1 of their own; it becomes what the model knows it by, such as image 1. Each picture costs time and memory; two or three are usual.") + `

` + editingHelp()
}

// helpOf are the parts of the families' help that a function chooses, of those
// that have one.
func helpOf(part func(family.Help) string) (texts []string) {
	for _, f := range family.All {
		if text := part(f.Help); text != "" {
			texts = append(texts, text)
		}
	}
	return texts
}

// editingHelp says which pictures the families edit, in paragraphs.
func editingHelp() string {
	return strings.Join(helpOf(func(h family.Help) string { return h.Editing }), "\n\n")
}

// filled breaks a text into lines of up to 80 characters, which begin with an
// indent.
func filled(indent, text string) string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(indent)+len([]rune(line+" "+word)) > 80 {
			lines, line = append(lines, indent+line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return strings.Join(append(lines, indent+line), "\n")
}

// shifted are the published models whose config shifts sigmas by the picture's
// size, or by a constant.
func shifted(bySize bool) string {
	var names []string
	for _, m := range catalog.Presets {
		if dynamic, _ := m.Scheduler["use_dynamic_shifting"].(bool); dynamic == bySize {
			names = append(names, m.Name)
		}
	}
	return family.And(names)
}

func schedulersTopic() string {
	about := map[gomflux.Scheduler]string{
		gomflux.Euler: "Euler's method over sigmas that the model's config shifts, by a constant or by the picture's size; what all families here are made for. Short: euler",
		gomflux.Heun: "Heun's method of the second order. N steps evaluate the model 2N-1 times. Only for models whose config shifts sigmas by a constant, such as " + shifted(false) +
			": those that shift them by the picture's size (use_dynamic_shifting) refuse it, such as " + shifted(true) + ". Short: heun",
		gomflux.Linear: "Euler's method over sigmas that are shifted by the picture's size, whatever the config says: mflux's scheduler of that name. For models that shift by size anyway it is the same as euler",
	}
	var b strings.Builder
	b.WriteString("--scheduler takes one of these names, which are those of diffusers' classes in\nsnake case, or the class's own name. Without it the model's config decides.\n")
	for _, name := range scheduler.Names() {
		b.WriteString("\n  " + name + "\n" + filled("      ", about[gomflux.Scheduler(name)]) + "\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}
