package models

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// A Comparison is how the tensors of one model differ from those of another.
type Comparison struct {
	Components []*ComponentComparison
}

// ComponentComparison compares one component.
type ComponentComparison struct {
	Name string
	// Only says that one of the models has the component alone, "a" or "b"; ""
	// if both have it.
	Only string
	// Tensors are those that both have, OnlyA and OnlyB the names of others.
	Tensors      []*TensorDifference
	OnlyA, OnlyB []string
}

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

// Within says whether the tensors agree: exactly for a tolerance of 0, else
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

// Compare compares the tensors of two models by their names. Their elements are
// read a part at a time and compared as float64, which holds every dtype below
// it exactly.
func Compare(ctx context.Context, a, b *Weights, progress func(Progress)) (*Comparison, error) {
	names := map[string][2]*ComponentWeights{}
	var order []string
	for side, w := range []*Weights{a, b} {
		for _, c := range w.Components {
			if c.Err != nil {
				return nil, c.Err
			}
			pair, ok := names[c.Name]
			if !ok {
				order = append(order, c.Name)
			}
			pair[side] = c
			names[c.Name] = pair
		}
	}
	if len(a.Components) == 1 && len(b.Components) == 1 && len(order) == 2 { // folders or files of their own, whatever their names
		names = map[string][2]*ComponentWeights{order[0]: {a.Components[0], b.Components[0]}}
		order = order[:1]
	}
	slices.Sort(order)
	out := &Comparison{}
	for _, name := range order {
		pair := names[name]
		c := &ComponentComparison{Name: name}
		out.Components = append(out.Components, c)
		switch {
		case pair[0] == nil:
			c.Only = "b"
		case pair[1] == nil:
			c.Only = "a"
		default:
			if err := c.compare(ctx, pair[0], pair[1], progress); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

func (c *ComponentComparison) compare(ctx context.Context, a, b *ComponentWeights, progress func(Progress)) error {
	prefixes := slices.Concat(a.prefixes, b.prefixes)
	inB := map[string]*matrix{}
	listB := b.matrices()
	for _, m := range listB {
		inB[bare(m.Name, prefixes)] = m
	}
	var shared []*TensorWeights
	pairs := map[*TensorWeights][2]*matrix{}
	differences := map[*TensorWeights]*TensorDifference{}
	for _, m := range a.matrices() {
		name := bare(m.Name, prefixes)
		other := inB[name]
		if other == nil {
			c.OnlyA = append(c.OnlyA, m.Name)
			continue
		}
		delete(inB, name)
		d := &TensorDifference{Name: m.Name, A: m.TensorWeights, B: other.TensorWeights}
		d.MaxAbs, d.Relative, d.Cosine = checkpoint.Float(math.NaN()), checkpoint.Float(math.NaN()), checkpoint.Float(math.NaN())
		c.Tensors = append(c.Tensors, d)
		if d.pair(m, other, cmp.Or(a.columns[name], b.columns[name])); d.Mismatch == "" {
			shared = append(shared, m.TensorWeights)
			pairs[m.TensorWeights] = [2]*matrix{m, other}
			differences[m.TensorWeights] = d
		}
	}
	for _, m := range listB {
		if inB[bare(m.Name, prefixes)] != nil {
			c.OnlyB = append(c.OnlyB, m.Name)
		}
	}
	readA, err := checkpoint.OpenReader(a.ck)
	if err != nil {
		return err
	}
	defer readA.Close()
	readB, err := checkpoint.OpenReader(b.ck)
	if err != nil {
		return err
	}
	defer readB.Close()
	return each(ctx, c.Name, shared, progress, func(t *TensorWeights, done func(int64)) error {
		return differences[t].compare(ctx, readA, readB, pairs[t], done)
	})
}

// pair says of what shape and dtypes the two are, or why they cannot be compared.
// Columns are those that the matrix should have, 0 if that is not known.
func (d *TensorDifference) pair(a, b *matrix, columns int) {
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
}

// bare is a tensor's name without what a checkpoint may put before all names.
func bare(name string, prefixes []string) string {
	for _, prefix := range prefixes {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return rest
		}
	}
	return name
}

// compare reads both tensors side by side.
func (d *TensorDifference) compare(ctx context.Context, readA, readB *checkpoint.Reader, pair [2]*matrix, done func(int64)) error {
	step := checkpoint.PartLen
	if pair[0].rowwise() || pair[1].rowwise() {
		row := 1
		for _, n := range d.Shape[1:] {
			row *= n
		}
		step = max(1, checkpoint.PartLen/max(1, row)) * row
	}
	var diff, a2, b2, dot, largest float64
	next, stop := iter.Pull2(pair[1].values(ctx, readB, step))
	defer stop()
	for a, err := range pair[0].values(ctx, readA, step) {
		if err != nil {
			return err
		}
		b, err, _ := next()
		if err != nil {
			return err
		}
		for i, x := range a {
			y := b[i]
			if x != y && !(math.IsNaN(x) && math.IsNaN(y)) {
				d.Differing++
			}
			if x == y || math.IsNaN(x) && math.IsNaN(y) {
				if !math.IsNaN(x) && !math.IsInf(x, 0) {
					a2, b2, dot = a2+x*x, b2+y*y, dot+x*y
				}
				continue
			}
			e := x - y
			diff, a2, b2, dot = diff+e*e, a2+x*x, b2+y*y, dot+x*y
			if e = math.Abs(e); e > largest || math.IsNaN(e) {
				largest = e
			}
		}
		done(d.A.Bytes() * int64(len(a)) / int64(d.elements()))
	}
	d.MaxAbs, d.Relative, d.Cosine = checkpoint.Float(largest), checkpoint.Float(math.Sqrt(diff/b2)), checkpoint.Float(dot/math.Sqrt(a2*b2))
	if diff == 0 { // also where both are zero
		d.Relative, d.Cosine = 0, 1
	}
	if !(math.Abs(diff) <= math.MaxFloat64) {
		nan := checkpoint.Float(math.NaN())
		d.MaxAbs, d.Relative, d.Cosine = nan, nan, nan
	}
	return nil
}
