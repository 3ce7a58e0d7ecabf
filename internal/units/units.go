// Package units writes numbers of bytes for people, in decimal units.
package units

import "fmt"

// A unit is what numbers are written in from a smallest one on.
type unit struct {
	from   int64
	size   float64
	format string
}

// write takes the first unit that n is large enough for, or the last one. Larger
// ones come first.
func write(n int64, units ...unit) string {
	for len(units) > 1 && n < units[0].from {
		units = units[1:]
	}
	return fmt.Sprintf(units[0].format, float64(n)/units[0].size)
}

var (
	kilobytes = unit{0, 1e3, "%.0f kB"}
	megabytes = unit{1e6, 1e6, "%.1f MB"}
	gigabytes = unit{1e9, 1e9, "%.2f GB"}
)

// Bytes writes kB, MB or GB: 1 kB, 15.5 MB, 12.31 GB.
func Bytes(n int64) string { return write(n, gigabytes, megabytes, kilobytes) }

// Megabytes is [Bytes] without kB, for what is rarely that small.
func Megabytes(n int64) string { return write(n, gigabytes, megabytes) }

// Gigabytes is [Megabytes] with GB from a tenth of one on, to compare with what
// are mostly GB: 15.5 MB, 0.12 GB.
func Gigabytes(n int64) string {
	tenths := gigabytes
	tenths.from = 1e8
	return write(n, tenths, megabytes)
}

// About writes what is not known more exactly: 120 MB, 12.3 GB.
func About(n int64) string {
	return write(n, unit{1e9, 1e9, "%.1f GB"}, unit{0, 1e6, "%.0f MB"})
}
