// Package runs stores tensors, checkpoints and traces of runs in one tree of folders, which
// gomflux and the reference's side (scripts/reference) share.
//
//	logs/runs/latest/SIDE/{settings.json,checkpoints,tensors,traces,images}
//	logs/runs/archive/TIME-SIDE/...
//	logs/runs/.gitignore
//
// SIDE is gomflux or reference. A new run moves the side's latest one to the archive, under the
// time it began in UTC. A run holds a lock until it ends; another run that begins in the meantime
// is written to the archive from the start, so that they do not mix.
//
// [Save], [Load] and [Checkpoint] are called from within a model's code. A [Session] does the same
// from outside, as a hook.
package runs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/filelock"
	"github.com/gomflux/gomflux/internal/units"
)

// The sides of a tree.
const (
	Gomflux   = "gomflux"
	Reference = "reference"
)

// Sides lists both sides.
var Sides = []string{Gomflux, Reference}

// folders are the folders in a run.
var folders = []string{"checkpoints", "tensors", "traces", "images"}

// Default limits of a tree, in bytes.
const (
	DefaultWarn  = 1 << 30
	DefaultLimit = 10 << 30
)

// A Tree is a folder with runs in it.
type Tree struct {
	Root  string
	Warn  int64 // size in bytes above which runs print a warning
	Limit int64 // size in bytes above which nothing more is saved
	// Warnf prints warnings; nil prints to standard error.
	Warnf func(format string, args ...any)

	selected *RunInfo // see Select
}

// Open returns the tree in root, or else in GOMFLUX_LOG_DIR, or else in logs. The environment
// variables GOMFLUX_LOG_WARN and GOMFLUX_LOG_LIMIT set its limits, in bytes. The folder does not
// need to exist.
func Open(root string) (*Tree, error) {
	t := &Tree{Root: cmp.Or(root, os.Getenv("GOMFLUX_LOG_DIR"), "logs"), Warn: DefaultWarn, Limit: DefaultLimit}
	for name, to := range map[string]*int64{"GOMFLUX_LOG_WARN": &t.Warn, "GOMFLUX_LOG_LIMIT": &t.Limit} {
		text := os.Getenv(name)
		if text == "" {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%s=%s: expected a number of bytes", name, text)
		}
		*to = n
	}
	return t, nil
}

func (t *Tree) warn(format string, args ...any) {
	if t.Warnf != nil {
		t.Warnf(format, args...)
		return
	}
	fmt.Fprintf(os.Stderr, "gomflux: warning: "+format+"\n", args...)
}

func (t *Tree) latest() string         { return filepath.Join(t.Root, "runs", "latest") }
func (t *Tree) archive() string        { return filepath.Join(t.Root, "runs", "archive") }
func (t *Tree) lock(dir string) string { return filepath.Join(t.latest(), "."+dir+".lock") }

// Latest returns the folder of a side's latest run.
func (t *Tree) Latest(side string) string { return filepath.Join(t.latest(), side) }

// Busy reports whether a run of a side is in progress.
func (t *Tree) Busy(side string) bool { return filelock.Held(t.lock(side)) }

// Size returns the size of the tree in bytes.
func (t *Tree) Size() (int64, error) { return disk.Size(t.Root) }

// ErrFull is wrapped by errors about a tree that has reached its limit.
var ErrFull = errors.New("the folder of runs is full")

// room returns an error if a number of further bytes exceeds the limit.
func (t *Tree) room(size, more int64) error {
	if size+more <= t.Limit {
		return nil
	}
	hint := "remove old runs"
	if oldest, err := t.Archived(); err == nil && len(oldest) > 0 {
		var names []string
		for _, r := range oldest[:min(3, len(oldest))] {
			names = append(names, fmt.Sprintf("%s (%s)", r.Name(), units.Gigabytes(r.Bytes)))
		}
		hint = fmt.Sprintf("the oldest archived runs are %s; gomflux tensors clear --archive removes all %d of them",
			strings.Join(names, ", "), len(oldest))
	}
	return fmt.Errorf("%w: %s holds %s, the limit is %s (%s; GOMFLUX_LOG_LIMIT sets another limit, in bytes)",
		ErrFull, t.Root, units.Gigabytes(size+more), units.Gigabytes(t.Limit), hint)
}

