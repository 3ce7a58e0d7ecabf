package rounding

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/parity"
	"github.com/gomflux/gomflux/parity/report"
)

// One run of the reference, in bfloat16 and in float32.
const (
	rounded   = "../../models/testdata/zimage-bfloat16/dump"
	unrounded = "../../models/testdata/zimage-ordinary/dump"
)

// in returns options for a comparison in a dtype.
func in(dtype mlx.Dtype) CompareOptions {
	return CompareOptions{Precise: unrounded, Options: parity.Options{Dtype: &dtype}}
}

// medianRounding returns the median of the modules' rounding errors.
func medianRounding(r *Report) report.Number {
	var all []report.Number
	for _, m := range r.Modules {
		all = append(all, m.Rounding)
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		name     string
		options  CompareOptions
		quantize *mlx.Quantization
		min, max report.Number // of the median
	}{
		{"bfloat16", in(mlx.BFloat16), nil, 0.8, 1.3},
		{"float16", in(mlx.Float16), nil, 0.05, 0.3},
		{"8 bits", in(mlx.BFloat16), &mlx.Quantization{Mode: "affine", Bits: 8, Group: 32}, 0.8, 1.3},
		{"4 bits", in(mlx.BFloat16), &mlx.Quantization{Mode: "affine", Bits: 4, Group: 32}, 0.8, 1.3},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.options.Quantize = c.quantize
			r, err := Compare(t.Context(), rounded, c.options)
			if err != nil {
				t.Fatal(err)
			}
			if !r.Verdict.OK || len(r.Modules) < 90 || len(r.Values) < 8 {
				t.Errorf("%d modules, %d values: %s", len(r.Modules), len(r.Values), r.Verdict.Text)
			}
			if m := medianRounding(r); m < c.min || m > c.max {
				t.Errorf("median rounding error %g, expected %g to %g", m, c.min, c.max)
			}
			worst := report.Number(0)
			for _, m := range r.Modules {
				worst = max(worst, m.Quantized)
			}
			if quantized := c.quantize != nil; quantized != (worst > 3) {
				t.Errorf("the largest part of quantized weights is %g", worst)
			}
			var text bytes.Buffer
			if err := r.Print(&text, true); err != nil {
				t.Fatal(err)
			}
			mlxtest.Contains(t, text.String(), "module by itself",
				"transformer.layers.{0-1}.feed_forward.w1@0", "vae.decode.out", "PASS: ")
			if strings.Contains(text.String(), "quantized") != (c.quantize != nil) {
				t.Errorf("text:\n%s", &text)
			}
			if _, err := json.Marshal(r); err != nil {
				t.Error(err)
			}
		})
	}
}

// changed changes the weight of a module of a loaded model.
func changed(module string, f func(*mlx.Array) *mlx.Array) func(*models.Pipeline) {
	return func(p *models.Pipeline) {
		for _, w := range parametersOf(p, nil) {
			if w.module == module {
				w.set(f(w.original))
			}
		}
	}
}

