package expr

import (
	"encoding/json"
	"fmt"
	"strings"

	"go.starlark.net/starlark"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// maxDetails is the number of tensors of a result that are described with statistics.
const maxDetails = 16

// A Result is what an evaluation returns. It does not depend on the arrays of the run.
type Result struct {
	// Text is the value as Python's repr writes it, or "" for None. A tensor is described by its
	// dtype, shape, statistics and first elements.
	Text string
	// Value is the value for [encoding/json]. A tensor is a [Tensor].
	Value any
	// Output has the lines that were printed.
	Output []string
}

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
	text += fmt.Sprintf(": min %.6g, max %.6g, mean %.6g, std %.6g", float64(s.Min), float64(s.Max), float64(s.Mean), float64(s.Std)) +
		s.NotFinite(", ")
	words := make([]string, len(t.Preview))
	for i, v := range t.Preview {
		words[i] = fmt.Sprintf("%.6g", float64(v))
	}
	return text + "; first " + strings.Join(words, ", ")
}

// describe makes the result of the evaluation.
func (r *run) describe(v starlark.Value) Result {
	if v == nil || v == starlark.None {
		return Result{}
	}
	if t, ok := v.(*tensor); ok {
		d := t.describe(true)
		return Result{Text: d.String(), Value: d}
	}
	out := Result{Text: repr(v)} // fails if the value is too long, or contains itself
	details := 0
	out.Value = r.json(v, &details)
	return out
}

// json turns a value into one of JSON. details counts the tensors.
func (r *run) json(v starlark.Value, details *int) any {
	switch v := v.(type) {
	case nil, starlark.NoneType:
		return nil
	case starlark.Bool:
		return bool(v)
	case starlark.Int:
		return json.Number(v.String())
	case starlark.Float:
		return checkpoint.Float(v)
	case starlark.String:
		return string(v)
	case *tensor:
		r.check()
		*details++
		return v.describe(*details <= maxDetails)
	case *difference:
		out := map[string]any{}
		for i, name := range measures {
			out[name] = r.json(v.values[i], details)
		}
		return out
	case *starlark.Dict:
		out := map[string]any{}
		for k, x := range v.Entries() {
			out[str(k)] = r.json(x, details)
		}
		return out
	case *starlark.List, starlark.Tuple, *starlark.Set:
		out := []any{}
		for x := range starlark.Elements(v.(starlark.Iterable)) {
			out = append(out, r.json(x, details))
		}
		return out
	}
	return repr(v)
}

func (t *tensor) describe(details bool) Tensor {
	out := Tensor{Shape: append([]int{}, t.a.Shape()...), Dtype: t.a.Dtype().String()}
	if details {
		s := t.summarize()
		out.Stats, out.Preview = &s, checkpoint.Floats(t.first)
	}
	return out
}
