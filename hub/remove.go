package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gomflux/gomflux/internal/oserr"
)

// Stored is how many bytes a repository's folder in the cache has, all
// revisions and unfinished files together, and where it is.
func Stored(repo string) (folder string, bytes int64, err error) {
	if !IsRepo(repo) {
		return "", 0, fmt.Errorf("%q is not the name of a repository (owner/name)", repo)
	}
	cache, err := Cache()
	if err != nil {
		return "", 0, err
	}
	folder = filepath.Join(cache, folderName(repo))
	info, err := os.Lstat(folder)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", 0, fmt.Errorf("%s: %w %s", repo, ErrNotCached, cache)
	case err != nil:
		return "", 0, fmt.Errorf("%s: %w", repo, err)
	case !info.IsDir():
		return "", 0, fmt.Errorf("%s: %s is no folder but leads elsewhere, so it is left alone", repo, folder)
	}
	err = filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() { // links count where they lead to
			return err
		}
		info, err := d.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	return folder, bytes, err
}

// Remove deletes a repository's folder in the cache, with all revisions and
// unfinished files, unless somebody is fetching one of them. It follows no
// links. freed is what was in it.
func Remove(repo string) (freed int64, err error) {
	folder, freed, err := Stored(repo)
	if err != nil {
		return 0, err
	}
	locks := locksFolder(filepath.Dir(folder), repo)
	entries, err := os.ReadDir(locks)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	for _, e := range entries {
		release, err := tryLock(filepath.Join(locks, e.Name()))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", repo, oserr.Bare(err))
		}
		defer release()
	}
	// what is left by an interruption is not taken for a model
	for _, name := range []string{"refs", "snapshots", ""} {
		if err := os.RemoveAll(filepath.Join(folder, name)); err != nil {
			return 0, err
		}
	}
	return freed, os.RemoveAll(locks)
}
