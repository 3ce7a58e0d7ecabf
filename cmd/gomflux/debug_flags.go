package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/parity/runs"
)

// debugFlags are the flags of generate, edit and inpaint that save and replace tensors of
// a run, or stop it early.
type debugFlags struct {
	options runs.Options
	load    []string
	logDir  string
	run     string // of the saved tensors that replace others, "" for the latest

	tree    *runs.Tree
	session *runs.Session // nil without such flags
	log     runLog
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

func (d *debugFlags) add(f *pflag.FlagSet) {
	f.StringArrayVar(&d.options.Save, "debug-save", nil,
		"save tensors whose names match a `glob` such as 'transformer.layers.0.*'; !GLOB leaves out matches (can be repeated)")
	f.StringArrayVar(&d.options.Stats, "debug-stats", nil,
		"record range, mean and first values of tensors whose names match a `glob`, without their data (can be repeated)")
	f.StringArrayVar(&d.options.Checkpoints, "debug-checkpoint", nil,
		"write the same to a JSON file for each tensor whose name matches a `glob` (can be repeated)")
	f.StringArrayVar(&d.load, "debug-load", nil,
		"replace a `tensor`: NAME=FILE[:KEY][@dtype], or NAME=SAVED or NAME for a saved tensor (can be repeated)")
	f.StringVar(&d.run, "debug-load-run", "",
		"the `run` of saved tensors for --debug-load: the beginning of its time, its side or a folder (default: the latest)")
	f.StringVar(&d.options.ExitAfter, "debug-exit-after", "", "end the run after the tensor of this `name`, without an image")
	f.BoolVar(&d.options.CheckFinite, "check-finite", false, "end the run at the first NaN or infinite value and name the module")
	f.BoolVar(&d.options.BoundsCheck, "bounds-check", false,
		"compute every tensor immediately, so that errors such as an index out of bounds name the place")
	f.StringVar(&d.logDir, "log-dir", "", "`folder` for saved tensors (default: $GOMFLUX_LOG_DIR, or logs)")
}

// validate parses the flags, and checks that the files exist.
func (d *debugFlags) validate(given func(string) bool) error {
	for name, value := range map[string]string{"debug-exit-after": d.options.ExitAfter, "log-dir": d.logDir, "debug-load-run": d.run} {
		if given(name) && value == "" {
			return usageErrorf("--%s: the name is empty", name)
		}
	}
	for _, s := range d.load {
		r, err := runs.ParseReplacement(s)
		if err != nil {
			return usageErrorf("--debug-load: %w", err)
		}
		d.options.Load = append(d.options.Load, r)
	}
	if err := d.options.Check(); err != nil {
		return coded(exitUsage, err)
	}
	if given("debug-load-run") && len(d.load) == 0 {
		return usageErrorf("--debug-load-run has no effect without --debug-load")
	}
	if d.logDir != "" && !d.options.UsesTree() {
		return usageErrorf("--log-dir has no effect without --debug-save, --debug-stats, --debug-checkpoint or --debug-load")
	}
	return nil
}

// begin starts a session, if any of the flags is given.
func (d *debugFlags) begin(out *ui.Output) (err error) {
	if !d.options.Any() {
		return nil
	}
	if d.tree, err = runs.Open(d.logDir); err != nil {
		return coded(exitUsage, err)
	}
	d.tree.Warnf = out.Warn
	if d.run != "" {
		if err := d.tree.Select(d.run); err != nil {
			return coded(exitUsage, err)
		}
	}
	d.session, err = runs.NewSession(d.tree, d.options)
	if errors.Is(err, runs.ErrNotFound) {
		err = coded(exitUsage, err)
	}
	if err == nil {
		d.log.begin(d.session.Run())
	}
	return err
}

// end ends the session.
func (d *debugFlags) end() error { return d.close((*runs.Session).Close) }

// interrupt ends the session of a run that failed, unless it has ended.
func (d *debugFlags) interrupt(err error) {
	if d.session == nil {
		return
	}
	if errors.Is(err, errInterrupted) {
		err = errInterrupted
	}
	if err != nil {
		ui.Complain(&d.log, err)
	}
	d.close((*runs.Session).Interrupt) // an error would hide that of the run
}

func (d *debugFlags) close(end func(*runs.Session) error) error {
	if d.session == nil {
		return nil
	}
	s := d.session
	d.session = nil
	err := end(s)
	d.log.begin(nil)
	return err
}

// savedTensors is the JSON line about recorded tensors, and about a run that ended at
// --debug-exit-after.
type savedTensors struct {
	MessageType string `json:"message_type"` // tensors
	Folder      string `json:"folder,omitempty"`
	Saved       int    `json:"saved"`
	Stats       int    `json:"stats,omitempty"`
	Checkpoints int    `json:"checkpoints,omitempty"`
	EndedAfter  string `json:"ended_after,omitempty"`

	options *runs.Options
}

// text returns the same in words, "" if there is nothing to report.
func (t savedTensors) text() string {
	var parts []string
	if t.EndedAfter != "" {
		parts = append(parts, "ended after "+t.EndedAfter)
	}
	if t.Folder == "" { // nothing is recorded
		return strings.Join(parts, ", ")
	}
	if len(t.options.Save) > 0 {
		parts = append(parts, fmt.Sprintf("%s saved in %s", ui.Plural(t.Saved, "tensor"), filepath.Join(t.Folder, "tensors")))
	}
	if len(t.options.Stats) > 0 {
		parts = append(parts, fmt.Sprintf("statistics of %s in %s", ui.Plural(t.Stats, "tensor"), filepath.Join(t.Folder, runs.StatsFile)))
	}
	if len(t.options.Checkpoints) > 0 {
		parts = append(parts, fmt.Sprintf("%s in %s", ui.Plural(t.Checkpoints, "checkpoint"), filepath.Join(t.Folder, "checkpoints")))
	}
	return strings.Join(parts, ", ")
}

// oneLine joins the lines of an error.
func oneLine(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
}
