package models

import (
	"image"
	"image/color"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/inpaint"
)

// TestInpaint generates the left half of an image, with every scheduler and strength: the latents
// of the other half are those of the image, and so are its pixels.
func TestInpaint(t *testing.T) {
	const height, width = 24, 40
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	mask := image.NewGray(img.Rect)
	for y := range height {
		for x := range width {
			img.SetRGBA(x, y, color.RGBA{uint8(5 * x), uint8(9 * y), 200, 255})
			if x < width/2 {
				mask.Pix[y*mask.Stride+x] = 255
			}
		}
	}
	in, err := inpaint.New(img, mask, inpaint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	mlxtest.Do(t, func() {
		p := load(t, &family.Defaults{Steps: 4, Height: height, Width: width, MaxSequenceLength: 64})
		clean, err := p.Encode(img)
		if err != nil {
			t.Fatal(err)
		}
		for _, scheduler := range []string{"", "heun"} {
			for _, strength := range []float64{0, 0.3, 0.7} {
				var last Latents
				r, err := p.Generate(Request{
					Prompt: "a red circle", Steps: 4, Height: height, Width: width, MaxSequenceLength: 64, Seed: 3,
					Scheduler: scheduler, ImageStrength: strength, Inpaint: in,
					OnStep: func(s Step) error { last = s.Latents; return nil },
				})
				if err != nil {
					t.Fatal(err)
				}
				w := last.Shape[2]
				changed := false
				for i, v := range last.Data {
					if i%w < w/2 {
						changed = changed || v != clean.Data[i]
					} else if v != clean.Data[i] {
						t.Fatalf("%s %g: latent %d is %g outside the mask, expected %g", scheduler, strength, i, v, clean.Data[i])
					}
				}
				if !changed {
					t.Errorf("%s %g: the latents inside the mask did not change", scheduler, strength)
				}
				for y := range height {
					row := func(m *image.RGBA) []uint8 { return m.Pix[m.PixOffset(width/2, y):m.PixOffset(width-1, y)] }
					if !slices.Equal(row(r.Image), row(img)) {
						t.Fatalf("%s %g: row %d differs outside the mask", scheduler, strength, y)
					}
				}
			}
		}
	})
}

// TestThinMask checks a mask that is between the pixels at which latents are masked.
func TestThinMask(t *testing.T) {
	img := image.NewRGBA(image.Rect(0, 0, 40, 24))
	mask := image.NewGray(img.Rect)
	for y := 9; y < 12; y++ {
		mask.SetGray(11, y, color.Gray{255})
	}
	mlxtest.Do(t, func() {
		p := load(t, nil)
		request := Request{Prompt: "a line", Steps: 2, Height: 24, Width: 40, MaxSequenceLength: 64}
		for crop, want := range map[bool]string{false: "masked part is too thin at 40x24 pixels", true: ""} {
			in, err := inpaint.New(img, mask, inpaint.Options{Crop: crop})
			if err != nil {
				t.Fatal(err)
			}
			request.Inpaint = in
			if err := p.Check(request); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("crop %t: found %v, expected %q", crop, err, want)
			}
		}
	})
}
