package inspect_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/inspect"
)

// TestWeightsStats compares with plain sums, also where a tensor is read in
// parts.
func TestWeightsStats(t *testing.T) {
	values := mlxtest.Random(3, 600_000)
	for i := range values {
		values[i] = 100 + values[i]*float32(i%7)
	}
	values[12], values[500_000], values[599_999] = float32(math.NaN()), float32(math.Inf(1)), -1234
	for _, dtype := range []checkpoint.Dtype{checkpoint.F64, checkpoint.F32, checkpoint.F16, checkpoint.BF16} {
		x, err := checkpoint.FromFloat32("x", []int{6, 100_000}, values)
		if err == nil {
			x, err = x.Cast(dtype)
		}
		if err != nil {
			t.Fatal(err)
		}
		var n, sum, squares float64
		for _, v := range x.Float64s() {
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				n, sum = n+1, sum+v
			}
		}
		for _, v := range x.Float64s() {
			if d := v - sum/n; !math.IsNaN(d) && !math.IsInf(d, 0) {
				squares += d * d
			}
		}
		path := filepath.Join(t.TempDir(), "x.safetensors")
		empty := &checkpoint.Array{Name: "empty", Dtype: dtype, Shape: []int{0, 3}}
		if err := checkpoint.WriteFile(path, []*checkpoint.Array{x, empty}, nil); err != nil {
			t.Fatal(err)
		}
		w, err := inspect.OpenWeightsFile(path)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		var last string
		if err := w.Read(t.Context(), func(component string, done,
			total int64) {
			last = fmt.Sprint(component, " ", done, " ", total)
		}); err != nil {
			t.Fatal(err)
		}
		if size := x.Tensor().Bytes(); last != fmt.Sprint("x.safetensors ", size, " ", size) {
			t.Errorf("%s: progress ended with %s", dtype, last)
		}
		c := w.Components[0]
		if c.Unchecked == nil || len(c.Tensors) != 2 || !math.IsNaN(float64(c.Tensors[0].Stats.Min)) || c.Tensors[0].Stats.NaN != 0 {
			t.Errorf("%s: %v, %d tensors, empty: %+v", dtype, c.Unchecked, len(c.Tensors), c.Tensors[0].Stats)
		}
		s := c.Tensors[1].Stats
		near := func(got checkpoint.Float, want float64) bool {
			return math.Abs(float64(got)-want) <= 1e-10*math.Abs(want)
		}
		if s.NaN != 1 || s.Inf != 1 || !near(s.Mean, sum/n) || !near(s.Std, math.Sqrt(squares/n)) || s.Min > -1230 || s.Max < 110 {
			t.Errorf("%s: found %+v, expected mean %v and std %v", dtype, s, sum/n, math.Sqrt(squares/n))
		}
		if got := flags(t, w); len(got) != 1 || !strings.HasPrefix(got[0],
			"error: x.safetensors: not finite: x: 1 NaN and 1 infinite of 600000") {
			t.Errorf("%s: %q", dtype, got)
		}
	}
}

