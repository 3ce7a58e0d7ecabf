package runs

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/filelock"
	"github.com/gomflux/gomflux/internal/oserr"
)

// A State is how a run ended, if it did.
type State string

// The states of runs.
const (
	Running     State = "running"
	Ended       State = "ended"
	Interrupted State = "interrupted" // by a signal or an error
	Killed      State = "killed"      // without a chance to record its end
	Unknown     State = "unknown"     // there are no settings
)

// A RunInfo describes a latest or archived run. Model, Prompt, Seed and Commit are those of
// settings.json, or "".
type RunInfo struct {
	Time        string `json:"time"` // when it began, in UTC
	Side        string `json:"side"`
	Dir         string `json:"folder"`
	Latest      bool   `json:"latest"`
	State       State  `json:"state"`
	Model       string `json:"model,omitempty"`
	Prompt      string `json:"prompt,omitempty"`
	Seed        string `json:"seed,omitempty"` // text, since not every program reads 64 bits
	Commit      string `json:"commit,omitempty"`
	Dirty       bool   `json:"dirty,omitempty"` // files differ from the commit
	Tensors     int    `json:"tensors"`         // number of saved tensors
	Stats       int    `json:"stats"`           // number of tensors with statistics
	Checkpoints int    `json:"checkpoints"`     // number of checkpoint files
	Bytes       int64  `json:"bytes"`           // of all files

	// Problem is a *[DamagedError] if some files cannot be read, or nil.
	Problem error `json:"-"`

	number string // "-2" and so on, of a run in the archive that began when another did
}

// Name returns the name of the run's archive, TIME-SIDE.
func (r RunInfo) Name() string { return r.Time + "-" + r.Side + r.number }

// A DamagedError lists the errors of files that cannot be read. The others were read.
type DamagedError struct{ Errors []error }

func (e *DamagedError) Error() string {
	var lines []string
	for _, err := range e.Errors {
		lines = append(lines, err.Error())
	}
	return strings.Join(lines, "; ")
}

// Unwrap returns the errors.
func (e *DamagedError) Unwrap() []error { return e.Errors }

// damaged returns the errors as a *DamagedError, or nil.
func damaged(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return &DamagedError{errs}
}

// Runs describes all runs of the tree, the newest first.
func (t *Tree) Runs() ([]RunInfo, error) {
	runs, err := t.folders()
	for i := range runs {
		runs[i].describe()
	}
	return runs, err
}

// folders lists the folders of all runs, the newest first: their Time, Side, Dir, Latest and
// State if they are in progress.
func (t *Tree) folders() ([]RunInfo, error) {
	var runs []RunInfo
	for _, side := range Sides {
		dir := t.Latest(side)
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			runs = append(runs, RunInfo{Time: began(dir), Side: side, Dir: dir, Latest: true, State: t.running(side)})
		}
	}
	entries, err := os.ReadDir(t.archive())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		time, side, ok := strings.Cut(e.Name(), "Z-")
		if !ok || !e.IsDir() {
			continue
		}
		r := RunInfo{Time: time + "Z", Side: side, Dir: filepath.Join(t.archive(), e.Name()), State: t.running(e.Name())}
		if at := strings.IndexByte(side, '-'); at >= 0 {
			r.Side, r.number = side[:at], side[at:]
		}
		runs = append(runs, r)
	}
	slices.SortStableFunc(runs, func(a, b RunInfo) int { return cmp.Compare(b.Name(), a.Name()) })
	return runs, nil
}

func (t *Tree) running(lock string) State {
	if filelock.Held(t.lock(lock)) {
		return Running
	}
	return ""
}

