package parity

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/parity/report"
	"github.com/gomflux/gomflux/parity/rounding"
)

const parityPrecisionHelp = `Precision finds the smallest set of modules that must stay at 16 or 32 bits for
the error of an image to stay within a limit. The rest may be low:

  --dtype float16     low modules are in float16 (or bfloat16), kept ones in
                      float32
  --quantize LEVEL    the weights of low modules are quantized, those of kept
                      modules are not. All modules compute in --dtype, or in
                      float32 without it

RUN is the folder of a run, of the reference or of gomflux generate
--debug-save. Only its settings are used (model, prompt, seed, size, steps), and
its initial noise if it has that. The truth is the same run in float32. The
error is the relative L2 error of vae.decode.out, the image before it is rounded
to 8 bits; --error sets the largest one that is allowed.

Low precision is computed with the model in float32: weights are cast or
quantized, and the outputs of modules are cast to the dtype, in which they may
overflow, and back. The search runs the model once for each block, and then for
the parts of the blocks that cannot be low. It needs memory for the model in
float32 and for a copy of the weights.

With --json it prints one object: run, model, device, dtype, quantization,
kept_dtype, allowed_error, all_low_error, all_kept_error, error, modules, runs,
keep (module, and error if only this module is low) and ok. Errors are null if
the image is not finite.

EXIT STATUS
  0    a set of modules was found; it may be empty
  1    no set of modules has such a small error, or an error while running
  2    invalid input: a flag, a folder, a file
  3    the model is missing, damaged or not supported
  4    the MLX libraries are missing or unusable
  130  interrupted`

// precisionOptions are the flags of gomflux parity precision.
type precisionOptions struct {
	cli.ModelFlags
	cli.WeightFlags
	cli.OutputFlags
	all   bool
	limit cli.Optional[float64]
}

func newParityPrecisionCommand() *cobra.Command {
	o := &precisionOptions{ModelFlags: cli.NewModelFlags(), WeightFlags: cli.NewWeightFlags(), limit: cli.Scale("error")}
	cmd := &cobra.Command{
		Use:   "precision RUN --error E (--dtype DTYPE | --quantize LEVEL)",
		Short: "Find the modules that must stay at 16 or 32 bits",
		Long:  parityPrecisionHelp,
		Example: `  gomflux parity precision logs/runs/latest/gomflux --dtype float16 --error 0.01
  gomflux parity precision ./dump -q 4 --dtype bfloat16 --error 0.05 --json | jq -r .keep[].module`,
		Args: cli.OneArg("the folder of a run"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := o.validate(cmd.Flags().Changed)
			if err == nil {
				err = checkRun(args[0])
			}
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), o.Out(cmd), args[0], p)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	addParityModel(f, &o.Model)
	f.Var(&o.limit, "error", "largest relative L2 error of the image that is allowed, such as 0.01")
	f.BoolVar(&o.all, "all", false, "print every module, not one line for all whose names differ by numbers alone")
	o.AddJSON(f, "a JSON object")
	o.WeightFlags.Add(f, true)
	o.AddCompute(f)
	return cmd
}

func (o *precisionOptions) validate(given func(string) bool) (p rounding.BitsOptions, err error) {
	if !o.limit.Given() {
		return p, cli.UsageErrorf("give the largest error that is allowed: --error 0.01")
	}
	p.Model, p.Error = o.Model, report.Number(*o.limit.Value)
	if err := o.WeightFlags.Parity(given, &p.Options); err != nil {
		return p, err
	}
	if dtype := o.Dtype.String(); p.Quantize == nil && (dtype == "" || dtype == "float32") {
		return p, cli.UsageErrorf("give the precision of low modules: --dtype float16, --dtype bfloat16 or --quantize LEVEL")
	}
	return p, nil
}

func (o *precisionOptions) run(ctx context.Context, out *ui.Output, run string, p rounding.BitsOptions) error {
	if err := preparePlace(ctx, out, &o.ModelFlags, &p.Options); err != nil {
		return err
	}
	p.Tried = func(runs int, e report.Number) { out.Status("run %d: error %.2g", runs, e) }
	r, err := rounding.SearchBits(ctx, run, p)
	out.ClearStatus()
	if err != nil {
		return parityError(err)
	}
	if err := out.Result(printed{r, o.all}); err != nil {
		return err
	}
	if !r.OK {
		return errors.New("the error is too large for every choice of modules")
	}
	return nil
}
