package inspect

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// A TensorDifference is how a tensor of a model a differs from the one of the
// same name in b.
type TensorDifference struct {
	Name string
	A, B *TensorWeights
	// Shape is that of the elements, DtypeA and DtypeB how they are stored: a dtype,
	// or how they are quantized, of a matrix that is unpacked to be compared.
	Shape          []int
	DtypeA, DtypeB string
	// Mismatch says why the elements are not compared: their shapes differ, or a
	// dtype cannot be read as numbers. "" if they are.
	Mismatch string
	// Differing counts the elements that are not equal. A NaN is equal to a NaN.
	Differing int
	// Relative is ‖a-b‖/‖b‖, MaxAbs the largest |a-b|, Cosine that of the angle
	// between the two. They are NaN where something is not finite in one of them
	// only. Where b is zero and a is not, Relative is infinite; Cosine is NaN where
	// one of them is zero.
	Relative, MaxAbs, Cosine checkpoint.Float
}

// Within reports whether the tensors agree: exactly for a tolerance of 0, else
// with a Relative error of at most that.
func (d *TensorDifference) Within(tolerance float64) bool {
	return d.Mismatch == "" && (d.Differing == 0 || tolerance > 0 && float64(d.Relative) <= tolerance)
}

// elements is how many there are.
func (d *TensorDifference) elements() int {
	n := 1
	for _, axis := range d.Shape {
		n *= axis
	}
	return n
}

// A pair is two tensors of the same name, and how they differ.
type pair struct {
	*TensorDifference
	a, b *matrix
}

// newPair finds out of what shape and dtypes the two are, or why they cannot be
// compared. Columns are those that the matrix should have, 0 if that is not known.
func newPair(a, b *matrix, columns int) *pair {
	nan := checkpoint.Float(math.NaN())
	d := &TensorDifference{Name: a.Name, A: a.TensorWeights, B: b.TensorWeights, MaxAbs: nan, Relative: nan, Cosine: nan}
	for _, plain := range []*matrix{a, b} {
		if plain.scales == nil && len(plain.shape) == 2 {
			columns = plain.shape[1]
		}
	}
	for _, side := range []*matrix{a, b} {
		if side.scales != nil && d.Mismatch == "" {
			if err := side.unpacked(columns); err != nil {
				d.Mismatch = err.Error()
			}
		}
	}
	d.Shape, d.DtypeA, d.DtypeB = a.shape, a.dtype(), b.dtype()
	switch {
	case d.Mismatch != "":
	case !slices.Equal(a.shape, b.shape):
		d.Mismatch = fmt.Sprintf("shape %v against %v", a.shape, b.shape)
	case a.scales == nil && !a.Dtype.IsReadable() || b.scales == nil && !b.Dtype.IsReadable():
		d.Mismatch = fmt.Sprintf("dtype %s against %s, of which one cannot be read as numbers", a.Dtype, b.Dtype)
	}
	return &pair{d, a, b}
}

// compare reads both tensors side by side, and tells how many bytes of a are done.
func (p *pair) compare(ctx context.Context, readA, readB *checkpoint.Reader, done func(int64)) error {
	step := checkpoint.PartLen
	if p.a.rowwise() || p.b.rowwise() {
		row := 1
		for _, n := range p.Shape[1:] {
			row *= n
		}
		step = max(1, checkpoint.PartLen/max(1, row)) * row
	}
	next, stop := iter.Pull2(p.b.values(ctx, readB, step))
	defer stop()
	var all distance
	for a, err := range p.a.values(ctx, readA, step) {
		if err != nil {
			return err
		}
		b, err, _ := next()
		if err != nil {
			return err
		}
		all.add(a, b)
		done(p.A.Bytes() * int64(len(a)) / int64(p.elements()))
	}
	p.Differing = all.differing
	p.Relative, p.MaxAbs, p.Cosine = all.result()
	return nil
}

// A distance sums up how the elements of two tensors a and b differ.
type distance struct {
	differing     int
	largest       float64 // |a-b|
	diff2, a2, b2 float64 // the sums of squares of a-b, a and b
	dot           float64
}

// add adds elements of both.
func (d *distance) add(a, b []float64) {
	for i, x := range a {
		y := b[i]
		if x == y || math.IsNaN(x) && math.IsNaN(y) {
			if !math.IsNaN(x) && !math.IsInf(x, 0) {
				d.a2, d.b2, d.dot = d.a2+x*x, d.b2+y*y, d.dot+x*y
			}
			continue
		}
		d.differing++
		e := x - y
		d.diff2, d.a2, d.b2, d.dot = d.diff2+e*e, d.a2+x*x, d.b2+y*y, d.dot+x*y
		if e = math.Abs(e); e > d.largest || math.IsNaN(e) {
			d.largest = e
		}
	}
}

// result is what a TensorDifference has of the distance.
func (d *distance) result() (relative, maxAbs, cosine checkpoint.Float) {
	switch {
	case !(math.Abs(d.diff2) <= math.MaxFloat64):
		nan := checkpoint.Float(math.NaN())
		return nan, nan, nan
	case d.diff2 == 0: // also where both are zero
		return 0, checkpoint.Float(d.largest), 1
	}
	return checkpoint.Float(math.Sqrt(d.diff2 / d.b2)), checkpoint.Float(d.largest), checkpoint.Float(d.dot / math.Sqrt(d.a2*d.b2))
}
