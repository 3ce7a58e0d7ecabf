package models

import (
	"bytes"
	"image"
	"image/draw"
	"os"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/inpaint"
)

// TestInputsEncodedOnce checks that the autoencoder encodes input images once for all seeds, and again
// for another image, another size and another mask.
func TestInputsEncodedOnce(t *testing.T) {
	masked := func(left int, img image.Image) *inpaint.Input {
		mask := image.NewGray(image.Rect(0, 0, 90, 70))
		draw.Draw(mask, image.Rect(left, 20, 60, 55), image.White, image.Point{}, draw.Src)
		in, err := inpaint.New(img, mask, inpaint.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	img := coloured(90, 70)
	for _, test := range []struct {
		name, folder string
		use          func(r *Request, img image.Image, left int)
		encoded      int // arrays for an image
		ofMask       int // of them, those that depend on the mask
	}{
		{"start", "zimage-small", func(r *Request, img image.Image, _ int) { r.Image, r.ImageStrength = img, 0.5 }, 1, 0},
		{"mask", "zimage-small", func(r *Request, img image.Image, left int) { r.Inpaint = masked(left, img) }, 1, 0},
		{"fill", "flux1-fill", func(r *Request, img image.Image, left int) { r.Inpaint = masked(left, img) }, 2, 1},
		{"edit", "flux2-klein", func(r *Request, img image.Image, _ int) { r.References = []image.Image{img} }, 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			mlxtest.Do(t, func() {
				load := func() *Pipeline {
					p, err := Load(os.DirFS("testdata/"+test.folder+"/model"), LoadOptions{Dtype: new(mlx.Float32)})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(p.Close)
					return p
				}
				p := load()
				r := Request{Prompt: "a red hat", Height: 64, Width: 96, Steps: 2, MaxSequenceLength: 60, Guidance: p.Defaults.Guidance}
				expect := func(change string, n int) {
					t.Helper()
					result, err := p.Generate(r)
					if err != nil {
						t.Fatal(err)
					}
					fresh, err := load().Generate(r)
					if err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(result.Image.Pix, fresh.Image.Pix) || len(p.inputCache) != n {
						t.Errorf("%s: equal to an image of a new pipeline: %t; %d encoded inputs, expected %d", change,
							bytes.Equal(result.Image.Pix, fresh.Image.Pix), len(p.inputCache), n)
					}
				}
				n := test.encoded
				test.use(&r, img, 25)
				expect("first", n)
				r.Seed = 9
				expect("seed", n)
				test.use(&r, img, 40)
				n += test.ofMask
				expect("mask", n)
				test.use(&r, flipped(img), 40)
				n += test.encoded
				expect("image", n)
				r.Width = 64
				if r.References == nil { // those have their own size
					n += test.encoded
				}
				expect("size", n)
			})
		})
	}
}
