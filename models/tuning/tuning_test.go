package tuning

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// times returns the result of a case from pairs of a candidate and its median, with equal first
// calls.
func times(name string, medians ...any) (c CaseResult) {
	c.Name = name
	for i := 0; i < len(medians); i += 2 {
		c.Times = append(c.Times, Time{Candidate: medians[i].(string), Median: medians[i+1].(float64), Samples: 1})
	}
	return c
}

// TestPackedLimit chooses the largest number of rows from times of packed and unpacked products.
func TestPackedLimit(t *testing.T) {
	rows := []int{1, 64, 512, 4096}
	for _, c := range []struct {
		name     string
		pairs    [][2]float64 // packed, unpacked
		standard int
		want     int
	}{
		{"as the default of Metal", [][2]float64{{1, 2}, {1, 2}, {1, 2}, {1, 2}}, math.MaxInt, math.MaxInt},
		{"hardly slower", [][2]float64{{1, 2}, {1, 2}, {1, 2}, {2.05, 2}}, math.MaxInt, math.MaxInt},
		{"slower with many rows", [][2]float64{{1, 2}, {1, 2}, {1, 2}, {2.2, 2}}, math.MaxInt, 512},
		{"slower everywhere", [][2]float64{{3, 2}, {3, 2}, {3, 2}, {3, 2}}, math.MaxInt, 0},
		{"as the default of CUDA", [][2]float64{{1, 2}, {3, 2}, {3, 2}, {3, 2}}, 8, 8},
		{"faster up to 64", [][2]float64{{1, 2}, {1, 2}, {3, 2}, {3, 2}}, 8, 64},
		{"faster again", [][2]float64{{1, 2}, {3, 2}, {1, 2}, {3, 2}}, 8, 1},
		{"as the default of the CPU", [][2]float64{{3, 2}, {9, 2}}, 0, 0},
		{"faster with one row on the CPU", [][2]float64{{1, 2}, {9, 2}}, 0, 1},
		{"faster everywhere", [][2]float64{{1, 2}, {1, 2}, {1, 2}, {1, 2}}, 0, AllRows},
	} {
		var done []CaseResult
		for i, p := range c.pairs {
			done = append(done, times(rowsName(rows[i]), packed, p[0], unpacked, p[1]))
		}
		if got := packedLimit(rows, done, c.standard); got != c.want {
			t.Errorf("%s: %d rows, expected %d", c.name, got, c.want)
		}
	}
	compiles := times("64 rows", packed, 1.0, unpacked, 2.0)
	compiles.Times[0].New = 3
	if got := packedLimit(rows[:2], []CaseResult{times("1 row", packed, 1.0, unpacked, 2.0), compiles}, 8); got != 8 {
		t.Errorf("%d rows where each new number of rows takes 3 seconds, expected 8", got)
	}
}

// TestClearlyFaster replaces the default only by a candidate that is never slower, and in a case by
// more than the margin faster.
func TestClearlyFaster(t *testing.T) {
	for _, c := range []struct {
		name   string
		b1, b2 float64 // the default takes 1 in both cases
		want   string
	}{
		{"equal", 1, 1, "a"}, {"4 % faster", 0.96, 0.96, "a"}, {"10 % faster", 0.9, 0.9, "b"}, {"faster in one", 0.99, 0.9, "b"},
		{"slower in one", 1.01, 0.5, "a"}, {"slower", 2, 2, "a"},
	} {
		done := []CaseResult{times("1", "a", 1.0, "b", c.b1), times("2", "a", 1.0, "b", c.b2)}
		if got := clearlyFaster(done, []string{"a", "b"}); got != c.want {
			t.Errorf("%s: %s, expected %s", c.name, got, c.want)
		}
	}
	three := []CaseResult{times("1", "a", 1.0, "b", 0.8, "c", 0.7)}
	if got := clearlyFaster(three, []string{"a", "b", "c"}); got != "c" {
		t.Errorf("the fastest of three is %s, expected c", got)
	}
}

