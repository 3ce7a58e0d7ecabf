package hub

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gomflux/gomflux/internal/oserr"
)

// locksFolder is where the locks of a repository's files are, as Python's
// huggingface_hub has them: files of their own, never removed, held with flock.
func locksFolder(cache, repo string) string {
	return filepath.Join(cache, ".locks", folderName(repo))
}

// errLocked is that another process holds a lock.
var errLocked = errors.New("another process is fetching it")

// tryLock takes a lock, which ends with the process if it is not released.
func tryLock(path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o664)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != syscall.EINTR {
			break
		}
	}
	if err == nil {
		// it may have been removed, with its folder, before it was held
		held, err1 := f.Stat()
		there, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(held, there) {
			return func() { f.Close() }, nil
		}
		err = syscall.EWOULDBLOCK
	}
	f.Close()
	if err == syscall.EWOULDBLOCK || err == syscall.EACCES {
		return nil, errLocked
	}
	return nil, fmt.Errorf("%s: cannot be locked: %w (HF_HUB_CACHE puts the cache onto another disk)", path, oserr.Bare(err))
}

// lock waits for a lock, and says so once.
func lock(ctx context.Context, path string, waiting func()) (release func(), err error) {
	for told := false; ; told = true {
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return nil, err
		}
		release, err = tryLock(path)
		if !errors.Is(err, errLocked) && !errors.Is(err, os.ErrNotExist) {
			return release, err
		}
		if !told {
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
