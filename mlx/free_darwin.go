package mlx

import "golang.org/x/sys/unix"

// systemFree returns the main memory that the system counts as free, in bytes, or 0 if
// it is unknown.
func systemFree() int64 {
	size, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0
	}
	percent, err := unix.SysctlUint32("kern.memorystatus_level")
	if err != nil || percent > 100 {
		return 0
	}
	return int64(size / 100 * uint64(percent))
}
