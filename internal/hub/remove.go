package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/oserr"
)

// A Removal is what can be removed of a repository in the cache: all of it, or
// one of several snapshots.
type Removal struct {
	Repo   string
	Commit string // of the snapshot; "" for the whole repository
	// Refs are the branches and tags that lead to the snapshot, by name.
	Refs []string
	// Folder is the repository's, or the snapshot's.
	Folder string
	// Bytes is how much it frees: of a repository all revisions and unfinished
	// files together, of a snapshot the files that no other one has.
	Bytes int64

	dir   string // the repository's folder
	blobs []string
}

// Removable finds what there is to remove of a repository: with a branch, a tag
// or a commit the snapshot of that, otherwise all. The last snapshot that there
// is takes the whole repository with it, as with huggingface_hub's
// delete_revisions. No links are followed.
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
		return nil, fmt.Errorf("%s: %s is no folder but leads elsewhere, so it is left alone", repo, dir)
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
		commits = slices.DeleteFunc(commits, func(c fs.DirEntry) bool { return c.Type().IsRegular() }) // a system's own
		if len(commits) > 1 {
			r.Commit, r.Folder = filepath.Base(snapshot), snapshot
			if err := r.snapshot(commits); err != nil {
				return nil, fmt.Errorf("%s: %w", repo, err)
			}
			return r, nil
		}
	}
	r.Bytes, err = regularBytes(dir)
	return r, err
}

// snapshot finds out what goes with the snapshot, and what others need of it.
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
	if r.Bytes, err = regularBytes(r.Folder); err != nil { // of files that are no links
		return err
	}
	for blob := range own {
		info, err := os.Lstat(blob)
		if errors.Is(err, fs.ErrNotExist) {
			continue // an unfinished download
		}
		if err != nil {
			return err
		}
		r.blobs = append(r.blobs, blob)
		r.Bytes += info.Size()
	}
	slices.Sort(r.blobs)
	return nil
}

// blobsOf are the repository's blobs that the links of a snapshot lead to.
// Links elsewhere are not the cache's.
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

// refsTo are the names below a folder of references that a commit has.
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

// regularBytes is the size of all files in a folder. Links count where they lead
// to.
func regularBytes(folder string) (n int64, err error) {
	err = filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n, err
}

// Remove removes it, unless somebody is fetching something of the repository.
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
	// in this order, so that what is left by an interruption is not taken for a
	// model
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
	return nil
}
