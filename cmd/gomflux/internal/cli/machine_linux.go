package cli

import (
	"os"
	"strings"
	"syscall"
)

// SystemMemory is the machine's main memory in bytes, which MLX's CPU device
// does not tell on Linux.
func SystemMemory() uint64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0
	}
	return uint64(info.Totalram) * uint64(info.Unit)
}

// processorName returns the name of the processor, "" where Linux does not know it.
func processorName() string { return valueOf("/proc/cpuinfo", "model name", ":") }

// systemName returns the name and version of the distribution.
func systemName() string { return strings.Trim(valueOf("/etc/os-release", "PRETTY_NAME", "="), `"`) }

// driverVersion returns the version of NVIDIA's driver, "" without one.
func driverVersion() string {
	text, err := os.ReadFile("/sys/module/nvidia/version")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// valueOf returns the first value of a key in a file of lines, or "".
func valueOf(file, key, separator string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, separator); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
