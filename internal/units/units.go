// Package units formats numbers of bytes in decimal units.
package units

import "fmt"

// A unit is used for numbers from a minimum on.
type unit struct {
	from   int64
	size   float64
	format string
}

// write uses the first unit whose minimum n reaches, or the last one. The units
// are sorted from large to small.
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

// Bytes formats n in kB, MB or GB: 1 kB, 15.5 MB, 12.31 GB.
func Bytes(n int64) string { return write(n, gigabytes, megabytes, kilobytes) }

// Megabytes is [Bytes] without kB, for numbers that are rarely that small.
func Megabytes(n int64) string { return write(n, gigabytes, megabytes) }

// Gigabytes is [Megabytes] with GB from 0.1 GB on, for comparisons with numbers in
// GB: 15.5 MB, 0.12 GB.
func Gigabytes(n int64) string {
	tenths := gigabytes
	tenths.from = 1e8
	return write(n, tenths, megabytes)
}

// About formats an approximate number: 120 MB, 12.3 GB.
func About(n int64) string {
	return write(n, unit{1e9, 1e9, "%.1f GB"}, unit{0, 1e6, "%.0f MB"})
}
