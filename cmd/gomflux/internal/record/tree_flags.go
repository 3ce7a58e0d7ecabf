package record

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/parity/runs"
)

// TreeFlags are the flags of every command about saved tensors.
type TreeFlags struct {
	cli.OutputFlags
	LogDir string
	Run    string // whose tensors are meant, "" for the latest runs
}

func (t *TreeFlags) Add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&t.LogDir, "log-dir", "", "the `folder` of saved tensors (default: $GOMFLUX_LOG_DIR, or logs)")
	t.AddJSON(f, "JSON")
}

// AddRun adds --run to a command that looks names up.
func (t *TreeFlags) AddRun(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.Run, "run", "", "the `run`: the beginning of its time, its side or a folder (default: the latest)")
	cmd.RegisterFlagCompletionFunc("run", t.CompleteRuns)
}

func (t *TreeFlags) Open() (*runs.Tree, error) {
	tree, err := runs.Open(t.LogDir)
	if err == nil && t.Run != "" {
		err = tree.Select(t.Run)
	}
	return tree, cli.Coded(cli.ExitUsage, err)
}

// With returns the RunE of a command that opens the tree of the flags.
func (t *TreeFlags) With(run func(cmd *cobra.Command, tree *runs.Tree, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		tree, err := t.Open()
		if err != nil {
			return err
		}
		return run(cmd, tree, args)
	}
}

// CompleteRuns offers the times of runs, and folders.
func (t *TreeFlags) CompleteRuns(*cobra.Command, []string, string) (found []string, _ cobra.ShellCompDirective) {
	tree, err := runs.Open(t.LogDir)
	if err == nil {
		runs, _ := tree.Runs()
		for _, r := range runs {
			found = append(found, fmt.Sprintf("%s\t%s, %s", r.Name(), r.State, cli.Shortened(r.Prompt, 40)))
		}
	}
	return found, cobra.ShellCompDirectiveDefault
}

// Complete offers the names of saved tensors.
func (t *TreeFlags) Complete(*cobra.Command, []string, string) (found []string, _ cobra.ShellCompDirective) {
	tree, err := t.Open()
	if err == nil {
		all, _ := tree.List() // files that cannot be read are not offered
		for _, e := range all {
			found = append(found, e.Name)
		}
	}
	return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
}
