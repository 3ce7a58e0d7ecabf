package models

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/plainjson"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
)

const infoHelp = `Info prints the settings stored in an image, and the command that generates the
image again. It reads PNG, JPEG and WebP files with the metadata of gomflux,
mflux, ComfyUI, SwarmUI, InvokeAI, Fooocus, Draw Things and Easy Diffusion, or
of the many programs that write AUTOMATIC1111's parameters text, and JSON files
with any of these. Settings that gomflux does not use are listed as not used.

Each line has a name and a value; values with control characters are quoted.
Reference images and LoRAs have a line each: reference 1, lora 1.

JSON
With --json info prints one object per line for each file:

  file            file name
  format          PNG, JPEG, WebP or JSON
  width, height   of an image, in pixels
  source          gomflux, mflux, comfyui, swarmui, invokeai, fooocus,
                  drawthings, easydiffusion or parameters
  settings        those that were found of version, generator, model, revision,
                  base_model, class, prompt, negative_prompt, seed, steps,
                  guidance, guidance_unit, guidance_interval,
                  step_cache, sigmas, height, width,
                  max_sequence_length, scheduler, rng, background,
                  batch, split, ranks, dtype, device, mlx, tuning,
                  kv_cache, image, image_strength, references, mask,
                  invert_mask, mask_blur, mask_crop, expand, no_paste_back,
                  upscaler, upscaled_height, upscaled_width, refine, quantize,
                  group_size, loras, runtime_lora, created, seconds
  metadata        the JSON in the file, unchanged
  parameters      the parameters text
  not_used        settings of another program: field and value

A file without settings leads to exit code 1, a file that cannot be read to 2;
the other files are printed anyway.
` + cli.ExitStatus

func NewInfoCommand() *cobra.Command {
	var o cli.OutputFlags
	cmd := &cobra.Command{
		Use:   "info FILE...",
		Short: "Show the settings stored in an image",
		Long:  infoHelp,
		Example: `  gomflux info image.png
  gomflux info --json *.png | jq -r .settings.prompt`,
		Args: cli.SomeArgs("give one or more image files"),
		RunE: func(cmd *cobra.Command, args []string) error { return info(o.Out(cmd), args) },
	}
	o.AddJSON(cmd.Flags(), "a JSON object for each file")
	return cmd
}

func info(out *ui.Output, names []string) error {
	var failed []error
	code := 0
	for _, name := range names {
		p, err := readInfo(name)
		if err != nil {
			failed, code = append(failed, err), max(code, cli.ExitCode(err))
			continue
		}
		if err := out.Next(p); err != nil {
			return err
		}
	}
	if last := cli.ComplainAll(out, errors.Join(failed...)); last != nil {
		return &cli.CodedError{Code: code, Err: last}
	}
	return nil
}

// imageInfo is what info prints of a file.
type imageInfo struct {
	File       string                     `json:"file"`
	Format     string                     `json:"format"`
	Width      int                        `json:"width,omitempty"`
	Height     int                        `json:"height,omitempty"`
	Source     picture.Source             `json:"source"`
	Settings   map[string]json.RawMessage `json:"settings"`
	Metadata   json.RawMessage            `json:"metadata,omitempty"`
	Parameters string                     `json:"parameters,omitempty"`
	NotUsed    []picture.Leftover         `json:"not_used,omitempty"`

	found *picture.Found
}

func readInfo(name string) (*imageInfo, error) {
	found, err := picture.ReadSettingsFile(name)
	if errors.Is(err, picture.ErrNoSettings) {
		return nil, err
	}
	if err != nil {
		return nil, cli.Coded(cli.ExitUsage, err)
	}
	format := "JSON"
	if found.Format != 0 {
		format = found.Format.String()
	}
	return &imageInfo{
		File: name, Format: format, Width: found.Width, Height: found.Height, Source: found.Source,
		Settings: settingsFields(found), Metadata: found.JSON, Parameters: found.Parameters,
		NotUsed: found.NotUsed, found: found,
	}, nil
}

