package models

import (
	"errors"
	"fmt"
	"image"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/picture"
)

func TestParseQuantization(t *testing.T) {
	for _, c := range []struct {
		name  string
		group int
		want  string // the quantization, or what the error has
	}{
		{"4", 0, "{affine 4 64}"}, {"3", 32, "{affine 3 32}"}, {"5", 128, "{affine 5 128}"}, {"6", 64, "{affine 6 64}"}, {"8", 0, "{affine 8 64}"},
		{"mxfp4", 0, "{mxfp4 4 32}"}, {"mxfp8", 32, "{mxfp8 8 32}"}, {"nvfp4", 0, "{nvfp4 4 16}"},
		{"7", 0, "expected 3, 4, 5, 6, 8, mxfp4, mxfp8, nvfp4"}, {"2", 0, "expected 3"}, {"", 0, "expected 3"},
		{"4", 16, "group size 16: expected 32, 64 or 128"}, {"4", -1, "group size -1"}, {"nvfp4", 32, "nvfp4 has groups of 16"},
	} {
		q, err := ParseQuantization(c.name, c.group)
		if err != nil {
			mlxtest.Contains(t, err.Error(), c.want)
		} else if fmt.Sprint(*q) != c.want {
			t.Errorf("%s with groups of %d is %v, expected %s", c.name, c.group, *q, c.want)
		} else if name := QuantizationName(*q); name != c.name {
			t.Errorf("the name of %v is %s, expected %s", *q, name, c.name)
		}
	}
}

// TestLayerQuantization checks the policy against names that the models have.
func TestLayerQuantization(t *testing.T) {
	affine := func(bits, group int) string {
		return fmt.Sprint(mlx.Quantization{Mode: "affine", Bits: bits, Group: group})
	}
	for _, c := range []struct {
		quantization, class, layer string
		columns                    int
		want                       string
	}{
		{"4", "FluxTransformer2DModel", "transformer_blocks.3.attn.to_q", 3072, affine(4, 64)},
		{"4", "FluxTransformer2DModel", "time_text_embed.timestep_embedder.linear_1", 256, affine(8, 64)},
		{"4", "FluxTransformer2DModel", "proj_out", 3072, affine(8, 64)},
		{"4", "FluxTransformer2DModel", "single_transformer_blocks.3.proj_out", 15360, affine(4, 64)},
		{"4", "Flux2Transformer2DModel", "double_stream_modulation_img.linear", 3072, affine(8, 64)},
		{"4", "QwenImageTransformer2DModel", "transformer_blocks.0.img_mod.1", 3072, affine(8, 64)},
		{"4", "QwenImageTransformer2DModel", "transformer_blocks.0.txt_mod.1", 3072, affine(4, 64)},
		{"4", "Qwen2_5_VLForConditionalGeneration", "layers.0.mlp.up_proj", 3584, affine(8, 64)},
		{"mxfp4", "Qwen2_5_VLForConditionalGeneration", "layers.0.mlp.up_proj", 3584, affine(8, 64)},
		{"4", "Qwen3Model", "layers.0.mlp.up_proj", 2560, affine(4, 64)},
		{"8", "AutoencoderKL", "decoder.mid_block.attentions.0.to_q", 512, "<nil>"},
		{"8", "", "decoder.mid_block.attentions.0.to_q", 512, "<nil>"}, // an AutoencoderKL whose config does not say so
		{"nvfp4", "Qwen3Model", "layers.0.mlp.up_proj", 2560, "{nvfp4 4 16}"},
		{"4", "Qwen3Model", "x", 96, affine(4, 32)},
		{"4", "Qwen3Model", "x", 100, "<nil>"},
		{"nvfp4", "Qwen3Model", "x", 24, "<nil>"},
	} {
		q, err := ParseQuantization(c.quantization, 0)
		if err != nil {
			t.Fatal(err)
		}
		found := "<nil>"
		if layer := layerQuantization(*q, c.class, c.layer, c.columns); layer != nil {
			found = fmt.Sprint(*layer)
		}
		if found != c.want {
			t.Errorf("%s of a %s with %d columns at %s is %s, expected %s", c.layer, c.class, c.columns, c.quantization, found, c.want)
		}
	}
}

// TestQuantizationRules makes sure that every rule is about a layer that there is.
func TestQuantizationRules(t *testing.T) {
	used := map[string]bool{}
	for _, wide := range wideModels {
		fsys, err := checkpoint.OpenFolder("testdata/" + wide.folder + "/model")
		if err != nil {
			t.Fatal(err)
		}
		x, err := readIndex(fsys)
		if err != nil {
			t.Fatal(err)
		}
		_, components, err := x.declare(fsys)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range components {
			for _, parameter := range nn.Parameters(c.model) {
				if parameter.Kind() == nn.OtherParam {
					continue
				}
				layer := strings.TrimSuffix(parameter.Name, ".weight")
				if i := slices.IndexFunc(quantizationRules[c.class], func(r quantizationRule) bool { return r.fits(layer) }); i >= 0 {
					used[fmt.Sprint(c.class, i)] = true
				}
			}
		}
	}
	for class, rules := range quantizationRules {
		for i, rule := range rules {
			if !used[fmt.Sprint(class, i)] && !(class == "AutoencoderKLQwenImage") { // whose layers are convolutions
				t.Errorf("no layer of a %s is a %s", class, rule.Layers)
			}
		}
	}
}

