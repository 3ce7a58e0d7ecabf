package parity

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/parity/runs"
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
` + cli.ExitStatus

// tensorsCommands are the commands of gomflux tensors, for messages.
const tensorsCommands = "list, info, show, ranges, diff, runs or clear"

func NewTensorsCommand() *cobra.Command {
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
				return cli.UsageErrorf("unknown command %q (%s)", args[0], tensorsCommands)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cli.UsageErrorf("give a command: %s (gomflux tensors --help)", tensorsCommands)
		},
	}
	cmd.AddCommand(newTensorsListCommand(), newTensorsInfoCommand(), newTensorsShowCommand(), newTensorsRangesCommand(),
		newTensorsDiffCommand(), newTensorsRunsCommand(), newTensorsClearCommand())
	return cmd
}

func notFound(err error) error {
	if errors.Is(err, runs.ErrNotFound) || errors.Is(err, runs.ErrNoRun) {
		return cli.Coded(cli.ExitUsage, err)
	}
	return err
}

// statLines writes the statistics and first values of a tensor.
func statLines(line ui.Field, s checkpoint.Stats, first []checkpoint.Float) {
	line("range", "%s", s.Range())
	line("mean", "%.6g", float64(s.Mean))
	line("std", "%.6g", float64(s.Std))
	line("NaN", "%d, infinite %d", s.NaN, s.Inf)
	var words []string
	for _, v := range first {
		words = append(words, fmt.Sprintf("%.6g", float64(v)))
	}
	line("first", "%s", strings.Join(words, " "))
}