// TestOpenWeights looks at folders that are no models that can be run.
func TestOpenWeights(t *testing.T) {
	replaceIndex := func(class string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			name := filepath.Join(dir, "model_index.json")
			text, err := os.ReadFile(name)
			if err == nil {
				err = os.WriteFile(name, []byte(strings.ReplaceAll(string(text), "ZImagePipeline", class)), 0o666)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			for _, name := range names {
				if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	tests := map[string]struct {
		change  func(*testing.T, string)
		sub     string
		names   string
		checked string   // components that are held against a config
		flags   []string // prefixes
	}{
		"whole":         {change: remove(), names: "text_encoder transformer vae", checked: "text_encoder transformer vae"},
		"unknown class": {change: replaceIndex("StableDiffusion3Pipeline"), names: "text_encoder transformer vae", checked: "vae"},
		"no index":      {change: remove("model_index.json"), names: "text_encoder transformer vae", checked: "vae"},
		"a vae":         {change: remove(), sub: "vae", names: ".", checked: "."},
		"a transformer": {change: remove(), sub: "transformer", names: "."},
		"no shard": {change: remove("transformer/diffusion_pytorch_model-00002-of-00002.safetensors"),
			names: "text_encoder transformer vae", checked: "text_encoder vae", flags: []string{"error: transformer: unreadable: : "}},
		"no vocabulary": {change: remove("tokenizer/tokenizer.json", "tokenizer/vocab.json"), names: "text_encoder transformer vae",
			checked: "text_encoder transformer vae", flags: []string{"error: tokenizer: unreadable: : "}},
		"no config": {change: remove("vae/config.json"), names: "text_encoder transformer vae",
			flags: []string{"error: text_encoder: unreadable: : ", "error: transformer: unreadable: : ", "error: vae: unreadable: : "}},
		"no config, no one": {change: remove("vae/config.json", "model_index.json"), names: "text_encoder transformer vae"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := modeltest.Copy(t, ordinary)
			test.change(t, dir)
			w := openWeights(t, filepath.Join(dir, test.sub))
			var names, checked []string
			for _, c := range w.Components {
				names = append(names, c.Name)
				if c.Unchecked == nil && c.Err == nil {
					checked = append(checked, c.Name)
				}
			}
			if got := strings.Join(names, " "); got != test.names {
				t.Errorf("components %s, expected %s", got, test.names)
			}
			if got := strings.Join(checked, " "); got != test.checked {
				t.Errorf("checked %s, expected %s", got, test.checked)
			}
			if got := flags(t, w); !slices.EqualFunc(got, test.flags, strings.HasPrefix) {
				t.Errorf("flags %q, expected %q", got, test.flags)
			}
		})
	}
	for _, change := range []func(*testing.T, string){
		remove("model_index.json", "vae", "transformer", "text_encoder"),
		func(t *testing.T, dir string) {
			os.WriteFile(filepath.Join(dir, "model_index.json"), []byte(`{"_class_name": "X"}`), 0o666)
		},
		func(t *testing.T, dir string) {
			os.WriteFile(filepath.Join(dir, "model_index.json"), []byte(`{`), 0o666)
		},
	} {
		dir := modeltest.Copy(t, ordinary)
		change(t, dir)
		folder, err := checkpoint.OpenFolder(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := inspect.OpenWeights(folder); err == nil || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
			t.Errorf("found %v, expected one line that names the folder", err)
		}
	}
}

// TestWeightsSelect keeps one component.
func TestWeightsSelect(t *testing.T) {
	w := openWeights(t, ordinary)
	if err := w.Select("unet"); !errors.Is(err, errs.ErrRequest) || !strings.Contains(err.Error(), "text_encoder, transformer, vae") {
		t.Errorf("found %v", err)
	}
	if err := w.Select("vae"); err != nil || len(w.Components) != 1 || w.Components[0].Name != "vae" {
		t.Errorf("found %v, %d components", err, len(w.Components))
	}
	if got := flags(t, w); got != nil {
		t.Errorf("found %q", got)
	}
}

// TestWeightsErrors stops a read, and has a file end while it is read.
func TestWeightsErrors(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	w := openWeights(t, ordinary)
	err := w.Read(ctx, func(string, int64, int64) { cancel(cause) })
	if !errors.Is(err, cause) {
		t.Errorf("found %v, expected %v", err, cause)
	}
	dir := modeltest.Copy(t, ordinary)
	w = openWeights(t, dir)
	if err := os.Truncate(filepath.Join(dir, vaeFile), 30_000); err != nil {
		t.Fatal(err)
	}
	err = w.Read(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), vaeFile+": tensor ") || !strings.Contains(err.Error(), "truncated") {
		t.Errorf("found %v", err)
	}
}

// TestWeightsEightBits reads eight-bit floats, whose values PyTorch gives.
func TestWeightsEightBits(t *testing.T) {
	for dtype, want := range map[string]struct {
		data     []byte
		min, max float64
		nan, inf int
	}{
		"F8_E4M3": {[]byte{0x00, 0x80, 0x01, 0x7e, 0xfe, 0x7f, 0xff, 0x38}, -448, 448, 2, 0},
		"F8_E5M2": {[]byte{0x00, 0x01, 0x7b, 0xfb, 0x7c, 0xfc, 0x7d, 0x3c}, -57344, 57344, 1, 2},
		"F8_E8M0": {[]byte{0x00}, 0, 0, 0, 0}, // has no numbers that are read
	} {
		path := filepath.Join(t.TempDir(), "x.safetensors")
		header := fmt.Sprintf(`{"x":{"dtype":%q,"shape":[%d],"data_offsets":[0,%[2]d]}}`, dtype, len(want.data))
		file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
		if err := os.WriteFile(path, append(file, want.data...), 0o666); err != nil {
			t.Fatal(err)
		}
		w, err := inspect.OpenWeightsFile(path)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if err := w.Read(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		c, err := inspect.Compare(t.Context(), w, w, nil)
		if err != nil {
			t.Fatal(err)
		}
		s, d := w.Components[0].Tensors[0].Stats, c.Components[0].Tensors[0]
		if dtype == "F8_E8M0" {
			if s != nil || d.Mismatch == "" {
				t.Errorf("%s: %+v, %+v", dtype, s, d)
			}
			continue
		}
		if float64(s.Min) != want.min || float64(s.Max) != want.max || s.NaN != want.nan || s.Inf != want.inf {
			t.Errorf("%s: found %+v, expected %+v", dtype, s, want)
		}
		if !d.Within(0) {
			t.Errorf("%s differs from itself: %+v", dtype, d)
		}
	}
}
