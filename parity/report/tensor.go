package report

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/hints"
	"github.com/gomflux/gomflux/parity/runs"
)

// A Tensor compares one of the reference's tensors with ours.
type Tensor struct {
	Name      string `json:"name"`
	Reference string `json:"reference,omitempty"` // its name in the reference's run, if that is another
	Module    string `json:"module"`              // with its step and call
	Kind      string `json:"kind"`                // output, input or inner value
	Stage     string `json:"stage"`
	Order     int    `json:"order"`
	Shape     []int  `json:"shape"`
	RefShape  []int  `json:"reference_shape"`
	Guess     string `json:"shape_guess,omitempty"`
	Dtype     string `json:"dtype"`
	RefDtype  string `json:"reference_dtype"`

	Free     *Reading `json:"free,omitempty"`     // computed from the start of the run
	Isolated *Reading `json:"isolated,omitempty"` // the module as a whole, with the reference's inputs
	Own      *Reading `json:"own,omitempty"`      // the module's own arithmetic, everything inside it being the reference's
	// Stats compares statistics, if one side has no values. There are no readings then.
	Stats *StatsDifference `json:"stats,omitempty"`

	Got   []Number `json:"first_values"`
	Ref   []Number `json:"reference_first_values"`
	Hints []Hint   `json:"hints,omitempty"`
	// HintLimits describes the part of a large tensor that hints were looked for in, or why no part
	// was possible.
	HintLimits string     `json:"hint_limits,omitempty"`
	Histogram  *Histogram `json:"histogram,omitempty"`

	made int // its place in the run, from 1; 0 if unknown
}

// NewTensor returns the entry of a tensor, without its shapes. Its name in the reference's run may be
// another.
func NewTensor(name, refName string) *Tensor {
	t := &Tensor{Name: name, Module: ModuleOf(name), Kind: hooks.NameOf(name).Point.Kind.String(), Stage: StageOf(name)}
	if refName != name {
		t.Reference = refName
	}
	return t
}

// Measure compares the values of both sides, which have one shape, and shows the first ones. Samples of
// a tensor have a nil shape.
func (t *Tensor) Measure(got, want []float32, shape []int, tolerance Tolerance) *Reading {
	r := newReading(t.Name, got, want, shape, tolerance)
	t.Got, t.Ref, t.Histogram = First(got), First(want), r.histogram(got, want)
	return r
}

// ShowShapes guesses why the shapes differ, and shows the first values.
func (t *Tensor) ShowShapes(got, want []float32) {
	t.Guess = hints.Shapes(t.Shape, t.RefShape)
	t.Got, t.Ref = First(got), First(want)
}

// Wrong describes what is wrong with the tensor by itself; "" is nothing.
func (t *Tensor) Wrong() string {
	switch {
	case t.ownOK():
		return ""
	case !t.SameShape():
		return fmt.Sprintf("%s is wrong: %s", t.Name, t.shapesText())
	}
	return fmt.Sprintf("%s is wrong (%v)", t.Name, t.best())
}

// ModuleOf returns a tensor's name without its point.
func ModuleOf(name string) string {
	module, _, _ := strings.Cut(name, ":")
	return module
}

// ModuleName returns the module's path alone.
func (t *Tensor) ModuleName() string { return hooks.NameOf(t.Name).Module }

// ModuleAtStep returns the module's path and step.
func (t *Tensor) ModuleAtStep() string {
	n := hooks.NameOf(t.Name)
	return fmt.Sprint(n.Module, "@", n.Step)
}

// SameShape reports whether both sides have one shape.
func (t *Tensor) SameShape() bool { return slices.Equal(t.Shape, t.RefShape) }

// shapesText describes how the shapes differ.
func (t *Tensor) shapesText() string { return shapesText(t.Shape, t.RefShape, t.Guess) }

func shapesText(shape, ref []int, guess string) string {
	text := fmt.Sprintf("shape %v, the reference's %v", shape, ref)
	if guess != "" {
		text += fmt.Sprintf(" (%s)", guess)
	}
	return text
}

// best returns the reading that verdicts are based on.
func (t *Tensor) best() *Reading {
	switch {
	case t.Own != nil:
		return t.Own
	case t.Isolated != nil:
		return t.Isolated
	}
	return t.Free
}

