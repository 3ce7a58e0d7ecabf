package parity

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/plainjson"
	"github.com/gomflux/gomflux/parity"
	"github.com/gomflux/gomflux/parity/report"
)

// parityStatus ends the help of commands that compare.
const parityStatus = `
EXIT STATUS
  0    no difference beyond the tolerances
  1    a difference, or an error while running
  2    invalid input: a flag, a folder, a file
  3    the model is missing, damaged or not supported
  4    the MLX libraries are missing or unusable
  130  interrupted`

// reportFlags are the flags of commands that print a report.
type reportFlags struct {
	cli.OutputFlags
	all        bool
	html       string
	tolerances string
}

func (o *reportFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&o.all, "all", false, "print every tensor, not only the stages")
	o.AddJSON(f, "a JSON object with every tensor")
	f.StringVar(&o.html, "html", "", "write a page with plots, images and histograms to this `file`; an existing file is replaced")
	f.StringVar(&o.tolerances, "tolerances", "", "JSON `file` with rules that precede the built-in tolerances")
}

func (o *reportFlags) table() (*report.Table, error) {
	if o.tolerances == "" {
		return nil, nil
	}
	t, err := report.ReadTable(o.tolerances)
	return t, cli.Coded(cli.ExitUsage, err)
}

// A printed is a report as the commands print it.
type printed struct {
	report interface {
		Print(w io.Writer, all bool) error
	}
	all bool
}

func (r printed) Text(p *ui.Page) { r.report.Print(p, r.all) } // which cannot fail

// MarshalJSON is that of the report.
func (r printed) MarshalJSON() ([]byte, error) { return plainjson.Marshal(r.report, "") }

// print prints a report, and fails if something differs.
func (o *reportFlags) print(out *ui.Output, r *report.Report) error {
	if o.html != "" {
		if err := writePage(o.html, r); err != nil {
			return cli.Coded(cli.ExitUsage, err)
		}
	}
	return printVerdict(out, printed{r, o.all}, r.Verdict)
}

func printVerdict(out *ui.Output, r printed, v report.Verdict) error {
	if err := out.Result(r); err != nil {
		return err
	}
	if !v.OK {
		return cli.ErrDiffers
	}
	return nil
}

func writePage(name string, r *report.Report) error {
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

// checkRun checks that a folder holds a run that can be repeated.
func checkRun(name string) error {
	if err := checkFolder(name); err != nil {
		return err
	}
	_, err := os.Stat(name + "/settings.json")
	if errors.Is(err, fs.ErrNotExist) {
		return cli.UsageErrorf("%s is not the folder of a run: it has no settings.json "+
			"(python -m gomflux_reference dump in scripts/reference "+
			"records a run; gomflux parity diff compares tensors without it)", name)
	}
	return cli.Coded(cli.ExitUsage, err)
}

// checkFolder checks that a name is that of a folder.
func checkFolder(name string) error {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		err = fmt.Errorf("%s: %w", name, oserr.Bare(err))
	case !info.IsDir():
		err = fmt.Errorf("%s: expected the folder of a run, found a file (gomflux tensors diff compares files)", name)
	}
	return cli.Coded(cli.ExitUsage, err)
}

// replayFlags are the flags of commands that replay a run with a model, and print a report.
type replayFlags struct {
	cli.ModelFlags
	cli.WeightFlags
	reportFlags
}

func newReplayFlags() replayFlags {
	return replayFlags{ModelFlags: cli.NewModelFlags(), WeightFlags: cli.NewWeightFlags()}
}

// add adds the flags, except that of the model.
func (o *replayFlags) add(cmd *cobra.Command) {
	o.reportFlags.add(cmd)
	o.WeightFlags.Add(cmd.Flags(), true)
	o.AddCompute(cmd.Flags())
}

// options returns the options for the model and its weights.
func (o *replayFlags) options(given func(string) bool) (p parity.Options, err error) {
	p.Model = o.Model
	return p, o.WeightFlags.Parity(given, &p)
}

// A replayFunc replays a run and compares its tensors.
type replayFunc func(ctx context.Context, run string, p parity.Options) (*report.Report, error)

// replay replays a run and prints the report.
func (o *replayFlags) replay(ctx context.Context, out *ui.Output, run string, p parity.Options, replay replayFunc) error {
	if err := o.prepare(ctx, out, &p); err != nil {
		return err
	}
	if h := record.HostOf(ctx); h != nil {
		if err := h.Begin(ctx, true); err != nil {
			return err
		}
		h.Replay(&p)
	}
	r, err := replay(ctx, run, p)
	out.ClearStatus()
	if err != nil {
		return parityError(err)
	}
	return o.print(out, r)
}

// prepare opens the libraries and completes the options of a replay.
func (o *replayFlags) prepare(ctx context.Context, out *ui.Output, p *parity.Options) (err error) {
	if p.Tolerances, err = o.table(); err != nil {
		return err
	}
	p.Progress = func(pass, passes int) { out.Status("pass %d of %d", pass, passes) }
	return preparePlace(ctx, out, &o.ModelFlags, p)
}

// preparePlace opens the libraries, and sets device and dtype.
func preparePlace(ctx context.Context, out *ui.Output, m *cli.ModelFlags, p *parity.Options) (err error) {
	if _, err := m.CheckLibrary(ctx, out); err != nil {
		return err
	}
	p.Device, p.Dtype, err = m.Place()
	return cli.Coded(cli.ExitUsage, err)
}

// parityError gives an error of a replay its exit code.
func parityError(err error) error {
	if err = cli.ModelError(err); errors.Is(err, parity.ErrRun) {
		err = cli.Coded(cli.ExitUsage, err) // if it has no code yet
	}
	return err
}
