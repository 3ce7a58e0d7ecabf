package parity

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/parity/runs"
)

const tensorsRunsHelp = `Runs lists the latest and the earlier runs of both sides, the newest first: when
a run began (UTC), its side, whether it has ended, was interrupted by a signal
or an error, was killed or is still running, model, seed, prompt, git commit (+
if files differed from it), the numbers of saved tensors and of statistics, and
the size of its files.

The commands that take names (list, info, show) and ranges look into one run
with --run: the beginning of its time, the side for its latest run, or any
folder with a run.

With --json it prints one object: root and runs (name, time, side, folder,
latest, state, model, prompt, seed, commit, dirty, tensors, stats, checkpoints,
bytes, problem). State is ended, interrupted, killed, running, or unknown if the
folder has no settings.

Runs with files that cannot be read are listed too. Each such file is an error
of one line, and the exit code is then 1.
` + cli.ExitStatus

func newTensorsRunsCommand() *cobra.Command {
	var flags record.TreeFlags
	cmd := &cobra.Command{
		Use:   "runs",
		Short: "List the latest and earlier runs",
		Long:  tensorsRunsHelp,
		Example: `  gomflux tensors runs
  gomflux tensors runs --json | jq -r '.runs[] | select(.state == "killed") | .folder'`,
		Args: cli.NoArgs(""),
		RunE: flags.With(func(cmd *cobra.Command, tree *runs.Tree, _ []string) error {
			return listRuns(flags.Out(cmd), tree)
		}),
	}
	flags.Add(cmd)
	return cmd
}

// A runList is what tensors runs prints.
type runList struct {
	Root string    `json:"root"`
	Runs []jsonRun `json:"runs"`
}

type jsonRun struct {
	Name string `json:"name"`
	runs.RunInfo
	Problem string `json:"problem,omitempty"`
}

func listRuns(out *ui.Output, tree *runs.Tree) error {
	found, err := tree.Runs()
	if err != nil {
		return err
	}
	list := runList{tree.Root, []jsonRun{}}
	var problems []error
	for _, r := range found {
		j := jsonRun{Name: r.Name(), RunInfo: r}
		if r.Problem != nil {
			j.Problem = r.Problem.Error()
			problems = append(problems, r.Problem)
		}
		list.Runs = append(list.Runs, j)
	}
	if err := out.Result(list); err != nil {
		return err
	}
	return cli.ComplainAll(out, errors.Join(problems...))
}

func (l runList) Text(p *ui.Page) {
	if len(l.Runs) == 0 {
		return
	}
	var t ui.Table
	t.Row("TIME", "SIDE", "STATE", "MODEL", "SEED", "PROMPT", "COMMIT", "TENSORS", "STATS", "SIZE")
	for _, r := range l.Runs {
		model := r.Model
		if model != "" {
			model = filepath.Base(filepath.FromSlash(model))
		}
		commit := r.Commit[:min(8, len(r.Commit))]
		if r.Dirty {
			commit += "+"
		}
		t.Row(r.Time, r.Side, string(r.State), cli.Shortened(model, 24), r.Seed, cli.Shortened(r.Prompt, 32), commit,
			fmt.Sprint(r.Tensors), fmt.Sprint(r.Stats), units.Bytes(r.Bytes))
	}
	p.Table(t)
}
