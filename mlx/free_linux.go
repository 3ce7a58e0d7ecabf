package mlx

import (
	"bufio"
	"bytes"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// systemFree returns the main memory that the program can still take, in bytes, or 0 if
// it is unknown.
func systemFree() int64 { return freeIn(os.DirFS("/")) }

// freeIn reads the kernel's files below root. It returns MemAvailable, or less if the
// program's control groups limit it further.
func freeIn(root fs.FS) int64 {
	free := int64(math.MaxInt64)
	if kB, ok := field(root, "proc/meminfo", "MemAvailable:"); ok && kB < math.MaxInt64>>10 {
		free = kB << 10
	}
	groups, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(groups)) {
		// ID:CONTROLLERS:PATH; CONTROLLERS is empty in version 2
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(parts) != 3:
		case parts[1] == "":
			free = min(free, freeInGroup(root, "sys/fs/cgroup", parts[2], "memory.max", "memory.current", "inactive_file"))
		case strings.Contains(","+parts[1]+",", ",memory,"):
			free = min(free, freeInGroup(root, "sys/fs/cgroup/memory", parts[2], "memory.limit_in_bytes", "memory.usage_in_bytes",
				"total_inactive_file"))
		}
	}
	if free == math.MaxInt64 {
		return 0
	}
	return max(free, 1)
}

// freeInGroup returns the memory that a control group and its parents leave free. cached
// is the statistic of the page cache that the kernel reclaims when memory is short.
func freeInGroup(root fs.FS, mount, group, limit, usage, cached string) int64 {
	free := int64(math.MaxInt64)
	for dir := path.Clean("/" + group); ; dir = path.Dir(dir) {
		at := path.Join(mount, dir)
		most, ok := number(root, path.Join(at, limit))
		used, known := number(root, path.Join(at, usage))
		if ok && known {
			cache, _ := field(root, path.Join(at, "memory.stat"), cached)
			free = min(free, max(0, most-max(0, used-cache)))
		}
		if dir == "/" {
			return free
		}
	}
}

// number reads a file that holds a number, and reports whether it does: the file may
// hold "max" instead, for no limit.
func number(root fs.FS, name string) (int64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	return n, err == nil && n >= 0
}

// field reads the number that follows a key at the beginning of a line.
func field(root fs.FS, name, key string) (int64, bool) {
	f, err := root.Open(name)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) > 1 && words[0] == key {
			n, err := strconv.ParseInt(words[1], 10, 64)
			return n, err == nil && n >= 0
		}
	}
	return 0, false
}
