package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
)

// generateOptions are the flags of gomflux generate.
type generateOptions struct {
	modelFlags
	prompt, promptFile string
	negative           string
	seed               optional[uint64]
	steps              optional[int]
	height, width      optional[int]
	guidance           optional[float64]
	maxSequenceLength  optional[int]
	output             string
	overwrite          bool
	verbose, quiet     bool
}

func newGenerateCommand() *cobra.Command {
	o := &generateOptions{
		seed: seed("number"), steps: count("number"), height: count("pixels"), width: count("pixels"), guidance: scale("scale"),
		maxSequenceLength: count("tokens"), modelFlags: newModelFlags(),
	}
	cmd := &cobra.Command{
		Use:   "generate [--model MODEL] --prompt TEXT",
		Short: "Make a picture from a prompt",
		Long: `Generate makes a picture from a prompt and writes it to a file, whose name it
prints on standard output. Everything else it has to say goes to standard error.

The model is the name of a built-in one (shapes), a folder in the layout of Hugging
Face diffusers with a Z-Image model, or a published model that is in the Hugging
Face cache, by its repository (owner/name) or by a short name (z-image-turbo, z-image).
Without --model it is ` + defaultModel + `. What is not given (steps, size, guidance)
is as the model's makers recommend. The same seed, settings and machine make the
same picture.

A file that is there already is kept: the new one is named image_1.png,
image_2.png and so on, unless --overwrite is given. The name's end chooses the
format, .png or .jpg.

Ctrl-C ends the run at the next chance and leaves no half-written file; a
second one ends it at once.
` + exitStatus,
		Example: `  gomflux generate --model shapes --prompt "a red circle left of a blue square"
  gomflux generate -m ./Z-Image-Turbo -p "a lighthouse at dusk" --steps 8 --guidance 0 -S 42 -o lighthouse.png
  echo "a green star" | gomflux generate -m shapes -p -`,
		Args: noArgs(" (a prompt of several words needs quotes, and --prompt before it)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("prompt") == cmd.Flags().Changed("prompt-file") {
				return usageErrorf("give the prompt with either --prompt or --prompt-file")
			}
			if o.verbose && o.quiet {
				return usageErrorf("give either --verbose or --quiet")
			}
			return o.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.addModel(f)
	f.StringVarP(&o.prompt, "prompt", "p", "", "what the picture shows (`text`); - reads standard input")
	f.StringVar(&o.promptFile, "prompt-file", "", "a `file` with the prompt")
	f.StringVar(&o.negative, "negative-prompt", "", "what it does not show (`text`), where the model uses guidance")
	f.VarP(&o.seed, "seed", "S", "where the noise starts from; without it a random one, which is printed")
	f.VarP(&o.steps, "steps", "s", "denoising steps")
	f.VarP(&o.height, "height", "H", "height of the picture")
	f.VarP(&o.width, "width", "W", "width of the picture")
	f.VarP(&o.guidance, "guidance", "g", "strength of classifier-free guidance; 0 is none and twice as fast")
	f.Var(&o.maxSequenceLength, "max-sequence-length", "how long the prompt may be")
	o.addPlace(f)
	f.StringVarP(&o.output, "output", "o", "image.png", "the `file` to write")
	f.BoolVar(&o.overwrite, "overwrite", false, "replace the file if it is there")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "print times, memory and libraries")
	f.BoolVar(&o.quiet, "quiet", false, "print nothing but the seed, warnings and errors")
	return cmd
}

