package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/oserr"
)

// A Removal describes what Remove will delete from the cache: a whole repository
// or one of its snapshots.
type Removal struct {
	Repo   string
	Commit string // of the snapshot; "" for the whole repository
	// Refs are the branches and tags of the snapshot, sorted.
	Refs []string
	// Folder is the folder of the repository or of the snapshot.
	Folder string
	// Bytes is the disk space that is freed: for a repository all revisions and
	// partial downloads, for a snapshot the files that no other snapshot has.
	Bytes int64

	dir    string // the repository's folder
	blobs  []string
	shared []string // files of several repositories
}

// Removable prepares the removal of a snapshot, if revision is a branch, a tag or
// a commit, or of the whole repository. If the snapshot is the only one, the
// whole repository is removed, as by huggingface_hub's delete_revisions.
// Removable follows no symlinks.
func Removable(repo, revision string) (*Removal, error) {
	if !IsRepo(repo) {
		return nil, fmt.Errorf("%q is not the name of a repository (owner/name)", repo)
	}
	cache, err := Cache()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, folderName(repo))
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w %s", repo, ErrNotCached, cache)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", repo, err)
	case !info.IsDir():
		return nil, fmt.Errorf("%s: %s is a link or a file, expected a folder (remove it by hand)", repo, dir)
	}
	r := &Removal{Repo: repo, Folder: dir, dir: dir}
	if revision != "" {
		snapshot, err := Find(repo, revision)
		if err != nil {
			return nil, err
		}
		commits, err := os.ReadDir(filepath.Dir(snapshot))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", repo, err)
		}
		// ignore files such as .DS_Store
		commits = slices.DeleteFunc(commits, func(c fs.DirEntry) bool { return c.Type().IsRegular() })
		if len(commits) > 1 {
			r.Commit, r.Folder = filepath.Base(snapshot), snapshot
			if err := r.snapshot(commits); err != nil {
				return nil, fmt.Errorf("%s: %w", repo, err)
			}
			return r, nil
		}
	}
	r.Bytes, err = disk.Size(dir)
	var all []string
	entries, _ := os.ReadDir(filepath.Join(dir, "blobs"))
	for _, e := range entries {
		all = append(all, filepath.Join(dir, "blobs", e.Name()))
	}
	r.addShared(all)
	return r, err
}

// snapshot finds the refs and the blobs that are removed with the snapshot.
// Blobs that other snapshots use stay.
func (r *Removal) snapshot(commits []fs.DirEntry) (err error) {
	if r.Refs, err = refsTo(filepath.Join(r.dir, "refs"), r.Commit); err != nil {
		return err
	}
	own, err := r.blobsOf(r.Folder)
	if err != nil {
		return err
	}
	for _, c := range commits {
		if c.Name() == r.Commit {
			continue
		}
		others, err := r.blobsOf(filepath.Join(filepath.Dir(r.Folder), c.Name()))
		if err != nil {
			return err
		}
		for blob := range others {
			delete(own, blob)
		}
	}
	if r.Bytes, err = disk.Size(r.Folder); err != nil { // copies, on file systems without symlinks
		return err
	}
	for blob := range own {
		info, err := os.Lstat(blob)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the download is not complete
		}
		if err != nil {
			return err
		}
		r.blobs = append(r.blobs, blob)
		if info.Mode().IsRegular() {
			r.Bytes += info.Size()
		}
	}
	slices.Sort(r.blobs)
	r.addShared(r.blobs)
	return nil
}

// blobsOf returns the paths of the blobs that a snapshot links to. It ignores
// links to anything else.
func (r *Removal) blobsOf(snapshot string) (map[string]bool, error) {
	blobs := map[string]bool{}
	err := filepath.WalkDir(snapshot, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink == 0 {
			return err
		}
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		if filepath.Dir(target) == filepath.Join(r.dir, "blobs") {
			blobs[target] = true
		}
		return nil
	})
	return blobs, err
}

// refsTo returns the names of the branches and tags in folder that point to
// commit.
func refsTo(folder, commit string) (names []string, err error) {
	err = filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(text)) != commit {
			return err
		}
		name, err := filepath.Rel(folder, path)
		names = append(names, filepath.ToSlash(name))
		return err
	})
	return names, err
}

// Remove deletes the files, unless a process is downloading from the repository.
func (r *Removal) Remove() error {
	locks := locksFolder(filepath.Dir(r.dir), r.Repo)
	entries, err := os.ReadDir(locks)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		release, err := tryLock(filepath.Join(locks, e.Name()))
		if err != nil {
			return fmt.Errorf("%s: %w", r.Repo, oserr.Bare(err))
		}
		defer release()
	}
	// in this order, so that an interruption leaves nothing that looks like a model
	var paths []string
	if r.Commit == "" {
		paths = []string{filepath.Join(r.dir, "refs"), filepath.Join(r.dir, "snapshots"), r.dir, locks}
	} else {
		for _, name := range r.Refs {
			paths = append(paths, filepath.Join(r.dir, "refs", filepath.FromSlash(name)))
		}
		paths = slices.Concat(paths, []string{r.Folder}, r.blobs)
	}
	for _, path := range paths {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return r.removeShared()
}
