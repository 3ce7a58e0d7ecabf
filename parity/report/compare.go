package report

import (
	"fmt"
	"math"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// absoluteFloor is the difference that is always allowed, for values around zero.
const absoluteFloor = 1e-7

// guard keeps relative differences of single values finite around zero: a reference value counts
// as at least this part of the largest one.
const guard = 1e-3

// A Difference measures how far a tensor is from its reference.
type Difference struct {
	Max    Number `json:"max_abs"`       // largest absolute error
	Mean   Number `json:"mean_abs"`      // mean absolute error
	MaxRef Number `json:"max_reference"` // largest absolute reference value
	// Guarded is the largest relative error; reference values count as at least a thousandth of the largest.
	Guarded Number `json:"max_rel"`
	Cosine  Number `json:"cosine"` // of the angle between both, 1 for equal directions
	L2      Number `json:"l2"`     // norm of the error over the reference's norm
	// Channel is the largest L2 of a channel. The norm of a channel counts as at least the
	// median one, so that the remainder of large values that cancel is no error. Tensors with
	// fewer than 16 values in each channel have no such error.
	Channel   Number `json:"channel_l2"`
	ChannelAt int    `json:"channel"`
	At        int    `json:"at"`     // index of the largest error, in row-major order
	Count     int    `json:"count"`  // number of values
	Over      int    `json:"beyond"` // number of values with an error above ATol + RTol·|reference|
	ATol      Number `json:"atol"`
	RTol      Number `json:"rtol"`
	Finite    bool   `json:"finite"` // both are finite everywhere
	Got       Range  `json:"range"`
	Ref       Range  `json:"reference_range"`
}

// A Range has statistics of a tensor. They are 0 where nothing is finite, and not NaN as in
// [checkpoint.Stats], also in JSON.
type Range struct {
	Min  Number `json:"min"`
	Max  Number `json:"max"`
	Mean Number `json:"mean"`
	Std  Number `json:"std"`
	NaN  int    `json:"nan"`
	Inf  int    `json:"inf"`
}

func rangeOf(s checkpoint.Stats) Range {
	r := Range{NaN: s.NaN, Inf: s.Inf}
	if !math.IsNaN(float64(s.Min)) {
		r.Min, r.Max, r.Mean, r.Std = Number(s.Min), Number(s.Max), Number(s.Mean), Number(s.Std)
	}
	return r
}

// Compare measures got against want, which must have the same length.
func Compare[T float32 | float64](got, want []T) Difference {
	d := Difference{Finite: true, Count: len(want), Got: rangeOf(checkpoint.Summarize(got)), Ref: rangeOf(checkpoint.Summarize(want))}
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
		if e > float64(d.Max) {
			d.Max, d.At = Number(e), i
		}
		d.MaxRef = max(d.MaxRef, Number(math.Abs(w)))
	}
	for i, w := range want {
		if e := math.Abs(float64(got[i]) - float64(w)); e > 0 {
			d.Guarded = max(d.Guarded, Number(e)/max(Number(math.Abs(float64(w))), guard*d.MaxRef))
		}
	}
	if len(want) > 0 {
		d.Mean = Number(absolute / float64(len(want)))
	}
	d.L2 = Ratio(math.Sqrt(errors), math.Sqrt(norm))
	d.Cosine = 1
	if errors > 0 {
		d.Cosine = Number(dot / math.Sqrt(own*norm))
	}
	return d
}

// worstChannel returns the largest L2 error of an index of an axis, and that index.
func worstChannel[T float32 | float64](got, want []T, shape []int, axis int) (worst Number, at int) {
	n, inner := shape[axis], checkpoint.Len(shape[axis+1:])
	if len(want) < 16*n {
		return 0, 0 // few values may cancel, which makes a large relative error
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
		if l2 := Ratio(math.Sqrt(e), math.Sqrt(max(norms[c], floor))); l2 > worst {
			worst, at = l2, c
		}
	}
	return worst, at
}

// beyond counts the values that numpy's allclose rejects.
func beyond[T float32 | float64](got, want []T, atol, rtol Number) (over int) {
	for i, w := range want {
		if e := math.Abs(float64(got[i]) - float64(w)); got[i] != w && !(e <= float64(atol)+float64(rtol)*math.Abs(float64(w))) {
			over++
		}
	}
	return over
}

// Relative returns the largest error over the largest reference value.
func (d Difference) Relative() Number { return Ratio(d.Max, d.MaxRef) }

// Ratio returns an error over its reference, or 0 if there is no error.
func Ratio[T float64 | Number](e, ref T) Number {
	if e == 0 {
		return 0
	}
	return Number(e / ref)
}

// Within reports whether the difference is within a tolerance.
func (d Difference) Within(t Tolerance) bool {
	channels := t.Channel == 0 || d.Channel <= t.Channel
	return d.Finite && (d.Max <= absoluteFloor || d.Relative() <= t.Max && d.L2 <= t.L2 && channels)
}

func (d Difference) String() string {
	if !d.Finite {
		return fmt.Sprintf("not finite at %d", d.At)
	}
	return fmt.Sprintf("max %.2e of %.3g (%.2e) at %d, L2 %.2e", d.Max, d.MaxRef, d.Relative(), d.At, d.L2)
}

// RelativeL2 returns the L2 norm of the error of values, relative to the L2 norm of the exact ones,
// of which there must be as many. It is infinite if a value is not finite where the exact one is.
func RelativeL2(values, exact []float32) Number {
	var errors, norm float64
	for i, w := range exact {
		e := float64(values[i]) - float64(w)
		if values[i] == w { // both may be infinite
			e = 0
		}
		errors += e * e
		norm += float64(w) * float64(w)
	}
	if math.IsNaN(errors) {
		return Infinite
	}
	return Ratio(math.Sqrt(errors), math.Sqrt(norm))
}
