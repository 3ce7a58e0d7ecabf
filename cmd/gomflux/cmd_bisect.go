package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/parity"
)

func newParityBisectCommand() *cobra.Command {
	o := &struct {
		modelFlags
		weightFlags
		reportFlags
		reference, keep string
	}{modelFlags: newModelFlags(), weightFlags: newWeightFlags()}
	cmd := &cobra.Command{
		Use:   "bisect RUN",
		Short: "Find the first module that differs where a run does not have every tensor",
		Long: `Bisect does what parity run does with the folder of a reference's run. Where the run
does not have the tensors that would say which module diverges first, it makes the
reference record the run once more with more taps, and looks again. It asks for the
outermost modules between the first tensor that is wrong and the last one before it
that is not, then for those in them, and so on: a few rounds lead from a picture that
is wrong to a module.

The reference's command is run as

  COMMAND again RUN OUT [--model MODEL] --taps NAME...

by a shell, and may have arguments of its own. Without --reference it is
gomflux-reference (pip install ./scripts/reference), or in a checkout
scripts/reference/run.sh, which installs PyTorch first. The reference runs the model
that the run's settings name; --model is gomflux's, and the reference's only where that
one is not there.
` + parityStatus,
		Example: `  gomflux parity bisect logs/runs/latest/reference
  gomflux parity bisect ./dump --reference "ssh gpu gomflux-reference" --keep ./more`,
		Args: oneFile("the folder of a run"),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, p := args[0], parity.Options{Model: o.model}
			if err := o.weightFlags.parity(cmd, &p); err != nil {
				return err
			}
			if err := checkRun(run); err != nil {
				return err
			}
			stdout, stderr := cmd.OutOrStdout(), cmd.ErrOrStderr()
			command := o.reference
			if command == "" {
				var err error
				if command, err = findReference(); err != nil {
					return coded(exitUsage, err)
				}
			}
			b := parity.Bisection{Folder: o.keep, Again: func(ctx context.Context, run, out string, names []string) error {
				model := o.model
				if named(run) {
					model = ""
				}
				return again(ctx, command, run, out, model, names, stderr)
			}}
			bisect := func(ctx context.Context, run string, p parity.Options) (*parity.Report, error) {
				rounds := 0
				b.Round = func(r parity.Round) {
					if p.Progress != nil {
						fmt.Fprint(stderr, "\r\x1b[K")
					}
					if rounds++; !o.json {
						printRound(stdout, rounds, r)
					}
				}
				return parity.Bisect(ctx, run, p, b)
			}
			return runParity(cmd.Context(), run, &o.modelFlags, &o.reportFlags, p, bisect, stdout, stderr)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.model, "model", "m", "", "gomflux's model (`name` or folder), if it is not the one that the run names")
	f.StringVar(&o.reference, "reference", "", "the reference's `command` (default: gomflux-reference, or scripts/reference/run.sh)")
	f.StringVar(&o.keep, "keep", "", "leave what the reference records in this `folder`")
	o.reportFlags.add(cmd)
	o.weightFlags.add(f, true)
	o.addPlace(f)
	return cmd
}

// findReference finds the reference's command: the one that is installed, or
// that of the checkout around the working directory.
func findReference() (string, error) {
	const name = "gomflux-reference"
	if path, err := exec.LookPath(name); err == nil {
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
			return "", fmt.Errorf("%s is not installed, and this is no checkout with scripts/reference/run.sh (pip install ./scripts/reference in one, or say with --reference how to run it)", name)
		}
	}
}

// quoted makes one word of a shell's.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// named says whether the model that a run's settings name is in its place, or a
// hub's.
func named(run string) bool {
	var s struct{ Model string }
	data, err := os.ReadFile(filepath.Join(run, "settings.json"))
	if err != nil || json.Unmarshal(data, &s) != nil || s.Model == "" {
		return false
	}
	if disk.IsFolder(s.Model) {
		return true
	}
	for _, up := range []string{".", "..", "../.."} {
		if disk.IsFolder(filepath.Join(run, up, s.Model)) {
			return true
		}
	}
	return false
}

// again has the reference record a run once more.
func again(ctx context.Context, command, run, out, model string, names []string, stderr io.Writer) error {
	args := []string{"-c", command + ` "$@"`, "sh", "again", run, out}
	if model != "" {
		args = append(args, "--model", model)
	}
	cmd := exec.CommandContext(ctx, "sh", append(append(args, "--taps"), names...)...)
	cmd.Stdout, cmd.Stderr = stderr, stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 127:
		return fmt.Errorf("the reference, %s: no such command (--reference says which one it is)", command)
	case err != nil:
		return fmt.Errorf("the reference, %s again %s: %w", command, run, err)
	}
	if _, err := os.Stat(filepath.Join(out, "settings.json")); err != nil {
		return fmt.Errorf("the reference, %s again %s, left no run: %w", command, run, err)
	}
	return nil
}

func printRound(w io.Writer, n int, r parity.Round) {
	fmt.Fprintf(w, "round %d, %d tensors: %s\n", n, r.Tensors, r.Verdict.Text)
	if len(r.Asked) == 0 {
		fmt.Fprintln(w)
		return
	}
	const most = 3
	some := strings.Join(r.Asked[:min(most, len(r.Asked))], ", ")
	if n := len(r.Asked) - most; n > 0 {
		some += fmt.Sprintf(" and %d more", n)
	}
	fmt.Fprintf(w, "  the reference is asked for %s\n", some)
}
