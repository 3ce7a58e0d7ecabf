package hub

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/gomflux/gomflux/internal/filelock"
)

// locksFolder returns the folder of a repository's lock files. They are those of
// Python's huggingface_hub, held with flock and never removed.
func locksFolder(cache, repo string) string {
	return filepath.Join(cache, ".locks", folderName(repo))
}

// errLocked means that another process holds a lock.
var errLocked = errors.New("another process is downloading it")

// tryLock takes a lock, or returns errLocked at once.
func tryLock(path string) (release func(), err error) {
	release, err = filelock.Try(path)
	return release, lockError(path, err)
}

// lock takes a lock. If it has to wait, it calls waiting once.
func lock(ctx context.Context, path string, waiting func()) (release func(), err error) {
	release, err = filelock.Wait(ctx, path, waiting)
	return release, lockError(path, err)
}

func lockError(path string, err error) error {
	if errors.Is(err, filelock.ErrHeld) {
		return errLocked
	}
	if e, ok := errors.AsType[*filelock.Error](err); ok {
		return fmt.Errorf("%s: cannot lock: %w (set HF_HUB_CACHE to put the cache on another disk)", path, e)
	}
	return err
}