// Archived lists the earlier runs, the oldest first, except those in progress, with their sizes.
func (t *Tree) Archived() (earlier []RunInfo, err error) {
	all, err := t.folders()
	for _, r := range slices.Backward(all) {
		if r.Latest || r.State == Running {
			continue
		}
		if r.Bytes, err = disk.Size(r.Dir); err != nil {
			return nil, err
		}
		earlier = append(earlier, r)
	}
	return earlier, err
}

// Stamp formats a time for the name of an archived run or a trace, as scripts/reference does.
func Stamp(at time.Time) string {
	return at.UTC().Format("20060102T150405.000000Z")
}

// began returns when the run in a folder began: by its settings, or else by the folder's
// modification time.
func began(dir string) string {
	settings, _ := readSettings(dir)
	text, _ := settings["began"].(string)
	if at, err := time.Parse("20060102T150405.999999Z", text); err == nil {
		return Stamp(at)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return Stamp(time.Now())
	}
	return Stamp(info.ModTime())
}

// fresh calls make with a path or, if that exists, with the path and a number appended. It returns
// the path.
func fresh(path string, make func(string) error) (string, error) {
	for n := 1; ; n++ {
		candidate := path
		if n > 1 {
			candidate = fmt.Sprintf("%s-%d", path, n)
		}
		if err := make(candidate); !errors.Is(err, fs.ErrExist) {
			return candidate, err
		}
	}
}

// Start begins a run of a side and archives its latest one. If that is still in progress, the new
// run is in the archive from the start.
func (t *Tree) Start(side string) (*Run, error) {
	if !slices.Contains(Sides, side) {
		return nil, fmt.Errorf("side %q: expected %s", side, strings.Join(Sides, " or "))
	}
	size, err := t.Size()
	if err == nil {
		err = t.room(size, 0)
	}
	if err != nil {
		return nil, err
	}
	if size > t.Warn {
		t.warn("%s holds %s of runs (gomflux tensors clear --archive removes the earlier ones)", t.Root, units.Gigabytes(size))
	}
	for _, dir := range []string{t.latest(), t.archive()} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return nil, fmt.Errorf("folder of runs: %w", err)
		}
	}
	if err := t.ignore(); err != nil {
		return nil, fmt.Errorf("folder of runs: %w", err)
	}
	r := &Run{Tree: t, Side: side, Began: time.Now(), size: size, hits: map[string]int{}, files: map[string]*os.File{}}
	if err := r.begin(); err != nil {
		return nil, fmt.Errorf("folder of runs: %w", err)
	}
	return r, nil
}

// ignore writes a .gitignore that keeps the runs out of git, unless there is one. It is in runs,
// since the root may have other files of the user.
func (t *Tree) ignore() error {
	name := filepath.Join(t.Root, "runs", ".gitignore")
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString("*\n")
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(name) // it may be incomplete
	}
	return err
}

// begin locks and creates the run's folder.
func (r *Run) begin() error {
	t := r.Tree
	unlock, err := filelock.Try(t.lock(r.Side))
	switch {
	case errors.Is(err, filelock.ErrHeld):
		name := filepath.Join(t.archive(), Stamp(r.Began)+"-"+r.Side)
		if r.Dir, err = fresh(name, func(name string) error { return os.Mkdir(name, 0o777) }); err != nil {
			return err
		}
		own := t.lock(filepath.Base(r.Dir))
		if unlock, err = filelock.Try(own); err != nil {
			return err
		}
		r.unlock = func() { os.Remove(own); unlock() }
		t.warn("another run is in progress: this one is in %s", r.Dir)
	case err != nil:
		return err
	default:
		r.unlock, r.Dir = unlock, t.Latest(r.Side)
		if _, err := os.Lstat(r.Dir); err == nil {
			name := filepath.Join(t.archive(), began(r.Dir)+"-"+r.Side)
			if _, err := fresh(name, func(name string) error { return os.Rename(r.Dir, name) }); err != nil {
				unlock()
				return err
			}
		}
	}
	for _, name := range folders {
		if err := os.MkdirAll(filepath.Join(r.Dir, name), 0o777); err != nil {
			r.unlock()
			return err
		}
	}
	if err := r.Describe(nil); err != nil {
		r.unlock()
		return err
	}
	return nil
}
