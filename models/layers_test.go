package models

import (
	"image"
	"os"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
)

// TestLayerGrid expects the layers of the last step, which has no noise left, in a grid for the preview: the
// third one below the first, next to a place that is empty.
func TestLayerGrid(t *testing.T) {
	mlxtest.Do(t, func() {
		p, err := Load(os.DirFS("testdata/qwen-layered/model"), LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		img := image.NewNRGBA(image.Rect(0, 0, 40, 30))
		for i := range img.Pix {
			img.Pix[i] = uint8(i)
		}
		r := p.defaultRequest()
		r.Prompt, r.Layers, r.Steps, r.Guidance, r.References = "a", 3, 2, 1, []image.Image{img}
		var last Step
		r.OnStep = func(s Step) error { last = s; return nil }
		if _, err := p.Generate(r); err != nil {
			t.Fatal(err)
		}
		c, h, w := last.Latents.Shape[0], last.Latents.Shape[1]/4, last.Latents.Shape[2]
		mlxtest.Same(t, "shape", last.Denoised.Shape, []int{c, 2 * h, 2 * w})
		for i, found := range last.Denoised.Data {
			channel, y, x := i/(4*h*w), i/(2*w)%(2*h), i%(2*w)
			expected := float32(0)
			if layer := 2*(y/h) + x/w; layer < 3 {
				expected = last.Latents.Data[(channel*4*h+(layer+1)*h+y%h)*w+x%w]
			}
			if d := found - expected; !(d*d < 1e-10) {
				t.Fatalf("channel %d, row %d, column %d: found %v, expected %v", channel, y, x, found, expected)
			}
		}
	})
}
