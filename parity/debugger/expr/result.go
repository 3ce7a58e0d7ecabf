package expr

import (
	"encoding/json"
	"fmt"
	"strings"

	"go.starlark.net/starlark"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// Limits of results.
const (
	maxResult  = 1e6    // bytes of its text
	maxValues  = 10_000 // values in it
	maxDetails = 16     // tensors that are described with statistics
)

// A Result is what an evaluation returns. It does not depend on the arrays of the run.
type Result struct {
	// Output has the lines that were printed.
	Output []string

	text  string
	value any
}

// Text returns the value as Python's repr writes it, or "" for None. A tensor is described by its
// dtype, shape, statistics and first elements.
func (r Result) Text() string { return r.text }

// JSON returns the value for [encoding/json]. A tensor is a [Tensor].
func (r Result) JSON() any { return r.value }

// A Tensor describes a tensor of a result, with the names of [debug.Record].
type Tensor struct {
	Shape   []int              `json:"shape"`
	Dtype   string             `json:"dtype"` // as PyTorch names it
	Stats   *checkpoint.Stats  `json:"stats,omitempty"`
	Preview []checkpoint.Float `json:"preview,omitempty"` // the first elements
}

func (t Tensor) String() string {
	text := fmt.Sprintf("tensor %s %s", t.Dtype, shapeText(t.Shape))
	if t.Stats == nil {
		return text
	}
	s := t.Stats
	text += fmt.Sprintf(": min %.6g, max %.6g, mean %.6g, std %.6g", float64(s.Min), float64(s.Max), float64(s.Mean), float64(s.Std))
	if s.NaN > 0 {
		text += fmt.Sprintf(", %d NaN", s.NaN)
	}
	if s.Inf > 0 {
		text += fmt.Sprintf(", %d infinite", s.Inf)
	}
	words := make([]string, len(t.Preview))
	for i, v := range t.Preview {
		words[i] = fmt.Sprintf("%.6g", float64(v))
	}
	return text + "; first " + strings.Join(words, ", ")
}

// describe makes the result of the evaluation.
func (r *run) describe(v starlark.Value) (Result, error) {
	var out Result
	if v == nil || v == starlark.None {
		return out, nil
	}
	d := &describer{r: r}
	var err error
	if out.value, err = d.value(v, 0); err != nil {
		return Result{}, fmt.Errorf("the result: %w", err)
	}
	if t, ok := out.value.(Tensor); ok {
		out.text = t.String()
		return out, nil
	}
	if out.text, err = repr(v, maxResult); err != nil {
		return Result{}, fmt.Errorf("the result: %w", err)
	}
	return out, nil
}

// A describer turns values into those of JSON.
type describer struct {
	r               *run
	values, details int
}

func (d *describer) value(v starlark.Value, depth int) (any, error) {
	if d.values++; d.values > maxValues {
		return nil, fmt.Errorf("more than %d values", maxValues)
	}
	if depth > maxNesting {
		return nil, fmt.Errorf("a %s is nested more than %d deep", v.Type(), maxNesting)
	}
	switch v := v.(type) {
	case nil, starlark.NoneType:
		return nil, nil
	case starlark.Bool:
		return bool(v), nil
	case starlark.Int:
		return json.Number(v.String()), nil
	case starlark.Float:
		return checkpoint.Float(v), nil
	case starlark.String:
		return string(v), nil
	case *tensor:
		return d.tensor(v)
	case *difference:
		return v.json(), nil
	case *starlark.Dict:
		return d.dict(v, depth)
	case *starlark.List, starlark.Tuple, *starlark.Set:
		return d.list(v.(starlark.Iterable), depth)
	}
	return repr(v, maxResult)
}

func (d *describer) list(v starlark.Iterable, depth int) (any, error) {
	out := []any{}
	for x := range starlark.Elements(v) {
		y, err := d.value(x, depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, y)
	}
	return out, nil
}

// dict returns an object, whose keys are texts.
func (d *describer) dict(v *starlark.Dict, depth int) (any, error) {
	out := map[string]any{}
	for k, x := range v.Entries() {
		key, err := str(k, maxResult)
		if err != nil {
			return nil, err
		}
		if out[key], err = d.value(x, depth+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (d *describer) tensor(t *tensor) (any, error) {
	out := Tensor{Shape: append([]int{}, t.shape()...), Dtype: t.dtype().String()}
	if d.details++; d.details > maxDetails {
		return out, nil
	}
	s, err := t.summarize()
	if err != nil {
		return nil, err
	}
	out.Stats = &s.stats
	for _, v := range s.first {
		out.Preview = append(out.Preview, checkpoint.Float(v))
	}
	return out, d.r.stopped()
}

func (d *difference) json() any {
	out := map[string]any{}
	for _, m := range d.measures {
		if v, ok := m.Value.(float64); ok {
			m.Value = checkpoint.Float(v)
		}
		out[m.Name] = m.Value
	}
	return out
}