// What is wrong only in half precision is found by its multiple, and what is wrong in float32
// before that.
func TestCompareFaults(t *testing.T) {
	const norm, module = "transformer.layers.1.attention.norm_k", "transformer.layers.1.attention.norm_k@0"
	inBFloat16 := func(factor float64) func(*models.Pipeline) {
		return func(p *models.Pipeline) {
			if p.Dtype() == mlx.BFloat16 {
				changed(norm, func(x *mlx.Array) *mlx.Array { return x.Times(factor) })(p)
			}
		}
	}
	o := in(mlx.BFloat16)
	o.Loaded = inBFloat16(1.02)
	r, err := Compare(t.Context(), rounded, o)
	if err != nil {
		t.Fatal(err)
	}
	if v := r.Verdict; v.OK || v.Module != module || !strings.Contains(v.Text, "rounding error above 4 times") {
		t.Errorf("in bfloat16: %+v", v)
	}
	o.Limit = 100
	if r, err = Compare(t.Context(), rounded, o); err != nil || !r.Verdict.OK {
		t.Errorf("with another limit: %v, %+v", err, r)
	}
	o.Limit, o.Loaded = 0, changed(norm, func(x *mlx.Array) *mlx.Array { return x.Times(1.02) })
	r, err = Compare(t.Context(), rounded, o)
	if err != nil {
		t.Fatal(err)
	}
	if v := r.Verdict; v.OK || v.Module != module || len(v.Hints) == 0 ||
		!strings.HasPrefix(v.Text, "in float32, before anything is rounded: ") {
		t.Errorf("in float32: %+v", v)
	}
	var text bytes.Buffer
	if err := r.Print(&text, false); err != nil {
		t.Fatal(err)
	}
	mlxtest.Contains(t, text.String(), "FAIL: in float32")

	o.Loaded = inBFloat16(math.Inf(1)) // overflow
	r, err = Compare(t.Context(), rounded, o)
	if err != nil {
		t.Fatal(err)
	}
	if v := r.Verdict; v.OK || v.Module != module {
		t.Errorf("infinite: %+v", v)
	}
	if data, err := json.Marshal(r); err != nil || !bytes.Contains(data, []byte(`"multiple":null`)) {
		t.Errorf("JSON: %v", err)
	}
}

// copied copies a run, with another value of a setting.
func copied(t *testing.T, run, key string, value any) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "dump")
	if err := os.CopyFS(dir, os.DirFS(run)); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "settings.json")
	var settings map[string]any
	data, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(data, &settings)
	}
	if err != nil {
		t.Fatal(err)
	}
	settings[key] = value
	if data, err = json.Marshal(settings); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data, 0o666); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A run of another model has the same settings, but its errors are not those of rounding.
func TestCompareOtherModel(t *testing.T) {
	dir := copied(t, rounded, "seed", 1)
	files, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		f, err := checkpoint.OpenArrays(file)
		if err != nil {
			t.Fatal(err)
		}
		var all []*checkpoint.Array
		for _, info := range f.Tensors() {
			x, err := f.Read(info.Name)
			if err != nil {
				t.Fatal(err)
			}
			if size := x.Dtype.Size(); report.IsModule(info.Name) { // values in reverse
				for i, j := 0, len(x.Data)-size; i < j; i, j = i+size, j-size {
					for k := range size {
						x.Data[i+k], x.Data[j+k] = x.Data[j+k], x.Data[i+k]
					}
				}
			}
			all = append(all, x)
		}
		f.Close()
		if err := checkpoint.WriteFile(file, all, nil); err != nil {
			t.Fatal(err)
		}
	}
	o := in(mlx.BFloat16)
	o.Model = filepath.Join(unrounded, "..", "model")
	_, err = Compare(t.Context(), dir, o)
	if err == nil || !errors.Is(err, parity.ErrRun) {
		t.Fatalf("error %v", err)
	}
	mlxtest.Contains(t, err.Error(), "the runs are of different models")
}

func TestCompareRefuses(t *testing.T) {
	for name, c := range map[string]struct{ run, precise, err string }{
		"no run":          {t.TempDir(), unrounded, "settings.json"},
		"no precise run":  {rounded, t.TempDir(), "settings.json"},
		"not precise":     {rounded, rounded, `it was computed in "bfloat16", expected float32`},
		"both precise":    {unrounded, unrounded, `it was computed in "float32", expected bfloat16 or float16`},
		"another prompt":  {rounded, copied(t, unrounded, "prompt", "a square"), "its prompt is a square"},
		"another seed":    {rounded, copied(t, unrounded, "seed", 3), "its seed is 3, that of " + rounded + " is 1"},
		"another size":    {rounded, copied(t, unrounded, "width", 48), "its size is 48x24"},
		"negative prompt": {rounded, copied(t, unrounded, "negative_prompt", "dark"), "its negative prompt is dark"},
	} {
		t.Run(name, func(t *testing.T) {
			o := in(mlx.BFloat16)
			o.Precise = c.precise
			_, err := Compare(t.Context(), c.run, o)
			if err == nil {
				t.Fatal("no error")
			}
			mlxtest.Contains(t, err.Error(), c.err)
		})
	}
}
