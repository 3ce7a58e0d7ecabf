// Package record has the flags by which a command records a run, replaces its tensors or stops it early,
// and the debugging session that a command runs in.
package record

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/parity/runs"
)

// Flags are the flags of generate, edit and inpaint that save and replace tensors of
// a run, or stop it early.
type Flags struct {
	Options runs.Options
	load    []string
	logDir  string
	run     string // of the saved tensors that replace others, "" for the latest

	tree    *runs.Tree
	Session *runs.Session // nil without such flags
	Log     runLog
}

// A runLog copies what is printed to output.log of the run that is recorded. Text that is printed
// before the first run begins waits for it.
type runLog struct {
	run    *runs.Run
	before []byte
	ended  bool // no run will begin
}

// maxBefore is how many bytes wait for a run.
const maxBefore = 1 << 20

// Write never fails: the text is printed in any case.
func (l *runLog) Write(text []byte) (int, error) {
	switch {
	case l.run != nil:
		l.run.Write(text)
	case !l.ended && len(l.before)+len(text) <= maxBefore:
		l.before = append(l.before, text...)
	}
	return len(text), nil
}

// begin begins the log of a run, nil for none.
func (l *runLog) begin(run *runs.Run) {
	l.run, l.ended = run, run == nil
	if len(l.before) > 0 {
		l.Write(l.before)
		l.before = nil
	}
}

func (d *Flags) Add(f *pflag.FlagSet) {
	f.StringArrayVar(&d.Options.Save, "debug-save", nil,
		"save tensors whose names match a `glob` such as 'transformer.layers.0.*'; !GLOB leaves out matches (can be repeated)")
	f.StringArrayVar(&d.Options.Stats, "debug-stats", nil,
		"record range, mean and first values of tensors whose names match a `glob`, without their data (can be repeated)")
	f.StringArrayVar(&d.load, "debug-load", nil,
		"replace a `tensor`: NAME=FILE[:KEY][@dtype], or NAME=SAVED or NAME for a saved tensor (can be repeated)")
	f.StringVar(&d.run, "debug-load-run", "",
		"the `run` of saved tensors for --debug-load: the beginning of its time, its side or a folder (default: the latest)")
	f.StringVar(&d.Options.ExitAfter, "debug-exit-after", "", "end the run after the tensor of this `name`, without an image")
	f.BoolVar(&d.Options.CheckFinite, "check-finite", false, "end the run at the first NaN or infinite value and name the module")
	f.BoolVar(&d.Options.BoundsCheck, "bounds-check", false,
		"compute every tensor immediately, so that errors such as an index out of bounds name the place")
	f.StringVar(&d.logDir, "log-dir", "", "`folder` for saved tensors (default: $GOMFLUX_LOG_DIR, or logs)")
}

// Validate parses the flags, and checks that the files exist.
func (d *Flags) Validate(given func(string) bool) error {
	for name, value := range map[string]string{"debug-exit-after": d.Options.ExitAfter, "log-dir": d.logDir, "debug-load-run": d.run} {
		if given(name) && value == "" {
			return cli.UsageErrorf("--%s: the name is empty", name)
		}
	}
	for _, s := range d.load {
		r, err := runs.ParseReplacement(s)
		if err != nil {
			return cli.UsageErrorf("--debug-load: %w", err)
		}
		d.Options.Load = append(d.Options.Load, r)
	}
	if err := d.Options.Check(); err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	if given("debug-load-run") && len(d.load) == 0 {
		return cli.UsageErrorf("--debug-load-run has no effect without --debug-load")
	}
	if d.logDir != "" && !d.Options.UsesTree() {
		return cli.UsageErrorf("--log-dir has no effect without --debug-save, --debug-stats or --debug-load")
	}
	return nil
}

// Begin starts a session, if any of the flags is given.
func (d *Flags) Begin(out *ui.Output) (err error) {
	if !d.Options.Any() {
		return nil
	}
	if d.tree, err = runs.Open(d.logDir); err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	d.tree.Warnf = out.Warn
	if d.run != "" {
		if err := d.tree.Select(d.run); err != nil {
			return cli.Coded(cli.ExitUsage, err)
		}
	}
	d.Session, err = runs.NewSession(d.tree, d.Options)
	if errors.Is(err, runs.ErrNotFound) {
		err = cli.Coded(cli.ExitUsage, err)
	}
	if err == nil {
		d.Log.begin(d.Session.Run())
	}
	return err
}

// End ends the session.
func (d *Flags) End() error { return d.close((*runs.Session).Close) }

// Interrupt ends the session of a run that failed, unless it has ended.
func (d *Flags) Interrupt(err error) {
	if d.Session == nil {
		return
	}
	if errors.Is(err, cli.ErrInterrupted) {
		err = cli.ErrInterrupted
	}
	if err != nil {
		ui.Complain(&d.Log, err)
	}
	d.close((*runs.Session).Interrupt) // an error would hide that of the run
}

func (d *Flags) close(end func(*runs.Session) error) error {
	if d.Session == nil {
		return nil
	}
	s := d.Session
	d.Session = nil
	err := end(s)
	d.Log.begin(nil)
	return err
}

// SavedTensors is the JSON line about recorded tensors, and about a run that ended at
// --debug-exit-after.
type SavedTensors struct {
	MessageType string `json:"message_type"` // tensors
	Folder      string `json:"folder,omitempty"`
	Saved       int    `json:"saved"`
	Stats       int    `json:"stats,omitempty"`
	EndedAfter  string `json:"ended_after,omitempty"`

	Options *runs.Options `json:"-"`
}

// Text returns the same in words, "" if there is nothing to report.
func (t SavedTensors) Text() string {
	var parts []string
	if t.EndedAfter != "" {
		parts = append(parts, "ended after "+t.EndedAfter)
	}
	if t.Folder == "" { // nothing is recorded
		return strings.Join(parts, ", ")
	}
	if len(t.Options.Save) > 0 {
		parts = append(parts, fmt.Sprintf("%s saved in %s", ui.Plural(t.Saved, "tensor"), filepath.Join(t.Folder, "tensors")))
	}
	if len(t.Options.Stats) > 0 {
		parts = append(parts, fmt.Sprintf("statistics of %s in %s", ui.Plural(t.Stats, "tensor"), filepath.Join(t.Folder, runs.StatsFile)))
	}
	return strings.Join(parts, ", ")
}

// OneLine joins the lines of an error.
func OneLine(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
}
