package parity

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

const rounded = "../models/testdata/zimage-bfloat16/dump" // the run of ordinary

// in returns options for a comparison in a dtype.
func in(dtype mlx.Dtype) PreciseOptions {
	return PreciseOptions{Precise: ordinary, Options: Options{Dtype: &dtype}}
}

// medianRounding returns the median of the modules' rounding errors.
func medianRounding(r *PreciseReport) float64 {
	var all []float64
	for _, m := range r.Modules {
		all = append(all, m.Rounding)
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func TestReplayPrecise(t *testing.T) {
	for _, c := range []struct {
		name     string
		options  PreciseOptions
		quantize *mlx.Quantization
		min, max float64 // of the median
	}{
		{"bfloat16", in(mlx.BFloat16), nil, 0.8, 1.3},
		{"float16", in(mlx.Float16), nil, 0.05, 0.3},
		{"8 bits", in(mlx.BFloat16), &mlx.Quantization{Mode: "affine", Bits: 8, Group: 32}, 0.8, 1.3},
		{"4 bits", in(mlx.BFloat16), &mlx.Quantization{Mode: "affine", Bits: 4, Group: 32}, 0.8, 1.3},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.options.Quantize = c.quantize
			r, err := ReplayPrecise(t.Context(), rounded, c.options)
			if err != nil {
				t.Fatal(err)
			}
			if !r.Verdict.OK || len(r.Modules) < 90 || len(r.Values) < 8 {
				t.Errorf("%d modules, %d values: %s", len(r.Modules), len(r.Values), r.Verdict.Text)
			}
			if m := medianRounding(r); m < c.min || m > c.max {
				t.Errorf("median rounding error %g, expected %g to %g", m, c.min, c.max)
			}
			worst := 0.0
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

// What is wrong only in half precision is found by its multiple, and what is wrong in float32
// before that.
func TestReplayPreciseFaults(t *testing.T) {
	const module = "transformer.layers.1.attention.norm_k@0"
	wrong := func(only func(mlx.Dtype) bool) func(*replay, hooks.Tap) *mlx.Array {
		return onto(module, func(x *mlx.Array) *mlx.Array {
			if only(x.Dtype()) {
				return x.Times(1.02)
			}
			return x
		})
	}
	o := in(mlx.BFloat16)
	o.bug = wrong(func(d mlx.Dtype) bool { return d == mlx.BFloat16 })
	r, err := ReplayPrecise(t.Context(), rounded, o)
	if err != nil {
		t.Fatal(err)
	}
	if v := r.Verdict; v.OK || v.Module != module || !strings.Contains(v.Text, "rounding error above 4 times") {
		t.Errorf("in bfloat16: %+v", v)
	}
	o.Limit = 100
	if r, err = ReplayPrecise(t.Context(), rounded, o); err != nil || !r.Verdict.OK {
		t.Errorf("with another limit: %v, %+v", err, r)
	}
	o.Limit, o.bug = 0, wrong(func(mlx.Dtype) bool { return true })
	r, err = ReplayPrecise(t.Context(), rounded, o)
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

	// overflow
	o.bug = onto(module, func(x *mlx.Array) *mlx.Array {
		if x.Dtype() == mlx.BFloat16 {
			return x.Times(1e38).Times(1e38)
		}
		return x
	})
	r, err = ReplayPrecise(t.Context(), rounded, o)
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

// A run of another model has the same settings, but its errors are not those of rounding.
func TestReplayPreciseOtherModel(t *testing.T) {
	dir := t.TempDir()
	n, err := record(rounded, dir, []string{"*"})
	if err != nil || n < 100 {
		t.Fatalf("%d tensors, %v", n, err)
	}
	file := filepath.Join(dir, "tensors.safetensors")
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
		if size := x.Dtype.Size(); isModule(info.Name) { // values in reverse
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
	o := in(mlx.BFloat16)
	o.Model = filepath.Join(ordinary, "..", "model")
	_, err = ReplayPrecise(t.Context(), dir, o)
	if err == nil || !errors.Is(err, ErrRun) {
		t.Fatalf("error %v", err)
	}
	mlxtest.Contains(t, err.Error(), "the runs are of different models")
}

func TestReplayPreciseRefuses(t *testing.T) {
	copied := func(key string, value any) string {
		dir := filepath.Join(t.TempDir(), "dump")
		if err := os.CopyFS(dir, os.DirFS(ordinary)); err != nil {
			t.Fatal(err)
		}
		edited(t, filepath.Join(dir, "settings.json"), key, value)
		return dir
	}
	for name, c := range map[string]struct{ run, precise, err string }{
		"no run":          {t.TempDir(), ordinary, "settings.json"},
		"no precise run":  {rounded, t.TempDir(), "settings.json"},
		"not precise":     {rounded, rounded, `it was computed in "bfloat16", expected float32`},
		"both precise":    {ordinary, ordinary, `it was computed in "float32", expected bfloat16 or float16`},
		"another prompt":  {rounded, copied("prompt", "a square"), "its prompt is a square"},
		"another seed":    {rounded, copied("seed", 3), "its seed is 3, that of ../models/testdata/zimage-bfloat16/dump is 1"},
		"another size":    {rounded, copied("width", 48), "its size is 48x24"},
		"negative prompt": {rounded, copied("negative_prompt", "dark"), "its negative prompt is dark"},
	} {
		t.Run(name, func(t *testing.T) {
			o := in(mlx.BFloat16)
			o.Precise = c.precise
			_, err := ReplayPrecise(t.Context(), c.run, o)
			if err == nil {
				t.Fatal("no error")
			}
			mlxtest.Contains(t, err.Error(), c.err)
		})
	}
}
