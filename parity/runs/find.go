package runs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// An Entry is a tensor that is saved in a tree.
type Entry struct {
	checkpoint.Tensor
	Side     string
	Path     string // its file
	Key      string // its name in the file
	Modified time.Time
	Record   *Record // nil for files of other programs
}

// List lists the tensors of the latest runs of both sides by name, the newest of one name first;
// or those of the run that [Tree.Select] has selected. A *[DamagedError] is about files that cannot
// be read, and comes with the tensors of the others.
func (t *Tree) List() ([]Entry, error) {
	var all []Entry
	var errs []error
	for _, run := range t.Places() {
		entries, _, damage := listRun(run.Dir, run.Side)
		all, errs = append(all, entries...), append(errs, damage...)
	}
	slices.SortStableFunc(all, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), b.Modified.Compare(a.Modified))
	})
	return all, damaged(errs)
}

// ArrayFiles lists the files of tensors in a run's folder and its folder tensors, without those that are
// being written. The error may be about one of the folders.
func ArrayFiles(run fs.FS) (names []string, err error) {
	for _, dir := range []string{".", "tensors"} {
		files, dirErr := fs.ReadDir(run, dir)
		if !errors.Is(dirErr, fs.ErrNotExist) {
			err = errors.Join(err, dirErr)
		}
		for _, f := range files {
			if !strings.HasPrefix(f.Name(), ".") && slices.Contains([]string{".safetensors", ".npy", ".npz"}, path.Ext(f.Name())) {
				names = append(names, path.Join(dir, f.Name()))
			}
		}
	}
	return names, err
}

// listRun lists the tensors of a run, without the files that cannot be read, of which it returns the
// errors. The settings are nil if it has no settings.json.
func listRun(dir, side string) (all []Entry, settings map[string]any, errs []error) {
	at := map[string]int{} // by name, for aliases
	files, err := ArrayFiles(os.DirFS(dir))
	if err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", dir, err))
	}
	for _, name := range files {
		entries, err := listFile(filepath.Join(dir, name), side)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed in the meantime
		}
		if err != nil {
			errs = append(errs, err)
		}
		for _, e := range entries {
			at[e.Name] = len(all)
			all = append(all, e)
		}
	}
	if settings, err = readSettings(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	aliases, _ := settings["aliases"].(map[string]any) // the reference stores equal tensors once
	for name, stored := range aliases {
		if i, ok := at[fmt.Sprint(stored)]; ok {
			e := all[i]
			e.Name = name
			all = append(all, e)
		}
	}
	return all, settings, errs
}

func listFile(path, side string) ([]Entry, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	f, err := checkpoint.OpenArrays(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []Entry
	for _, i := range f.Tensors() {
		e := Entry{Tensor: i, Side: side, Path: path, Key: i.Name, Modified: info.ModTime()}
		if rec := (Record{}); json.Unmarshal([]byte(f.Metadata[RecordKey]), &rec) == nil && rec.Name == i.Name {
			e.Record = &rec
		}
		all = append(all, e)
	}
	return all, nil
}

// ErrNotFound is wrapped by errors about tensors that are not in a tree.
var ErrNotFound = errors.New("no such tensor")

// Find finds a tensor in the latest runs of both sides, the newest if both have it, or in the run
// that [Tree.Select] has selected. Otherwise it returns [ErrNotFound], with similar names.
func (t *Tree) Find(name string) (Entry, error) {
	all, err := t.List()
	var names []string
	for _, e := range all {
		if e.Name == name {
			return e, nil
		}
		names = append(names, e.Name)
	}
	missing := fmt.Errorf("%w %s in %s (%s)", ErrNotFound, name, t.where(), checkpoint.Hint(name, slices.Compact(names)))
	if err != nil {
		missing = fmt.Errorf("%w; %w", missing, err)
	}
	return Entry{}, missing
}

// warnOfOthers warns if the other side has saved a tensor under the name of an entry too.
func (t *Tree) warnOfOthers(e Entry) {
	all, _ := t.List() // without what cannot be read
	for _, other := range all {
		if other.Name == e.Name && other.Side != e.Side {
			t.warn("%s is saved on both sides: taking that of %s (%s), the newer one; --debug-load-run %s takes the other", e.Name, e.Side,
				e.Path, other.Side)
			return
		}
	}
}

// Read reads the tensor.
func (e Entry) Read() (*checkpoint.Array, error) {
	f, err := checkpoint.OpenArrays(e.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := f.Read(e.Key)
	if err == nil {
		t.Name = e.Name
	}
	return t, err
}

// Load reads the tensor that [Tree.Find] finds.
func (t *Tree) Load(name string) (*checkpoint.Array, error) {
	e, err := t.Find(name)
	if err != nil {
		return nil, err
	}
	return e.Read()
}

// A File is one that can be removed, with its size in bytes.
type File struct {
	Path string
	Size int64
}

// RemoveFiles removes files. Missing files are no error.
func RemoveFiles(all []File) error {
	for _, f := range all {
		if err := os.Remove(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Clearable lists the files of tensors with the given names in the latest runs of sides. Without names it lists
// those of all tensors, and the traces and checkpoints of the runs. A file with several tensors is listed only with
// all of its side.
func (t *Tree) Clearable(sides, names []string) (files []File, err error) {
	all, err := t.List()
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(e Entry) bool { return !slices.Contains(sides, e.Side) })
	inFile := map[string]int{}
	var known []string
	for _, e := range all {
		inFile[e.Path]++
		known = append(known, e.Name)
	}
	remove := map[string]bool{}
	for _, name := range names {
		found := slices.DeleteFunc(slices.Clone(all), func(e Entry) bool { return e.Name != name })
		if len(found) == 0 {
			return nil, fmt.Errorf("%w %s in %s (%s)", ErrNotFound, name, t.latest(), checkpoint.Hint(name, slices.Compact(known)))
		}
		for _, e := range found {
			if inFile[e.Path] > 1 {
				return nil, fmt.Errorf("%s is in %s, with %d other names: nothing was removed (without names everything is)",
					name, e.Path, inFile[e.Path]-1)
			}
			remove[e.Path] = true
		}
	}
	if len(names) == 0 {
		for _, e := range all {
			remove[e.Path] = true
		}
	}
	for _, side := range sides {
		for _, dir := range []string{"traces", "checkpoints"} {
			found, err := filepath.Glob(filepath.Join(t.Latest(side), dir, "*.json*"))
			if err != nil || len(names) > 0 {
				break
			}
			for _, path := range found {
				remove[path] = true
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(remove)) {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		files = append(files, File{path, info.Size()})
	}
	return files, nil
}

// Prune removes archived runs.
func (t *Tree) Prune(runs []RunInfo) error {
	for _, r := range runs {
		if filepath.Dir(r.Dir) != t.archive() {
			return fmt.Errorf("%s is not in %s", r.Dir, t.archive())
		}
		if err := os.RemoveAll(r.Dir); err != nil {
			return err
		}
	}
	return nil
}
