package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/parity/debug"
)

const tensorsHelp = `Tensors shows and removes tensors that were saved by gomflux generate
--debug-save and by the Python reference (scripts/reference). Both sides write
into one folder, ./logs by default (--log-dir or GOMFLUX_LOG_DIR changes it):

  logs/runs/latest/gomflux      the latest run, with settings.json, output.log,
  logs/runs/latest/reference    tensors, checkpoints, traces and images
  logs/runs/archive/TIME-SIDE   earlier runs

A name is looked up in the latest runs of both sides; if both have it, the newer
tensor is used. --run looks it up in another run, by the beginning of its time
(gomflux tensors runs lists them), its side or its folder. Files are
safetensors; NumPy's .npy and .npz are read too.

Runs warn when the folder holds 1 GB, and save nothing more at 10 GB.
GOMFLUX_LOG_WARN and GOMFLUX_LOG_LIMIT set other limits, in bytes.
` + exitStatus

// tensorsCommands are the commands of gomflux tensors, for messages.
const tensorsCommands = "list, info, show, ranges, diff, runs or clear"

func newTensorsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tensors",
		Short: "Show and remove saved tensors of runs",
		Long:  tensorsHelp,
		Example: `  gomflux generate -p "a lighthouse" --debug-save 'latents' --debug-save 'transformer.layers.0.*'
  gomflux tensors list
  gomflux tensors show latents@0
  gomflux tensors diff latents@0 reference.npz:latents
  gomflux tensors runs
  gomflux tensors show latents@0 --run 20261122T1042
  gomflux tensors ranges
  gomflux tensors clear --archive`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageErrorf("unknown command %q (%s)", args[0], tensorsCommands)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageErrorf("give a command: %s (gomflux tensors --help)", tensorsCommands)
		},
	}
	cmd.AddCommand(newTensorsListCommand(), newTensorsInfoCommand(), newTensorsShowCommand(), newTensorsRangesCommand(),
		newTensorsDiffCommand(), newTensorsRunsCommand(), newTensorsClearCommand())
	return cmd
}

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

func (t *treeFlags) open() (*debug.Tree, error) {
	tree, err := debug.Open(t.logDir)
	if err == nil && t.run != "" {
		err = tree.Select(t.run)
	}
	return tree, coded(exitUsage, err)
}

// completeRuns offers the times of runs, and folders.
func (t *treeFlags) completeRuns(*cobra.Command, []string, string) (found []string, _ cobra.ShellCompDirective) {
	tree, err := debug.Open(t.logDir)
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

func notFound(err error) error {
	if errors.Is(err, debug.ErrNotFound) || errors.Is(err, debug.ErrNoRun) {
		return coded(exitUsage, err)
	}
	return err
}

// defaultValues is how many values of a tensor are shown by default.
const defaultValues = 10

// statLines writes the statistics and first values of a tensor.
func statLines(line ui.Field, s checkpoint.Stats, first []float64) {
	line("range", "%s", s.Range())
	line("mean", "%.6g", float64(s.Mean))
	line("std", "%.6g", float64(s.Std))
	line("NaN", "%d, infinite %d", s.NaN, s.Inf)
	var words []string
	for _, v := range first {
		words = append(words, fmt.Sprintf("%.6g", v))
	}
	line("first", "%s", strings.Join(words, " "))
}

func hasTensorSuffix(name string) bool { return trimTensorSuffix(name) != name }

// trimTensorSuffix removes the extension of a file of tensors from a name.
func trimTensorSuffix(name string) string {
	for _, suffix := range []string{".safetensors", ".npy", ".npz"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return name
}