// OK reports whether every reading is within tolerance.
func (t *Tensor) OK() bool {
	for _, r := range []*Reading{t.Free, t.Isolated, t.Own} {
		if r != nil && !r.OK {
			return false
		}
	}
	return t.SameShape() && t.statsOK()
}

// statsOK reports whether the statistics agree, where values were not compared.
func (t *Tensor) statsOK() bool { return t.Stats == nil || t.Stats.OK }

// errorText describes the error that verdicts are based on.
func (t *Tensor) errorText() string {
	if t.Stats != nil {
		return t.Stats.String()
	}
	return t.best().String()
}

// ownOK reports whether the tensor's own error is within tolerance.
func (t *Tensor) ownOK() bool {
	r := t.best()
	return t.SameShape() && t.statsOK() && (r == nil || r.OK)
}

// A Reading is one comparison of a tensor.
type Reading struct {
	OK bool `json:"ok"`
	Difference
	Tolerance Tolerance `json:"allowed"`
}

// l2 returns the relative L2 error: 0 without a reading, infinite if a value is not finite.
func (r *Reading) l2() Number {
	switch {
	case r == nil:
		return 0
	case !r.Finite:
		return Infinite
	}
	return r.L2
}

// newReading compares a tensor's values and judges them. Samples of a tensor have a nil shape.
func newReading[T float32 | float64](name string, got, want []T, shape []int, tolerance Tolerance) *Reading {
	d := &Reading{Difference: Compare(got, want), Tolerance: tolerance}
	if axis := channelAxis(name, shape); axis >= 0 && len(want) > 0 {
		d.Channel, d.ChannelAt = worstChannel(got, want, shape, axis)
	}
	d.ATol, d.RTol = tolerance.ATol, tolerance.RTol
	d.Over = beyond(got, want, d.ATol, d.RTol)
	if IsImage(name) && tolerance.OffByOne > 0 {
		d.OK = offByOne(got, want, tolerance.OffByOne)
	} else {
		d.OK = d.Within(tolerance)
	}
	return d
}

// offByOne reports whether no pixel value differs by more than 1, and no more than a part of
// them at all. Two may differ in any image, however small.
func offByOne[T float32 | float64](got, want []T, part Number) bool {
	off := 0
	for i, w := range want {
		switch e := math.Abs(float64(got[i]) - float64(w)); {
		case !(e <= 1):
			return false
		case e != 0:
			off++
		}
	}
	return Number(off) <= max(2, part*Number(len(want)))
}

// eightBits matches the names of 8-bit images.
var eightBits = regexp.MustCompile(`^image(\.in|\.condition|\.pasted)?(#\d+)?$`)

// channelAxis returns the axis of features: after the batch in images, the last one of tokens;
// -1 if there is no such axis.
func channelAxis(name string, shape []int) int {
	switch {
	case len(shape) < 2 || eightBits.MatchString(name) || strings.Contains(name, ".input_ids"):
		return -1
	case len(shape) == 4 && !strings.HasPrefix(name, "t"), len(shape) == 3 && strings.Contains(name, "group_norm"), len(shape) == 5:
		return 1
	case len(shape) == 4 && strings.HasPrefix(name, "transformer@"):
		return 0
	}
	return len(shape) - 1
}

// First returns the first values, for people to look at.
func First[T float32 | checkpoint.Float](values []T) []Number {
	out := make([]Number, min(runs.Previewed, len(values)))
	for i := range out {
		out[i] = Number(values[i])
	}
	return out
}

// A Histogram counts the values of both sides in bins of equal width.
type Histogram struct {
	Min       Number `json:"min"`
	Max       Number `json:"max"`
	Got       []int  `json:"got"`
	Reference []int  `json:"reference"`
}

const bins = 32

// histogram counts the values that the difference was measured of.
func (d *Difference) histogram(got, want []float32) *Histogram {
	h := &Histogram{
		Min: min(d.Got.Min, d.Ref.Min), Max: max(d.Got.Max, d.Ref.Max), Got: make([]int, bins), Reference: make([]int, bins),
	}
	fill := func(counts []int, values []float32) {
		for _, v := range values {
			at := 0
			if h.Max > h.Min {
				at = min(bins-1, int(bins*((Number(v)-h.Min)/(h.Max-h.Min))))
			}
			if at >= 0 && Number(v).Finite() {
				counts[at]++
			}
		}
	}
	fill(h.Got, got)
	fill(h.Reference, want)
	return h
}

// A Hint is a known mistake that explains a difference.
type Hint = hints.Hint
