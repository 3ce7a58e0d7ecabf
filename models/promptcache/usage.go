package promptcache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gomflux/gomflux/internal/atomicfile"
	"github.com/gomflux/gomflux/internal/oserr"
)

// An entry is a file of embeddings.
type entry struct {
	path string
	size int64
	used time.Time
}

// entries lists the files of embeddings, the least recently used first, and the
// temporary files of writers. It returns nothing for a folder that does not exist.
func (c *Cache) entries() (entries, temporaries []entry, err error) {
	list, err := os.ReadDir(c.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("folder %s: %w", c.dir, oserr.Bare(err))
	}
	for _, e := range list {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue // removed since
		}
		one := entry{filepath.Join(c.dir, e.Name()), info.Size(), info.ModTime()}
		switch {
		case fileName.MatchString(e.Name()):
			entries = append(entries, one)
		case atomicfile.IsTemporary(e.Name()):
			temporaries = append(temporaries, one)
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return a.used.Compare(b.used) })
	return entries, temporaries, nil
}

// makeRoom removes the files that were used least recently until a new file fits, and
// temporary files that killed processes have left. The caller holds the lock.
func (c *Cache) makeRoom(need int64) error {
	entries, temporaries, err := c.entries()
	if err != nil {
		return err
	}
	total := need
	for _, e := range entries {
		total += e.size
	}
	var excess []entry
	for _, e := range entries {
		if total <= c.size {
			break
		}
		total -= e.size
		excess = append(excess, e)
	}
	return remove(slices.Concat(temporaries, excess))
}

// remove removes files that may have been removed already.
func remove(files []entry) error {
	for _, f := range files {
		if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", f.path, oserr.Bare(err))
		}
	}
	return nil
}

// A Usage describes what a cache holds.
type Usage struct {
	Files int   // one for each text encoder of a prompt
	Bytes int64 // of all files
}

// Usage returns what the cache holds.
func (c *Cache) Usage() (u Usage, err error) {
	entries, temporaries, err := c.entries()
	for _, e := range entries {
		u.Files++
		u.Bytes += e.size
	}
	for _, e := range temporaries {
		u.Bytes += e.size
	}
	return u, err
}

// Clear removes everything that the cache has written, and the folder if it is empty
// then. It returns what it has removed.
func (c *Cache) Clear() (u Usage, err error) {
	if _, err := os.Stat(c.dir); errors.Is(err, fs.ErrNotExist) {
		return u, nil
	}
	release, err := c.lock()
	if err != nil {
		return u, err
	}
	if release == nil {
		return u, fmt.Errorf("folder %s: another process writes to it (try again)", c.dir)
	}
	defer release()
	entries, temporaries, err := c.entries()
	if err != nil {
		return u, err
	}
	if u, err = c.Usage(); err != nil {
		return u, err
	}
	own := []entry{{path: filepath.Join(c.dir, secretName)}, {path: filepath.Join(c.dir, lockName)}}
	if err := remove(slices.Concat(entries, temporaries, own)); err != nil {
		return Usage{}, err
	}
	os.Remove(c.dir) // fails if it has other files, which stay
	return u, nil
}
