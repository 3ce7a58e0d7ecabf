package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/internal/plainjson"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/picture"
)

func newInfoCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "info PICTURE...",
		Short: "Say what made a picture",
		Long: `Info prints the settings that a picture carries, and the command that makes it
again. It reads PNG, JPEG and WebP pictures with the metadata of gomflux, of
mflux, or of the many programs that write AUTOMATIC1111's parameters text, and
the JSON files that gomflux and mflux write beside pictures.

Each line is a name and a value; a value with control characters is quoted. The
pictures of an edit are on lines of their own: reference 1, reference 2. So are
LoRAs: lora 1, lora 2.
With --json there is one object on a line for each picture:

  file            its name
  format          PNG, JPEG, WebP, or JSON
  width, height   in pixels, of a picture
  source          gomflux, mflux or parameters
  settings        what was found of version, generator, model, revision,
                  base_model, class, prompt, negative_prompt, seed, steps,
                  guidance, height, width, max_sequence_length, scheduler, rng,
                  batch, dtype, device, mlx, image, image_strength, references,
                  quantize, group_size, loras, runtime_lora, created, seconds
  metadata        the JSON in the file as it is, if there is any
  parameters      the parameters text, if there is one

A picture without settings is an error (1), one that cannot be read too (2); the
others are printed all the same.
` + exitStatus,
		Example: `  gomflux info image.png
  gomflux info --json *.png | jq -r .settings.prompt`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageErrorf("give one picture or several")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return info(cmd.OutOrStdout(), cmd.ErrOrStderr(), args, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object for each picture")
	return cmd
}

func info(stdout, stderr io.Writer, names []string, asJSON bool) error {
	var last error // earlier ones are printed where they occur
	code := 0
	first := true
	for _, name := range names {
		p, err := readInfo(name)
		if err != nil {
			if last != nil {
				complain(stderr, last)
			}
			last, code = err, max(code, exitCode(err))
			continue
		}
		if asJSON {
			err = p.printJSON(stdout)
		} else {
			if !first {
				fmt.Fprintln(stdout)
			}
			err = p.print(stdout)
		}
		if err != nil {
			return err
		}
		first = false
	}
	if last != nil {
		return &codedError{code, last}
	}
	return nil
}

// pictureInfo is what is known of a picture.
type pictureInfo struct {
	name string
	*picture.Found
}

func readInfo(name string) (*pictureInfo, error) {
	found, err := picture.ReadSettingsFile(name)
	if errors.Is(err, picture.ErrNoSettings) {
		return nil, err
	}
	if err != nil {
		return nil, coded(exitUsage, err)
	}
	return &pictureInfo{name, found}, nil
}

// format is the name of the file's format.
func (p *pictureInfo) format() string {
	if p.Format == 0 {
		return "JSON"
	}
	return p.Format.String()
}

// infoOrder is how the settings follow one another behind the prompts.
var infoOrder = []string{
	"model", "revision", "base_model", "class", "seed", "steps", "guidance", "scheduler", "rng", "batch", "width", "height", "max_sequence_length",
	"image", "image_strength", "references", "quantize", "group_size", "loras", "runtime_lora", "dtype", "device", "mlx", "generator", "created", "seconds", "version",
}

func (p *pictureInfo) print(w io.Writer) error {
	var b strings.Builder
	line := func(name, value string) {
		fmt.Fprintf(&b, "%-20s %s\n", name, quote.Printable(value))
	}
	values := p.fields()
	settings := func(names ...string) {
		for _, name := range names {
			raw, ok := values[name]
			if !ok {
				continue
			}
			delete(values, name)
			var text string
			if json.Unmarshal(raw, &text) != nil {
				text = string(raw) // a number
			}
			switch name {
			case "image":
				line(name, sourceText(*p.Settings.Image))
			case "references":
				for i, r := range p.Settings.References {
					line(fmt.Sprint("reference ", i+1), sourceText(r))
				}
			case "loras":
				for i, l := range p.Settings.LoRAs {
					line(fmt.Sprint("lora ", i+1), loraLine(l))
				}
			default:
				line(name, text)
			}
		}
	}
	settings("prompt", "negative_prompt")
	about := p.format()
	if p.Width > 0 {
		about += fmt.Sprintf(" of %dx%d", p.Width, p.Height)
	}
	line("file", fmt.Sprintf("%s (%s, settings of kind %s)", p.name, about, p.Source))
	settings(infoOrder...)
	settings(slices.Sorted(maps.Keys(values))...) // those that have no place in the order
	again := "gomflux generate -C " + shellQuote(p.name)
	if len(p.Settings.References) > 0 {
		again = "gomflux edit -C " + shellQuote(p.name)
	}
	if !p.Has("model") || p.Source == picture.SourceParameters {
		again += " -m MODEL" // a file's name there, which is not one of ours
	}
	fmt.Fprintf(&b, "%-20s %s\n", "again", again)
	_, err := io.WriteString(w, b.String())
	return err
}

func sourceText(s picture.SourceImage) string {
	if s.SHA256 == "" {
		return s.Path
	}
	return s.Path + " (SHA-256 " + s.SHA256 + ")"
}

func loraLine(l picture.LoRA) string {
	text := fmt.Sprintf("%s, scale %v", l.Path, l.Scale)
	if l.Revision != "" {
		text += ", revision " + l.Revision
	}
	if l.SHA256 != "" {
		text += " (SHA-256 " + l.SHA256 + ")"
	}
	return text
}

// fields are those of the settings that the file had, as JSON.
func (p *pictureInfo) fields() map[string]json.RawMessage {
	text, err := plainjson.Marshal(p.Settings, "")
	var fields map[string]json.RawMessage
	if err == nil {
		err = json.Unmarshal(text, &fields)
	}
	if err != nil {
		panic(err) // they were read from JSON
	}
	for name := range fields {
		if !p.Has(name) {
			delete(fields, name)
		}
	}
	return fields
}

func (p *pictureInfo) printJSON(w io.Writer) error {
	return writeJSON(w, struct {
		File       string                     `json:"file"`
		Format     string                     `json:"format"`
		Width      int                        `json:"width,omitempty"`
		Height     int                        `json:"height,omitempty"`
		Source     picture.Source             `json:"source"`
		Settings   map[string]json.RawMessage `json:"settings"`
		Metadata   json.RawMessage            `json:"metadata,omitempty"`
		Parameters string                     `json:"parameters,omitempty"`
	}{p.name, p.format(), p.Width, p.Height, p.Source, p.fields(), p.JSON, p.Parameters})
}

// writeJSON writes a value on one line, with escapes for all that a terminal
// would act on.
func writeJSON(w io.Writer, v any) error {
	text, err := plainjson.Marshal(v, "")
	if err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range string(text) {
		switch {
		case unicode.IsPrint(r):
			out.WriteRune(r)
		case r > 0xffff:
			hi, lo := (r-0x10000)>>10, (r-0x10000)&0x3ff
			fmt.Fprintf(&out, `\u%04x\u%04x`, 0xd800+hi, 0xdc00+lo)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	_, err = fmt.Fprintln(w, out.String())
	return err
}

// shellQuote is an argument as a shell takes it.
func shellQuote(s string) string {
	switch {
	case !quote.IsPrintable(s): // $'' is bash's and zsh's
		quoted := strconv.QuoteToASCII(s)
		return "$'" + strings.ReplaceAll(strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`), "'", `\'`) + "'"
	case s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-./,:+@%", r)
	}):
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
