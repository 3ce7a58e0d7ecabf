package parity

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/report"
	"github.com/gomflux/gomflux/parity/runs"
)

const tensorsRangesHelp = `Ranges prints smallest and largest value, mean and standard deviation of the
tensors of a run, in the order in which they were computed, one line for each
output of a module and each value of the pipeline; --all adds inputs and inner
values. The first tensor with NaN or infinite values is marked.

RUN is as for --run: the beginning of a run's time (gomflux tensors runs), the
side for its latest run, or a folder with a run. The default is the latest run
of gomflux, or else of the reference.

The statistics are those that gomflux generate --debug-stats or the reference
recorded in traces/stats.jsonl, and those of saved tensors. The order is that of
traces/taps.jsonl or stats.jsonl. A run that has neither is sorted by stage,
modules before those that contain them.

With --against the table has a second line for each tensor of another run, which
is given as RUN is: so ranges of both sides are seen together, also of a run
that a debugger has stopped. A tensor whose values differ in range or shape is
marked.

With --json it prints one object: folder, order (execution or stage),
first_not_finite (a name, left out if all values are finite) and tensors (name,
hit_count, timestamp, location, point, class, shape, dtype, stats, preview), and
with --against against, a list like tensors. NaN and infinite values are
strings.
` + cli.ExitStatus

func newTensorsRangesCommand() *cobra.Command {
	var flags record.TreeFlags
	var all bool
	var against string
	cmd := &cobra.Command{
		Use:   "ranges [RUN]",
		Short: "Print the ranges of a run's tensors in order of execution",
		Long:  tensorsRangesHelp,
		Example: `  gomflux generate -p "a lighthouse" --debug-stats '*@0*'
  gomflux tensors ranges
  gomflux tensors ranges gomflux --against reference
  gomflux tensors ranges 20261122T1042 --all --json | jq -r .first_not_finite`,
		ValidArgsFunction: flags.CompleteRuns,
		Args:              cli.Args(0, 1, "", ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && flags.Run != "" {
				return cli.UsageErrorf("give the run either as an argument or with --run")
			}
			name := flags.Run
			flags.Run = "" // nothing is looked up
			tree, err := flags.Open()
			if err != nil {
				return err
			}
			if len(args) > 0 {
				name = args[0]
			}
			run, err := findRun(tree, name)
			if err != nil {
				return err
			}
			var other []runs.Record
			if against != "" {
				if other, err = rangesAgainst(tree, against); err != nil {
					return err
				}
			}
			return printRanges(flags.Out(cmd), run, all, other)
		},
	}
	flags.Add(cmd)
	flags.AddRun(cmd)
	cmd.Flags().StringVar(&against, "against", "", "print the ranges of another `run` below, such as reference")
	cmd.RegisterFlagCompletionFunc("against", flags.CompleteRuns)
	cmd.Flags().BoolVar(&all, "all", false, "print inputs and inner values too")
	return cmd
}

// findRun finds a run by the argument of tensors ranges; "" is the default.
func findRun(tree *runs.Tree, name string) (run runs.RunInfo, err error) {
	if name != "" {
		run, err = tree.FindRun(name)
	} else if run, err = tree.FindRun(runs.Gomflux); err != nil {
		if run, err = tree.FindRun(runs.Reference); err != nil {
			err = fmt.Errorf("%w in %s (gomflux generate --debug-stats '*' records one)", runs.ErrNoRun, tree.Root)
		}
	}
	return run, notFound(err)
}

// A rangeList is what tensors ranges prints.
type rangeList struct {
	Folder         string        `json:"folder"`
	Order          string        `json:"order"` // execution or stage
	FirstNotFinite string        `json:"first_not_finite,omitempty"`
	Tensors        []runs.Record `json:"tensors"`
	Against        []runs.Record `json:"against,omitempty"`
}

