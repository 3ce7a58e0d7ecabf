package main

import (
	"bufio"
	"fmt"
	"os"
	"syscall"
)

// systemMemory is the machine's main memory in bytes, which MLX's CPU device
// does not tell on Linux.
func systemMemory() uint64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0
	}
	return uint64(info.Totalram) * uint64(info.Unit)
}

// availableMemory is what programs can still take of it without that others are
// swapped out, in bytes; 0 if that is not known.
func availableMemory() uint64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kB uint64
		if n, _ := fmt.Sscanf(lines.Text(), "MemAvailable: %d kB", &kB); n == 1 {
			return kB << 10
		}
	}
	return 0
}
