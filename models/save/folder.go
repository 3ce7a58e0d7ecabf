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

// A target is the folder that a model is saved to. All of it is written to a folder
// beside it first, so that giving that its name is one step.
type target struct {
	dir      string // an absolute path
	replaces bool   // another model
	work     string // the folder that is written to
	release  func() // its lock
}

// newTarget makes sure that a folder can be made, or replaced.
func newTarget(dir string, overwrite bool) (*target, error) {
	replaces, err := checkFolder(dir, overwrite)
	if err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	return &target{dir: abs, replaces: replaces}, nil
}

// checkFolder reports whether a folder is to be replaced: one that is there, and not
// empty, must hold a model then.
func checkFolder(dir string, overwrite bool) (replaces bool, err error) {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0:
		return false, nil
	case err != nil:
		return false, errs.Requestf("%s: expected a folder to be made, found something: %w", dir, oserr.Bare(err))
	case !overwrite:
		return false, errs.Requestf("%s: is there, and not empty (give another folder, or --overwrite to replace the model in it)", dir)
	}
	for _, name := range []string{index.File, index.MFluxFile} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true, nil
		}
	}
	return false, errs.Requestf("%s: is there, and no model's folder, so it is left alone", dir)
}

// begin makes the folder that is written to, if the disk has room for so many bytes.
func (t *target) begin(need int64) error {
	if free := freeBytes(t.dir); free > 0 && need > free {
		return fmt.Errorf("%s: the model takes %.2f GB, and the disk has %.2f GB free", t.dir, float64(need)/1e9, float64(free)/1e9)
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
		t.release = func() {} // not all file systems have locks
	}
	return nil
}

// commit gives the folder that was written its name.
func (t *target) commit() error {
	err := os.Chmod(t.work, 0o755)
	if err == nil && t.replaces {
		err = t.replace()
	} else if err == nil {
		os.Remove(t.dir) // if it is there, and empty
		err = os.Rename(t.work, t.dir)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", t.dir, oserr.Bare(err))
	}
	return nil
}

// replace puts the folder that was written in the place of the one that is there. No
// step of it leaves either under a name that says that it is incomplete.
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

// discard removes what was written, unless it has its name.
func (t *target) discard() {
	os.RemoveAll(t.work)
	t.release()
}

// incomplete is what the names of folders that are being written end in.
const incomplete = ".incomplete"

// removeAbandoned removes what others who were killed have left beside what they
// wanted to save.
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

// freeBytes is what a disk has room for; 0 if it does not tell.
var freeBytes = func(dir string) int64 {
	free, _ := disk.Free(dir)
	return free
}
