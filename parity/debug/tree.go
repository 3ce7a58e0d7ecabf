// Package debug keeps what was seen inside of runs: tensors, checkpoints and
// traces, in one tree of folders that gomflux and the reference side
// (scripts/reference) share.
//
//	logs/runs/latest/SIDE/{settings.json,checkpoints,tensors,traces,images}
//	logs/runs/archive/TIME-SIDE/...
//	logs/runs/.gitignore
//
// SIDE is gomflux or reference. A new run moves the side's latest one to the
// archive, under the time it began in UTC. While a run lasts it holds a lock,
// and another one that begins meanwhile goes straight into the archive, so that
// they do not mix.
//
// [Save], [Load] and [Checkpoint] are for those who edit a model. A [Session]
// does the same from outside, as a hook.
package debug

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gomflux/gomflux/internal/filelock"
	"github.com/gomflux/gomflux/internal/units"
)

// The sides of a tree.
const (
	Gomflux   = "gomflux"
	Reference = "reference"
)

// Sides are both.
var Sides = []string{Gomflux, Reference}

// Folders are those of a run.
var folders = []string{"checkpoints", "tensors", "traces", "images"}

// What a tree may hold by default, in bytes.
const (
	DefaultWarn  = 1 << 30
	DefaultLimit = 10 << 30
)

// A Tree is a folder with runs in it.
type Tree struct {
	Root string
	// Warn and Limit are how large the tree may get, in bytes, before a run is
	// warned of it, and before nothing more is saved.
	Warn, Limit int64
	// Warnf gets warnings; nil is standard error.
	Warnf func(format string, args ...any)
}

// Open names a tree: root, or else GOMFLUX_LOG_DIR, or else logs. Its limits are
// GOMFLUX_LOG_WARN and GOMFLUX_LOG_LIMIT, in bytes, where those are set.
// Nothing needs to be there yet.
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

// Latest is the folder of a side's latest run.
func (t *Tree) Latest(side string) string { return filepath.Join(t.latest(), side) }

// Busy says whether a run of a side is going on.
func (t *Tree) Busy(side string) bool { return filelock.Held(t.lock(side)) }

// Size is what the tree holds, in bytes.
func (t *Tree) Size() (int64, error) { return folderSize(t.Root) }

func folderSize(dir string) (size int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // moved or removed meanwhile, or never there
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			size += info.Size()
		}
		return err
	})
	if err != nil {
		return size, fmt.Errorf("size of %s: %w", dir, err)
	}
	return size, nil
}

// ErrFull is wrapped by errors about a tree that has reached its limit.
var ErrFull = errors.New("the folder of runs is full")

// room makes sure that more bytes may be saved.
func (t *Tree) room(size, more int64) error {
	if size+more <= t.Limit {
		return nil
	}
	hint := "remove what is not needed"
	if oldest, err := t.Archived(); err == nil && len(oldest) > 0 {
		var names []string
		for _, a := range oldest[:min(3, len(oldest))] {
			names = append(names, fmt.Sprintf("%s (%s)", a.Name, units.Gigabytes(a.Size)))
		}
		hint = fmt.Sprintf("the oldest archived runs are %s; gomflux tensors clear --archive removes all %d of them", strings.Join(names, ", "), len(oldest))
	}
	return fmt.Errorf("%w: %s holds %s, the limit is %s (%s; GOMFLUX_LOG_LIMIT sets another limit, in bytes)", ErrFull, t.Root, units.Gigabytes(size+more), units.Gigabytes(t.Limit), hint)
}

// An Archive is an earlier run.
type Archive struct {
	Name string // of its folder, TIME-SIDE
	Path string
	Side string
	Size int64 // bytes
}

// Archived lists the earlier runs, the oldest first. Those that are still going
// on are left out.
func (t *Tree) Archived() ([]Archive, error) {
	entries, err := os.ReadDir(t.archive())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Archive
	for _, e := range entries {
		a := Archive{Name: e.Name(), Path: filepath.Join(t.archive(), e.Name())}
		_, side, ok := strings.Cut(a.Name, "Z-")
		if !e.IsDir() || !ok || filelock.Held(t.lock(a.Name)) {
			continue
		}
		a.Side, _, _ = strings.Cut(side, "-")
		if a.Size, err = folderSize(a.Path); err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b Archive) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// stamp is a time in the name of an archived run, as scripts/reference has it.
func stamp(at time.Time) string {
	return at.UTC().Format("20060102T150405.000000Z")
}

// began is when the run in a folder began: what its settings say, or else when
// the folder was changed last.
func began(dir string) string {
	var settings struct {
		Began string `json:"began"`
	}
	text, err := os.ReadFile(filepath.Join(dir, settingsFile))
	if err == nil && json.Unmarshal(text, &settings) == nil {
		if at, err := time.Parse("20060102T150405.999999Z", settings.Began); err == nil {
			return stamp(at)
		}
	}
	info, err := os.Stat(dir)
	if err != nil {
		return stamp(time.Now())
	}
	return stamp(info.ModTime())
}

// fresh makes something under a name or, where there is something already, under
// that with a number at its end. It returns the name.
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

// Start begins a run of a side: its latest one is archived, unless it is still
// going on; then the new one is in the archive from the start.
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
	r := &Run{Tree: t, Side: side, Began: time.Now(), size: size, hits: map[string]int{}}
	if err := r.begin(); err != nil {
		return nil, fmt.Errorf("folder of runs: %w", err)
	}
	return r, nil
}

// ignore keeps the runs out of git, unless they have a .gitignore already. It is
// in runs, since what else is in the root may be somebody's.
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
		os.Remove(name) // it would stay empty
	}
	return err
}

func (r *Run) begin() error {
	t := r.Tree
	unlock, err := filelock.Try(t.lock(r.Side))
	switch {
	case errors.Is(err, filelock.ErrHeld):
		name := filepath.Join(t.archive(), stamp(r.Began)+"-"+r.Side)
		if r.Dir, err = fresh(name, func(name string) error { return os.Mkdir(name, 0o777) }); err != nil {
			return err
		}
		own := t.lock(filepath.Base(r.Dir))
		if unlock, err = filelock.Try(own); err != nil {
			return err
		}
		r.unlock = func() { os.Remove(own); unlock() }
		t.warn("another run is going on: this one is in %s", r.Dir)
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