// describe reads what the run's folder has.
func (r *RunInfo) describe() {
	entries, settings, errs := listRun(r.Dir, r.Side)
	r.Tensors = len(entries)
	word := func(v any) string {
		if v == nil {
			return ""
		}
		return fmt.Sprint(v)
	}
	r.Model, r.Prompt, r.Seed = word(settings["model"]), word(settings["prompt"]), word(settings["seed"])
	if git, ok := settings["git"].(map[string]any); ok {
		r.Commit, r.Dirty = word(git["commit"]), git["dirty"] == true
	}
	switch {
	case r.State == Running:
	case settings == nil:
		r.State = Unknown
	case settings["interrupted"] == true:
		r.State = Interrupted
	case settings["ended"] != nil:
		r.State = Ended
	default:
		r.State = Killed
	}
	records, err := ReadStats(os.DirFS(r.Dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("%s: %w", r.Dir, err))
	}
	r.Stats = len(records)
	files, _ := fs.Glob(os.DirFS(r.Dir), "checkpoints/*.json")
	r.Checkpoints = len(files)
	if r.Bytes, err = disk.Size(r.Dir); err != nil {
		errs = append(errs, err)
	}
	r.Problem = damaged(errs)
}

// readSettings reads a run's settings.json. Numbers are json.Number, since a seed can have 64 bits.
func readSettings(dir string) (settings map[string]any, err error) {
	name := filepath.Join(dir, settingsFile)
	text, err := os.ReadFile(name)
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		err = d.Decode(&settings)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, oserr.Bare(err))
	}
	return settings, nil
}

// ErrNoRun is wrapped by errors about runs that are not in a tree.
var ErrNoRun = errors.New("no such run")

// FindRun finds a run by the beginning of its time (20261122T1042 or 2026-11-22T10:42) or of its
// archive's name, by its side if it is the latest, or by its folder, which can be anywhere.
func (t *Tree) FindRun(text string) (RunInfo, error) {
	runs, err := t.folders()
	if err != nil {
		return RunInfo{}, err
	}
	prefix := CompactTime(text)
	var found []RunInfo
	for _, r := range runs {
		switch {
		case text == "":
		case r.Latest && r.Side == text, r.Name() == text:
			return r, nil
		case strings.HasPrefix(r.Name(), prefix):
			found = append(found, r)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return RunInfo{}, fmt.Errorf("%w %s: %d runs begin like this: %s", ErrNoRun, text, len(found), runNames(found))
	}
	if info, err := os.Stat(text); err == nil && info.IsDir() {
		side := Reference
		if settings, err := readSettings(text); err == nil && settings["side"] == Gomflux {
			side = Gomflux
		}
		return RunInfo{Time: began(text), Side: side, Dir: text}, nil
	}
	if len(runs) == 0 {
		return RunInfo{}, fmt.Errorf("%w %s: %s has no runs, and there is no folder of this name", ErrNoRun, text, t.Root)
	}
	return RunInfo{}, fmt.Errorf("%w %s, and no folder of this name (the newest are %s)", ErrNoRun, text, runNames(runs))
}

// CompactTime removes the punctuation of a time: 2026-11-22 10:42 is 20261122T1042.
func CompactTime(text string) string {
	if len(text) >= 8 && text[4] == '-' && text[7] == '-' {
		text = text[:4] + text[5:7] + text[8:]
	}
	return strings.NewReplacer(":", "", " ", "T").Replace(text)
}

// runNames lists the first few runs.
func runNames(runs []RunInfo) string {
	var names []string
	for _, r := range runs[:min(3, len(runs))] {
		names = append(names, r.Name())
	}
	if len(runs) > len(names) {
		names = append(names, "…")
	}
	return strings.Join(names, ", ")
}

// Select makes names those of one run, which [Tree.FindRun] finds, instead of the latest runs'.
func (t *Tree) Select(run string) error {
	r, err := t.FindRun(run)
	if err == nil {
		t.selected = &r
	}
	return err
}

// Selected returns the run that [Tree.Select] has selected, or nil.
func (t *Tree) Selected() *RunInfo { return t.selected }

// Places returns the runs in which names are looked up.
func (t *Tree) Places() []RunInfo {
	if t.selected != nil {
		return []RunInfo{*t.selected}
	}
	var runs []RunInfo
	for _, side := range Sides {
		runs = append(runs, RunInfo{Side: side, Dir: t.Latest(side)})
	}
	return runs
}

// where returns the folder in which names are looked up.
func (t *Tree) where() string {
	if t.selected != nil {
		return t.selected.Dir
	}
	return t.latest()
}
