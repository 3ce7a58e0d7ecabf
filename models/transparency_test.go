package models

import (
	"errors"
	"image"
	"image/color"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
)

// loadTransparent loads a small model whose images have an alpha channel.
func loadTransparent(t *testing.T) *Pipeline {
	return loadFolder(t, modeltest.Transparent(t, "zimage-small"))
}

func loadFolder(t *testing.T, folder string) *Pipeline {
	t.Helper()
	fsys, err := checkpoint.OpenFolder(folder)
	if err != nil {
		t.Fatal(err)
	}
	dtype := mlx.Float32
	p, err := Load(fsys, LoadOptions{Dtype: &dtype})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// transparentRequest is a request for a small image.
func transparentRequest(p *Pipeline) Request {
	return Request{
		Prompt: "a red circle", Height: 32, Width: 48, Steps: 2, Guidance: p.Defaults.Guidance, Seed: 7,
		MaxSequenceLength: p.Defaults.MaxSequenceLength,
	}
}

// TestTransparency generates images with transparent pixels, and blended with white.
func TestTransparency(t *testing.T) {
	mlxtest.Do(t, func() {
		p := loadTransparent(t)
		if !p.HasAlpha() {
			t.Fatal("the model's images are opaque")
		}
		r := transparentRequest(p)
		var pixels []uint8
		r.Hook = func(tap hooks.Tap) (*mlx.Array, error) {
			if tap.Name == "image" {
				if !slices.Equal(tap.Output.Shape(), []int{32, 48, 4}) {
					t.Errorf("image has shape %v", tap.Output.Shape())
				}
				pixels = slices.Clone(tap.Output.Uint8s())
			}
			return nil, nil
		}
		for _, background := range []string{"", BackgroundAuto, BackgroundTransparent} {
			r.Background = background
			res, err := p.Generate(r)
			if err != nil {
				t.Fatal(err)
			}
			if res.Transparent == nil || !slices.Equal(res.Transparent.Pix, pixels) {
				t.Fatalf("background %q: other pixels than the decoder's", background)
			}
			if !res.Image.Opaque() || !slices.Equal(res.Image.Pix, picture.Opaque(res.Transparent).Pix) {
				t.Errorf("background %q: the image is not on white", background)
			}
		}
		r.Background = BackgroundOpaque
		res, err := p.Generate(r)
		if err != nil {
			t.Fatal(err)
		}
		want := &image.NRGBA{Pix: pixels, Stride: 4 * 48, Rect: image.Rect(0, 0, 48, 32)}
		if res.Transparent != nil || !slices.Equal(res.Image.Pix, picture.Opaque(want).Pix) {
			t.Error("background opaque: the image is not on white")
		}
		if want.Opaque() {
			t.Error("the decoder made no transparent pixels, so the test shows nothing")
		}
	})
}

// TestEncodeTransparent checks what the autoencoder sees of images with transparent pixels.
func TestEncodeTransparent(t *testing.T) {
	const side = 16
	img := image.NewNRGBA(image.Rect(3, 4, 3+side, 4+side))
	for y := range side {
		for x := range side {
			img.SetNRGBA(3+x, 4+y, color.NRGBA{uint8(16 * x), uint8(16 * y), 99, uint8(17 * ((x + y) % 16))})
		}
	}
	mlxtest.Do(t, func() {
		p := loadTransparent(t)
		see := func(in image.Image) (seen []float32) {
			p.points = hooks.Points{Step: -1, Func: func(tap hooks.Tap) (*mlx.Array, error) {
				if tap.Name == "vae.encode.in" {
					seen = slices.Clone(tap.Output.Floats())
				}
				return nil, nil
			}}
			mlx.Eval(p.encodeImage(p.input(in), nil, "latents.image"))
			return seen
		}
		seen := see(img)
		if len(seen) != 4*side*side {
			t.Fatalf("the autoencoder saw %d values, expected 4 channels", len(seen))
		}
		for i, v := range seen {
			c, y, x := i/side/side, i/side%side, i%side
			at := img.NRGBAAt(3+x, 4+y)
			want := float32([]uint8{at.R, at.G, at.B, at.A}[c])/255*2 - 1
			if d := v - want; d > 1e-6 || d < -1e-6 {
				t.Fatalf("channel %d at %d, %d is %v, expected %v", c, x, y, v, want)
			}
		}
		for i, v := range see(picture.Opaque(img)) {
			if i/side/side == 3 && v != 1 {
				t.Fatalf("the alpha of an opaque image is %v, expected 1", v)
			}
		}
	})
}

// TestImageToImageTransparent starts from an image with transparent pixels, which the model sees if it
// has an alpha channel, and which are white for others.
func TestImageToImageTransparent(t *testing.T) {
	img := image.NewNRGBA(image.Rect(0, 0, 20, 20))
	for i := range img.Pix {
		img.Pix[i] = uint8(7 * i)
	}
	mlxtest.Do(t, func() {
		p := loadTransparent(t)
		r := transparentRequest(p)
		r.Image, r.ImageStrength = img, 0.5
		run := func(img image.Image) []uint8 {
			r.Image = img
			res, err := p.Generate(r)
			if err != nil {
				t.Fatal(err)
			}
			return res.Image.Pix
		}
		if slices.Equal(run(img), run(picture.Opaque(img))) {
			t.Error("the model does not see transparency")
		}
	})
}

// TestBackgroundRefused has requests for a background that a model cannot generate.
func TestBackgroundRefused(t *testing.T) {
	mlxtest.Do(t, func() {
		opaque, transparent := loadFolder(t, modeltest.Folder(t, "zimage-small")), loadTransparent(t)
		for _, test := range []struct {
			p          *Pipeline
			background string
			masked     bool
			want       string // "" if it is supported
		}{
			{opaque, "", false, ""},
			{opaque, BackgroundAuto, false, ""},
			{opaque, BackgroundOpaque, true, ""},
			{opaque, BackgroundTransparent, false, "background transparent: the images of ZImagePipeline are opaque ("},
			{opaque, "white", false, `unknown background "white", expected one of auto, transparent, opaque`},
			{transparent, BackgroundTransparent, false, ""},
			{transparent, BackgroundTransparent, true, "background transparent: an inpainted image is opaque"},
		} {
			r := transparentRequest(test.p)
			r.Background = test.background
			if test.masked {
				r.Inpaint = HalfInpaint(image.NewGray(image.Rect(0, 0, 48, 32)))
			}
			err := test.p.Check(r)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("%+v: %v", test, err)
			case test.want != "" && (!errors.Is(err, errs.ErrRequest) || !strings.Contains(err.Error(), test.want)):
				t.Errorf("background %q: found %v, expected %q", test.background, err, test.want)
			}
		}
	})
}
