package save

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/filelock"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/index"
)

// A target is the folder that a model is saved to. The model is written to a temporary
// folder in the same place first, so that it appears in one step, by a rename.
type target struct {
	dir      string // an absolute path
	replaces bool   // whether dir holds a model that is replaced
	work     string // the temporary folder
	release  func() // unlocks the temporary folder
}

// newTarget checks that a folder can be created or replaced: it is missing or empty, or holds a model and overwrite is set.
func newTarget(dir string, overwrite bool) (*target, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0:
		return &target{dir: abs}, nil
	case err != nil:
		return nil, errs.Requestf("%s: cannot be used as a folder: %w", dir, oserr.Bare(err))
	case !overwrite:
		return nil, errs.Requestf("%s: already exists and is not empty "+
			"(choose another folder, or replace the model in it with --overwrite)", dir)
	}
	for _, name := range []string{index.File, index.ModularFile, index.MFluxFile} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return &target{dir: abs, replaces: true}, nil
		}
	}
	return nil, errs.Requestf("%s: already exists and is not a model folder, so it is not replaced", dir)
}

// begin creates the temporary folder, if the disk has space for a number of bytes.
func (t *target) begin(need int64) error {
	if free := freeBytes(t.dir); free > 0 && need > free {
		return fmt.Errorf("%s: the model needs %.2f GB, but only %.2f GB are free on the disk", t.dir, float64(need)/1e9, float64(free)/1e9)
	}
	parent := filepath.Dir(t.dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	removeAbandoned(parent)
	var err error
	if t.work, err = os.MkdirTemp(parent, "."+filepath.Base(t.dir)+".gomflux-*"+incomplete); err != nil {
		return err
	}
	if t.release, err = filelock.TryFolder(t.work); err != nil {
		t.release = func() {} // not all file systems support locks
	}
	return nil
}

// commit renames the temporary folder to the target.
func (t *target) commit() error {
	err := os.Chmod(t.work, 0o755)
	if err == nil && t.replaces {
		err = t.replace()
	} else if err == nil {
		os.Remove(t.dir) // it may exist and be empty
		err = os.Rename(t.work, t.dir)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", t.dir, oserr.Bare(err))
	}
	return nil
}

// replace replaces the existing folder with the temporary one. At every step both have
// names that do not end in incomplete, so that an interruption loses neither.
func (t *target) replace() error {
	whole := strings.TrimSuffix(t.work, incomplete)
	if err := os.Rename(t.work, whole); err != nil {
		return err
	}
	t.work = whole
	old := whole + ".old"
	if err := os.Rename(t.dir, old); err != nil {
		return err
	}
	if err := os.Rename(whole, t.dir); err != nil {
		return errors.Join(err, os.Rename(old, t.dir))
	}
	return os.RemoveAll(old)
}

// discard removes the temporary folder, unless it was renamed.
func (t *target) discard() {
	os.RemoveAll(t.work)
	t.release()
}

// incomplete is the suffix of folders that are being written.
const incomplete = ".incomplete"

// removeAbandoned removes temporary folders that were left by killed processes.
func removeAbandoned(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if ok, _ := filepath.Match(".*.gomflux-*"+incomplete, entry.Name()); !ok || !entry.IsDir() {
			continue
		}
		abandoned := filepath.Join(parent, entry.Name())
		if release, err := filelock.TryFolder(abandoned); err == nil {
			os.RemoveAll(abandoned)
			release()
		}
	}
}

// freeBytes returns the free space on the disk of a folder, 0 if it is unknown.
var freeBytes = func(dir string) int64 {
	free, _ := disk.Free(dir)
	return free
}
