package models

import (
	"image"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/inpaint"
)

// TestInpaintEdit inpaints with models that edit images, two of which have no pipeline for it in
// diffusers: outside the mask the latents are those of the image after the last step, and the pixels
// are those of the image. The transformer sees the image first and then the further reference images,
// which change the result.
func TestInpaintEdit(t *testing.T) {
	for folder, positions := range map[string]int{"flux2-klein": 1, "flux2-klein-kv": 1, "qwen-edit-plus": 4} { // of a token
		for _, crop := range []bool{false, true} {
			name := folder
			if crop {
				name += " crop"
			}
			t.Run(name, func(t *testing.T) {
				mlxtest.Do(t, func() { inpaintEdit(t, folder, positions, crop) })
			})
		}
	}
}

func inpaintEdit(t *testing.T, folder string, positions int, crop bool) {
	p, err := Load(os.DirFS("testdata/"+folder+"/model"), LoadOptions{Dtype: new(mlx.Float32)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	img := coloured(90, 70)
	mask := image.NewGray(img.Rect)
	for y := 20; y < 55; y++ {
		for x := 25; x < 60; x++ {
			mask.Pix[y*mask.Stride+x] = 255
		}
	}
	in, err := inpaint.New(img, mask, inpaint.Options{Crop: crop, Padding: 8})
	if err != nil {
		t.Fatal(err)
	}
	r := Request{Prompt: "a red hat", Height: 64, Width: 96, Steps: 3, MaxSequenceLength: 60, Seed: 3, ImageStrength: 0.3, Inpaint: in}
	seen, _ := in.At(r.Width, r.Height)
	clean, err := p.Encode(seen)
	if err != nil {
		t.Fatal(err)
	}
	var images []*image.RGBA
	for _, references := range [][]image.Image{nil, {coloured(66, 80)}, {flipped(coloured(66, 80))}} {
		r.References = references
		var last Latents
		var latents []int
		tokens := 0
		r.OnStep = func(s Step) error { last = s.Latents; return nil }
		r.Hook = nil
		result, err := p.Generate(r)
		if err != nil {
			t.Fatal(err)
		}
		checkOutside(t, p, r, last, clean)
		images = append(images, result.Image)
		plain := last
		r.Hook = func(tap hooks.Tap) (*mlx.Array, error) {
			switch {
			case tap.Name == "latents.image" || strings.HasPrefix(tap.Name, "latents.reference"):
				latents = append(latents, tap.Output.Size())
			case tap.Name == "transformer" && tap.Step == 0:
				tokens = tap.Inputs[0].Dim(1)
			}
			return nil, nil
		}
		if again, err := p.Generate(r); err != nil {
			t.Fatal(err)
		} else if !sameImage(again.Image.Pix, result.Image.Pix) || !sameLatents(last.Data, plain.Data) {
			t.Error("a hook that only observes changes the image")
		}
		if size := last.size(); len(latents) != 1+len(references) || latents[0] != size {
			t.Errorf("images of %v values are encoded, expected %d, the first of %d", latents, 1+len(references), size)
		}
		want := 0
		for _, n := range append(latents, last.size()) {
			want += n / last.Shape[0] / positions
		}
		if tokens != want {
			t.Errorf("the transformer sees %d tokens of images, expected %d", tokens, want)
		}
	}
	for i := range images {
		for y := range img.Rect.Dy() {
			for x := range img.Rect.Dx() {
				if mask.GrayAt(x, y).Y == 0 && images[i].RGBAAt(x, y) != in.Image.RGBAAt(x, y) {
					t.Fatalf("image %d: the pixel at %d,%d is %v outside the mask, expected %v", i, x, y, images[i].RGBAAt(x, y),
						in.Image.RGBAAt(x, y))
				}
			}
		}
		for k := range i {
			if slices.Equal(images[i].Pix, images[k].Pix) {
				t.Errorf("images %d and %d, of different reference images, are equal", k, i)
			}
		}
	}
}

// checkOutside compares latents with those of the image outside the mask.
func checkOutside(t *testing.T, p *Pipeline, r Request, got, clean Latents) {
	t.Helper()
	h, w := got.Shape[1], got.Shape[2]
	_, mask := r.Inpaint.At(r.Width, r.Height)
	kept, changed := 0, 0
	for i, m := range p.family.MaskLatents(mask, h, w) {
		for c := range got.Shape[0] {
			at := c*h*w + i
			switch {
			case m > 0 && got.Data[at] != clean.Data[at]:
				changed++
			case m == 0 && got.Data[at] == clean.Data[at]:
				kept++
			case m == 0:
				t.Fatalf("latent %d is %g outside the mask, expected %g", at, got.Data[at], clean.Data[at])
			}
		}
	}
	if kept == 0 || changed == 0 {
		t.Errorf("%d latents are kept, %d are new", kept, changed)
	}
}

// flipped returns an image upside down.
func flipped(img *image.RGBA) *image.RGBA {
	out := image.NewRGBA(img.Rect)
	for y := range img.Rect.Dy() {
		copy(out.Pix[y*out.Stride:][:out.Stride], img.Pix[(img.Rect.Dy()-1-y)*img.Stride:])
	}
	return out
}

// TestInpaintPlaces inpaints in sizes that are not those in which the model sees a reference image, of
// whose tokens each has a place in the prompt.
func TestInpaintPlaces(t *testing.T) {
	mlxtest.Do(t, func() {
		p, err := Load(os.DirFS("testdata/qwen-image-21/model"), LoadOptions{Dtype: new(mlx.Float32)})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		img, mask := coloured(80, 64), image.NewGray(image.Rect(0, 0, 80, 64))
		for y := 16; y < 48; y++ {
			for x := 20; x < 60; x++ {
				mask.Pix[y*mask.Stride+x] = 255
			}
		}
		in, err := inpaint.New(img, mask, inpaint.Options{})
		if err != nil {
			t.Fatal(err)
		}
		own := p.EditSize([]image.Image{img})
		for _, size := range []image.Point{own, {32, 32}, {96, 64}} {
			_, err := p.Generate(Request{
				Prompt: "a red hat", Height: size.Y, Width: size.X, Steps: 2, MaxSequenceLength: 200, Seed: 3, Guidance: 1, Inpaint: in,
			})
			if err != nil {
				t.Errorf("%v: %v", size, err)
			}
		}
	})
}
