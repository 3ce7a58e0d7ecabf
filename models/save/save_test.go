package save_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/internal/randtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/save"
)

// TestModel saves models of every family, and opens what was saved: it makes what
// the model makes that is quantized while it is loaded, bit by bit.
func TestModel(t *testing.T) {
	for i, name := range randtest.Some(3, modeltest.WideModels()) {
		t.Run(name, func(t *testing.T) {
			dir := modeltest.Wide(t, name)
			mlxtest.Do(t, func() {
				cases := []struct{ layout, quantization string }{{save.LayoutDiffusers, ""}, {save.LayoutMFlux, ""}, {"", "4"}}
				if i == 0 {
					cases = cases[:2]
					for _, name := range component.Quantizations {
						cases = append(cases, struct{ layout, quantization string }{"", name})
					}
				}
				plain := latentsWith(t, dir, models.LoadOptions{})
				for _, c := range cases {
					o := save.Options{Layout: c.layout}
					if c.quantization != "" {
						q, err := component.ParseQuantization(c.quantization, 0)
						if err != nil {
							t.Fatal(err)
						}
						o.Quantize = q
					}
					saved, report := saveNew(t, dir, o)
					if want := max(c.layout, map[bool]string{true: save.LayoutMFlux}[c.layout == ""]); report.Layout != want ||
						report.Quantization != c.quantization {
						t.Errorf("%v: saved as %s with %q", c, report.Layout, report.Quantization)
					}
					want := plain
					if o.Quantize != nil {
						want = latentsWith(t, dir, models.LoadOptions{Quantize: o.Quantize})
					}
					// mflux never quantizes the text encoder of Krea 2
					whole := o.Quantize == nil || report.Layout != save.LayoutMFlux || name != "krea-2-raw"
					if got := latentsWith(t, saved, models.LoadOptions{}); slices.Equal(got, want) != whole {
						t.Errorf("%v: what was saved makes something else", c)
					}
					checkLayers(t, o.Quantize, report.Layers)
				}
			})
		})
	}
}

// checkLayers checks the layers of a saved model against its quantization.
func checkLayers(t *testing.T, q *mlx.Quantization, layers []save.Layer) {
	t.Helper()
	if q == nil {
		if len(layers) > 0 {
			t.Errorf("layers %v without a quantization", layers)
		}
		return
	}
	worst := map[int]float64{}
	for _, l := range layers {
		worst[l.Bits] = max(worst[l.Bits], l.Error)
		if l.Mode == "affine" && l.Bits == 8 && !(l.Error > 0 && l.Error <= 0.01) {
			t.Errorf("%s: %s at 8 bits has an error of %g", l.Component, l.Name, l.Error)
		}
		if !(l.Error > 0 && l.Error < 0.3) || l.Kept {
			t.Errorf("%v", l)
		}
	}
	t.Logf("%-6s %3d layers, worst error of one %.4f, at 8 bits %.4f", component.QuantizationName(*q), len(layers), worst[q.Bits], worst[8])
	if len(layers) < 10 {
		t.Errorf("%d layers", len(layers))
	}
}

// elsewhere are files that mflux has in other folders than diffusers, and those that it does not have.
var elsewhere = map[string]map[string]bool{
	"anima": {"tokenizer_2/tokenizer.json": true, "t5_tokenizer": false, "text_conditioner/config.json": true,
		"text_conditioner/0.safetensors": false, "transformer/1.safetensors": true},
	"flux3-klein": {"text_encoder/tokenizer.json": true, "tokenizer": false},
}

