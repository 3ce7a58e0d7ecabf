package report

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/parity/hints"
	"github.com/gomflux/gomflux/parity/runs"
)

// An ArrayDiff compares two tensors of files, outside of any run.
type ArrayDiff struct {
	Name     string `json:"name"`
	RefName  string `json:"reference_name"`
	Dtype    string `json:"dtype"`
	RefDtype string `json:"reference_dtype"`
	Shape    []int  `json:"shape"`
	RefShape []int  `json:"reference_shape"`
	Guess    string `json:"shape_guess,omitempty"`
	// Reason tells why the values cannot be compared.
	Reason string `json:"not_compared,omitempty"`
	// Difference is nil if the values cannot be compared. With limits its tolerance is infinite.
	Difference *Reading `json:"difference,omitempty"`
	// Stats compares statistics instead, if not both tensors have values.
	Stats *StatsDifference `json:"stats,omitempty"`
	Got   []Number         `json:"first_values"`
	Ref   []Number         `json:"reference_first_values"`
}

// Limits are those of numpy.allclose: a value may differ by ATol + RTol·|reference|.
type Limits struct{ ATol, RTol Number }

// OK reports whether the tensors agree.
func (d *ArrayDiff) OK() bool {
	return d.Difference != nil && d.Difference.OK || d.Stats != nil && d.Stats.OK
}

// DiffArrays compares two tensors. Without limits the tolerance is that of a module by itself on
// the CPU, in the coarser dtype of both, and 0 for whole numbers.
func DiffArrays(got, want *checkpoint.Array, limits *Limits) *ArrayDiff {
	d := newArrayDiff(recordOf(got), recordOf(want))
	if d.Reason != "" {
		return d
	}
	tolerance := arrayTolerance(got.Dtype, want.Dtype)
	if limits != nil {
		tolerance = Tolerance{Max: Infinite, L2: Infinite, ATol: limits.ATol, RTol: limits.RTol}
	}
	d.Difference = newReading("", got.Float64s(), want.Float64s(), nil, tolerance)
	if limits != nil {
		d.Difference.OK = d.Difference.Over == 0
	}
	return d
}

// recordOf describes a tensor, without its statistics.
func recordOf(a *checkpoint.Array) runs.Record {
	return runs.Record{Name: a.Name, Shape: a.Shape, Dtype: a.Dtype.Long(), Preview: checkpoint.Floats(a.First(runs.Previewed))}
}

// DiffRecords compares the statistics of two tensors, with the tolerance of [DiffArrays] for single
// values.
func DiffRecords(got, want runs.Record) *ArrayDiff {
	d := newArrayDiff(got, want)
	if d.Reason == "" {
		d.Stats = compareStats(got, want, arrayTolerance(dtypeOf(got), dtypeOf(want)).Max)
	}
	return d
}

// newArrayDiff describes two tensors, and tells why they cannot be compared, if so.
func newArrayDiff(got, want runs.Record) *ArrayDiff {
	d := &ArrayDiff{
		Name: got.Name, RefName: want.Name, Dtype: got.Dtype, RefDtype: want.Dtype,
		Shape: append([]int{}, got.Shape...), RefShape: append([]int{}, want.Shape...),
		Got: First(got.Preview), Ref: First(want.Preview),
	}
	switch {
	case !slices.Equal(got.Shape, want.Shape):
		d.Guess = hints.Shapes(d.Shape, d.RefShape)
		d.Reason = shapesText(d.Shape, d.RefShape, d.Guess)
	case dtypeOf(got).IsFloat() != dtypeOf(want).IsFloat():
		d.Reason = fmt.Sprintf("%s and %s are numbers of two kinds (append @float32 to compare them)", d.Dtype, d.RefDtype)
	}
	return d
}

// dtypeOf returns the dtype of a recorded tensor; "" if that is unknown.
func dtypeOf(rec runs.Record) checkpoint.Dtype {
	d, err := checkpoint.ParseDtype(rec.Dtype)
	if err != nil {
		return ""
	}
	return d
}

// arrayTolerance returns the tolerance for two tensors of some dtypes.
func arrayTolerance(a, b checkpoint.Dtype) Tolerance {
	if !a.IsFloat() {
		return Tolerance{}
	}
	dtype := checkpoint.F32
	for _, coarse := range []checkpoint.Dtype{checkpoint.F16, checkpoint.BF16} {
		if a == coarse || b == coarse {
			dtype = coarse
		}
	}
	t := DefaultTable().For(mlx.BackendCPU, dtype.Long(), "step", Own, "")
	t.Channel = 0 // it is unknown which axis has the channels
	return t
}

// Print writes everything about both tensors as text.
func (d *ArrayDiff) Print(line func(name, format string, args ...any)) {
	line("tensor", "%s %s %v", d.Name, d.Dtype, d.Shape)
	line("reference", "%s %s %v", d.RefName, d.RefDtype, d.RefShape)
	if r := d.Difference; r != nil {
		line("error", "%v, mean %.2e, relative %.2e, cosine %.9f", r, r.Mean, r.Guarded, r.Cosine)
		line("beyond", "%d of %d values differ by more than %g + %g·|reference|", r.Over, r.Count, r.ATol, r.RTol)
		line("range", "%v", r.Got)
		line("reference", "%v", r.Ref)
	}
	if t := d.Stats; t != nil {
		line("error", "%v (at most %g)", t, t.Tolerance)
		line("range", "%v", t.Got)
		line("reference", "%v", t.Ref)
	}
	line("first", "%s", values(d.Got))
	line("reference", "%s", values(d.Ref))
	line("verdict", "%s", d.Verdict())
}

// Verdict is the result in a few words.
func (d *ArrayDiff) Verdict() string {
	switch {
	case d.Reason != "":
		return "cannot be compared: " + d.Reason
	case d.OK():
		return "ok"
	}
	return "DIFFERS"
}

// MarshalJSON adds OK.
func (d *ArrayDiff) MarshalJSON() ([]byte, error) {
	type plain ArrayDiff
	return json.Marshal(struct {
		*plain
		OK bool `json:"ok"`
	}{(*plain)(d), d.OK()})
}
