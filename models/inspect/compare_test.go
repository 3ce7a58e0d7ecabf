package inspect_test

import (
	"bytes"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/models/inspect"
)

// TestCompare changes one model and compares it with the other.
func TestCompare(t *testing.T) {
	const weight, bias = "decoder.up_blocks.1.resnets.1.conv2.weight", "decoder.conv_in.bias"
	compare := func(t *testing.T, change func(map[string]*checkpoint.Array)) *inspect.ComponentComparison {
		dir := modeltest.Copy(t, ordinary)
		modeltest.Edit(t, filepath.Join(dir, vaeFile), change)
		c, err := inspect.Compare(t.Context(), openWeights(t, dir), openWeights(t, ordinary), nil)
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
	differing := func(c *inspect.ComponentComparison) (out []*inspect.TensorDifference) {
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
			modeltest.Fill(m[weight], func(_ int, v float32) float32 { return -2 * v })
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
			modeltest.Fill(m[bias], func(i int, v float32) float32 {
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
			modeltest.Fill(m[bias], func(i int, v float32) float32 { return float32(math.NaN()) })
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
		a, b := openWeights(t, ordinary), openWeights(t, "../testdata/zimage-small/model")
		c, err := inspect.Compare(t.Context(), a, b, nil)
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
		c, err := inspect.Compare(t.Context(), a, b, nil)
		if err != nil || len(c.Components) != 4 || c.Components[0].Only != "a" || c.Components[3].Only != "b" {
			t.Errorf("%v, %+v", err, c)
		}
		if err := b.Select("vae"); err != nil {
			t.Fatal(err)
		}
		c, err = inspect.Compare(t.Context(), a, b, nil)
		if err != nil || len(c.Components) != 1 || len(c.Components[0].Tensors) != 152 || differing(c.Components[0]) != nil {
			t.Errorf("%v, %+v", err, c)
		}
	})
	t.Run("zeros", func(t *testing.T) {
		write := func(value float32) *inspect.Weights {
			x, err := checkpoint.FromFloat32("x", []int{3}, []float32{0, value, 0})
			path := filepath.Join(t.TempDir(), "x.safetensors")
			if err == nil {
				err = checkpoint.WriteFile(path, []*checkpoint.Array{x}, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			w, err := inspect.OpenWeightsFile(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { w.Close() })
			return w
		}
		for _, values := range [][2]float32{{0, 0}, {2, 0}} {
			c, err := inspect.Compare(t.Context(), write(values[0]), write(values[1]), nil)
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

// TestCompareNames compares models whose text encoders have other names for the same parameters.
func TestCompareNames(t *testing.T) {
	for _, c := range []struct{ golden, dir, from, to string }{
		{"flux1-schnell-ordinary", "text_encoder_2", "shared.", "encoder.embed_tokens."},
		{"qwen-image-ordinary", "text_encoder", "model.", "language_model."},
		{"qwen-image-ordinary", "text_encoder", "model.", "model.language_model."},
		{"qwen-image-ordinary", "text_encoder", "visual.", "model.visual."},
	} {
		golden := modeltest.Folder(t, c.golden)
		dir := modeltest.Copy(t, golden)
		files, err := filepath.Glob(filepath.Join(dir, c.dir, "model*"))
		if err != nil {
			t.Fatal(err)
		}
		renamed := 0
		for _, file := range files {
			if strings.HasSuffix(file, ".json") { // an index
				text, err := os.ReadFile(file)
				if err == nil {
					err = os.WriteFile(file, bytes.ReplaceAll(text, []byte(`"`+c.from), []byte(`"`+c.to)), 0o666)
				}
				if err != nil {
					t.Fatal(err)
				}
				continue
			}
			modeltest.Edit(t, file, func(tensors map[string]*checkpoint.Array) {
				for name, x := range maps.Clone(tensors) {
					if rest, ok := strings.CutPrefix(name, c.from); ok {
						delete(tensors, name)
						tensors[c.to+rest] = x
						renamed++
					}
				}
			})
		}
		found, err := inspect.Compare(t.Context(), openWeights(t, dir), openWeights(t, golden), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range found.Components {
			if len(part.OnlyA)+len(part.OnlyB) > 0 || renamed == 0 {
				t.Errorf("%s, %s for %s: %d renamed, only in a %q, in b %q", c.golden, c.to, c.from, renamed, part.OnlyA, part.OnlyB)
			}
		}
	}
}
