// Package foreigntest compares modules with references that are not libraries: the code of a model's makers. Its counterpart in
// scripts/reference is foreign.py.
package foreigntest

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Tolerance is how much outputs may differ, relative to the largest value.
const Tolerance = 1e-5

// Signed returns the numbers of signed in foreign.py, from -1 to 1.
func Signed(offset int, shape ...int) *mlx.Array {
	return mlx.FromFloat32(signed(offset, shape), shape...)
}

func signed(offset int, shape []int) []float32 {
	values := make([]float32, mlxtest.Size(shape))
	for i := range values {
		values[i] = float32(float64((i*i*31+i*7+offset*13)%251)/125 - 1)
	}
	return values
}

// Fill sets the weights of a model as fill in foreign.py does.
func Fill(model any) {
	params := nn.Parameters(model)
	slices.SortFunc(params, func(a, b nn.Parameter) int { return strings.Compare(a.Name, b.Name) })
	for i, p := range params {
		shape, factor, one := p.Stored(), 0.2, 0.0
		if len(shape) > 1 {
			factor = math.Sqrt(3 / float64(mlxtest.Size(shape[1:])))
		} else if strings.Contains(p.Name, "norm") && strings.HasSuffix(p.Name, "weight") {
			one = 1
		}
		values := signed(i, shape)
		for j, v := range values {
			values[j] = float32(float64(v)*factor + one)
		}
		p.Array = mlx.FromFloat32(values, shape...)
		switch p.Transform() {
		case "oihw":
			p.Array = nn.ChannelsLast(p.Array).Contiguous()
		case "sum,oihw":
			p.Array = nn.ChannelsLast(p.Array.Sum(2).Squeeze(2)).Contiguous()
		}
		mlx.Eval(p.Array)
		mlx.Keep(p.Array)
	}
}

// A Comparison compares the outputs of a run with the reference's.
type Comparison struct {
	Differences map[string]float64 // by the name of the output

	want  map[string]*mlx.Array
	calls map[string]int
	order []string
}

// New reads the reference's outputs from a file.
func New(t *testing.T, file string) *Comparison {
	t.Helper()
	f, err := checkpoint.Open(checkpoint.Folder{FS: os.DirFS(filepath.Dir(file)), Name: filepath.Dir(file)}, filepath.Base(file))
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	want, err := mlx.LoadSafetensors(file, slices.Collect(maps.Keys(f.Header.Tensors)))
	if err != nil {
		t.Fatal(err)
	}
	return &Comparison{map[string]float64{}, want, map[string]int{}, nil}
}

// Watch returns a hook that compares the outputs of modules. rename, which may be nil, returns the call of a module that the
// reference has as another one.
func (c *Comparison) Watch(t *testing.T, rename func(module string, call int) int) hooks.Func {
	return func(tap hooks.Tap) (*mlx.Array, error) {
		if tap.Point != (hooks.Point{}) {
			return nil, nil
		}
		call := c.calls[tap.Name]
		c.calls[tap.Name]++
		if rename != nil {
			call = rename(tap.Name, call)
		}
		name := tap.Name
		if call > 0 {
			name = fmt.Sprintf("%s#%d", name, call)
		}
		c.Add(t, name, tap.Output)
		return nil, nil
	}
}

// Add compares an output.
func (c *Comparison) Add(t *testing.T, name string, out *mlx.Array) {
	t.Helper()
	const samples = 12
	expected, values := c.want[name], out.Contiguous().Floats()
	if expected == nil {
		t.Fatalf("the reference has no %s", name)
	}
	var found []float32
	for i := 0; i < len(values); i += len(values)/samples + 1 {
		found = append(found, values[i])
	}
	if len(found) != expected.Size() {
		t.Fatalf("%s has the shape %v, whose samples are %d, expected %d", name, out.Shape(), len(found), expected.Size())
	}
	c.order, c.Differences[name] = append(c.order, name), Off(found, expected.Floats())
}

// Off returns the largest difference of values from those expected, relative to the largest of these.
func Off(found, expected []float32) float64 {
	worst, largest := 0.0, 0.0
	for i, e := range expected {
		worst, largest = max(worst, math.Abs(float64(found[i]-e))), max(largest, math.Abs(float64(e)))
	}
	return worst / largest
}

// First returns the first output that differs, "" without one.
func (c *Comparison) First() string {
	for _, name := range c.order {
		if !(c.Differences[name] < Tolerance) {
			return name
		}
	}
	return ""
}

// Check reports outputs that differ, and those that were not compared.
func (c *Comparison) Check(t *testing.T) {
	t.Helper()
	worst := 0.0
	for _, name := range c.order {
		if worst = max(worst, c.Differences[name]); !(c.Differences[name] < Tolerance) {
			t.Errorf("%s is off by %.2g", name, c.Differences[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.want)) {
		if _, ok := c.Differences[name]; !ok {
			t.Errorf("%s was not compared", name)
		}
	}
	t.Logf("%d outputs, off by %.2g at most", len(c.order), worst)
}
