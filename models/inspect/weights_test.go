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
	"github.com/gomflux/gomflux/models"
)

// vaeFile is the one file of the tiny model's autoencoder.
const vaeFile = "vae/diffusion_pytorch_model.safetensors"

// copyModel copies the tiny model to a folder of its own.
func copyModel(t *testing.T) string {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(ordinary)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// edit rewrites a safetensors file.
func edit(t *testing.T, path string, change func(map[string]*checkpoint.Array)) {
	f, err := checkpoint.OpenArrays(path)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*checkpoint.Array{}
	for _, i := range f.Tensors() {
		if all[i.Name], err = f.Read(i.Name); err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	change(all)
	var list []*checkpoint.Array
	for name, x := range all {
		x.Name = name
		list = append(list, x)
	}
	if err := checkpoint.WriteFile(path, list, nil); err != nil {
		t.Fatal(err)
	}
}

// fill gives a tensor other elements, made from its own.
func fill(x *checkpoint.Array, f func(i int, v float32) float32) {
	values := x.Float32s()
	for i, v := range values {
		values[i] = f(i, v)
	}
	changed, err := checkpoint.FromFloat32(x.Name, x.Shape, values)
	if err == nil {
		changed, err = changed.Cast(x.Dtype)
	}
	if err != nil {
		panic(err)
	}
	x.Data = changed.Data
}

func openWeights(t *testing.T, dir string) *models.Weights {
	folder, err := checkpoint.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	w, err := models.OpenWeights(folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// flags reads all tensors and lists the flags as text.
func flags(t *testing.T, w *models.Weights) (list []string) {
	if err := w.Read(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range w.Components {
		for _, f := range c.Flags() {
			severity := "warning"
			if f.Error {
				severity = "error"
			}
			list = append(list, fmt.Sprintf("%s: %s: %s: %s: %s", severity, c.Name, f.Kind, f.Tensor, f.Text))
		}
	}
	return list
}

// TestWeightsFlags plants what can be wrong. Each is named, and nothing else.
func TestWeightsFlags(t *testing.T) {
	const (
		weight = "decoder.up_blocks.1.resnets.1.conv2.weight"
		bias   = "decoder.conv_in.bias"
		norm   = "decoder.conv_norm_out.weight"
	)
	zero := func(int, float32) float32 { return 0 }
	tests := map[string]struct {
		file   string // the vae's if it is empty
		change func(map[string]*checkpoint.Array)
		want   []string // prefixes
	}{
		"whole":       {change: func(map[string]*checkpoint.Array) {}},
		"zero weight": {change: func(m map[string]*checkpoint.Array) { fill(m[weight], zero) }, want: []string{"error: vae: all zero: " + weight + ": BF16 [8 8 3 3]"}},
		"zero norm":   {change: func(m map[string]*checkpoint.Array) { fill(m[norm], zero) }, want: []string{"error: vae: all zero: " + norm}},
		"minus zero": {change: func(m map[string]*checkpoint.Array) {
			fill(m[norm], func(int, float32) float32 { return float32(math.Copysign(0, -1)) })
		}, want: []string{"error: vae: all zero: " + norm}},
		"zero bias":       {change: func(m map[string]*checkpoint.Array) { fill(m[bias], zero) }, want: []string{"warning: vae: all zero: " + bias}},
		"constant weight": {change: func(m map[string]*checkpoint.Array) { fill(m[weight], func(int, float32) float32 { return 0.5 }) }, want: []string{"error: vae: constant: " + weight + ": BF16 [8 8 3 3], every element is 0.5"}},
		"constant norm":   {change: func(m map[string]*checkpoint.Array) { fill(m[norm], func(int, float32) float32 { return 1 }) }, want: []string{"warning: vae: constant: " + norm}},
		"NaN": {change: func(m map[string]*checkpoint.Array) {
			fill(m[weight], func(i int, v float32) float32 {
				if i%100 == 7 {
					return float32(math.NaN())
				}
				return v
			})
		}, want: []string{"error: vae: not finite: " + weight + ": 6 NaN and 0 infinite of 576 elements"}},
		"infinite": {change: func(m map[string]*checkpoint.Array) {
			fill(m[bias], func(i int, v float32) float32 {
				if i < 2 {
					return float32(math.Inf(2*i - 1))
				}
				return v
			})
		}, want: []string{"error: vae: not finite: " + bias + ": 0 NaN and 2 infinite of 12 elements"}},
		"all biases": {change: func(m map[string]*checkpoint.Array) {
			for name, x := range m {
				if strings.HasSuffix(name, ".bias") {
					fill(x, zero)
				}
			}
		}, want: []string{"warning: vae: biases zero: : all 76 biases"}},
		"large std": {change: func(m map[string]*checkpoint.Array) {
			fill(m[weight], func(_ int, v float32) float32 { return 20 * v })
		}, want: []string{"warning: vae: suspicious std: " + weight + ": "}},
		"small std": {change: func(m map[string]*checkpoint.Array) {
			fill(m[weight], func(_ int, v float32) float32 { return v / 20 })
		}, want: []string{"warning: vae: suspicious std: " + weight + ": "}},
		"ordinary std": {change: func(m map[string]*checkpoint.Array) {
			fill(m[weight], func(_ int, v float32) float32 { return 3 * v })
		}},
		"missing":    {change: func(m map[string]*checkpoint.Array) { delete(m, weight) }, want: []string{"error: vae: missing: " + weight + ": expected [8 8 3 3]"}},
		"unexpected": {change: func(m map[string]*checkpoint.Array) { x := *m[bias]; m["scale"] = &x }, want: []string{"error: vae: unexpected: scale: [12] in "}},
		"renamed": {change: func(m map[string]*checkpoint.Array) { m["decoder.conv_in.b"] = m[bias]; delete(m, bias) }, want: []string{
			"error: vae: missing: " + bias + ": expected [12]", "error: vae: unexpected: decoder.conv_in.b: [12] in "}},
		"reshaped": {change: func(m map[string]*checkpoint.Array) { m[weight].Shape = []int{3, 3, 8, 8} }, want: []string{
			"error: vae: wrong shape: " + weight + ": expected [8 8 3 3], found [3 3 8 8] in "}},
		"retyped": {change: func(m map[string]*checkpoint.Array) {
			x := m[bias]
			x.Dtype, x.Data = checkpoint.I32, append(slices.Clone(x.Data), make([]byte, len(x.Data))...)
		}, want: []string{"error: vae: wrong dtype: " + bias + ": expected F32, F16 or BF16, found I32 in "}},
		"not needed": {file: "text_encoder/model-00002-of-00002.safetensors", change: func(m map[string]*checkpoint.Array) {
			fill(m["model.layers.2.mlp.up_proj.weight"], zero)
			fill(m["model.layers.2.mlp.down_proj.weight"], func(int, float32) float32 { return 1 })
			fill(m["model.layers.2.mlp.gate_proj.weight"], func(int, float32) float32 { return float32(math.NaN()) })
		}},
		"several": {change: func(m map[string]*checkpoint.Array) { fill(m[bias], zero); fill(m[weight], zero); delete(m, norm) }, want: []string{
			"error: vae: missing: " + norm, "error: vae: all zero: " + weight, "warning: vae: all zero: " + bias}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := copyModel(t)
			file := test.file
			if file == "" {
				file = vaeFile
			}
			edit(t, filepath.Join(dir, file), test.change)
			got := flags(t, openWeights(t, dir))
			if !slices.EqualFunc(got, test.want, strings.HasPrefix) {
				t.Errorf("found\n%s\nexpected\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

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
		w, err := models.OpenWeightsFile(path)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		var last models.Progress
		if err := w.Read(t.Context(), func(p models.Progress) { last = p }); err != nil {
			t.Fatal(err)
		}
		if size := x.Tensor().Bytes(); last.Bytes != size || last.TotalBytes != size || last.Component != "x.safetensors" {
			t.Errorf("%s: progress ended with %+v", dtype, last)
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
		if got := flags(t, w); len(got) != 1 || !strings.HasPrefix(got[0], "error: x.safetensors: not finite: x: 1 NaN and 1 infinite of 600000") {
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
		"whole":             {change: remove(), names: "text_encoder transformer vae", checked: "text_encoder transformer vae"},
		"unknown class":     {change: replaceIndex("StableDiffusion3Pipeline"), names: "text_encoder transformer vae", checked: "vae"},
		"no index":          {change: remove("model_index.json"), names: "text_encoder transformer vae", checked: "vae"},
		"a vae":             {change: remove(), sub: "vae", names: ".", checked: "."},
		"a transformer":     {change: remove(), sub: "transformer", names: "."},
		"no shard":          {change: remove("transformer/diffusion_pytorch_model-00002-of-00002.safetensors"), names: "text_encoder transformer vae", checked: "text_encoder vae", flags: []string{"error: transformer: unreadable: : "}},
		"no config":         {change: remove("vae/config.json"), names: "text_encoder transformer vae", flags: []string{"error: text_encoder: unreadable: : ", "error: transformer: unreadable: : ", "error: vae: unreadable: : "}},
		"no config, no one": {change: remove("vae/config.json", "model_index.json"), names: "text_encoder transformer vae"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := copyModel(t)
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
		dir := copyModel(t)
		change(t, dir)
		folder, err := checkpoint.OpenFolder(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := models.OpenWeights(folder); err == nil || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
			t.Errorf("found %v, expected one line that names the folder", err)
		}
	}
}

// TestWeightsSelect keeps one component.
func TestWeightsSelect(t *testing.T) {
	w := openWeights(t, ordinary)
	if err := w.Select("unet"); !errors.Is(err, models.ErrRequest) || !strings.Contains(err.Error(), "text_encoder, transformer, vae") {
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
	err := w.Read(ctx, func(models.Progress) { cancel(cause) })
	if !errors.Is(err, cause) {
		t.Errorf("found %v, expected %v", err, cause)
	}
	dir := copyModel(t)
	w = openWeights(t, dir)
	if err := os.Truncate(filepath.Join(dir, vaeFile), 30_000); err != nil {
		t.Fatal(err)
	}
	err = w.Read(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), vaeFile+": tensor ") || !strings.Contains(err.Error(), "cut short") {
		t.Errorf("found %v", err)
	}
}

// TestCompare changes one model and compares it with the other.
func TestCompare(t *testing.T) {
	const weight, bias = "decoder.up_blocks.1.resnets.1.conv2.weight", "decoder.conv_in.bias"
	compare := func(t *testing.T, change func(map[string]*checkpoint.Array)) *models.ComponentComparison {
		dir := copyModel(t)
		edit(t, filepath.Join(dir, vaeFile), change)
		c, err := models.Compare(t.Context(), openWeights(t, dir), openWeights(t, ordinary), nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Components) != 3 || c.Components[2].Name != "vae" {
			t.Fatalf("components %+v", c.Components)
		}
		for _, part := range c.Components[:2] {
			for _, d := range part.Tensors {
				if !d.Within(0) || d.Relative != 0 || d.MaxAbs != 0 || d.Cosine != 1 {
					t.Errorf("%s %s: %+v", part.Name, d.Name, d)
				}
			}
		}
		return c.Components[2]
	}
	// differing are the tensors that are not exactly equal
	differing := func(c *models.ComponentComparison) (out []*models.TensorDifference) {
		for _, d := range c.Tensors {
			if !d.Within(0) {
				out = append(out, d)
			}
		}
		return out
	}
	t.Run("equal", func(t *testing.T) {
		c := compare(t, func(map[string]*checkpoint.Array) {})
		if d := differing(c); d != nil || len(c.Tensors) != 152 {
			t.Errorf("%+v of %d", d, len(c.Tensors))
		}
	})
	t.Run("other dtype", func(t *testing.T) {
		c := compare(t, func(m map[string]*checkpoint.Array) {
			for name, x := range m {
				m[name], _ = x.Cast(checkpoint.F32)
			}
		})
		if d := differing(c); d != nil || c.Tensors[0].A.Dtype != "F32" || c.Tensors[0].B.Dtype != "BF16" {
			t.Errorf("%+v", d)
		}
	})
	t.Run("scaled", func(t *testing.T) {
		c := compare(t, func(m map[string]*checkpoint.Array) {
			fill(m[weight], func(_ int, v float32) float32 { return -2 * v })
		})
		d := differing(c)
		if len(d) != 1 || d[0].Name != weight || math.Abs(float64(d[0].Relative)-3) > 1e-9 || math.Abs(float64(d[0].Cosine)+1) > 1e-9 {
			t.Fatalf("%+v", d)
		}
		if d[0].Within(2.9) || !d[0].Within(3.1) {
			t.Errorf("%+v", d[0])
		}
	})
	t.Run("one element", func(t *testing.T) {
		c := compare(t, func(m map[string]*checkpoint.Array) {
			fill(m[bias], func(i int, v float32) float32 {
				if i == 5 {
					return v + 1
				}
				return v
			})
		})
		if d := differing(c); len(d) != 1 || d[0].Name != bias || d[0].Differing != 1 || math.Abs(float64(d[0].MaxAbs)-1) > 0.01 {
			t.Errorf("%+v", d)
		}
	})
	t.Run("NaN", func(t *testing.T) {
		c := compare(t, func(m map[string]*checkpoint.Array) {
			fill(m[bias], func(i int, v float32) float32 { return float32(math.NaN()) })
		})
		if d := differing(c); len(d) != 1 || d[0].Differing != 12 || !math.IsNaN(float64(d[0].Relative)) || d[0].Within(1e9) {
			t.Errorf("%+v", d)
		}
	})
	t.Run("names and shapes", func(t *testing.T) {
		c := compare(t, func(m map[string]*checkpoint.Array) {
			m["other"] = m[bias]
			delete(m, bias)
			m[weight].Shape = []int{8, 8, 9}
		})
		d := differing(c)
		if len(d) != 1 || d[0].Name != weight || d[0].Mismatch != "shape [8 8 9] against [8 8 3 3]" || d[0].Within(1e9) {
			t.Errorf("%+v", d)
		}
		if !slices.Equal(c.OnlyA, []string{"other"}) || !slices.Equal(c.OnlyB, []string{bias}) {
			t.Errorf("only in one: %q, %q", c.OnlyA, c.OnlyB)
		}
	})
	// a text encoder may be saved with a prefix and without one
	t.Run("prefix", func(t *testing.T) {
		a, b := openWeights(t, ordinary), openWeights(t, "testdata/zimage-small/model")
		c, err := models.Compare(t.Context(), a, b, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(c.Components[0].Tensors); n != 35 || c.Components[0].OnlyA != nil {
			t.Errorf("%d tensors have a partner, and not %q", n, c.Components[0].OnlyA)
		}
	})
	// a folder of its own against another's component, and a component alone
	t.Run("components", func(t *testing.T) {
		a, b := openWeights(t, filepath.Join(ordinary, "vae")), openWeights(t, ordinary)
		c, err := models.Compare(t.Context(), a, b, nil)
		if err != nil || len(c.Components) != 4 || c.Components[0].Only != "a" || c.Components[3].Only != "b" {
			t.Errorf("%v, %+v", err, c)
		}
		if err := b.Select("vae"); err != nil {
			t.Fatal(err)
		}
		c, err = models.Compare(t.Context(), a, b, nil)
		if err != nil || len(c.Components) != 1 || len(c.Components[0].Tensors) != 152 || differing(c.Components[0]) != nil {
			t.Errorf("%v, %+v", err, c)
		}
	})
	t.Run("zeros", func(t *testing.T) {
		write := func(value float32) *models.Weights {
			x, err := checkpoint.FromFloat32("x", []int{3}, []float32{0, value, 0})
			path := filepath.Join(t.TempDir(), "x.safetensors")
			if err == nil {
				err = checkpoint.WriteFile(path, []*checkpoint.Array{x}, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			w, err := models.OpenWeightsFile(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { w.Close() })
			return w
		}
		for _, values := range [][2]float32{{0, 0}, {2, 0}} {
			c, err := models.Compare(t.Context(), write(values[0]), write(values[1]), nil)
			if err != nil {
				t.Fatal(err)
			}
			d := c.Components[0].Tensors[0]
			if equal := values[0] == 0; d.Within(0) != equal || equal && d.Relative != 0 || !equal && !math.IsInf(float64(d.Relative), 1) {
				t.Errorf("%v: %+v", values, d)
			}
		}
	})
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
		w, err := models.OpenWeightsFile(path)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if err := w.Read(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		c, err := models.Compare(t.Context(), w, w, nil)
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

func TestRoleOf(t *testing.T) {
	for name, want := range map[string][2]string{
		"layers.12.attention.to_q.weight":          {"layers.*.attention.to_q.weight", "layers.12"},
		"layers.3.attention.to_out.0.weight":       {"layers.*.attention.to_out.0.weight", "layers.3"},
		"decoder.up_blocks.0.resnets.1.conv1.bias": {"decoder.up_blocks.*.resnets.*.conv1.bias", "decoder.up_blocks.0"},
		"all_x_embedder.2-1.bias":                  {"all_x_embedder.2-1.bias", "all_x_embedder"},
		"cap_embedder.1.weight":                    {"cap_embedder.1.weight", "cap_embedder"},
		"0.weight":                                 {"0.weight", "0"},
		"x":                                        {"x", "x"},
	} {
		if got := [2]string{models.RoleOf(name), models.LayerOf(name)}; got != want {
			t.Errorf("%s has role and layer %q, expected %q", name, got, want)
		}
	}
}
