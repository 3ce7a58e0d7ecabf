package cli

import "golang.org/x/sys/unix"

// SystemMemory is the machine's main memory in bytes.
func SystemMemory() uint64 {
	n, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0
	}
	return n
}

// processorName returns the name of the chip, such as Apple M3 Max.
func processorName() string {
	name, _ := unix.Sysctl("machdep.cpu.brand_string")
	return name
}

// systemName returns the name and version of the operating system.
func systemName() string {
	version, err := unix.Sysctl("kern.osproductversion")
	if err != nil {
		return ""
	}
	return "macOS " + version
}

// driverVersion is empty: on a Mac the driver is a part of the system.
func driverVersion() string { return "" }
