// Package disk finds folders, their sizes and free space on disks.
package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Existing returns path if it exists, otherwise the nearest parent folder that
// exists.
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

// ExpandHome replaces a leading ~ or ~/ with the user's home folder.
func ExpandHome(path string) string {
	if rest, ok := strings.CutPrefix(path+"/", "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	return path
}

// Free returns the free space, in bytes, for users other than root on the disk of
// path, which need not exist yet. Some file systems do not report it.
func Free(path string) (int64, error) {
	path = Existing(path)
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return int64(s.Bavail) * int64(s.Bsize), nil
}

// Size returns the size of all regular files in a folder, which need not exist. It follows no links.
func Size(folder string) (size int64, err error) {
	err = filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil && d.Type().IsRegular() {
			if info, err = d.Info(); err == nil {
				size += info.Size()
			}
		}
		if errors.Is(err, fs.ErrNotExist) { // moved or removed in the meantime, or never there
			return nil
		}
		return err
	})
	if err != nil {
		return size, fmt.Errorf("size of %s: %w", folder, err)
	}
	return size, nil
}
