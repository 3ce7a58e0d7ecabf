package parity

import (
	"fmt"
	"math"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// absoluteFloor is what two implementations may differ by around zero.
const absoluteFloor = 1e-7

// guard keeps relative differences of single values from blowing up around
// zero: a reference value counts as at least this part of the largest one.
const guard = 1e-3

// A Difference is what lies between a tensor and its reference.
type Difference struct {
	Max     float64 // largest absolute error
	MaxRef  float64 // largest absolute reference value
	Mean    float64 // mean absolute error
	Guarded float64 // largest relative error, where a reference value is at least a thousandth of the largest
	Cosine  float64 // of the angle between both, 1 for equal directions
	L2      float64 // norm of the error over the reference's norm
	// Channel is the largest L2 of a channel. A channel counts as at least as
	// large as the median one, so that what is left of large values that cancel
	// is no error; those of less than 16 values are left out.
	Channel   float64
	ChannelAt int
	At        int  // where the largest error is, in row-major order
	Count     int  // of values
	Over      int  // of them beyond ATol + RTol·|reference|
	Finite    bool // both are finite everywhere
	ATol      float64
	RTol      float64
	Got, Ref  Range
}

// A Range is what values a tensor has. Where nothing is finite, it is zero and not
// NaN as in [checkpoint.Stats], and so is the JSON.
type Range struct {
	Min, Max, Mean, Std float64
	NaN, Inf            int
}

func rangeOf(values []float32) Range {
	s := checkpoint.Summarize(values)
	r := Range{NaN: s.NaN, Inf: s.Inf}
	if s.NaN+s.Inf < len(values) {
		r.Min, r.Max, r.Mean, r.Std = float64(s.Min), float64(s.Max), float64(s.Mean), float64(s.Std)
	}
	return r
}

// Compare measures got against want, which must be of one length.
func Compare(got, want []float32) Difference {
	d := Difference{Finite: true, Count: len(want), Got: rangeOf(got), Ref: rangeOf(want)}
	var errors, absolute, norm, own, dot float64
	for i, w := range want {
		g, w := float64(got[i]), float64(w)
		e := math.Abs(g - w)
		if math.IsNaN(e) || math.IsInf(e, 0) {
			d.Finite, d.At = false, i
			continue
		}
		errors += e * e
		absolute += e
		norm += w * w
		own += g * g
		dot += g * w
		if e > d.Max {
			d.Max, d.At = e, i
		}
		d.MaxRef = max(d.MaxRef, math.Abs(w))
	}
	for i, w := range want {
		if e := math.Abs(float64(got[i]) - float64(w)); e > 0 {
			d.Guarded = max(d.Guarded, e/max(math.Abs(float64(w)), guard*d.MaxRef))
		}
	}
	if len(want) > 0 {
		d.Mean = absolute / float64(len(want))
	}
	d.L2 = ratio(math.Sqrt(errors), math.Sqrt(norm))
	d.Cosine = 1
	if errors > 0 {
		d.Cosine = dot / math.Sqrt(own*norm)
	}
	return d
}

// channels measures L2 for each index of an axis.
func (d *Difference) channels(got, want []float32, shape []int, axis int) {
	n, inner := shape[axis], 1
	if len(want) < 16*n {
		return // of a few values the relative error is that of their cancellation
	}
	for _, s := range shape[axis+1:] {
		inner *= s
	}
	errors, norms := make([]float64, n), make([]float64, n)
	for i, w := range want {
		c := i / inner % n
		e := float64(got[i]) - float64(w)
		errors[c] += e * e
		norms[c] += float64(w) * float64(w)
	}
	sorted := slices.Sorted(slices.Values(norms))
	floor := sorted[n/2]
	for c, e := range errors {
		if l2 := ratio(math.Sqrt(e), math.Sqrt(max(norms[c], floor))); l2 > d.Channel {
			d.Channel, d.ChannelAt = l2, c
		}
	}
}

// count counts as numpy's allclose does, and the seeds of this project.
func (d *Difference) count(got, want []float32, atol, rtol float64) {
	d.ATol, d.RTol = atol, rtol
	for i, w := range want {
		if e := math.Abs(float64(got[i]) - float64(w)); !(e <= atol+rtol*math.Abs(float64(w))) {
			d.Over++
		}
	}
}

// Relative is the largest error over the largest reference value.
func (d Difference) Relative() float64 { return ratio(d.Max, d.MaxRef) }

// ratio is an error over its reference, 0 where there is no error.
func ratio(e, ref float64) float64 {
	if e == 0 {
		return 0
	}
	return e / ref
}

// Within says whether the difference is one of rounding.
func (d Difference) Within(t Tolerance) bool {
	return d.Finite && (d.Max <= absoluteFloor || d.Relative() <= t.Max && d.L2 <= t.L2 && (t.Channel == 0 || d.Channel <= t.Channel))
}

func (d Difference) String() string {
	if !d.Finite {
		return fmt.Sprintf("not finite at %d", d.At)
	}
	return fmt.Sprintf("max %.2e of %.3g (%.2e) at %d, L2 %.2e", d.Max, d.MaxRef, d.Relative(), d.At, d.L2)
}
