package report

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/gomflux/gomflux/parity/hints"
	"github.com/gomflux/gomflux/parity/runs"
)

// A StatsDifference compares the statistics of two tensors, where not both have values. The errors
// of Min, Max, Mean and Std, and the largest one of the first ten values, are relative to Scale.
type StatsDifference struct {
	Min, Max, Mean, Std float64
	// First is the largest error of the first values; NaN if a side lacks them.
	First float64
	// Scale is the reference's range, or its largest absolute value if that is more.
	Scale     float64
	Got, Ref  Range
	Tolerance float64 // of every error
	OK        bool
}

// compareStats compares two records of tensors of one shape. If all values of a tensor are within
// a tolerance relative to the largest value, so are its statistics.
func compareStats(got, want runs.Record, tolerance float64) *StatsDifference {
	g, w := statsRange(got), statsRange(want)
	scale := max(w.Max-w.Min, math.Abs(w.Max), math.Abs(w.Min))
	relative := func(a, b float64) float64 { return Ratio(math.Abs(a-b), scale) }
	d := &StatsDifference{
		Min: relative(g.Min, w.Min), Max: relative(g.Max, w.Max), Mean: relative(g.Mean, w.Mean), Std: relative(g.Std, w.Std),
		First: math.NaN(), Scale: scale, Got: g, Ref: w, Tolerance: tolerance,
	}
	for i := range min(len(got.Preview), len(want.Preview)) {
		a, b := float64(got.Preview[i]), float64(want.Preview[i])
		e := relative(a, b)
		switch {
		case a == b || math.IsNaN(a) && math.IsNaN(b):
			e = 0
		case math.IsNaN(e):
			e = math.Inf(1)
		}
		if i == 0 || e > d.First {
			d.First = e
		}
	}
	d.OK = d.largest() <= tolerance && g.NaN == w.NaN && g.Inf == w.Inf
	return d
}

// MeasureStats compares the statistics of both sides, and shows the first values.
func (t *Tensor) MeasureStats(got, want runs.Record, tolerance Tolerance) {
	t.Got, t.Ref = previews(got), previews(want)
	if !t.SameShape() {
		t.Guess = hints.Shapes(t.Shape, t.RefShape)
		return
	}
	t.Stats = compareStats(got, want, tolerance.Max)
}

// largest returns the largest error; 0 for nil.
func (d *StatsDifference) largest() float64 {
	if d == nil {
		return 0
	}
	e := max(d.Min, d.Max, d.Mean, d.Std)
	if d.First > e { // it may be NaN
		e = d.First
	}
	return e
}

// statsRange returns the statistics of a record as those of values.
func statsRange(rec runs.Record) Range {
	s := rec.Stats
	r := Range{NaN: s.NaN, Inf: s.Inf}
	if !math.IsNaN(float64(s.Min)) {
		r.Min, r.Max, r.Mean, r.Std = float64(s.Min), float64(s.Max), float64(s.Mean), float64(s.Std)
	}
	return r
}

func (d *StatsDifference) String() string {
	if d.Got.NaN+d.Got.Inf != d.Ref.NaN+d.Ref.Inf {
		return fmt.Sprintf("%d values that are not finite, the reference's %d", d.Got.NaN+d.Got.Inf, d.Ref.NaN+d.Ref.Inf)
	}
	text := fmt.Sprintf("statistics: min off by %s, max %s, mean %s, std %s of %.3g", ErrorText(d.Min), ErrorText(d.Max),
		ErrorText(d.Mean), ErrorText(d.Std), d.Scale)
	if !math.IsNaN(d.First) {
		text += ", first values " + ErrorText(d.First)
	}
	return text
}

// MarshalJSON writes NaN and infinity as null.
func (d *StatsDifference) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		OK        bool     `json:"ok"`
		Min       *float64 `json:"min"`
		Max       *float64 `json:"max"`
		Mean      *float64 `json:"mean"`
		Std       *float64 `json:"std"`
		First     *float64 `json:"first_values"`
		Scale     *float64 `json:"scale"`
		Tolerance float64  `json:"allowed"`
		Got       Range    `json:"range"`
		Ref       Range    `json:"reference_range"`
	}{d.OK, Finite(d.Min), Finite(d.Max), Finite(d.Mean), Finite(d.Std), Finite(d.First), Finite(d.Scale), d.Tolerance, d.Got, d.Ref})
}
