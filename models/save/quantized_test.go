package save_test

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/save"
)

// TestAgain saves a model that is quantized already: its weights stay.
func TestAgain(t *testing.T) {
	dir := modeltest.Wide(t, "flux1-dev-small")
	mlxtest.Do(t, func() {
		once, first := saveNew(t, dir, save.Options{Quantize: &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}})
		twice, report := saveNew(t, once, save.Options{Quantize: &mlx.Quantization{Mode: "affine", Bits: 8, Group: 64}})
		if len(report.Layers) != len(first.Layers) {
			t.Errorf("%d layers, then %d", len(first.Layers), len(report.Layers))
		}
		for _, l := range report.Layers {
			if !l.Kept {
				t.Errorf("%s: %s was quantized again", l.Component, l.Name)
			}
		}
		for _, component := range []string{"transformer", "text_encoder", "text_encoder_2", "vae"} {
			a, b := stored(t, once, component), stored(t, twice, component)
			if !slices.Equal(slices.Sorted(maps.Keys(a)), slices.Sorted(maps.Keys(b))) {
				t.Errorf("%s: other tensors", component)
			}
			for name, x := range a {
				if !bytes.Equal(x.Data, b[name].Data) {
					t.Errorf("%s: %s is another", component, name)
				}
			}
		}
		third, report := saveNew(t, once, save.Options{})
		if report.Layout != save.LayoutMFlux || report.Quantization != "4" {
			t.Errorf("saved as %s with %q", report.Layout, report.Quantization)
		}
		plain, _ := saveNew(t, third, save.Options{Layout: save.LayoutDiffusers, Dtype: new(mlx.Float32)})
		if got, want := latentsWith(t, plain, models.LoadOptions{}), latentsWith(t, once, models.LoadOptions{}); !slices.Equal(got, want) {
			t.Error("unpacked weights make another picture than packed ones")
		}
	})
}

// TestOpenDamagedQuantization opens folders whose quantized weights lack
// something.
func TestOpenDamagedQuantization(t *testing.T) {
	dir := modeltest.Wide(t, "zimage-small")
	var saved string
	mlxtest.Do(t, func() {
		saved, _ = saveNew(t, dir, save.Options{Quantize: &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}})
	})
	file := filepath.Join(saved, "transformer", "0.safetensors")
	index := filepath.Join(saved, "transformer", "model.safetensors.index.json")
	whole := stored(t, saved, "transformer")
	if err := os.Remove(index); err != nil {
		t.Fatal(err)
	}
	const layer = "layers.1.attention.to_q"
	for _, c := range []struct {
		name   string
		change func(map[string]*checkpoint.Array)
		want   []string
	}{
		{"no scales", func(all map[string]*checkpoint.Array) { delete(all, layer+".scales") },
			[]string{"missing: " + layer + ".scales", "cannot be unpacked"}},
		{"no biases", func(all map[string]*checkpoint.Array) { delete(all, layer+".biases") },
			[]string{"missing: " + layer + ".biases", "cannot be unpacked"}},
		{"groups of 16", func(all map[string]*checkpoint.Array) { columns(all[layer+".scales"], 8) },
			[]string{"wrong shape: " + layer + ".scales", "32, 64 or 128"}},
		{"biases of other groups", func(all map[string]*checkpoint.Array) { columns(all[layer+".biases"], 1) },
			[]string{"wrong shape: " + layer + ".biases", "as of " + layer + ".scales"}},
		{"too few bits", func(all map[string]*checkpoint.Array) { columns(all[layer+".weight"], 11) },
			[]string{"wrong shape: " + layer + ".weight"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := map[string]*checkpoint.Array{}
			for name, x := range whole {
				other := *x
				other.Shape, other.Data = slices.Clone(x.Shape), slices.Clone(x.Data)
				all[name] = &other
			}
			c.change(all)
			if err := checkpoint.WriteFile(file, slices.Collect(maps.Values(all)),
				map[string]string{"mflux_version": "0.24.0"}); err != nil {
				t.Fatal(err)
			}
			fsys, err := checkpoint.OpenFolder(saved)
			if err != nil {
				t.Fatal(err)
			}
			mlxtest.Do(t, func() {
				_, err = models.Load(fsys, models.LoadOptions{})
			})
			if err == nil {
				t.Fatal("was opened")
			}
			mlxtest.Contains(t, err.Error(), append(c.want, "0.safetensors")...)
		})
	}
}

// columns gives a matrix a number of columns, over and over its own.
func columns(x *checkpoint.Array, n int) {
	size := len(x.Data) / (x.Shape[0] * x.Shape[1])
	var data []byte
	for row := range x.Shape[0] {
		for column := range n {
			at := (row*x.Shape[1] + column%x.Shape[1]) * size
			data = append(data, x.Data[at:at+size]...)
		}
	}
	x.Shape, x.Data = []int{x.Shape[0], n}, data
}