// A clock is a fake one, which trials advance.
type clock struct {
	now   time.Time
	order []string
}

func (c *clock) trial(name string, first, later time.Duration) Trial {
	calls := 0
	return Trial{Run: func() []*mlx.Array {
		if calls++; calls == 1 {
			c.now = c.now.Add(first)
		} else {
			c.now = c.now.Add(later)
		}
		c.order = append(c.order, name)
		return nil
	}}
}

// TestMeter times candidates in turn, with a fake clock.
func TestMeter(t *testing.T) {
	c := &clock{}
	m := Meter{Now: func() time.Time { return c.now }, Rounds: 2}
	var shown []string
	m.Progress = func(comparison, name string) { shown = append(shown, comparison+" "+name) }
	var settings Settings
	var results []Result
	begun := 0
	mlxtest.Do(t, func() {
		slow := c.trial("slow", 9*time.Second, 9*time.Second)
		slow.Begin = func() func() { begun++; return func() { begun-- } }
		settings, results = m.Measure([]Comparison{
			{Name: "left", LeftOut: "no GPU"},
			{Name: "three", Candidates: []string{"a", "b", "slow"},
				Cases: []Case{
					{"large", func() []Trial {
						a := c.trial("a", 7*time.Second, 30*time.Millisecond)
						return []Trial{a, c.trial("b", time.Second, 20*time.Millisecond), slow}
					}},
					{"never", func() []Trial { panic("enough") }},
				},
				Enough: func(done []CaseResult) bool { return len(done) == 1 },
				Choose: func(s *Settings, done []CaseResult) string { s.Compile = done[0].Name; return "b" }},
		})
	})
	if want := []string{"a", "a", "b", "b", "slow", "slow", "a", "b", "b", "a", "a", "b", "b", "a"}; !slices.Equal(c.order, want) {
		t.Errorf("in the order %v, expected %v", c.order, want)
	}
	want := []Result{{Name: "left", LeftOut: "no GPU"}, {Name: "three", Chosen: "b", Cases: []CaseResult{{"large", []Time{
		{"a", 7, 0, 0.03, 4}, {"b", 1, 0, 0.02, 4}, {"slow", 9, 0, 9, 1}}}}}}
	if !reflect.DeepEqual(results, want) || settings.Compile != "large" || begun != 0 {
		t.Errorf("found %+v and %v, expected %+v", results, settings, want)
	}
	if !slices.Equal(shown, []string{"three large"}) {
		t.Errorf("showed %q", shown)
	}
}

// TestMeterCalls makes several calls of what takes less than a sample should.
func TestMeterCalls(t *testing.T) {
	c := &clock{}
	m := Meter{Now: func() time.Time { return c.now }, Rounds: 1}
	var found []Time
	mlxtest.Do(t, func() { found = m.time([]string{"a"}, []Trial{c.trial("a", time.Second, 5*time.Millisecond)}) })
	if want := []Time{{"a", 1, 0, 0.005, 2}}; !reflect.DeepEqual(found, want) || len(c.order) != 2+2*4 {
		t.Errorf("found %v in %d calls, expected %v in 10", found, len(c.order), want)
	}
}

// TestMeterFails leaves out a comparison that MLX cannot compute, and goes on.
func TestMeterFails(t *testing.T) {
	mlxtest.Do(t, func() {
		fails := func() []*mlx.Array {
			return []*mlx.Array{mlx.Zeros(mlx.Float32, 2, 3).Matmul(mlx.Zeros(mlx.Float32, 2, 3))}
		}
		ended := false
		settings, results := (&Meter{Rounds: 3}).Measure([]Comparison{
			{Name: "wrong", Candidates: []string{"a"},
				Choose: func(s *Settings, _ []CaseResult) string { s.Dtype = "float16"; return "" },
				Cases: []Case{{"x", func() []Trial {
					return []Trial{{Begin: func() func() { return func() { ended = true } }, Run: fails}}
				}}}},
			{Name: "right", Choose: func(*Settings, []CaseResult) string { return "a" }},
		})
		if len(results) != 2 || !strings.Contains(results[0].LeftOut, "matmul") || results[1].Chosen != "a" ||
			!settings.IsDefault() || !ended {
			t.Errorf("found %+v and %v, ended: %v", results, settings, ended)
		}
	})
}