// TestRoundTrip checks that converting to mflux's layout and back loses nothing, including
// layers that generating images does not need.
func TestRoundTrip(t *testing.T) {
	for _, model := range modeltest.Models {
		folder, left := model.Name, model.Left
		dir := modeltest.Folder(t, folder)
		lost := func(name string) bool {
			return slices.ContainsFunc(strings.Fields(left), func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		}
		mlxtest.Do(t, func() {
			there, report := saveNew(t, dir, save.Options{Layout: save.LayoutMFlux})
			kept := slices.DeleteFunc(slices.Clone(report.Left), lost)
			if len(kept) > 0 || (left == "") != (len(report.Left) == 0) {
				t.Errorf("%s: left out %q, expected %q", folder, report.Left, left)
			}
			if _, err := os.Stat(filepath.Join(there, "transformer")); os.IsNotExist(err) != strings.HasPrefix(folder, "krea-2") {
				t.Errorf("%s: the transformer's folder: %v", folder, err) // with one, mflux reads diffusers' names for Krea 2
			}
			for name, want := range elsewhere[folder] {
				if _, err := os.Stat(filepath.Join(there, name)); (err == nil) != want {
					t.Errorf("%s: %s: %v", folder, name, err)
				}
			}
			back, _ := saveNew(t, there, save.Options{Layout: save.LayoutDiffusers})
			for _, c := range modeltest.Components(t, os.DirFS(dir)) {
				name := c.Dir
				want, got := stored(t, dir, name), stored(t, back, name)
				plain := func(name string) string {
					for _, prefix := range []string{"model.language_model.", "model.", "text_model."} {
						name = strings.TrimPrefix(name, prefix)
					}
					return name
				}
				found := map[string]*checkpoint.Array{}
				for key, x := range got {
					found[plain(key)] = x
				}
				for key, x := range want {
					other := found[plain(key)]
					if lost(name+"/"+key) || key == "encoder.embed_tokens.weight" {
						continue
					}
					if other == nil || !slices.Equal(other.Shape, x.Shape) || other.Dtype != x.Dtype || !bytes.Equal(other.Data, x.Data) {
						t.Errorf("%s: %s: %s is not what it was", folder, name, key)
					}
					delete(found, plain(key))
				}
				if len(found) > 0 {
					t.Errorf("%s: %s: has %q too", folder, name, slices.Collect(maps.Keys(found)))
				}
			}
		})
	}
}

// TestUnusedLayers quantizes a layer of a text encoder that generating images does not
// need, because mflux quantizes all layers.
func TestUnusedLayers(t *testing.T) {
	dir := modeltest.Wide(t, "zimage-small")
	all := stored(t, dir, "text_encoder")
	last := 0
	for ; all[fmt.Sprintf("layers.%d.self_attn.q_proj.weight", last)] != nil; last++ {
	}
	for name, x := range maps.Clone(all) {
		if rest, ok := strings.CutPrefix(name, "layers.0."); ok {
			other := *x
			other.Name = fmt.Sprintf("layers.%d.%s", last, rest)
			all[other.Name] = &other
		}
	}
	if err := checkpoint.WriteFile(filepath.Join(dir, "text_encoder", "model.safetensors"), slices.Collect(maps.Values(all)),
		nil); err != nil {
		t.Fatal(err)
	}
	mlxtest.Do(t, func() {
		saved, report := saveNew(t, dir, save.Options{Quantize: &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}})
		name := fmt.Sprintf("layers.%d.self_attn.q_proj", last)
		if !slices.ContainsFunc(report.Layers, func(l save.Layer) bool { return l.Name == name && l.Bits == 4 && l.Error > 0 }) {
			t.Errorf("%s is not quantized", name)
		}
		found := stored(t, saved, "text_encoder")
		for _, suffix := range []string{".weight", ".scales", ".biases"} { // as of the layer that it is a copy of
			x, like := found[name+suffix], found["layers.0.self_attn.q_proj"+suffix]
			if x == nil || x.Dtype != like.Dtype || !bytes.Equal(x.Data, like.Data) {
				t.Errorf("%s%s: found %v", name, suffix, x)
			}
		}
		back, _ := saveNew(t, saved, save.Options{Layout: save.LayoutDiffusers})
		found = stored(t, back, "text_encoder")
		if x := found["model."+name+".weight"]; x == nil || !bytes.Equal(x.Data, found["model.layers.0.self_attn.q_proj.weight"].Data) {
			t.Errorf("%s did not come back: there are %q", name, slices.Sorted(maps.Keys(found)))
		}
	})
}
