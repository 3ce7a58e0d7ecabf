package inspect

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// A TensorDifference describes how a tensor of model a differs from the tensor with the
// same name in model b.
type TensorDifference struct {
	Name string         `json:"name"`
	A, B *TensorWeights `json:"-"`
	// Shape is the shape of the elements, after dequantization.
	Shape []int `json:"shape"`
	// DtypeA and DtypeB describe how the elements are stored: a dtype or a quantization.
	DtypeA string `json:"dtype"`
	DtypeB string `json:"other_dtype"`
	// Mismatch is the reason why the elements cannot be compared: different shapes, or a
	// dtype that cannot be read as numbers. It is empty if they were compared.
	Mismatch string `json:"problem,omitempty"`
	// Differing is the number of elements that are not equal. NaN equals NaN.
	Differing int `json:"differing"`
	// Relative is the relative error ‖a-b‖/‖b‖, infinite if only b is zero. MaxAbs is the
	// largest |a-b|. Cosine is the cosine similarity of a and b, NaN if one of them is
	// zero. All are NaN if elements are not finite in only one of the tensors.
	Relative checkpoint.Float `json:"relative_error"`
	MaxAbs   checkpoint.Float `json:"max_abs"`
	Cosine   checkpoint.Float `json:"cosine"`
}

// Within reports whether the tensors agree: exactly if the tolerance is 0, otherwise
// with a Relative of at most the tolerance.
func (d *TensorDifference) Within(tolerance float64) bool {
	return d.Mismatch == "" && (d.Differing == 0 || tolerance > 0 && float64(d.Relative) <= tolerance)
}

// A pair is two tensors with the same name and their difference.
type pair struct {
	*TensorDifference
	a, b *matrix
}

// newPair determines the shapes and dtypes of two tensors, or why they cannot be
// compared. columns is the expected number of columns of a matrix, 0 if unknown.
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
			if err := side.detectQuantization(columns); err != nil {
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
		d.Mismatch = fmt.Sprintf("dtype %s against %s: at least one cannot be read as numbers", a.Dtype, b.Dtype)
	}
	return &pair{d, a, b}
}

// compare reads both tensors in parallel and compares their elements. It calls done
// with the number of bytes of a that were read.
func (p *pair) compare(ctx context.Context, inA, inB *checkpoint.Checkpoint, done func(int64)) error {
	step := checkpoint.PartLen
	if p.a.rowwise() || p.b.rowwise() {
		row := checkpoint.Len(p.Shape[1:])
		step = max(1, checkpoint.PartLen/max(1, row)) * row
	}
	next, stop := iter.Pull2(p.b.values(ctx, inB, step))
	defer stop()
	var all distance
	elements := checkpoint.Len(p.Shape)
	for a, err := range p.a.values(ctx, inA, step) {
		if err != nil {
			return err
		}
		b, err, _ := next()
		if err != nil {
			return err
		}
		all.add(a, b)
		done(p.A.Bytes() * int64(len(a)) / int64(elements))
	}
	p.Differing = all.differing
	p.Relative, p.MaxAbs, p.Cosine = all.result()
	return nil
}

// A distance accumulates differences between the elements of two tensors a and b.
type distance struct {
	differing     int
	largest       float64 // |a-b|
	diff2, a2, b2 float64 // the sums of squares of a-b, a and b
	dot           float64
}

// add adds elements of both tensors.
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

// result returns the values of a TensorDifference.
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
