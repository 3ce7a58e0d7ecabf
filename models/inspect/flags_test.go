package inspect_test

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/models/inspect"
)

// flags reads all tensors and lists the flags as text.
func flags(t *testing.T, w *inspect.Weights) (list []string) {
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
		"whole": {change: func(map[string]*checkpoint.Array) {}},
		"zero weight": {change: func(m map[string]*checkpoint.Array) { modeltest.Fill(m[weight], zero) },
			want: []string{"error: vae: all zero: " + weight + ": BF16 [8 8 3 3]"}},
		"zero norm": {change: func(m map[string]*checkpoint.Array) { modeltest.Fill(m[norm], zero) },
			want: []string{"error: vae: all zero: " + norm}},
		"minus zero": {change: func(m map[string]*checkpoint.Array) {
			modeltest.Fill(m[norm], func(int, float32) float32 { return float32(math.Copysign(0, -1)) })
		}, want: []string{"error: vae: all zero: " + norm}},
		"zero bias": {change: func(m map[string]*checkpoint.Array) { modeltest.Fill(m[bias], zero) },
			want: []string{"warning: vae: all zero: " + bias}},
		"constant weight": {change: func(m map[string]*checkpoint.Array) {
			modeltest.Fill(m[weight], func(int, float32) float32 { return 0.5 })
		}, want: []string{"error: vae: constant: " + weight + ": BF16 [8 8 3 3], every element is 0.5"}},
		"constant norm": {change: func(m map[string]*checkpoint.Array) {
			modeltest.Fill(m[norm],
				func(int, float32) float32 { return 1 })
		}, want: []string{"warning: vae: constant: " + norm}},
		"NaN": {change: func(m map[string]*checkpoint.Array) {
			modeltest.Fill(m[weight], func(i int, v float32) float32 {
				if i%100 == 7 {
					return float32(math.NaN())
				}
				return v
			})
		}, want: []string{"error: vae: not finite: " + weight + ": 6 NaN and 0 infinite of 576 elements"}},
		"infinite": {change: func(m map[string]*checkpoint.Array) {
			modeltest.Fill(m[bias], func(i int, v float32) float32 {
				if i < 2 {
					return float32(math.Inf(2*i - 1))
				}
				return v
			})
		}, want: []string{"error: vae: not finite: " + bias + ": 0 NaN and 2 infinite of 12 elements"}},
		"all biases": {change: func(m map[string]*checkpoint.Array) {
			for name, x := range m {
				if strings.HasSuffix(name, ".bias") {
					modeltest.Fill(x, zero)
				}
			}
		}, want: []string{"warning: vae: biases zero: : all 76 biases"}},
		"large std": {change: func(m map[string]*checkpoint.Array) {
			modeltest.Fill(m[weight], func(_ int, v float32) float32 { return 20 * v })
		}, want: []string{"warning: vae: suspicious std: " + weight + ": "}},
		"small std": {change: func(m map[string]*checkpoint.Array) {
			modeltest.Fill(m[weight], func(_ int, v float32) float32 { return v / 20 })
		}, want: []string{"warning: vae: suspicious std: " + weight + ": "}},
		"ordinary std": {change: func(m map[string]*checkpoint.Array) {
			modeltest.Fill(m[weight], func(_ int, v float32) float32 { return 3 * v })
		}},
		"missing": {change: func(m map[string]*checkpoint.Array) { delete(m, weight) },
			want: []string{"error: vae: missing: " + weight + ": expected [8 8 3 3]"}},
		"unexpected": {change: func(m map[string]*checkpoint.Array) { x := *m[bias]; m["scale"] = &x },
			want: []string{"error: vae: unexpected: scale: [12] in "}},
		"renamed": {change: func(m map[string]*checkpoint.Array) { m["decoder.conv_in.b"] = m[bias]; delete(m, bias) }, want: []string{
			"error: vae: missing: " + bias + ": expected [12]", "error: vae: unexpected: decoder.conv_in.b: [12] in "}},
		"reshaped": {change: func(m map[string]*checkpoint.Array) { m[weight].Shape = []int{3, 3, 8, 8} }, want: []string{
			"error: vae: wrong shape: " + weight + ": expected [8 8 3 3], found [3 3 8 8] in "}},
		"retyped": {change: func(m map[string]*checkpoint.Array) {
			x := m[bias]
			x.Dtype, x.Data = checkpoint.I32, append(slices.Clone(x.Data), make([]byte, len(x.Data))...)
		}, want: []string{"error: vae: wrong dtype: " + bias + ": expected F32, F16 or BF16, found I32 in "}},
		"not needed": {file: "text_encoder/model-00002-of-00002.safetensors", change: func(m map[string]*checkpoint.Array) {
			modeltest.Fill(m["model.layers.2.mlp.up_proj.weight"], zero)
			modeltest.Fill(m["model.layers.2.mlp.down_proj.weight"], func(int, float32) float32 { return 1 })
			modeltest.Fill(m["model.layers.2.mlp.gate_proj.weight"], func(int, float32) float32 { return float32(math.NaN()) })
		}},
		"several": {change: func(m map[string]*checkpoint.Array) {
			modeltest.Fill(m[bias], zero)
			modeltest.Fill(m[weight], zero)
			delete(m, norm)
		}, want: []string{
			"error: vae: missing: " + norm, "error: vae: all zero: " + weight, "warning: vae: all zero: " + bias}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := modeltest.Copy(t, ordinary)
			file := test.file
			if file == "" {
				file = vaeFile
			}
			modeltest.Edit(t, filepath.Join(dir, file), test.change)
			got := flags(t, openWeights(t, dir))
			if !slices.EqualFunc(got, test.want, strings.HasPrefix) {
				t.Errorf("found\n%s\nexpected\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
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
		if got := [2]string{inspect.RoleOf(name), inspect.LayerOf(name)}; got != want {
			t.Errorf("%s has role and layer %q, expected %q", name, got, want)
		}
	}
}
