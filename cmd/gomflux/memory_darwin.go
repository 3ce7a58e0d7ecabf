package main

import "golang.org/x/sys/unix"

// systemMemory is the machine's main memory in bytes.
func systemMemory() uint64 {
	n, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0
	}
	return n
}
