package main

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/parity/debug"
)

const tensorsListHelp = `List prints name, side, dtype, shape and size of the tensors of the latest runs.
With globs it prints those whose names match any of them; * matches any text.

With --json it prints one object: root, bytes (of all saved files) and tensors
(name, side, file, dtype, shape, bytes, saved).
` + exitStatus

func newTensorsListCommand() *cobra.Command {
	var flags treeFlags
	cmd := &cobra.Command{
		Use:   "list [GLOB...]",
		Short: "List saved tensors",
		Long:  tensorsListHelp,
		Example: `  gomflux tensors list
  gomflux tensors list 'transformer.layers.0.*' --json`,
		Args: func(_ *cobra.Command, args []string) error {
			for _, glob := range args {
				if _, err := path.Match(glob, ""); err != nil {
					return usageErrorf("%q is not a pattern of names (such as 'transformer.layers.*')", glob)
				}
			}
			return nil
		},
		ValidArgsFunction: flags.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			tree, err := flags.open()
			if err != nil {
				return err
			}
			return listTensors(flags.out(cmd), tree, args)
		},
	}
	flags.add(cmd)
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
	Name  string        `json:"name"`
	Side  string        `json:"side"`
	File  string        `json:"file"`
	Dtype string        `json:"dtype"`
	Shape []int         `json:"shape"`
	Bytes int64         `json:"bytes"`
	Saved string        `json:"saved"`
	About *debug.Record `json:"record,omitempty"`
}

func newEntry(e debug.Entry) jsonEntry {
	return jsonEntry{
		Name: e.Name, Side: e.Side, File: e.Path, Dtype: string(e.Dtype), Shape: append([]int{}, e.Shape...),
		Bytes: e.Bytes(), Saved: e.Modified.UTC().Format("2006-01-02T15:04:05Z"),
	}
}

func listTensors(out *ui.Output, tree *debug.Tree, globs []string) error {
	all, err := tree.List()
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(e debug.Entry) bool {
		return len(globs) > 0 && !slices.ContainsFunc(globs, func(glob string) bool {
			ok, err := path.Match(glob, strings.ReplaceAll(e.Name, "/", "\\"))
			return err == nil && ok
		})
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
	out.Note("%d tensors; %s holds %s, with %d earlier runs", len(all), tree.Root, units.Bytes(size), len(archived))
	return nil
}

// Text implements ui.Result.
func (l tensorList) Text(p *ui.Page) {
	var t ui.Table
	for _, e := range l.Tensors {
		t.Row(e.Name, e.Side, e.Dtype, fmt.Sprint(e.Shape), units.Bytes(e.Bytes))
	}
	p.Table(t)
}
