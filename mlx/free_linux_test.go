package mlx

import (
	"testing"
	"testing/fstest"
)

// files returns a file system with files of the kernel, from pairs of name and text.
func files(pairs ...string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		fsys[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return fsys
}

func TestFreeIn(t *testing.T) {
	const meminfo = "MemTotal:       16000 kB\nMemFree:          100 kB\nMemAvailable:    8000 kB\n"
	const unlimited = "9223372036854771712\n"
	for _, c := range []struct {
		name string
		fsys fstest.MapFS
		want int64
	}{
		{"nothing", files(), 0},
		{"no such line", files("proc/meminfo", "MemFree: 1 kB\n"), 0},
		{"no number", files("proc/meminfo", "MemAvailable: much kB\n"), 0},
		{"available", files("proc/meminfo", meminfo), 8000 << 10},
		{"a group without a limit", files("proc/meminfo", meminfo, "proc/self/cgroup", "0::/a\n",
			"sys/fs/cgroup/a/memory.max", "max\n", "sys/fs/cgroup/a/memory.current", "5\n"), 8000 << 10},
		{"a group with a limit, and its cache", files("proc/meminfo", meminfo, "proc/self/cgroup", "0::/a\n",
			"sys/fs/cgroup/a/memory.max", "5000000\n", "sys/fs/cgroup/a/memory.current", "3000000\n",
			"sys/fs/cgroup/a/memory.stat", "anon 1\nfile 7\ninactive_file 1000000\n"), 3000000},
		{"the group around it has the limit", files("proc/meminfo", meminfo, "proc/self/cgroup", "0::/a/b\n",
			"sys/fs/cgroup/a/memory.max", "5000000\n", "sys/fs/cgroup/a/memory.current", "1000000\n",
			"sys/fs/cgroup/a/b/memory.max", "max\n", "sys/fs/cgroup/a/b/memory.current", "1\n"), 4000000},
		{"a container sees its own group as the root", files("proc/meminfo", meminfo, "proc/self/cgroup", "0::/not/there\n",
			"sys/fs/cgroup/memory.max", "5000000\n", "sys/fs/cgroup/memory.current", "1000000\n"), 4000000},
		{"more is taken than the limit", files("proc/meminfo", meminfo, "proc/self/cgroup", "0::/\n",
			"sys/fs/cgroup/memory.max", "5\n", "sys/fs/cgroup/memory.current", "6\n"), 1},
		{"version 1", files("proc/meminfo", meminfo, "proc/self/cgroup", "5:cpu,memory:/a:b\n4:cpuset:/\n0::/\n",
			"sys/fs/cgroup/memory/a:b/memory.limit_in_bytes", "2000\n", "sys/fs/cgroup/memory/a:b/memory.usage_in_bytes", "500\n",
			"sys/fs/cgroup/memory/a:b/memory.stat", "inactive_file 400\ntotal_inactive_file 300\n"), 1800},
		{"version 1 without a limit", files("proc/meminfo", meminfo, "proc/self/cgroup", "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes", unlimited, "sys/fs/cgroup/memory/memory.usage_in_bytes", "500\n"), 8000 << 10},
	} {
		if got := freeIn(c.fsys); got != c.want {
			t.Errorf("%s: %d, expected %d", c.name, got, c.want)
		}
	}
}

func FuzzFreeIn(f *testing.F) {
	f.Add("MemAvailable: 8000 kB\n", "0::/a\n", "max\n")
	f.Add("MemAvailable: 9223372036854775807 kB\n", "4:memory:/../..\n", "-1")
	f.Fuzz(func(t *testing.T, meminfo, groups, limit string) {
		fsys := files("proc/meminfo", meminfo, "proc/self/cgroup", groups, "sys/fs/cgroup/memory.max", limit,
			"sys/fs/cgroup/memory.current", limit, "sys/fs/cgroup/memory/memory.limit_in_bytes", limit)
		if n := freeIn(fsys); n < 0 {
			t.Errorf("%d bytes", n)
		}
	})
}