func (o *generateOptions) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) error {
	// what is cheap to check comes first: a model can take minutes to load
	prompt, err := o.readPrompt(ctx, stdin)
	if err != nil {
		return coded(exitUsage, err)
	}
	if err := checkOutput(o.output); err != nil {
		return coded(exitUsage, err)
	}
	source, err := o.find()
	if err != nil {
		return err
	}
	lib, err := o.checkLibrary(ctx, stderr)
	if err != nil {
		return err
	}

	start := time.Now()
	seed := uint64(rand.Uint32())
	if o.seed.value != nil {
		seed = *o.seed.value
	}
	options := gomflux.Options{
		Prompt: prompt, NegativePrompt: o.negative, Height: o.height.orZero(), Width: o.width.orZero(), Steps: o.steps.orZero(),
		Guidance: o.guidance.value, Seed: &seed, MaxSequenceLength: o.maxSequenceLength.orZero(),
	}
	show := o.display(ctx, stderr)
	defer func() { show.close() }()
	open := o.openOptions()
	open.For, open.Progress = &options, show.report
	model, err := gomflux.Open(ctx, source.Name, open)
	if errors.Is(err, gomflux.ErrRequest) {
		return coded(exitUsage, err)
	}
	if err != nil {
		return coded(exitModel, err)
	}
	defer model.Close()
	show.close()
	loaded := time.Now()

	show = o.display(ctx, stderr)
	options.Progress = show.report
	if o.negative != "" && (o.guidance.value == nil && model.Defaults().Guidance == 0 || o.guidance.value != nil && *o.guidance.value == 0) {
		fmt.Fprintln(stderr, "gomflux: warning: the negative prompt does nothing without guidance (--guidance)")
	}
	fmt.Fprintf(stderr, "seed %d\n", seed)
	result, err := model.Generate(ctx, options)
	show.close()
	if err != nil {
		if errors.Is(err, gomflux.ErrRequest) {
			return coded(exitUsage, err) // the prompt is too long, say
		}
		return err
	}
	generated := time.Now()
	name, err := savePicture(ctx, o.output, o.overwrite, result.Image)
	if err != nil {
		return err
	}
	saved := time.Now()

	if !o.quiet {
		steps := "steps"
		if result.Steps == 1 {
			steps = "step"
		}
		fmt.Fprintf(stderr, "%dx%d, %d %s of %s, %s in all\n", result.Width, result.Height, result.Steps, steps,
			seconds(result.StepTime/time.Duration(result.Steps)), seconds(saved.Sub(start)))
	}
	if o.verbose {
		fmt.Fprintf(stderr, "load %s, encode %s (%d tokens), steps %s, decode %s, save %s\n", seconds(loaded.Sub(start)),
			seconds(result.EncodeTime), result.PromptTokens, seconds(result.StepTime), seconds(result.DecodeTime), seconds(saved.Sub(generated)))
		fmt.Fprintf(stderr, "%s on %s in %s, guidance %g, peak memory %s\n", model.Class(), model.Device(), model.Dtype(), result.Guidance, bytes(int64(result.PeakMemory)))
		fmt.Fprintf(stderr, "libraries %s\n", libraryPaths(lib))
	}
	_, err = fmt.Fprintln(stdout, name)
	return err
}

func (o *generateOptions) display(ctx context.Context, stderr io.Writer) *display {
	if o.quiet {
		return &display{}
	}
	return newDisplay(ctx, stderr)
}

// maxPrompt bounds what is read as a prompt, in bytes. No model takes as much.
const maxPrompt = 1 << 20

// readPrompt gets the prompt from where it is and checks it as text.
func (o *generateOptions) readPrompt(ctx context.Context, stdin io.Reader) (string, error) {
	prompt, from := o.prompt, "prompt"
	switch {
	case o.promptFile != "":
		from = "prompt file " + o.promptFile
		f, err := os.Open(o.promptFile)
		if err != nil {
			return "", fmt.Errorf("%s: %w", from, bare(err))
		}
		defer f.Close()
		if prompt, err = readText(ctx, f); err != nil {
			return "", fmt.Errorf("%s: %w", from, err)
		}
	case prompt == "-":
		from = "prompt on standard input"
		var err error
		if prompt, err = readText(ctx, stdin); err != nil {
			return "", fmt.Errorf("%s: %w", from, err)
		}
	}
	if strings.TrimSpace(prompt) == "" {
		return "", fmt.Errorf("%s: is empty", from)
	}
	if err := checkText(prompt); err != nil {
		return "", fmt.Errorf("%s: %w", from, err)
	}
	if err := checkText(o.negative); err != nil {
		return "", fmt.Errorf("negative prompt: %w", err)
	}
	return prompt, nil
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
			return "", bare(err)
		}
	}
	if len(data) > maxPrompt {
		return "", fmt.Errorf("is longer than %s", bytes(maxPrompt))
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