// TestComparisons runs all comparisons of this device with small inputs, and knows every operation
// that can be turned off.
func TestComparisons(t *testing.T) {
	compared := map[string]bool{}
	for _, r := range replacements {
		for _, name := range r.names {
			compared[name] = true
		}
	}
	for _, name := range mlx.AllReplacements() {
		if !compared[name] {
			t.Errorf("%s is not compared", name)
		}
	}
	mlxtest.Do(t, func() {
		for _, device := range []mlx.Device{mlx.CPU, mlx.GPU} {
			if mlx.Use(device) != nil {
				continue
			}
			small := dimensions{device, device.ComputeDtype(), 128, 128, 64, []int{4, 8}, 8, 32}
			list := append([]Comparison{packedComparison(small, "4"), dtypeComparison(small), compileComparison(small)},
				replacementComparisons(small)...)
			list[0].Cases = list[0].Cases[:2]
			calls := 0
			step := time.Time{}
			m := Meter{Rounds: 1, Now: func() time.Time { calls++; step = step.Add(time.Millisecond); return step }}
			settings, results := m.Measure(list)
			if !settings.IsDefault() {
				t.Errorf("%v: where everything takes the same time, the settings are %v", device, &settings)
			}
			for i, r := range results {
				if r.LeftOut == "" && (r.Chosen == "" || len(r.Cases) != len(list[i].Cases)) {
					t.Errorf("%v: found %+v", device, r)
				}
			}
			if calls == 0 {
				t.Errorf("%v: nothing is timed", device)
			}
		}
	})
}

// TestReplacementSwitch expects that a trial of MLX's operation turns that of gomflux off, and that
// both compute about the same.
func TestReplacementSwitch(t *testing.T) {
	mlxtest.Do(t, func() {
		device := mlx.CurrentDevice()
		d := dimensions{device, mlx.Float32, 128, 128, 64, []int{4, 8}, 8, 32}
		for _, c := range replacementComparisons(d) {
			if c.LeftOut != "" {
				continue
			}
			trials := c.Cases[0].Prepare()
			ours := trials[0].Run()
			end := trials[1].Begin()
			before := mlx.Made()
			theirs := trials[1].Run()
			graph := mlx.Made() - before
			end()
			before = mlx.Made()
			trials[0].Run()
			// what is one operation of MLX is one array with a kernel too
			if own := mlx.Made() - before; own == graph && own > 1 {
				t.Errorf("%s: %d arrays with and without it", c.Name, own)
			}
			for i := range ours {
				x, y := ours[i].Floats(), theirs[i].Floats()
				for j := range x {
					if d := math.Abs(float64(x[j] - y[j])); !(d <= 1e-4) {
						t.Fatalf("%s: differs by %g", c.Name, d)
					}
				}
			}
		}
	})
}

// TestBlockDtype expects that a block in float16 is as wide as those of the models, and so as slow.
func TestBlockDtype(t *testing.T) {
	mlxtest.Do(t, func() {
		d := dimensions{mlx.CurrentDevice(), mlx.Float32, 128, 128, 64, []int{4, 8}, 8, 32}
		for dtype, want := range map[mlx.Dtype]mlx.Dtype{mlx.Float16: mlx.Float32, mlx.BFloat16: mlx.BFloat16, mlx.Float32: mlx.Float32} {
			x := normal(dtype, 1, 1, 4, d.width)
			y := newBlock(d, dtype, 4).forward(x)
			if y.Dtype() != want {
				t.Errorf("%v: the residual stream is %v, expected %v", dtype, y.Dtype(), want)
			}
			if !y.AllFinite() {
				t.Errorf("%v: not finite", dtype)
			}
		}
	})
}

