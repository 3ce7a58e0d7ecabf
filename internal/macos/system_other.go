//go:build !darwin

package macos

// System returns the zero value: this system is not macOS.
func System() Version { return Version{} }
