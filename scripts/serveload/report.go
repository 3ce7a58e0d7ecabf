package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// A report is what was seen. Times are in seconds, memory in bytes.
type report struct {
	Machine string  `json:"machine"`
	Rests   []rest  `json:"rests,omitempty"` // of a soak
	Values  []value `json:"values"`
	Checks  []check `json:"checks"`
}

// A value is a row of the table.
type value struct {
	Name   string  `json:"name"`
	Number float64 `json:"value"`
	Unit   string  `json:"unit,omitempty"`
}

// A check is a condition, and what was found instead.
type check struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Found string `json:"found"`
}

func (r *report) add(name string, number float64, unit string) {
	r.Values = append(r.Values, value{name, number, unit})
}

func (r *report) check(name string, ok bool, format string, args ...any) {
	r.Checks = append(r.Checks, check{name, ok, fmt.Sprintf(format, args...)})
}

// OK reports whether all checks hold.
func (r *report) OK() bool {
	return !slices.ContainsFunc(r.Checks, func(c check) bool { return !c.OK })
}

func (r *report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n%s", r.Machine, rests(r.Rests))
	for _, v := range r.Values {
		text := fmt.Sprintf("%.4g", v.Number)
		if v.Number == math.Trunc(v.Number) {
			text = fmt.Sprintf("%.0f", v.Number)
		}
		fmt.Fprintf(&b, "%-48s %s\n", v.Name, strings.TrimSpace(text+" "+v.Unit))
	}
	b.WriteByte('\n')
	for _, c := range r.Checks {
		verdict := "ok  "
		if !c.OK {
			verdict = "FAIL"
		}
		fmt.Fprintf(&b, "%s  %-44s %s\n", verdict, c.Name, c.Found)
	}
	return b.String()
}

// percentiles adds the percentiles of values.
func (r *report) percentiles(name string, values []float64, unit string) {
	for _, p := range []float64{50, 90, 99} {
		r.add(fmt.Sprintf("%s, p%.0f", name, p), percentile(values, p), unit)
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

// slope returns by how much y grows in a unit of x, by least squares.
func slope(x, y []float64) float64 {
	var mx, my, xy, xx float64
	for i := range x {
		mx, my = mx+x[i]/float64(len(x)), my+y[i]/float64(len(y))
	}
	for i := range x {
		xy += (x[i] - mx) * (y[i] - my)
		xx += (x[i] - mx) * (x[i] - mx)
	}
	if xx == 0 {
		return 0
	}
	return xy / xx
}

// memory reports how the server's memory grew after the first two fifths of the samples, in which
// the server fills what it keeps for a while: jobs that have ended, and the gallery.
func (r *report) memory(samples []rest, leeway float64) {
	later := samples[len(samples)*2/5:]
	if len(later) < 3 {
		r.check("memory", false, "%d samples are too few", len(samples))
		return
	}
	for _, one := range []struct {
		name string
		of   func(rest) float64
	}{
		{"resident memory", func(s rest) float64 { return s.Resident }},
		{"MLX's memory between and in jobs", func(s rest) float64 { return s.Active }},
		{"largest memory of an image", func(s rest) float64 { return s.Peak }},
	} {
		var x, y []float64
		for _, s := range later {
			x, y = append(x, s.Seconds/60), append(y, one.of(s))
		}
		middle := percentile(y, 50)
		if middle == 0 {
			continue // not known for this server
		}
		growth := slope(x, y)
		r.add(one.name+", p50", middle/1e6, "MB")
		r.add(one.name+", maximum", slices.Max(y)/1e6, "MB")
		r.add(one.name+", slope", growth/1e6, "MB/min")
		grown := growth * (x[len(x)-1] - x[0])
		r.check(one.name+" is flat", grown < leeway*middle, "grew by %.1f of %.1f MB in %.1f minutes", grown/1e6, middle/1e6,
			x[len(x)-1]-x[0])
	}
}