// TestUse expects each setting where it has an effect, on its device only.
func TestUse(t *testing.T) {
	four := mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}
	mlxtest.Do(t, func() {
		if err := mlx.Use(mlx.CPU); err != nil {
			t.Fatal(err)
		}
		defer func() { must(Use(mlx.CPU, Settings{})) }()
		standard := nn.PackedRows(four)
		for _, device := range []mlx.Device{mlx.CPU, mlx.GPU} {
			s := Settings{PackedRows: map[string]int{"4": 77}, Dtype: "float16", Compile: CompileUnfused}
			if err := Use(device, s); err != nil {
				t.Fatal(err)
			}
			rows, dtype, how := standard, mlx.Float32, mlx.Uncompiled
			if device == mlx.CPU {
				rows, dtype, how = 77, mlx.Float16, mlx.Unfused
			}
			if found := nn.PackedRows(four); found != rows {
				t.Errorf("tuned on %v: %d rows, expected %d", device, found, rows)
			}
			if Dtype(mlx.CPU) != dtype || Compile(mlx.CPU) != how {
				t.Errorf("tuned on %v: %v, %v", device, Dtype(mlx.CPU), Compile(mlx.CPU))
			}
		}
		if err := Use(mlx.CPU, Settings{Without: []string{"nothing"}}); err == nil {
			t.Error("unknown operation was accepted")
		}
	})
}

// TestParse reads the texts of settings again, and refuses others.
func TestParse(t *testing.T) {
	for _, s := range []Settings{
		{}, {PackedRows: map[string]int{"4": 64, "8": AllRows, "nvfp4": 0}, Dtype: "float16", Compile: "off",
			Without: []string{"bias_sum", "upsample"}},
	} {
		found, err := Parse(s.String())
		if err != nil || !reflect.DeepEqual(found, s) {
			t.Errorf("%q became %+v (%v), expected %+v", s.String(), found, err, s)
		}
	}
	for _, text := range []string{"x", "packed-7=1", "packed-4=-1", "packed-4=1e9", "dtype=int8", "compile=on", "without=a",
		"without=upsample,bias_sum", "without=", "colour=red", strings.Repeat("a", maxText+1)} {
		if s, err := Parse(text); err == nil {
			t.Errorf("%.20q became %+v", text, s)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: several lines", err)
		}
	}
}

func here() Machine {
	return Machine{Device: "cuda", Name: "NVIDIA H200 (x)", Memory: 139, CPUs: 16, System: "Debian", MLX: "0.32.2", Kernels: "abc"}
}

func inCache(t *testing.T) {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir()) // on a Mac
}

func write(t *testing.T, m Machine, p *Profile) string {
	t.Helper()
	w, err := NewWriter(m)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	path, err := w.Write(p)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func sample(m Machine) *Profile {
	return &Profile{Machine: m, Created: time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC), Seconds: 40,
		Settings: Settings{PackedRows: map[string]int{"4": 64}},
		Measured: []Result{{Name: "packed-4", Chosen: "packed up to 64 rows", Cases: []CaseResult{times("1 row", packed, 1.0)}}}}
}

