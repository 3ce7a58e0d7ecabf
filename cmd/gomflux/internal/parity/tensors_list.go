package parity

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/parity/runs"
)

const tensorsListHelp = `List prints name, side, dtype, shape and size of the tensors of the latest runs.
With globs it prints those whose names match any of them; * matches any text.

With --stats it adds smallest and largest value, mean and standard deviation,
and lists tensors too of which only statistics were recorded (gomflux generate
--debug-stats). --run lists those of another run.

With --json it prints one object: root, bytes (of all saved files) and tensors
(name, side, file, dtype, shape, bytes, saved, and with --stats stats: min, max,
mean, std, nan, inf). File is empty if only statistics were recorded.

Files that cannot be read are an error of one line each; the others are listed,
and the exit code is 1.
` + cli.ExitStatus

func newTensorsListCommand() *cobra.Command {
	var flags record.TreeFlags
	var stats bool
	cmd := &cobra.Command{
		Use:   "list [GLOB...]",
		Short: "List saved tensors",
		Long:  tensorsListHelp,
		Example: `  gomflux tensors list
  gomflux tensors list 'transformer.layers.0.*' --json
  gomflux tensors list --stats --run 20261122T1042`,
		Args: func(_ *cobra.Command, args []string) error {
			for _, glob := range args {
				if _, err := path.Match(glob, ""); err != nil {
					return cli.UsageErrorf("%q is not a pattern of names (such as 'transformer.layers.*')", glob)
				}
			}
			return nil
		},
		ValidArgsFunction: flags.Complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			tree, err := flags.Open()
			if err != nil {
				return err
			}
			return listTensors(flags.Out(cmd), tree, args, stats)
		},
	}
	flags.Add(cmd)
	flags.AddRun(cmd)
	cmd.Flags().BoolVar(&stats, "stats", false, "print ranges, and tensors of which only statistics were recorded")
	return cmd
}

// A tensorList is what tensors list prints.
type tensorList struct {
	Root    string      `json:"root"`
	Bytes   int64       `json:"bytes"`
	Tensors []jsonEntry `json:"tensors"`
}

// jsonEntry is a saved tensor.
type jsonEntry struct {
	Name  string `json:"name"`
	Side  string `json:"side"`
	File  string `json:"file"`
	Dtype string `json:"dtype"`
	Shape []int  `json:"shape"`
	Bytes int64  `json:"bytes"`
	Saved string `json:"saved"`

	Stats *checkpoint.Stats `json:"stats,omitempty"`
	About *runs.Record      `json:"record,omitempty"`
}

func newEntry(e runs.Entry) jsonEntry {
	j := jsonEntry{Name: e.Name, Side: e.Side, File: e.Path, Dtype: string(e.Dtype), Shape: append([]int{}, e.Shape...)}
	if e.Path != "" { // not only statistics
		j.Bytes, j.Saved = e.Bytes(), e.Modified.UTC().Format("2006-01-02T15:04:05Z")
	}
	return j
}

func listTensors(out *ui.Output, tree *runs.Tree, globs []string, stats bool) error {
	all, damage := tree.List()
	if _, ok := errors.AsType[*runs.DamagedError](damage); damage != nil && !ok {
		return damage
	}
	wanted := func(name string) bool {
		return len(globs) == 0 || slices.ContainsFunc(globs, func(glob string) bool {
			ok, err := path.Match(glob, strings.ReplaceAll(name, "/", "\\"))
			return err == nil && ok
		})
	}
	all = slices.DeleteFunc(all, func(e runs.Entry) bool { return !wanted(e.Name) })
	size, err := tree.Size()
	if err != nil {
		return err
	}
	archived, err := tree.Archived()
	if err != nil {
		return err
	}
	list := tensorList{tree.Root, size, []jsonEntry{}}
	for _, e := range all {
		list.Tensors = append(list.Tensors, newEntry(e))
	}
	if stats {
		damage = errors.Join(damage, list.addStats(tree, all, wanted))
	}
	if err := out.Result(list); err != nil {
		return err
	}
	if run := tree.Selected(); run != nil {
		out.Note("%d tensors in %s", len(list.Tensors), run.Dir)
		return cli.ComplainAll(out, damage)
	}
	out.Note("%d tensors; %s holds %s, with %d earlier runs", len(list.Tensors), tree.Root, units.Bytes(size), len(archived))
	return cli.ComplainAll(out, damage)
}

// addStats adds the statistics of the entries, and the tensors of which only statistics were
// recorded.
func (l *tensorList) addStats(tree *runs.Tree, entries []runs.Entry, wanted func(string) bool) error {
	var errs []error
	saved := map[[2]string]bool{} // by side and name
	for i, e := range entries {
		rec, err := e.Summary()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l.Tensors[i].Stats = &rec.Stats
		saved[[2]string{e.Side, e.Name}] = true
	}
	for _, run := range tree.Places() {
		records, err := runs.ReadStats(os.DirFS(run.Dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("%s: %w", run.Dir, err))
		}
		for _, r := range records {
			if wanted(r.Name) && !saved[[2]string{run.Side, r.Name}] {
				dtype, _ := checkpoint.ParseDtype(r.Dtype)
				l.Tensors = append(l.Tensors, jsonEntry{
					Name: r.Name, Side: run.Side, Dtype: cmp.Or(string(dtype), r.Dtype), Shape: append([]int{}, r.Shape...),
					Stats: &r.Stats,
				})
			}
		}
	}
	slices.SortStableFunc(l.Tensors, func(a, b jsonEntry) int { return cmp.Compare(a.Name, b.Name) })
	return errors.Join(errs...)
}

// Text implements ui.Result.
func (l tensorList) Text(p *ui.Page) {
	var t ui.Table
	for _, e := range l.Tensors {
		size := "-"
		if e.File != "" {
			size = units.Bytes(e.Bytes)
		}
		row := []string{e.Name, e.Side, e.Dtype, fmt.Sprint(e.Shape), size}
		if e.Stats != nil {
			row = append(append(row, rangeCells(*e.Stats)...), notFinite(*e.Stats))
		}
		t.Row(row...)
	}
	p.Table(t)
}
