package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/runs"
)

// treeFlags are the flags of every command about saved tensors.
type treeFlags struct {
	outputFlags
	logDir string
	run    string // whose tensors are meant, "" for the latest runs
}

func (t *treeFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&t.logDir, "log-dir", "", "the `folder` of saved tensors (default: $GOMFLUX_LOG_DIR, or logs)")
	t.addJSON(f, "JSON")
}

// addRun adds --run to a command that looks names up.
func (t *treeFlags) addRun(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.run, "run", "", "the `run`: the beginning of its time, its side or a folder (default: the latest)")
	cmd.RegisterFlagCompletionFunc("run", t.completeRuns)
}

func (t *treeFlags) open() (*runs.Tree, error) {
	tree, err := runs.Open(t.logDir)
	if err == nil && t.run != "" {
		err = tree.Select(t.run)
	}
	return tree, coded(exitUsage, err)
}

// completeRuns offers the times of runs, and folders.
func (t *treeFlags) completeRuns(*cobra.Command, []string, string) (found []string, _ cobra.ShellCompDirective) {
	tree, err := runs.Open(t.logDir)
	if err == nil {
		runs, _ := tree.Runs()
		for _, r := range runs {
			found = append(found, fmt.Sprintf("%s\t%s, %s", r.Name(), r.State, shortened(r.Prompt, 40)))
		}
	}
	return found, cobra.ShellCompDirectiveDefault
}

// complete offers the names of saved tensors.
func (t *treeFlags) complete(*cobra.Command, []string, string) (found []string, _ cobra.ShellCompDirective) {
	tree, err := t.open()
	if err == nil {
		all, _ := tree.List() // files that cannot be read are not offered
		for _, e := range all {
			found = append(found, e.Name)
		}
	}
	return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
}
