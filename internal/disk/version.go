package disk

import (
	"fmt"
	"io/fs"
	"syscall"
)

// Version identifies the content of a file without reading it: by its number on its
// disk, its size, and the times of the last changes of its content and of its
// attributes. A program can set the first of these times, but not the second, so a
// changed or replaced file has another version, and so has a copy. It reports false
// for a file that is not on a disk, such as an embedded one.
func Version(info fs.FileInfo) (string, bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", false
	}
	changed := changeTime(s)
	return fmt.Sprintf("%d %d %d %d.%09d", s.Ino, info.Size(), info.ModTime().UnixNano(), changed.Sec, changed.Nsec), true
}
