package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gomflux/gomflux/internal/plainjson"
	"github.com/gomflux/gomflux/parity"
)

// errDiffers ends a comparison that found a difference: what there is to say
// has been printed.
var errDiffers = errors.New("the tensors differ")

// parityStatus ends the help of commands that compare.
const parityStatus = `
EXIT STATUS
  0    everything holds
  1    something differs, or it failed while running
  2    something given was wrong: a flag, a folder, a file
  3    the model is missing, damaged or not supported
  4    the MLX libraries are missing or cannot be used
  130  it was interrupted`

// reportFlags are the flags of commands that print a report.
type reportFlags struct {
	all, json  bool
	html       string
	tolerances string
}

func (o *reportFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&o.all, "all", false, "print every tensor, not only the stages")
	f.BoolVar(&o.json, "json", false, "print a JSON object with every tensor")
	f.StringVar(&o.html, "html", "", "write a page with plots, pictures and histograms to this `file`, which is replaced")
	f.StringVar(&o.tolerances, "tolerances", "", "a JSON `file` with rules that go before the built-in tolerances")
}

func (o *reportFlags) table() (*parity.Table, error) {
	if o.tolerances == "" {
		return nil, nil
	}
	t, err := parity.ReadTable(o.tolerances)
	return t, coded(exitUsage, err)
}

// print prints a report, and fails if something differs.
func (o *reportFlags) print(stdout io.Writer, r *parity.Report) error {
	if o.html != "" {
		if err := writePage(o.html, r); err != nil {
			return coded(exitUsage, err)
		}
	}
	var err error
	if o.json {
		err = plainjson.Write(stdout, r, "")
	} else {
		err = r.Print(stdout, o.all)
	}
	if err == nil && !r.Verdict.OK {
		err = errDiffers
	}
	return err
}

func writePage(name string, r *parity.Report) error {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("html: %w", err)
	}
	w := bufio.NewWriter(f)
	if err = r.HTML(w); err == nil {
		err = w.Flush()
	}
	return errors.Join(err, f.Close())
}

// checkRun finds out whether a folder has a run.
func checkRun(name string) error {
	_, err := os.Stat(name + "/settings.json")
	if errors.Is(err, fs.ErrNotExist) {
		return usageErrorf("%s has no settings.json, so it is no run (python -m gomflux_reference dump makes one; scripts/reference has it)", name)
	}
	return coded(exitUsage, err)
}

// runParity replays a run, and prints what comes of it.
func runParity(ctx context.Context, run string, m *modelFlags, o *reportFlags, p parity.Options,
	replay func(context.Context, string, parity.Options) (*parity.Report, error), stdout, stderr io.Writer) error {
	var err error
	if p.Tolerances, err = o.table(); err != nil {
		return err
	}
	if _, err := m.checkLibrary(ctx, warnings{stderr}); err != nil {
		return err
	}
	if p.Device, p.Dtype, err = m.place(); err != nil {
		return coded(exitUsage, err)
	}
	if f, ok := stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.Progress = func(pass, passes int) { fmt.Fprintf(f, "\rpass %d of %d", pass, passes) }
	}
	r, err := replay(ctx, run, p)
	if p.Progress != nil {
		fmt.Fprint(stderr, "\r\x1b[K")
	}
	if err = modelError(err); errors.Is(err, parity.ErrRun) {
		err = coded(exitUsage, err) // if it has no code yet
	}
	if err != nil {
		return err
	}
	return o.print(stdout, r)
}
