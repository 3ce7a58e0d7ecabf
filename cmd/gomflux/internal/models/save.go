package models

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/inspect"
)

const saveHelp = `Save writes a model to a folder, which --model takes afterwards: quantized, so
that it needs less space and loads faster than with --quantize; with LoRAs baked
into the weights; or a single file as a complete model.

Weights that are quantized already stay as they are, except where a LoRA changes
them, or with --layout diffusers, which dequantizes them.

LAYOUT
A quantized model is written as mflux-save writes it, with the configs of
diffusers added: gomflux and mflux read it, diffusers does not. Other models are
written in the diffusers layout, or with --layout mflux in mflux's. Weights that
are not quantized are written as bfloat16 or as --dtype; --dtype keep leaves
each tensor's dtype.

Weights are read and written one by one, so the model need not fit into memory.
The disk must have space for all of it before anything is written, and the
folder appears when it is complete. An existing folder is an error; with
--overwrite a model in it is replaced at the end.

Save prints the largest relative errors of quantized layers: the norm of the
difference divided by the norm of the weight. gomflux inspect --against measures
them for any two models.

JSON
The folder is printed on standard output, everything else on standard error.
With --json there is one object instead:

  folder, layout       as they were written
  quantization         level; left out if nothing is quantized
  bytes, files         size of all tensors, number of weight files
  layers               component, name, mode, bits, group, bytes and error of
                       each quantized layer; kept if it was quantized before
  left                 tensors without a place in the layout, which no image
                       needs
  loras                path, scale and modules (number of changed modules by
                       component)
  seconds              duration
` + cli.ExitStatus

// saveOptions are the flags of gomflux save.
type saveOptions struct {
	cli.ModelFlags
	cli.WeightFlags
	cli.OutputFlags
	folder     string
	layout     cli.Optional[gomflux.Layout]
	savedDtype cli.Optional[gomflux.Dtype]
	overwrite  bool
}

func NewSaveCommand() *cobra.Command {
	o := &saveOptions{
		ModelFlags: cli.NewModelFlags(), WeightFlags: cli.NewWeightFlags(),
		layout:     cli.OneOf("layout", gomflux.DiffusersLayout, gomflux.MFluxLayout),
		savedDtype: cli.OneOf("dtype", append(slices.Clone(cli.Dtypes), gomflux.KeepDtypes)...),
	}
	o.Fallback = ""
	cmd := &cobra.Command{
		Use:   "save --model MODEL --path FOLDER",
		Short: "Save a quantized model, or one with LoRAs, to a folder",
		Long:  saveHelp,
		Example: `  gomflux save -m flux1-dev -q 4 --path flux1-dev-4bit
  gomflux save -m z-image-turbo --lora ink.safetensors 0.8 --path inked
  gomflux save -m tuned.safetensors --base-model flux1-dev --path tuned`,
		Args:    cli.NoArgs(" (--path names the folder)"),
		PreRunE: func(cmd *cobra.Command, _ []string) error { return o.validate(cmd.Flags().Changed) },
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), o.Out(cmd)) },
	}
	o.addFlags(cmd.Flags())
	return cmd
}

func (o *saveOptions) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.SetNormalizeFunc(cli.NormalizeFlag(nil, false))
	o.AddModel(f)
	f.StringVar(&o.folder, "path", "", "the `folder` to write")
	o.WeightFlags.Add(f, false)
	f.Var(&o.layout, "layout", "layout to write: diffusers or mflux (default: mflux for quantized models)")
	f.Var(&o.savedDtype, "dtype", "dtype of weights that are not quantized: float32, bfloat16, float16 or keep (default: bfloat16)")
	f.Var(&o.Device, "device", "device to quantize on: cpu or gpu (default: a GPU if there is one)")
	f.BoolVar(&o.overwrite, "overwrite", false, "replace an existing model in the folder")
	o.AddJSON(f, "a JSON object")
	o.AddQuiet(f, "", "the folder, warnings and errors")
}

// validate refuses flags that are missing or contradict each other.
func (o *saveOptions) validate(given func(string) bool) error {
	switch {
	case !given("model"):
		return cli.UsageErrorf("give the model to save with --model")
	case o.folder == "":
		return cli.UsageErrorf("give the folder to write with --path")
	}
	return o.WeightFlags.Validate(given)
}

func (o *saveOptions) run(ctx context.Context, out *ui.Output) error {
	source, err := o.Find()
	if err != nil {
		return err
	}
	if err := inspect.Model(source.FS()).Incomplete; err != nil {
		return cli.Coded(cli.ExitModel, err)
	}
	if _, err := o.CheckLibrary(ctx, out); err != nil {
		return err
	}
	o.WarnQuantized(source, out)
	progress := out.StartProgress(ctx)
	defer progress.Close()
	save := gomflux.SaveOptions{
		Layout: o.layout.OrZero(), LoRAs: o.Used(o.LoRAs.List), Device: o.Device.OrZero(), Dtype: o.savedDtype.OrZero(),
		Overwrite: o.overwrite, Progress: progress.Report,
	}
	save.Quantize, save.GroupSize = o.Quantization()
	start := time.Now()
	report, err := source.Save(ctx, o.folder, &save)
	progress.Close()
	if err != nil {
		return cli.ModelError(err)
	}
	took := time.Since(start)
	for _, l := range report.LoRAs {
		for _, warning := range l.Warnings {
			out.Warn("%s", quote.Printable(warning))
		}
	}
	noteSaved(out, report, took)
	for i := range report.LoRAs {
		report.LoRAs[i].Path = catalog.TildePath(report.LoRAs[i].Path)
	}
	return out.Result(&saved{report, ui.Seconds(took), o.folder})
}

// A saved is what save prints. JSON fields are only ever added.
type saved struct {
	*gomflux.SaveReport
	Seconds float64 `json:"seconds"`

	folder string // as given
}

func (s *saved) Text(p *ui.Page) { p.Printf("%s\n", s.folder) }

// noteSaved prints what was saved, and the layers with the largest errors.
func noteSaved(out *ui.Output, r *gomflux.SaveReport, took time.Duration) {
	out.Note("%s in %s, %s layout, saved in %s", units.Bytes(r.Bytes), ui.Plural(r.Files, "file"), r.Layout, ui.Duration(took))
	for _, l := range r.LoRAs {
		out.Note("%s", quote.Printable(cli.LoRAText(l)))
	}
	var measured []gomflux.SavedLayer
	kinds := map[string]int{}
	for _, l := range r.Layers {
		kind := fmt.Sprintf("%s, groups of %d", l.Mode, l.Group)
		if l.Mode == "affine" {
			kind = fmt.Sprintf("%d bits, groups of %d", l.Bits, l.Group)
		}
		if l.Kept {
			kind += ", unchanged"
		} else {
			measured = append(measured, l)
		}
		kinds[kind]++
	}
	for _, kind := range cli.SortedKeys(kinds) {
		out.Note("%s: %s", ui.Plural(kinds[kind], "layer"), kind)
	}
	if len(measured) == 0 {
		return
	}
	slices.SortStableFunc(measured, func(a, b gomflux.SavedLayer) int { return cmp.Compare(b.Error, a.Error) })
	const most = 5
	which := "all layers"
	if len(measured) > most {
		which = fmt.Sprintf("the %d largest", most)
	}
	out.Note("relative error, %s:", which)
	for _, l := range measured[:min(most, len(measured))] {
		out.Note("  %.2e  %s", l.Error, quote.Printable(l.Component+" "+l.Name))
	}
}
