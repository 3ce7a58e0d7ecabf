package models

import (
	"errors"
	"fmt"
	"image"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/internal/randtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/picture"
)

// TestQuantizationRules checks that every rule matches an existing layer.
func TestQuantizationRules(t *testing.T) {
	used := map[string]bool{}
	for _, name := range modeltest.WideModels() {
		fsys, err := checkpoint.OpenFolder(modeltest.Folder(t, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range modeltest.Components(t, fsys) {
			for _, parameter := range nn.Parameters(c.Model) {
				if parameter.Kind() == nn.OtherParam {
					continue
				}
				layer := strings.TrimSuffix(parameter.Name, ".weight")
				if i := slices.IndexFunc(c.Class.Quantization, func(r component.QuantizationRule) bool { return r.Fits(layer) }); i >= 0 {
					used[fmt.Sprint(c.Class.Name, i)] = true
				}
			}
		}
	}
	convolutions := []*component.Class{ // and nothing else
		component.AutoencoderKLQwenImage, component.AutoencoderKLQwenImage21, component.AutoencoderTiny, component.VideoAutoencoderKL,
	}
	for _, class := range component.All {
		for i, rule := range class.Quantization {
			if !used[fmt.Sprint(class.Name, i)] && !slices.Contains(convolutions, class) {
				t.Errorf("no layer of a %s is a %s", class.Name, rule.Layers)
			}
		}
	}
}

// TestQuantize generates images with quantized weights of every family, and checks the error of
// each layer and of the image.
func TestQuantize(t *testing.T) {
	for i, name := range randtest.Some(3, modeltest.WideModels()) {
		t.Run(name, func(t *testing.T) {
			dir := modeltest.Wide(t, name)
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
				r.Inpaint = p.LeastInpaint(coloured(32, 64))
				if _, ok := p.family.(family.Editor); ok && !strings.HasPrefix(name, "flux2-") { // whose images are larger
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
				if i == 0 {
					names = component.Quantizations
				}
				for _, name := range names {
					q, err := component.ParseQuantization(name, 0)
					if err != nil {
						t.Fatal(err)
					}
					p, got := run(q)
					worst, n := 0.0, 0
					for dir, loadable := range p.loadables {
						of := nn.Parameters(plain.loadables[dir].Model)
						for i, parameter := range nn.Parameters(loadable.Model) {
							found := parameter.Quantization()
							if found == nil {
								if parameter.Kind() != nn.OtherParam && dir != component.Autoencoders && parameter.Stored()[1]%64 == 0 {
									t.Errorf("%s: %s %v is not quantized", dir, parameter.Name, parameter.Stored())
								}
								continue
							}
							n++
							e := relativeError(parameter.As(mlx.Float32), of[i].As(mlx.Float32))
							worst = max(worst, e)
							if most := 0.01; found.Mode == "affine" && found.Bits == 8 && !(e > 0 && e <= most) {
								t.Errorf("%s: %s at 8 bits has an error of %.4f, expected at most %g", dir, parameter.Name, e, most)
							}
						}
					}
					off := relativeError(mlx.FromFloat32(got), mlx.FromFloat32(want))
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

// TestCheckQuantizations has weights in a quantization that MLX does not support.
func TestCheckQuantizations(t *testing.T) {
	dir := modeltest.Wide(t, "zimage-small")
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
		check := func(q *mlx.Quantization) error {
			p.loader.Quantize = q
			return p.checkQuantizations()
		}
		if err := check(&mlx.Quantization{Mode: "mxfp4", Bits: 4, Group: 32}); err != nil {
			t.Error(err)
		}
		loadable := p.loadables["transformer"]
		for i, parameter := range nn.Parameters(loadable.Model) {
			if parameter.Name == "layers.1.attention.to_q.weight" {
				loadable.found[i].Quantized = &mlx.Quantization{Mode: "affine", Bits: 7, Group: 64}
			}
		}
		err = check(nil)
		if !errors.Is(err, errs.ErrUnsupported) {
			t.Fatalf("error %v", err)
		}
		mlxtest.Contains(t, err.Error(), filepath.Join(dir, "transformer/model.safetensors"),
			": tensor layers.1.attention.to_q.weight: ", "quantization 7 on this device")
	})
}

// relativeError returns ‖a-b‖/‖b‖.
func relativeError(a, b *mlx.Array) float64 {
	return math.Sqrt(component.SumOfSquares(a.Sub(b)) / component.SumOfSquares(b))
}
