package main

import "syscall"

// systemMemory is the machine's main memory in bytes, which MLX's CPU device
// does not tell on Linux.
func systemMemory() uint64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0
	}
	return uint64(info.Totalram) * uint64(info.Unit)
}
