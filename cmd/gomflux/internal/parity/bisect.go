package parity

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/parity"
	"github.com/gomflux/gomflux/parity/report"
)

const parityBisectHelp = `Bisect compares a reference's run as parity run does, and finds the first module
that differs when the run lacks the tensors to name it. It makes the reference
record the run again with more taps, and compares again: first the outermost
modules between the last correct tensor and the first wrong one, then the
modules inside those. A few rounds lead from a wrong image to a module.

The reference is run by a shell as

  COMMAND again RUN OUT [--model MODEL] --taps NAME...

COMMAND is --reference, which may include arguments. The default is
gomflux-reference (pip install ./scripts/reference), or in a checkout
scripts/reference/run.sh, which installs PyTorch first. The reference runs the
model that the run's settings name; --model is gomflux's model, and the
reference's only if that one is missing.
` + parityStatus

// bisectOptions are the flags of gomflux parity bisect.
type bisectOptions struct {
	replayFlags
	reference, keep string
}

func newParityBisectCommand() *cobra.Command {
	o := &bisectOptions{replayFlags: newReplayFlags()}
	cmd := &cobra.Command{
		Use:   "bisect RUN",
		Short: "Find the first differing module, with more runs of the reference",
		Long:  parityBisectHelp,
		Example: `  gomflux parity bisect logs/runs/latest/reference
  gomflux parity bisect ./dump --reference "ssh gpu gomflux-reference" --keep ./more`,
		Args: cli.OneArg("the folder of a run"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := o.options(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), o.Out(cmd), args[0], p)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	addParityModel(f, &o.Model)
	f.StringVar(&o.reference, "reference", "", "the reference's `command` (default: gomflux-reference, or scripts/reference/run.sh)")
	f.StringVar(&o.keep, "keep", "", "keep the reference's recordings in this `folder`")
	o.add(cmd)
	return cmd
}

func (o *bisectOptions) run(ctx context.Context, out *ui.Output, run string, p parity.Options) error {
	if err := checkRun(run); err != nil {
		return err
	}
	command, err := findReference(o.reference)
	if err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	b := parity.Bisection{Folder: o.keep, Again: func(ctx context.Context, run, folder string, names []string) error {
		model := o.Model
		if hasModel(run) {
			model = ""
		}
		return again(ctx, command, run, folder, model, names, out.Stderr)
	}}
	rounds := 0
	b.Round = func(r report.Round) {
		out.ClearStatus()
		if rounds++; out.Format == ui.Text {
			printRound(out.Stdout, rounds, r)
		}
	}
	bisect := func(ctx context.Context, run string, p parity.Options) (*report.Report, error) {
		return parity.Bisect(ctx, run, p, b)
	}
	return o.replay(ctx, out, run, p, bisect)
}

// referenceName is the command of the reference where it is installed.
const referenceName = "gomflux-reference"

// findReference returns the given command of the reference, or else the installed one, or the script of
// the checkout around the working directory.
func findReference(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	if path, err := exec.LookPath(referenceName); err == nil {
		return quoted(path), nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		script := filepath.Join(dir, "scripts", "reference", "run.sh")
		if info, err := os.Stat(script); err == nil && info.Mode().IsRegular() {
			return quoted(script), nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not installed, and this is not a checkout with scripts/reference/run.sh "+
				"(run pip install ./scripts/reference in a checkout, or give the command with --reference)", referenceName)
		}
	}
}

// quoted returns a word of a shell command.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// hasModel reports whether the model's folder or file that a run's settings name exists.
func hasModel(run string) bool {
	var s struct{ Model string }
	data, err := os.ReadFile(filepath.Join(run, "settings.json"))
	if err != nil || json.Unmarshal(data, &s) != nil || s.Model == "" {
		return false
	}
	return slices.ContainsFunc([]string{"", run, filepath.Join(run, ".."), filepath.Join(run, "../..")}, func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, s.Model))
		return err == nil
	})
}

// again makes the reference record a run once more.
func again(ctx context.Context, command, run, out, model string, names []string, stderr io.Writer) error {
	args := []string{"again", run, out}
	if model != "" {
		args = append(args, "--model", model)
	}
	cmd := referenceCommand(ctx, command, append(append(args, "--taps"), names...))
	cmd.Stdout, cmd.Stderr = stderr, stderr
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return referenceError(command, "again "+run, err)
	}
	if _, err := os.Stat(filepath.Join(out, "settings.json")); err != nil {
		return fmt.Errorf("reference %s again %s: recorded no run: %w", command, run, err)
	}
	return nil
}

func printRound(w io.Writer, n int, r report.Round) {
	fmt.Fprintf(w, "round %d, %d tensors: %s\n", n, r.Tensors, r.Verdict.Text)
	if len(r.Asked) == 0 {
		fmt.Fprintln(w)
		return
	}
	fmt.Fprintf(w, "  asking the reference for %s\n", quote.List(r.Asked, 3))
}
