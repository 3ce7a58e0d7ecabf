package macos

import "syscall"

// System returns the version of this system, or the zero value if it is unknown. The
// system itself calls macOS 26 16 in programs that were built for an older one, so the
// version comes from the kernel's.
func System() Version {
	release, err := syscall.Sysctl("kern.osrelease")
	if err != nil {
		return Version{}
	}
	return ofKernel(release)
}
