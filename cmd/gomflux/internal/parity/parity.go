// Package parity has the commands parity, which compares with the reference, and tensors, about saved
// tensors.
package parity

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/parity"
	"github.com/gomflux/gomflux/parity/report"
	"github.com/gomflux/gomflux/parity/rounding"
)

const parityHelp = `Parity compares what gomflux computes with the recording of a reference such as
diffusers (scripts/reference), and names the first module that differs.`

func NewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "parity",
		Short: "Compare tensors and images with a reference",
		Long:  parityHelp,
		Args:  cli.NoArgs(" (see gomflux parity --help)"),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newParityRunCommand(), newParityBisectCommand(), newParityLiveCommand(),
		newParityPrecisionCommand(), newParityDiffCommand(),
		newParityImageCommand())
	return cmd
}

// addParityModel adds --model of commands that know the model from a run.
func addParityModel(f *pflag.FlagSet, model *string) {
	f.StringVarP(model, "model", "m", "", "model `name` or folder (default: the model that the run's settings name)")
}

const parityRunHelp = `Run repeats a reference's run (a folder with settings.json and safetensors, .npy
or .npz files, as scripts/reference records it) with gomflux, and compares all
tensors that both have. There are two readings of each tensor:

  from the start   gomflux's own results are used throughout, so errors add up
  by itself        every module gets the reference's inputs: after comparison
                   each tensor is replaced by the reference's. This takes one
                   pass for each depth of the module tree

The table has a line for each stage, from the image backwards, with the largest
relative L2 error. The verdict names the first module whose output is wrong
though its inputs are right, the modules inside it, and known mistakes with that
effect. With --free, if there is no such module, it names the first tensor that
differs.

After the reading from the start the run is made again without hooks, as users
make it: fused, compiled where the device compiles, with tables for many steps.
Its latents after every step and its image must be those of the run with hooks,
and each fused operation must compute what its modules do. If not, the verdict
names the first operation and the first step that differ.

The model is --model or the one that the settings name: a folder relative to the
run's folder, its parent, or the parent of that. It may lack components, such as
all but vae/, and model_index.json: the reference's values are used in place of
theirs, and "absent" in the JSON lists them. The initial noise is the
reference's, or drawn as PyTorch does if the run does not have it.

WHAT A RUN DOES NOT SHOW
A run of large activations is the same with a wrong epsilon, and one of few
positions nearly the same with a wrong base of the rotary embedding. --blind
replays a run that passes once more for each such number in the model's configs,
with ten times the number, and lists those that change nothing beyond the
tolerances, with what to record instead.

TOLERANCES
Tolerances depend on device, dtype and stage. For a module by itself on the CPU
in float32 they are 2e-5 of the largest reference value and a relative L2 error
of 1e-5, over all values and for each channel; in float16 1e-2, in bfloat16 2e-2
and 1e-2. From the start of a run they are larger. --tolerances changes them.

With --quantize the comparison measures the error of quantized weights. With
--lora the reference must use the same LoRA.

ROUNDING
--precise judges half precision and quantized weights by the reference's own
rounding, without tolerances. It names a second recording of the same run, in
float32; RUN is then one in bfloat16 or float16. First the run must be within
tolerance in float32. Then each module gets the inputs of RUN, and its output in
float32 is the truth for two errors: the reference's and ours. The table has the
relative L2 error of both, and ours as a multiple of the reference's. With
--quantize "quantized" is the part of the quantized weights in that multiple,
and "rounding" the rest. A rounding error above --limit, 4 by default, fails.

With --json it prints one object then: run, precise, model, device, dtype,
reference_dtype, quantization, limit, verdict, and in modules and values:
module, tensor, stage, reference, ours, multiple, quantized, rounding and ok.
` + parityStatus

// parityRunOptions are the flags of gomflux parity run.
type parityRunOptions struct {
	replayFlags
	free, isolated bool
	blind          bool
	precise        string
	limit          cli.Optional[float64]
	split          cli.SplitFlag
}