// TestQuantize makes pictures with quantized weights of every family: the error
// of each layer, and how far the picture is from that of the weights as they are.
func TestQuantize(t *testing.T) {
	for _, wide := range wideModels {
		t.Run(wide.folder, func(t *testing.T) {
			dir := wideModel(t, wide.folder)
			fsys, err := checkpoint.OpenFolder(dir)
			if err != nil {
				t.Fatal(err)
			}
			run := func(q *mlx.Quantization) (*Pipeline, []float32) {
				p, err := Load(fsys, LoadOptions{Quantize: q})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(p.Close)
				r := Request{Prompt: "a red hat", Height: 64, Width: 32, Steps: 2, MaxSequenceLength: 48, Seed: 1}
				if _, ok := p.family.(editor); ok && wide.folder != "flux2-klein-base" {
					r.References = []image.Image{picture.Opaque(image.NewRGBA(image.Rect(0, 0, 32, 32)))}
				}
				var last Latents
				r.OnStep = func(s Step) error { last = s.Latents; return nil }
				if _, err := p.Generate(r); err != nil {
					t.Fatal(err)
				}
				return p, last.Data
			}
			mlxtest.Do(t, func() {
				plain, want := run(nil)
				offs := map[int]float64{} // of affine ones by bits
				names := []string{"4", "8", "mxfp4"}
				if wide.folder == wideModels[0].folder {
					names = Quantizations
				}
				for _, name := range names {
					q, err := ParseQuantization(name, 0)
					if err != nil {
						t.Fatal(err)
					}
					p, got := run(q)
					worst, n := 0.0, 0
					for dir, part := range p.parts {
						of := nn.Parameters(plain.parts[dir].model)
						for i, parameter := range nn.Parameters(part.model) {
							found := parameter.Quantization()
							if found == nil {
								if parameter.Kind() != nn.OtherParam && dir != autoencoderDir && parameter.Stored()[1]%64 == 0 {
									t.Errorf("%s: %s %v is not quantized", dir, parameter.Name, parameter.Stored())
								}
								continue
							}
							n++
							e := relative(parameter.As(mlx.Float32), of[i].As(mlx.Float32))
							worst = max(worst, e)
							if most := 0.01; found.Mode == "affine" && found.Bits == 8 && !(e > 0 && e <= most) {
								t.Errorf("%s: %s at 8 bits has an error of %.4f, expected at most %g", dir, parameter.Name, e, most)
							}
						}
					}
					off := relative(mlx.FromFloat32(got), mlx.FromFloat32(want))
					t.Logf("%-6s %3d layers, worst error of one %.4f, latents %.4f", name, n, worst, off)
					if n < 10 || !(off > 0 && off < 1) {
						t.Errorf("%s: %d layers, latents off by %g", name, n, off)
					}
					if q.Mode == "affine" {
						for bits, before := range offs {
							if bits <= q.Bits-2 && !(off < before) {
								t.Errorf("%s: latents are off by %g, and by %g with %d bits", name, off, before, bits)
							}
						}
						offs[q.Bits] = off
					}
				}
				if offs[8] > 0.05 {
					t.Errorf("at 8 bits the latents are off by %g", offs[8])
				}
			})
		})
	}
}

// TestCheckPacking has weights in a form that MLX does not do.
func TestCheckPacking(t *testing.T) {
	dir := wideModel(t, "zimage-small")
	mlxtest.Do(t, func() {
		fsys, err := checkpoint.OpenFolder(dir)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Load(fsys, LoadOptions{headersOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if err := p.checkPacking(&mlx.Quantization{Mode: "mxfp4", Bits: 4, Group: 32}); err != nil {
			t.Error(err)
		}
		part := p.parts["transformer"]
		for i, parameter := range nn.Parameters(part.model) {
			if parameter.Name == "layers.1.attention.to_q.weight" {
				part.found[i].Quantized = &mlx.Quantization{Mode: "affine", Bits: 7, Group: 64}
			}
		}
		err = p.checkPacking(nil)
		if !errors.Is(err, ErrUnsupported) {
			t.Fatalf("error %v", err)
		}
		mlxtest.Contains(t, err.Error(), filepath.Join(dir, "transformer/model.safetensors"), ": tensor layers.1.attention.to_q.weight: ", "quantization 7 on this device")
	})
}
