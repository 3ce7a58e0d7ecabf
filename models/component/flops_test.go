package component_test

import (
	"context"
	"image"
	"os"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// TestFLOPs compares the FLOPs with those counted from the calls of linear layers,
// convolutions and the inputs of attention, in a step and while decoding.
func TestFLOPs(t *testing.T) {
	type run struct {
		folder   string
		guidance float64
		images   int
		fills    bool
	}
	// with a KV cache, a step after the first reads it
	runs := []run{
		{folder: "zimage-ordinary"}, {folder: "flux2-klein", guidance: 1},
		{folder: "qwen-image-ordinary", guidance: 1}, {folder: "qwen-image-21", guidance: 1},
	}
	for _, m := range modeltest.Models {
		runs = append(runs, run{m.Name, m.Guidance, m.References, m.Fills})
	}
	for _, c := range runs {
		t.Run(c.folder, func(t *testing.T) {
			folder := modeltest.Folder(t, c.folder)
			fsys := os.DirFS(folder)
			x, err := index.Read(fsys)
			if err != nil {
				t.Fatal(err)
			}
			d, err := family.Declare(&component.Folder{FS: fsys, Points: &hooks.Points{}}, x)
			if err != nil {
				t.Fatal(err)
			}
			autoencoder, declared := d.Components[len(d.Components)-1], d.Transformer()
			kernels, weights := shapes(autoencoder.Model), shapes(declared.Model)
			ctx := context.Background()
			m, err := gomflux.Open(ctx, folder, &gomflux.OpenOptions{Device: gomflux.CPU})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()

			o := gomflux.Options{Prompt: "a red circle", NegativePrompt: "a red circle", Height: 64, Width: 96, Steps: 1,
				Guidance: &c.guidance}
			f, cached := d.Pipeline.(family.KVCached)
			if cached && f.CacheSize(0, 1) > 0 {
				o.Steps = 2
			}
			if cached {
				c.images = 0 // StepFLOPs counts none with a cache of reference images
			}
			if c.fills {
				mask := image.NewGray(image.Rect(0, 0, o.Width, o.Height))
				for i := range mask.Pix {
					mask.Pix[i] = 255
				}
				o.Image, o.Mask = image.NewGray(mask.Rect), mask
			}
			for range c.images {
				o.References = append(o.References, image.NewRGBA(image.Rect(0, 0, 70, 80)))
			}
			tokens := o.Height / m.Multiple() * (o.Width / m.Multiple())
			references, want, layers, decode := 0, 0.0, 0, 0.0
			decoded := func(tap gomflux.Tap) {
				name, ok := strings.CutPrefix(tap.Name, "vae.")
				shape := tap.Output.Shape()
				switch {
				case !ok || strings.HasPrefix(name, "encoder.") || strings.HasPrefix(name, "quant_conv"):
				case tap.Kind == gomflux.InnerTap && tap.Key == hooks.Q:
					pixels := float64(shape[len(shape)-2])
					decode += 2 * 2 * pixels * float64(size(shape))
				case tap.Kind == gomflux.OutputTap && tap.Key == "" && len(kernels[name]) > 1:
					decode += layerFLOPs(shape, kernels[name])
				}
			}
			headDim := 0
			o.Hook = func(tap gomflux.Tap) (gomflux.Tensor, error) {
				decoded(tap)
				name, ok := strings.CutPrefix(tap.Name, "transformer.")
				shape := tap.Output.Shape()
				for _, in := range tap.Inputs {
					if (c.images > 0 || o.Steps > 1) && tap.Name == "transformer" && in.Key == "hidden_states" {
						tokens = in.Shape()[1] // with those of the images
					}
					if tap.Name == "transformer" && in.Key == "image_cond_hidden_states" { // of FLUX.3
						references = in.Shape()[1]
					}
				}
				switch {
				case !ok || tap.Step < o.Steps-1:
				case strings.HasPrefix(name, "txt_in.") && o.Steps > 1: // computed for hooks only
				case tap.Kind == gomflux.InnerTap && tap.Key == hooks.Q:
					headDim = shape[len(shape)-1]
				case tap.Kind == gomflux.InnerTap && tap.Key == hooks.Weights:
					want += 2 * 2 * float64(size(shape)) * float64(headDim)
				case tap.Kind != gomflux.OutputTap || tap.Key != "":
				case name == "final_linear" && strings.HasPrefix(c.folder, "ernie"): // of the text for hooks only
					want += 2 * float64(tokens*size(weights[name]))
					layers++
				case len(weights[name]) == 2:
					want += 2 * float64(computed(tap.Inputs[0].Tensor)) * float64(shape[len(shape)-1])
					layers++
				case len(weights[name]) > 2: // a convolution
					want += layerFLOPs(shape, weights[name])
					layers++
				}
				return nil, nil
			}
			res, err := m.Generate(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			got := declared.Class.FLOPs(declared.Model, tokens, references, res.TextTokens)
			guided, err := d.Pipeline.Guidance(family.Guidance{Scale: c.guidance})
			if err != nil {
				t.Fatal(err)
			}
			if guided { // with as many tokens
				got *= 2
			}
			if got != want || layers == 0 {
				t.Errorf("counted %.0f FLOPs, the %d layers that ran and attention did %.0f", got, layers, want)
			}
			scale := d.VAE.ScaleFactor()
			shape := d.VAE.Unscaled(o.Height/scale, o.Width/scale)
			images := float64(max(1, m.Layers()))
			if got := images * component.DecodeFLOPs(autoencoder.Model, shape[1], shape[2]); got != decode {
				t.Errorf("counted %.0f FLOPs of decoding, the layers that ran did %.0f", got, decode)
			}
		})
	}
}

// shapes returns the shapes of the weights by layer, without those of embeddings, which compute nothing.
func shapes(model any) map[string][]int {
	all := map[string][]int{}
	for _, p := range nn.Parameters(model) {
		if layer, ok := strings.CutSuffix(p.Name, ".weight"); ok && p.Kind() != nn.EmbeddingWeight {
			all[layer] = p.Shape()
		}
	}
	return all
}

// layerFLOPs returns the FLOPs of a layer whose weight makes an output.
func layerFLOPs(output, weight []int) float64 {
	return 2 * float64(size(output)) / float64(weight[0]) * float64(size(weight))
}

// size is the number of elements of a shape.
func size(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// computed returns the number of elements of a layer's input [B, L, dim], without rows that are all equal: those are
// computed once, and repeated for hooks only.
func computed(x gomflux.Tensor) int {
	shape, values := x.Shape(), x.Float32s()
	width := shape[len(shape)-1]
	for i := width; i < len(values); i++ {
		if values[i] != values[i-width] {
			return len(values)
		}
	}
	return width
}
