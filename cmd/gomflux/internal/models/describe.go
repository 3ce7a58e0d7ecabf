package models

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/picture"
)

const describeHelp = `Describe prints a description of an image by a language model: a prompt with
which the model would draw it again, or with --question the answer to that.

The language model is the text encoder of --model, which must have its head and
a vision encoder. A folder with nothing but such a language model works too.
Only the text encoder is loaded. It chooses the most likely words, so the text
is always the same.

On a terminal the text is shown as it is written. With --json describe prints
one object: text, file, question, model, tokens, whole (false if --max-tokens
ended the text) and seconds.
` + cli.ExitStatus

// describeOptions are the flags of gomflux describe.
type describeOptions struct {
	cli.ModelFlags
	cli.OutputFlags
	quantize  cli.Optional[gomflux.Quantization]
	question  string
	maxTokens cli.Optional[int]
}

func NewDescribeCommand() *cobra.Command {
	w := cli.NewWeightFlags()
	o := &describeOptions{ModelFlags: cli.NewModelFlags(), quantize: w.Quantize, maxTokens: cli.Count("tokens")}
	cmd := &cobra.Command{
		Use:   "describe IMAGE [--model MODEL]",
		Short: "Describe an image, or answer a question about it",
		Long:  describeHelp,
		Example: `  gomflux describe photo.jpg --model krea-2
  gomflux describe photo.jpg -m qwen-image-2.1 --question "What is written on the sign?"`,
		Args: cli.OneArg("an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), o.Out(cmd), args[0])
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.AddModel(f)
	f.StringVar(&o.question, "question", "", "`text` to answer, instead of a prompt for the image")
	f.Var(&o.maxTokens, "max-tokens", "length of the text (default: 512)")
	f.VarP(&o.quantize, "quantize", "q", "quantize the weights to 3, 4, 5, 6 or 8 bits, mxfp4, mxfp8 or nvfp4")
	o.AddCompute(f)
	o.AddJSON(f, "a JSON object")
	return cmd
}

// A described is what describe prints.
type described struct {
	Description string  `json:"text"`
	File        string  `json:"file"`
	Question    string  `json:"question,omitempty"`
	Model       string  `json:"model"`
	Tokens      int     `json:"tokens"`
	Whole       bool    `json:"whole"`
	Seconds     float64 `json:"seconds"`
}

func (d *described) Text(p *ui.Page) { p.Printf("%s\n", ui.Plain(d.Description)) }

func (o *describeOptions) run(ctx context.Context, out *ui.Output, name string) error {
	img, err := picture.ReadFile(name)
	if err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	source, err := o.Find()
	if err != nil {
		return err
	}
	if _, err := o.OpenTuned(ctx, out, nil); err != nil {
		return err
	}
	start, progress := time.Now(), out.StartProgress(ctx)
	defer progress.Close()
	stream := out.Stream()
	defer stream.End()
	open := o.OpenOptions()
	options := &gomflux.LanguageOptions{
		Device: open.Device, Dtype: open.Dtype, MaxTokens: o.maxTokens.OrZero(), Progress: progress.Report,
		Warn: func(message string) { out.Warn("%s", message) },
	}
	if q := o.quantize.OrZero(); q != cli.None {
		options.Quantize = q
	}
	// a terminal has the text as it is written, and then not once more
	shown := out.Format == ui.Text && !out.Quiet && ui.IsTerminal(out.Stderr) && ui.IsTerminal(out.Stdout)
	if shown {
		options.Text = func(text string, _ bool) {
			progress.Close()
			stream.Write(text)
		}
	}
	d, err := source.Describe(ctx, img.Pixels(), o.question, options)
	if errors.Is(err, gomflux.ErrRequest) && !errors.Is(err, gomflux.ErrUnsupported) {
		return cli.Coded(cli.ExitUsage, fmt.Errorf("%s: %w", name, err))
	}
	if err != nil {
		return cli.Coded(cli.ExitModel, err)
	}
	progress.Close()
	if shown {
		return nil
	}
	return out.Result(&described{d.Text, name, o.question, d.Model, d.Tokens, d.Whole, ui.Seconds(time.Since(start))})
}
