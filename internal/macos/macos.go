// Package macos knows versions of macOS: the system's, and the oldest that a Mach-O file
// runs on.
package macos

import (
	"cmp"
	"debug/macho"
	"fmt"
	"strconv"
	"strings"
)

// A Version is a version of macOS. The zero value is an unknown one, or another system.
type Version struct{ Major, Minor int }

// String returns the version as in 26.2.
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Compare returns -1, 0 or 1 if v is older than w, the same, or newer.
func (v Version) Compare(w Version) int {
	return cmp.Or(cmp.Compare(v.Major, w.Major), cmp.Compare(v.Minor, w.Minor))
}

// Parse reads a version such as 26.2 or 15.
func Parse(text string) (Version, error) {
	major, minor, dotted := strings.Cut(text, ".")
	if !dotted {
		minor = "0"
	}
	a, err := strconv.ParseUint(major, 10, 16)
	b, err2 := strconv.ParseUint(minor, 10, 16)
	if err = cmp.Or(err, err2); err != nil {
		return Version{}, fmt.Errorf("version %q: expected one like 26.2: %w", text, err)
	}
	return Version{int(a), int(b)}, nil
}

// ofKernel returns the version of macOS whose Darwin kernel has this release, such as
// 25.2.0, or the zero value. Until macOS 15 the kernel was 9 ahead, and since macOS 26 it is
// 1 behind; the second numbers are the same.
func ofKernel(release string) Version {
	major, rest, _ := strings.Cut(release, ".")
	minor, _, _ := strings.Cut(rest, ".")
	v, err := Parse(major + "." + minor)
	switch {
	case err != nil || v.Major < 20:
		return Version{}
	case v.Major < 25:
		v.Major -= 9
	default:
		v.Major++
	}
	return v
}

// buildVersion is the load command LC_BUILD_VERSION.
const buildVersion = 0x32

// Minimum returns the oldest version of macOS on which a program or library runs.
func Minimum(path string) (Version, error) {
	f, err := macho.Open(path)
	if err != nil {
		return Version{}, fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	for _, l := range f.Loads {
		raw := l.Raw()
		if len(raw) < 16 || f.ByteOrder.Uint32(raw) != buildVersion {
			continue
		}
		// platform, then the version as 16 bits and twice 8
		minimum := f.ByteOrder.Uint32(raw[12:])
		return Version{int(minimum >> 16), int(minimum >> 8 & 0xff)}, nil
	}
	return Version{}, fmt.Errorf("%s: no LC_BUILD_VERSION, which has the oldest macOS that it runs on", path)
}