// settingsFields returns the settings that the file had, as JSON.
func settingsFields(found *picture.Found) map[string]json.RawMessage {
	fields, err := plainjson.Fields(found.Settings, found.Has)
	if err != nil {
		panic(err) // they were read from JSON
	}
	return fields
}

// infoOrder is the order of the settings after the prompts.
var infoOrder = []string{
	"model", "revision", "base_model", "class", "seed", "steps", "guidance", "guidance_unit",
	"guidance_interval", "true_cfg_scale", "cfg_normalization", "cfg_truncation", "step_cache", "scheduler", "rng", "background", "batch",
	"split", "ranks",
	"width", "height", "max_sequence_length", "image", "image_strength", "references", "mask", "invert_mask", "mask_blur",
	"mask_crop", "expand", "no_paste_back",
	"upscaler", "upscaled_width", "upscaled_height", "refine", "quantize",
	"group_size", "loras", "runtime_lora", "dtype", "device", "mlx", "tuning", "kv_cache", "generator", "created",
	"seconds", "version",
}

func (i *imageInfo) Text(p *ui.Page) {
	line := p.Fields(20)
	values := maps.Clone(i.Settings)
	settings := func(names ...string) {
		for _, name := range names {
			if raw, ok := values[name]; ok {
				i.setting(line, name, raw)
				delete(values, name)
			}
		}
	}
	settings("prompt", "original_prompt", "enhanced_by", "negative_prompt")
	about := i.Format
	if i.Width > 0 {
		about += fmt.Sprintf(", %dx%d", i.Width, i.Height)
	}
	line("file", "%s (%s, %s metadata)", i.File, about, i.Source)
	settings(infoOrder...)
	settings(slices.Sorted(maps.Keys(values))...) // those that infoOrder does not have
	for _, l := range i.NotUsed {
		line("not used", "%s: %s", l.Field, l.Value)
	}
	p.Printf("%-20s %s\n", "again", i.command())
}

// setting writes the lines of one setting.
func (i *imageInfo) setting(line ui.Field, name string, raw json.RawMessage) {
	s := i.found.Settings
	switch name {
	case "image":
		line(name, "%s", sourceText(*s.Image))
	case "mask":
		line(name, "%s", sourceText(*s.Mask))
	case "references":
		for k, r := range s.References {
			line(fmt.Sprint("reference ", k+1), "%s", sourceText(r))
		}
	case "loras":
		for k, l := range s.LoRAs {
			line(fmt.Sprint("lora ", k+1), "%s", loraLine(l))
		}
	case "expand", "sigmas":
		line(name, "%s", strings.Trim(string(raw), "[]"))
	case "guidance_interval":
		line(name, "%s", scheduler.Part(s.GuidanceInterval))
	default:
		var text string
		if json.Unmarshal(raw, &text) != nil {
			text = string(raw) // a number
		}
		line(name, "%s", text)
	}
}

// command returns the command that generates the image again.
func (i *imageInfo) command() string {
	name := "generate"
	switch s := &i.found.Settings; {
	case cli.Inpainted(s):
		name = "inpaint"
	case len(s.References) > 0:
		name = "edit"
	}
	command := "gomflux " + name + " -C " + quote.Shell(i.File)
	if !i.found.Has("model") || !i.Source.NamesModel() {
		command += " -m MODEL" // parameters have a file name, which means nothing here
	}
	return command
}

func sourceText(s picture.SourceImage) string {
	if s.SHA256 == "" {
		return s.Path
	}
	return s.Path + " (SHA-256 " + s.SHA256 + ")"
}

func loraLine(l picture.LoRA) string {
	text := fmt.Sprintf("%s, scale %v", l.Path, l.Scale)
	if l.Partial {
		text += ", partial"
	}
	if l.Revision != "" {
		text += ", revision " + l.Revision
	}
	if l.SHA256 != "" {
		text += " (SHA-256 " + l.SHA256 + ")"
	}
	return text
}
