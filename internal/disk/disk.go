// Package disk says what is on disks, and what they have room for.
package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Existing returns path if it is there, or else the first folder above it that is.
func Existing(path string) string {
	for {
		_, err := os.Stat(path)
		parent := filepath.Dir(path)
		if !errors.Is(err, fs.ErrNotExist) || parent == path {
			return path
		}
		path = parent
	}
}

// IsFolder reports whether path is a folder, or a link to one.
func IsFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// Free returns how many bytes those who are not root can write to the disk that
// path is on, or will be on once it is made. Not all file systems tell.
func Free(path string) (int64, error) {
	path = Existing(path)
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return int64(s.Bavail) * int64(s.Bsize), nil
}
