package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/inspect"
)

// saveOptions are the flags of gomflux save.
type saveOptions struct {
	modelFlags
	weightFlags
	folder                 string
	layout                 optional[gomflux.Layout]
	savedDtype             optional[gomflux.Dtype]
	overwrite, json, quiet bool
}

func newSaveCommand() *cobra.Command {
	o := &saveOptions{
		modelFlags: newModelFlags(), weightFlags: newWeightFlags(),
		layout:     oneOf("layout", gomflux.DiffusersLayout, gomflux.MFluxLayout),
		savedDtype: oneOf("dtype", append(slices.Clone(dtypes), gomflux.KeepDtypes)...),
	}
	o.fallback = ""
	cmd := &cobra.Command{
		Use:   "save --model MODEL --path FOLDER",
		Short: "Write a model to a folder, quantized or with LoRAs in it",
		Long: `Save writes a model to a folder that --model takes afterwards: quantized, so
that it takes less space and is loaded faster than with --quantize, with LoRAs
added to its weights, or a single file as a whole model.

What is quantized already stays as it is, except where a LoRA changes it or with
--layout diffusers, which unpacks it.

A quantized model is written as mflux-save writes it, with the configs of
diffusers beside it: gomflux and mflux read it, diffusers does not. One that is
not quantized is written in the layout of diffusers; --layout mflux writes that
in mflux's too. What is not quantized is written as bfloat16, unless --dtype
says otherwise; keep leaves every tensor its own dtype.

The weights are read and written one after the other, so that the model need not
fit into memory. There must be space on the disk for all of it before anything
is written, and the folder appears when it is whole. One that is there is
refused; with --overwrite a model in it is replaced at the end.

How far the quantized layers are off is said of the worst ones: the length of
the difference over the length of the weight. gomflux inspect --against does
that for any two models.

The folder is printed on standard output, all else on standard error. With
--json it is one object instead:

  folder, layout       as they were written
  quantization         the level; left out if nothing is quantized
  bytes, files         of all tensors, and the number of files with weights
  layers               component, name, mode, bits, group, bytes and error of
                       each quantized layer; kept says that it was before
  left                 tensors that the layout has no place for, and no picture
                       needs
  loras                path, scale and modules (how many it changes, by
                       component)
  seconds              the time that it took
` + exitStatus,
		Example: `  gomflux save -m flux1-dev -q 4 --path flux1-dev-4bit
  gomflux save -m z-image-turbo --lora ink.safetensors 0.8 --path inked
  gomflux save -m tuned.safetensors --base-model flux1-dev --path tuned`,
		Args: noArgs(" (--path names the folder)"),
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			switch given := cmd.Flags().Changed; {
			case !given("model"):
				return usageErrorf("give the model to save with --model")
			case o.folder == "":
				return usageErrorf("give the folder to write with --path")
			}
			return o.weightFlags.check(cmd)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.SetNormalizeFunc(normalizeFlag(false))
	o.addModel(f)
	f.StringVar(&o.folder, "path", "", "the `folder` to write")
	o.weightFlags.add(f, false)
	f.Var(&o.layout, "layout", "whose layout to write: diffusers, or mflux (default: mflux for quantized models)")
	f.Var(&o.savedDtype, "dtype", "of what is not quantized: float32, bfloat16, float16, or keep (default: bfloat16)")
	f.Var(&o.device, "device", "where to quantize: cpu or gpu (default: a GPU if there is one)")
	f.BoolVar(&o.overwrite, "overwrite", false, "replace a model that is in the folder")
	f.BoolVar(&o.json, "json", false, "print a JSON object")
	f.BoolVar(&o.quiet, "quiet", false, "print nothing but the folder, warnings and errors")
	return cmd
}

func (o *saveOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	source, err := o.find()
	if err != nil {
		return err
	}
	if err := inspect.Model(source.FS()).Incomplete; err != nil {
		return coded(exitModel, err)
	}
	if _, err := o.checkLibrary(ctx, warnings{stderr}); err != nil {
		return err
	}
	o.warnQuantized(source, warnings{stderr})
	show := &display{}
	if !o.json && !o.quiet {
		show = newDisplay(ctx, stderr, nil)
	}
	defer show.close()
	save := gomflux.SaveOptions{
		Layout: o.layout.orZero(), LoRAs: o.loras.list, Device: o.device.orZero(), Dtype: o.savedDtype.orZero(),
		Overwrite: o.overwrite, Progress: show.report,
	}
	if q := o.quantize.orZero(); q != none {
		save.Quantize, save.GroupSize = q, o.groupSize.orZero()
	}
	start := time.Now()
	report, err := source.Save(ctx, o.folder, &save)
	show.close()
	if err != nil {
		return modelError(err)
	}
	took := time.Since(start)
	if o.json {
		return writeJSON(stdout, newSaved(report, took))
	}
	if !o.quiet {
		printSaved(stderr, report, took)
	}
	_, err = fmt.Fprintln(stdout, o.folder)
	return err
}

// The object of save --json. Fields are only ever added.
type (
	saved struct {
		Folder       string       `json:"folder"`
		Layout       string       `json:"layout"`
		Quantization string       `json:"quantization,omitempty"`
		Bytes        int64        `json:"bytes"`
		Files        int          `json:"files"`
		Layers       []savedLayer `json:"layers"`
		Left         []string     `json:"left,omitempty"`
		LoRAs        []savedLoRA  `json:"loras,omitempty"`
		Seconds      float64      `json:"seconds"`
	}
	savedLayer struct {
		Component string  `json:"component"`
		Name      string  `json:"name"`
		Mode      string  `json:"mode"`
		Bits      int     `json:"bits"`
		Group     int     `json:"group"`
		Bytes     int64   `json:"bytes"`
		Error     float64 `json:"error"`
		Kept      bool    `json:"kept,omitempty"`
	}
	savedLoRA struct {
		Path    string         `json:"path"`
		Scale   float64        `json:"scale"`
		Modules map[string]int `json:"modules"`
	}
)

func newSaved(r *gomflux.SaveReport, took time.Duration) *saved {
	s := &saved{Folder: r.Folder, Layout: string(r.Layout), Quantization: string(r.Quantization), Bytes: r.Bytes, Files: r.Files, Layers: []savedLayer{}, Left: r.Left, Seconds: milliseconds(took)}
	for _, l := range r.Layers {
		s.Layers = append(s.Layers, savedLayer{l.Component, l.Name, l.Mode, l.Bits, l.Group, l.Bytes, l.Error, l.Kept})
	}
	for _, l := range r.LoRAs {
		s.LoRAs = append(s.LoRAs, savedLoRA{catalog.TildePath(l.Path), l.Scale, l.Modules})
	}
	return s
}

// printSaved says what was saved, and which layers it changed most.
func printSaved(w io.Writer, r *gomflux.SaveReport, took time.Duration) {
	text := fmt.Sprintf("%s in %s, in the layout of %s, in %s", units.Bytes(r.Bytes), plural(r.Files, "file"), r.Layout, seconds(took))
	for _, l := range r.LoRAs {
		text += "\n" + loraText(l)
	}
	fmt.Fprintln(w, printableLines(text))
	var measured []gomflux.SavedLayer
	kinds := map[string]int{}
	for _, l := range r.Layers {
		kind := fmt.Sprintf("%s, groups of %d", l.Mode, l.Group)
		if l.Mode == "affine" {
			kind = fmt.Sprintf("%d bits, groups of %d", l.Bits, l.Group)
		}
		if l.Kept {
			kind += ", as before"
		} else {
			measured = append(measured, l)
		}
		kinds[kind]++
	}
	for _, kind := range sortedKeys(kinds) {
		fmt.Fprintf(w, "%s: %s\n", plural(kinds[kind], "layer"), kind)
	}
	if len(measured) == 0 {
		return
	}
	slices.SortStableFunc(measured, func(a, b gomflux.SavedLayer) int { return cmp.Compare(b.Error, a.Error) })
	const most = 5
	fmt.Fprintf(w, "relative error, %s of them:\n", worstOf(len(measured), most))
	for _, l := range measured[:min(most, len(measured))] {
		fmt.Fprintf(w, "  %.2e  %s\n", l.Error, quote.Printable(l.Component+" "+l.Name))
	}
}

func worstOf(n, most int) string {
	if n <= most {
		return "all"
	}
	return fmt.Sprintf("the %d largest", most)
}

// printableLines is quote.Printable for a text of several lines.
func printableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = quote.Printable(lines[i])
	}
	return strings.Join(lines, "\n")
}