// TestProfile reads what was written, on the same machine only.
func TestProfile(t *testing.T) {
	inCache(t)
	if p, err := Read(here()); p != nil || err != nil {
		t.Fatalf("found %v, %v before anything was written", p, err)
	}
	want := sample(here())
	path := write(t, here(), want)
	if filepath.Base(path) != "cuda-nvidia-h200-x.json" {
		t.Errorf("written to %s", path)
	}
	if p, err := Read(here()); err != nil || !reflect.DeepEqual(p, want) {
		t.Errorf("read %+v, %v, expected %+v", p, err, want)
	}
	v := reflect.TypeFor[Machine]()
	for i := range v.NumField() {
		if name := v.Field(i).Name; name == "Device" || name == "Name" {
			continue // another file
		}
		other := here()
		if f := reflect.ValueOf(&other).Elem().Field(i); f.Kind() == reflect.String {
			f.SetString("other")
		} else {
			f.Set(reflect.ValueOf(7).Convert(f.Type()))
		}
		p, err := Read(other)
		e, ok := errors.AsType[*Error](err)
		if p != nil || !ok || e.Other == "" || strings.Contains(err.Error(), "\n") {
			t.Errorf("another %s: read %v, %v", v.Field(i).Name, p, err)
		}
	}
	for name, text := range map[string]string{
		"empty": "", "cut": `{"version": 1, "machine": {`, "version": `{"version": 2}`, "list": "[]",
		"twice": `{"version": 1, "version": 1}`,
		"large": strings.Repeat(" ", maxFile+1), "no time": `{"version": 1}`,
		"setting": `{"version": 1, "created": "2026-11-23T08:00:00Z", "settings": {"compile": "twice"}}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		p, err := Read(here())
		e, ok := errors.AsType[*Error](err)
		if p != nil || !ok || e.Other != "" || strings.Contains(err.Error(), "\n") || strings.Count(err.Error(), path) != 1 {
			t.Errorf("%s: read %v, %v", name, p, err)
		}
	}
}

// TestWriters: of several writers at once the last one wins, and no other file remains.
func TestWriters(t *testing.T) {
	inCache(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 20 {
				p := sample(here())
				p.Seconds = float64(i)
				write(t, here(), p)
				if _, err := Read(here()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	dir, err := Folder()
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("files %v, %v", files, err)
	}
}

// TestUnwritten: a writer that is closed leaves nothing, and a folder where nothing can be written is
// an error at once.
func TestUnwritten(t *testing.T) {
	inCache(t)
	w, err := NewWriter(here())
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	dir, err := Folder()
	if err != nil {
		t.Fatal(err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("files %v, %v", files, err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := NewWriter(here()); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("a file in place of the folder: %v", err)
	}
	if _, err := Read(here()); !errors.Is(err, fs.ErrInvalid) && err == nil {
		t.Errorf("a file in place of the folder: %v", err)
	}
}

// TestStop: a cancelled job stops while it measures.
func TestStop(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	err := mlx.Do(ctx, func() error {
		(&Meter{Rounds: 3}).Measure([]Comparison{{Name: "x", Candidates: []string{"a"}, Cases: []Case{{"y", func() []Trial {
			return []Trial{{Run: func() []*mlx.Array { cancel(); return nil }}}
		}}}, Choose: func(*Settings, []CaseResult) string { return "" }}})
		return fmt.Errorf("measured to the end")
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("found %v", err)
	}
}

// FuzzProfile reads any bytes as a profile: what is accepted is written and read again the same.
func FuzzProfile(f *testing.F) {
	text, err := json.Marshal(sample(here()))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(strings.Replace(string(text), `"version":0`, `"version":1`, 1)))
	f.Add([]byte(`{"version":1,"created":"2026-11-23T08:00:00Z","settings":{"without":["bias_sum"],"packed_rows":{"4":2147483647}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parse(data)
		if err != nil {
			return
		}
		if again, err := Parse(p.Settings.String()); err != nil || again.String() != p.Settings.String() {
			t.Errorf("settings %q: %v", p.Settings.String(), err)
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parse(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	})
}

// FuzzSettings parses any text: what is accepted has the same text again.
func FuzzSettings(f *testing.F) {
	f.Add("packed-4=64 packed-8=all dtype=float16 compile=off without=bias_sum,upsample")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(s.String())
		if err != nil || again.String() != s.String() {
			t.Errorf("%q became %q and %q (%v)", text, s.String(), again.String(), err)
		}
	})
}
