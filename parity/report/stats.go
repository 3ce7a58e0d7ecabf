package report

import (
	"fmt"
	"math"

	"github.com/gomflux/gomflux/parity/hints"
	"github.com/gomflux/gomflux/parity/runs"
)

// A StatsDifference compares the statistics of two tensors, where not both have values. The errors
// of Min, Max, Mean and Std, and the largest one of the first ten values, are relative to Scale.
type StatsDifference struct {
	OK   bool   `json:"ok"`
	Min  Number `json:"min"`
	Max  Number `json:"max"`
	Mean Number `json:"mean"`
	Std  Number `json:"std"`
	// First is the largest error of the first values; NaN if a side lacks them.
	First Number `json:"first_values"`
	// Scale is the reference's range, or its largest absolute value if that is more.
	Scale     Number `json:"scale"`
	Tolerance Number `json:"allowed"` // of every error
	Got       Range  `json:"range"`
	Ref       Range  `json:"reference_range"`
}

// compareStats compares two records of tensors of one shape. If all values of a tensor are within
// a tolerance relative to the largest value, so are its statistics.
func compareStats(got, want runs.Record, tolerance Number) *StatsDifference {
	g, w := rangeOf(got.Stats), rangeOf(want.Stats)
	scale := max(w.Max-w.Min, w.Max, -w.Max, w.Min, -w.Min)
	relative := func(a, b Number) Number { return Ratio(max(a-b, b-a), scale) }
	d := &StatsDifference{
		Min: relative(g.Min, w.Min), Max: relative(g.Max, w.Max), Mean: relative(g.Mean, w.Mean), Std: relative(g.Std, w.Std),
		First: Number(math.NaN()), Scale: scale, Got: g, Ref: w, Tolerance: tolerance,
	}
	for i := range min(len(got.Preview), len(want.Preview)) {
		a, b := Number(got.Preview[i]), Number(want.Preview[i])
		e := relative(a, b)
		switch {
		case a == b || math.IsNaN(float64(a)) && math.IsNaN(float64(b)):
			e = 0
		case math.IsNaN(float64(e)):
			e = Infinite
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
	t.Got, t.Ref = First(got.Preview), First(want.Preview)
	if !t.SameShape() {
		t.Guess = hints.Shapes(t.Shape, t.RefShape)
		return
	}
	t.Stats = compareStats(got, want, tolerance.Max)
}

// largest returns the largest error; 0 for nil.
func (d *StatsDifference) largest() Number {
	if d == nil {
		return 0
	}
	e := max(d.Min, d.Max, d.Mean, d.Std)
	if d.First > e { // it may be NaN
		e = d.First
	}
	return e
}

func (d *StatsDifference) String() string {
	if d.Got.NaN+d.Got.Inf != d.Ref.NaN+d.Ref.Inf {
		return fmt.Sprintf("%d values that are not finite, the reference's %d", d.Got.NaN+d.Got.Inf, d.Ref.NaN+d.Ref.Inf)
	}
	text := fmt.Sprintf("statistics: min off by %s, max %s, mean %s, std %s of %.3g", ErrorText(d.Min), ErrorText(d.Max),
		ErrorText(d.Mean), ErrorText(d.Std), d.Scale)
	if !math.IsNaN(float64(d.First)) {
		text += ", first values " + ErrorText(d.First)
	}
	return text
}
