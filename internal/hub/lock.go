package hub

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/gomflux/gomflux/internal/filelock"
)

// locksFolder is where the locks of a repository's files are, as Python's
// huggingface_hub has them: files of their own, never removed, held with flock.
func locksFolder(cache, repo string) string {
	return filepath.Join(cache, ".locks", folderName(repo))
}

// errLocked is that another process holds a lock.
var errLocked = errors.New("another process is fetching it")

// tryLock takes a lock.
func tryLock(path string) (release func(), err error) {
	release, err = filelock.Try(path)
	return release, lockError(path, err)
}

// lock waits for a lock, and says so once.
func lock(ctx context.Context, path string, waiting func()) (release func(), err error) {
	release, err = filelock.Wait(ctx, path, waiting)
	return release, lockError(path, err)
}

func lockError(path string, err error) error {
	if errors.Is(err, filelock.ErrHeld) {
		return errLocked
	}
	if e, ok := errors.AsType[*filelock.Error](err); ok {
		return fmt.Errorf("%s: cannot be locked: %w (HF_HUB_CACHE puts the cache onto another disk)", path, e)
	}
	return err
}