// rangesAgainst returns the statistics of another run.
func rangesAgainst(tree *runs.Tree, name string) ([]runs.Record, error) {
	run, err := findRun(tree, name)
	if err != nil {
		return nil, err
	}
	records, err := run.Ranges()
	if len(records) == 0 {
		return nil, cmp.Or(err, cli.UsageErrorf("--against: %s has no statistics and no saved tensors", run.Dir))
	}
	return records, nil
}

func printRanges(out *ui.Output, run runs.RunInfo, all bool, against []runs.Record) error {
	records, err := run.Ranges()
	if len(records) == 0 {
		return cmp.Or(err, cli.UsageErrorf("%s has no statistics and no saved tensors", run.Dir))
	}
	list := rangeList{Folder: run.Dir, Order: "execution", Tensors: []runs.Record{}, Against: against}
	if made, _ := runs.ReadTrace(os.DirFS(run.Dir)); len(made) == 0 {
		list.Order = "stage"
		slices.SortStableFunc(records, func(a, b runs.Record) int { return report.CompareByStage(a.Name, b.Name) })
	}
	if i := slices.IndexFunc(records, func(r runs.Record) bool { return !r.Stats.Finite() }); i >= 0 {
		list.FirstNotFinite = records[i].Name
	}
	for _, r := range records {
		if all || r.Kind() == hooks.Output || r.Name == list.FirstNotFinite {
			list.Tensors = append(list.Tensors, r)
		}
	}
	if err := out.Result(list); err != nil {
		return err
	}
	if list.Order == "stage" {
		out.Note("the run has no traces: its tensors are in the order of stages, depth and names")
	}
	if list.FirstNotFinite != "" {
		out.Note("%s is the first tensor with values that are not finite", list.FirstNotFinite)
	}
	return cli.ComplainAll(out, err)
}

func (l rangeList) Text(p *ui.Page) {
	var t ui.Table
	other := map[string]runs.Record{}
	for _, r := range l.Against {
		if _, later := other[r.Name]; !later {
			other[r.Name] = r
		}
	}
	t.Row("NAME", "CLASS", "DTYPE", "SHAPE", "MIN", "MAX", "MEAN", "STD", "")
	for _, r := range l.Tensors {
		mark := r.Stats.NotFinite("")
		if r.Name == l.FirstNotFinite {
			mark += " <- first"
		}
		o, both := other[r.Name]
		if both && (!slices.Equal(o.Shape, r.Shape) || !alike(o.Stats, r.Stats)) {
			mark += " <> against"
		}
		row := func(name string, r runs.Record, mark string) {
			t.Row(append([]string{name, cmp.Or(r.Class, "-"), r.Dtype, fmt.Sprint(r.Shape)}, append(rangeCells(r.Stats), mark)...)...)
		}
		row(r.Name, r, strings.TrimSpace(mark))
		if both {
			row("  against", o, o.Stats.NotFinite(""))
		}
	}
	p.Table(t)
}

// alike reports whether ranges are the same within a thousandth of the width of the second.
func alike(a, b checkpoint.Stats) bool {
	most := 1e-3 * max(math.Abs(float64(b.Min)), math.Abs(float64(b.Max)))
	for _, pair := range [][2]checkpoint.Float{{a.Min, b.Min}, {a.Max, b.Max}, {a.Mean, b.Mean}, {a.Std, b.Std}} {
		x, y := float64(pair[0]), float64(pair[1])
		if !(math.Abs(x-y) <= most) && x != y && !(math.IsNaN(x) && math.IsNaN(y)) {
			return false
		}
	}
	return a.NaN == b.NaN && a.Inf == b.Inf
}

// rangeCells returns the columns min, max, mean and std of a table.
func rangeCells(s checkpoint.Stats) (cells []string) {
	for _, v := range []checkpoint.Float{s.Min, s.Max, s.Mean, s.Std} {
		cells = append(cells, fmt.Sprintf("%.5g", float64(v)))
	}
	return cells
}