func newParityRunCommand() *cobra.Command {
	o := &parityRunOptions{replayFlags: newReplayFlags(), limit: cli.Scale("number"), split: cli.NewSplitFlag()}
	cmd := &cobra.Command{
		Use:   "run RUN",
		Short: "Repeat a reference's run and find the first module that differs",
		Long:  parityRunHelp,
		Example: `  gomflux parity run models/testdata/zimage-ordinary/dump
  gomflux parity run logs/runs/latest/reference --model ./z-image --html parity.html
  gomflux parity run ./dump16 --precise ./dump32 --dtype bfloat16 -q 4`,
		Args: cli.OneArg("the folder of a run"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := o.validate(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			if err := checkRun(args[0]); err != nil {
				return err
			}
			out := o.Out(cmd)
			if err := o.join(cmd.Context(), out, &p); err != nil {
				return err
			}
			if o.precise != "" {
				if record.HostOf(cmd.Context()) != nil {
					return cli.UsageErrorf("--precise makes several runs, which a debugging session cannot follow")
				}
				return o.runPrecise(cmd.Context(), out, args[0], p)
			}
			return o.replay(cmd.Context(), out, args[0], p, o.compare)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	addParityModel(f, &o.Model)
	f.BoolVar(&o.free, "free", false, "make only the reading from the start")
	f.BoolVar(&o.isolated, "isolated", false, "make only the reading of modules by themselves")
	f.BoolVar(&o.blind, "blind", false, "also list numbers of the configs that could be wrong without a difference in this run")
	f.StringVar(&o.precise, "precise", "", "the same run of the reference in float32 (a `folder`): judge by rounding errors")
	f.Var(&o.limit, "limit", "with --precise: largest rounding error, as a multiple of the reference's (default: 4)")
	cli.AddSplit(f, &o.split)
	o.add(cmd)
	return cmd
}

// join connects the command with the others that were started together with it. Each replays the run, and
// rank 0 prints what it sees.
func (o *parityRunOptions) join(ctx context.Context, out *ui.Output, p *parity.Options) (err error) {
	if _, p.Group, err = cli.JoinEngine(ctx, o.split.Value, out); err != nil || p.Group == nil {
		return err
	}
	if o.precise != "" || o.blind {
		return cli.UsageErrorf("--precise and --blind need a process that is alone (leave them out, or start one process)")
	}
	p.Split = string(o.split.OrZero())
	if p.Group.Rank() > 0 {
		o.html = ""
	}
	return nil
}

// compare replays the run and, with --blind, finds what it does not show.
func (o *parityRunOptions) compare(ctx context.Context, run string, p parity.Options) (*report.Report, error) {
	r, err := parity.Replay(ctx, run, p)
	if err == nil && o.blind && r.Verdict.OK {
		r.Blind, err = parity.Blind(ctx, run, p)
	}
	return r, err
}

// validate refuses flags that contradict each other, and returns the options.
func (o *parityRunOptions) validate(given func(string) bool) (p parity.Options, err error) {
	switch {
	case o.blind && o.precise != "":
		return p, cli.UsageErrorf("--blind has no effect with --precise")
	case o.precise == "" && o.limit.Given():
		return p, cli.UsageErrorf("--limit has no effect without --precise")
	case o.precise != "" && o.html != "":
		return p, cli.UsageErrorf("--html cannot show a comparison with --precise (--json has all its figures)")
	case o.free && o.isolated:
		return p, cli.UsageErrorf("give either --free or --isolated (without them both readings are made)")
	}
	p, err = o.options(given)
	if o.free {
		p.Readings = []string{report.Free}
	} else if o.isolated {
		p.Readings = []string{report.Isolated}
	}
	return p, err
}

// runPrecise compares a run with the reference's and with the precise one.
func (o *parityRunOptions) runPrecise(ctx context.Context, out *ui.Output, run string, p parity.Options) error {
	if err := checkRun(o.precise); err != nil {
		return err
	}
	if err := o.prepare(ctx, out, &p); err != nil {
		return err
	}
	r, err := rounding.Compare(ctx, run, rounding.CompareOptions{Options: p, Precise: o.precise, Limit: report.Number(o.limit.OrZero())})
	out.ClearStatus()
	if err != nil {
		return parityError(err)
	}
	return printVerdict(out, printed{r, o.all}, r.Verdict)
}

const parityDiffHelp = `Diff compares the tensors that two folders of runs both have, by name. The
second folder is the reference. The tensors are those of safetensors, .npy and
.npz files: the ones that settings.json lists, or all in the folder and in its
folder tensors. A folder without settings.json will do.

Nothing is computed again, so errors add up from tensor to tensor: a module may
differ only because its inputs do. gomflux parity run tells these cases apart;
diff cannot.

The verdict names the first tensor that differs, in the order of computation.
That order comes from traces/taps.jsonl, which gomflux generate --debug-save
records, or traces/stats.jsonl, of the first folder or else of the second.
Tensors that are in neither come last, by stage, depth and name.

Of a tensor whose values one side lacks, the statistics in traces/stats.jsonl
are compared: smallest and largest value, mean, standard deviation, the numbers
of NaN and infinite values, and the first values. The report says of how many
tensors; in the JSON they have stats instead of free.
` + parityStatus

func newParityDiffCommand() *cobra.Command {
	o := &reportFlags{}
	cmd := &cobra.Command{
		Use:     "diff RUN REFERENCE",
		Short:   "Compare the tensors of two runs",
		Long:    parityDiffHelp,
		Example: `  gomflux parity diff logs/runs/latest/gomflux logs/runs/latest/reference`,
		Args:    cli.Args(2, 2, "give two folders of runs", ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if err := checkFolder(name); err != nil {
					return err
				}
			}
			table, err := o.table()
			if err != nil {
				return err
			}
			if _, err := mlx.Open(); err != nil {
				return cli.Coded(cli.ExitLibrary, err)
			}
			r, err := parity.DiffRuns(cmd.Context(), args[0], args[1], table)
			if err != nil {
				return cli.Coded(cli.ExitUsage, err)
			}
			return o.print(o.Out(cmd), r)
		},
	}
	cmd.Flags().SortFlags = false
	o.add(cmd)
	return cmd
}
