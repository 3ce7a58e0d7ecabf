package report

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/textfile"
	"github.com/gomflux/gomflux/mlx"
)

// A Tolerance limits the error of a tensor, for one device, dtype and stage.
type Tolerance struct {
	Max      Number `json:"max"`        // largest error over the largest reference value
	L2       Number `json:"l2"`         // norm of the error over the reference's norm
	Channel  Number `json:"channel_l2"` // L2 of each channel; 0 is no limit
	ATol     Number `json:"-"`          // only counts values, see Difference.Over
	RTol     Number `json:"-"`          // only counts values
	OffByOne Number `json:"-"`          // part of an image's values that may differ by 1
}

// Float32 is the tolerance of a module in float32 on a CPU, given the reference's inputs. A looser
// one hides real bugs: the wrong GELU is off by 7e-5.
var Float32 = Tolerance{Max: 2e-5, L2: 1e-5}

// A Table has the tolerances of all tensors. See tolerances.json.
type Table struct {
	Comment string `json:"comment,omitempty"`
	Rules   []Rule `json:"rules"`
}

// A Rule sets some limits for the tensors that it matches. Later rules override earlier ones.
type Rule struct {
	Comment  string  `json:"comment,omitempty"`
	Device   string  `json:"device,omitempty"` // cpu, or gpu for either backend of one
	Dtype    string  `json:"dtype,omitempty"`
	Stage    string  `json:"stage,omitempty"`
	Reading  string  `json:"reading,omitempty"`
	Tensor   string  `json:"tensor,omitempty"` // a pattern of names (path.Match)
	Max      *Number `json:"max,omitempty"`
	L2       *Number `json:"l2,omitempty"`
	Channel  *Number `json:"channel,omitempty"`
	ATol     *Number `json:"atol,omitempty"`
	RTol     *Number `json:"rtol,omitempty"`
	OffByOne *Number `json:"off_by_one,omitempty"`
}

//go:embed tolerances.json
var builtinTable []byte

// DefaultTable returns the built-in table.
func DefaultTable() *Table {
	t, err := parseTable(builtinTable)
	if err != nil {
		panic(err) // the embedded table is valid
	}
	return t
}

// ReadTable reads rules from a file that override the built-in ones.
func ReadTable(name string) (*Table, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("tolerances: %w", err)
	}
	var t *Table
	if data, err = textfile.Decode(data); err == nil {
		t, err = parseTable(data)
	}
	if err != nil {
		return nil, fmt.Errorf("tolerances %s: %w", name, err)
	}
	t.Rules = append(DefaultTable().Rules, t.Rules...)
	return t, nil
}

func parseTable(data []byte) (*Table, error) {
	t := &Table{}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(t); err != nil {
		return nil, err
	}
	if len(t.Rules) == 0 {
		return nil, errors.New("no rules")
	}
	known := map[string][]string{
		"device": {"", "cpu", "gpu"}, "dtype": {"", "float32", "bfloat16", "float16"},
		"reading": {"", Own, Isolated, Free},
		"stage":   append([]string{"", "step"}, stages...),
	}
	for i, r := range t.Rules {
		for what, word := range map[string]string{"device": r.Device, "dtype": r.Dtype, "stage": r.Stage, "reading": r.Reading} {
			if !slices.Contains(known[what], word) {
				return nil, fmt.Errorf("rule %d: unknown %s %q, expected one of %q", i+1, what, word, known[what][1:])
			}
		}
		if _, err := path.Match(r.Tensor, ""); err != nil {
			return nil, fmt.Errorf("rule %d: tensor %q: %w", i+1, r.Tensor, err)
		}
		for _, v := range []*Number{r.Max, r.L2, r.Channel, r.ATol, r.RTol, r.OffByOne} {
			if v != nil && !(*v >= 0 && v.Finite()) {
				return nil, fmt.Errorf("rule %d: %g must be a number from 0", i+1, *v)
			}
		}
	}
	return t, nil
}

// For returns the tolerance of a tensor of a stage in a reading, computed by a backend of MLX.
func (t *Table) For(backend mlx.Backend, dtype, stage, reading, tensor string) Tolerance {
	var out Tolerance
	set := func(field *Number, value *Number) {
		if value != nil {
			*field = *value
		}
	}
	matches := func(rule, word string) bool { return rule == "" || rule == word }
	stage, _, _ = strings.Cut(stage, " ") // without the step
	device := "gpu"
	if backend == mlx.BackendCPU {
		device = "cpu"
	}
	for _, r := range t.Rules {
		named, _ := path.Match(r.Tensor, tensor)
		if (r.Tensor == "" || named) && matches(r.Device, device) && matches(r.Dtype, dtype) &&
			matches(r.Stage, stage) && matches(r.Reading, reading) {
			set(&out.Max, r.Max)
			set(&out.L2, r.L2)
			set(&out.Channel, r.Channel)
			set(&out.ATol, r.ATol)
			set(&out.RTol, r.RTol)
			set(&out.OffByOne, r.OffByOne)
		}
	}
	return out
}
