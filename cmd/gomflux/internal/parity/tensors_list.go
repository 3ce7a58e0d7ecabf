package parity

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/parity/runs"
)

const tensorsListHelp = `List prints name, side, dtype, shape and size of the tensors of the latest runs.
With globs it prints those whose names match any of them; * matches any text.

--run lists those of another run. gomflux tensors ranges prints statistics, also
of tensors of which only statistics were recorded.

With --json it prints one object: root, bytes (of all saved files) and tensors
(name, side, file, dtype, shape, bytes, saved).

Files that cannot be read are an error of one line each; the others are listed,
and the exit code is 1.
` + cli.ExitStatus

func newTensorsListCommand() *cobra.Command {
	var flags record.TreeFlags
	cmd := &cobra.Command{
		Use:   "list [GLOB...]",
		Short: "List saved tensors",
		Long:  tensorsListHelp,
		Example: `  gomflux tensors list
  gomflux tensors list 'transformer.layers.0.*' --json
  gomflux tensors list --run 20261122T1042`,
		Args: func(_ *cobra.Command, args []string) error {
			for _, glob := range args {
				if err := runs.CheckGlob(glob); err != nil {
					return cli.Coded(cli.ExitUsage, err)
				}
			}
			return nil
		},
		ValidArgsFunction: flags.Complete,
		RunE: flags.With(func(cmd *cobra.Command, tree *runs.Tree, args []string) error {
			return listTensors(flags.Out(cmd), tree, args)
		}),
	}
	flags.Add(cmd)
	flags.AddRun(cmd)
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

	About *runs.Record `json:"record,omitempty"`
}

func newEntry(e runs.Entry) jsonEntry {
	j := jsonEntry{Name: e.Name, Side: e.Side, File: e.Path, Dtype: string(e.Dtype), Shape: append([]int{}, e.Shape...)}
	if e.Path != "" { // not only statistics
		j.Bytes, j.Saved = e.Bytes(), e.Modified.UTC().Format("2006-01-02T15:04:05Z")
	}
	return j
}

func listTensors(out *ui.Output, tree *runs.Tree, globs []string) error {
	all, damage := tree.List()
	all = slices.DeleteFunc(all, func(e runs.Entry) bool {
		return len(globs) > 0 && !slices.ContainsFunc(globs, func(glob string) bool { return runs.MatchName(glob, e.Name) })
	})
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

func (l tensorList) Text(p *ui.Page) {
	var t ui.Table
	for _, e := range l.Tensors {
		t.Row(e.Name, e.Side, e.Dtype, fmt.Sprint(e.Shape), units.Bytes(e.Bytes))
	}
	p.Table(t)
}
