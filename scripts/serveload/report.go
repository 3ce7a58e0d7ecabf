package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// A report prints what was seen.
type report struct {
	out    io.Writer
	checks int      // number of checks
	failed []string // names of those that do not hold
	rests  []sample // of a soak, when the server was idle
}

// row prints a row.
func (r *report) row(name, format string, args ...any) {
	fmt.Fprintf(r.out, "%-48s %s\n", name, fmt.Sprintf(format, args...))
}

// check prints whether a condition holds, and what was found.
func (r *report) check(name string, ok bool, format string, args ...any) {
	verdict := "ok    "
	if !ok {
		verdict = "FAIL  "
		r.failed = append(r.failed, name)
	}
	r.checks++
	r.row(verdict+name, format, args...)
}

var errNone = errors.New("no problem")

// right checks that there is no problem.
func (r *report) right(name string, problem error) {
	r.check(name, problem == nil, "%v", cmp.Or(problem, errNone))
}

// fairness reports the numbers of images of each client, and checks that they differ by a part at most.
func (r *report) fairness(counts []float64, leeway float64) {
	least, most, sum, squares := slices.Min(counts), slices.Max(counts), 0.0, 0.0
	for _, n := range counts {
		sum += n
		squares += n * n
	}
	mean := sum / float64(len(counts))
	r.check("clients get the same", most-least <= max(greedyJobs, leeway*mean), "%.0f to %.0f images, %.1f on average, Jain's index %.3f",
		least, most, mean, sum*mean/max(1, squares))
}

// percentiles reports values of which there are some.
func (r *report) percentiles(name string, values []float64) {
	if len(values) > 0 {
		r.row(name, "p50 %.4g, p90 %.4g, p99 %.4g, at most %.4g (%d)", percentile(values, 50), percentile(values, 90),
			percentile(values, 99), slices.Max(values), len(values))
	}
}

// percentile returns a percentile of values by the nearest rank, 0 of none.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(p/100*float64(len(sorted))))-1)]
}

// A sample has the metrics of the server at a time, and its resident memory in bytes, 0 if that is not known.
type sample struct {
	at      time.Time
	metrics map[string]float64
}

const resident = "resident" // among the metrics

// since returns by how much a metric has grown.
func (s sample) since(before sample, name string) float64 {
	return s.metrics[name] - before.metrics[name]
}

// memory reports how the server's memory grew after the first two fifths of the samples, in which
// the server fills what it keeps for a while: jobs that have ended, and the gallery. The medians of both halves of
// the others are compared, which are half of the time apart.
func (r *report) memory(samples []sample, leeway float64) {
	later := samples[len(samples)*2/5:]
	if len(later) < 3 {
		r.check("memory", false, "%d samples are too few", len(samples))
		return
	}
	minutes := later[len(later)-1].at.Sub(later[0].at).Minutes()
	for _, of := range [][2]string{
		{"resident memory", resident}, {"MLX's memory between and in jobs", "gomflux_memory_bytes"},
		{"largest memory of an image", "gomflux_peak_memory_bytes"},
	} {
		var all []float64
		for _, s := range later {
			all = append(all, s.metrics[of[1]]/1e6)
		}
		half := len(all) / 2
		middle, growth := percentile(all, 50), 2*(percentile(all[half:], 50)-percentile(all[:half], 50))
		if middle == 0 {
			continue // not known for this server
		}
		r.check(of[0]+" is flat", growth < leeway*middle, "median %.1f MB, at most %.1f MB, grew by %.1f MB in %.1f minutes",
			middle, slices.Max(all), growth, minutes)
	}
}
