package inpaint

import (
	"bytes"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"image/png"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/resample"
	"github.com/gomflux/gomflux/picture"
)

// Every kind of image that shows the same shape is the same mask.
func TestKindsOfMasks(t *testing.T) {
	want := image.NewGray(image.Rect(0, 0, 40, 30))
	drawEllipse(want, image.Rect(5, 3, 33, 28))
	photo := image.NewRGBA(want.Rect)
	r := image.Rect(7, 9, 47, 39) // bounds that do not start at 0, 0
	draw := func(m interface {
		image.Image
		Set(x, y int, c color.Color)
	}) image.Image {
		for y := range 30 {
			for x := range 40 {
				m.Set(7+x, 9+y, color.Gray{want.GrayAt(x, y).Y})
			}
		}
		return m
	}
	black, white := color.NRGBA{0, 0, 0, 255}, color.NRGBA{255, 255, 255, 255}
	kinds := map[string]image.Image{
		"grey": draw(image.NewGray(r)), "16-bit grey": draw(image.NewGray16(r)), "RGB": draw(image.NewRGBA(r)),
		"NRGBA": draw(image.NewNRGBA(r)), "16-bit RGB": draw(image.NewRGBA64(r)), "16-bit RGBA": draw(image.NewNRGBA64(r)),
		"1-bit palette": draw(image.NewPaletted(r, color.Palette{black, white})), "CMYK": draw(image.NewCMYK(r)),
		"palette": draw(image.NewPaletted(r, color.Palette{white, color.NRGBA{255, 0, 0, 255}, black})),
	}
	for name, kind := range kinds {
		in := newInput(t, photo, kind, Options{})
		if !bytes.Equal(in.Mask.Pix, want.Pix) || in.Mask.Rect != want.Rect {
			t.Errorf("%s: another mask", name)
		}
	}
	var file bytes.Buffer
	if err := png.Encode(&file, kinds["16-bit grey"]); err != nil {
		t.Fatal(err)
	}
	p, err := picture.Decode(&file)
	if err != nil {
		t.Fatal(err)
	}
	if in := newInput(t, photo, p.Image, Options{}); !bytes.Equal(in.Mask.Pix, want.Pix) {
		t.Error("16-bit PNG: another mask")
	}
	if in := newInput(t, photo, want, Options{Invert: true}); !bytes.Equal(in.Mask.Pix, inverted(want).Pix) {
		t.Error("inverted: another mask")
	}
	if newInput(t, photo, want, Options{}).Mask.Pix[0] = 77; want.Pix[0] != 0 {
		t.Error("the given mask has changed")
	}
}

// A mask that went through JPEG has little noise, and no colours.
func TestJPEGMask(t *testing.T) {
	mask := image.NewGray(image.Rect(0, 0, 90, 70))
	drawEllipse(mask, image.Rect(15, 13, 63, 58))
	for _, quality := range []int{30, 75, 95} {
		var file bytes.Buffer
		if err := jpeg.Encode(&file, rgbaOf(mask), &jpeg.Options{Quality: quality}); err != nil {
			t.Fatal(err)
		}
		p, err := picture.Decode(&file)
		if err != nil {
			t.Fatal(err)
		}
		in := newInput(t, p.Image, p.Image, Options{})
		if !bytes.Equal(threshold(in.Mask).Pix, mask.Pix) {
			t.Errorf("quality %d: another mask", quality)
		}
	}
}

func TestTransparentMask(t *testing.T) {
	photo := image.NewNRGBA(image.Rect(0, 0, 20, 10))
	for i := range photo.Pix {
		photo.Pix[i] = uint8(i * 7)
	}
	want := image.NewGray(photo.Rect)
	for i := range want.Pix {
		photo.Pix[4*i+3] = 255
		if i%20 > 12 {
			photo.Pix[4*i+3], want.Pix[i] = 0, 255
		}
	}
	photo.Pix[3], want.Pix[0] = 200, 55
	var file bytes.Buffer
	if err := png.Encode(&file, photo); err != nil {
		t.Fatal(err)
	}
	p, err := picture.Decode(&file)
	if err != nil {
		t.Fatal(err)
	}
	for name, mask := range map[string]image.Image{"image": photo, "file": p.Alpha} {
		got, ok := AlphaMask(mask)
		if !ok || !bytes.Equal(got.Pix, want.Pix) {
			t.Errorf("%s: another mask", name)
		}
		in := newInput(t, p.Image, mask, Options{})
		if !bytes.Equal(in.Mask.Pix, want.Pix) {
			t.Errorf("%s: another mask of the input", name)
		}
	}
	for i := range want.Pix {
		photo.Pix[4*i+3] = 255
	}
	if _, ok := AlphaMask(photo); ok {
		t.Error("an opaque image has a mask")
	}
}

func TestMaskOfAnotherSize(t *testing.T) {
	photo := image.NewRGBA(image.Rect(0, 0, 1000, 667))
	for _, size := range []image.Point{{500, 333}, {500, 334}, {2000, 1334}, {1001, 667}, {3, 2}, {1500, 1000}} {
		mask := image.NewGray(image.Rectangle{Max: size})
		drawRect(mask, image.Rect(0, 0, (size.X+1)/2, size.Y))
		in := newInput(t, photo, mask, Options{})
		if in.Mask.Rect != photo.Rect {
			t.Errorf("%v: mask %v", size, in.Mask.Rect)
		}
		left, right := in.Mask.GrayAt(100, 300).Y, in.Mask.GrayAt(900, 300).Y
		if left != 255 || right != 0 {
			t.Errorf("%v: %d on the left, %d on the right", size, left, right)
		}
		// no ripples beside the edge: values only fall
		for x := 1; x < 1000; x++ {
			if in.Mask.GrayAt(x, 300).Y > in.Mask.GrayAt(x-1, 300).Y {
				t.Fatalf("%v: a ripple at %d", size, x)
			}
		}
	}
}

func TestFull(t *testing.T) {
	for _, c := range []struct {
		least uint8
		full  bool
	}{{255, true}, {250, true}, {128, true}, {127, false}, {0, false}} {
		mask := image.NewGray(image.Rect(0, 0, 30, 20))
		fill(mask.Pix, 255)
		mask.Pix[70] = c.least
		if in := newInput(t, rgbaOf(mask), mask, Options{}); in.Full() != c.full {
			t.Errorf("least value %d: full %v", c.least, in.Full())
		}
	}
}

// Check finds masks of which the model would see nothing.
func TestCheck(t *testing.T) {
	photo := waves(800, 600)
	thin := image.NewGray(photo.Rect)
	drawRect(thin, image.Rect(100, 100, 400, 101))
	grey := image.NewGray(photo.Rect)
	for i := range grey.Pix {
		grey.Pix[i] = 100
	}
	for _, c := range []struct {
		name string
		mask *image.Gray
		crop bool
		want string
	}{
		{"thin", thin, false, "the mask has no part that is at least half white at 160x112 pixels (crop to the mask if it is small)"},
		{"thin, crop", thin, true, ""},
		{"grey", grey, true, "the mask has no part that is at least half white at 160x112 pixels"},
	} {
		err := newInput(t, photo, c.mask, Options{Crop: c.crop}).Check(160, 112)
		if err == nil && c.want != "" || err != nil && err.Error() != c.want {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestErrors(t *testing.T) {
	photo := waves(60, 40)
	mask := image.NewGray(photo.Rect)
	drawRect(mask, image.Rect(10, 10, 20, 20))
	white, black := image.NewGray(photo.Rect), image.NewGray(photo.Rect)
	fill(white.Pix, 255)
	red := rgbaOf(mask)
	red.SetRGBA(15, 12, color.RGBA{250, 10, 10, 255})
	for _, c := range []struct {
		img, mask image.Image
		o         Options
		want      string
	}{
		{nil, mask, Options{}, "a mask needs an image"},
		{photo, nil, Options{}, "needs a mask"},
		{&image.RGBA{}, mask, Options{}, "the image to inpaint is empty"},
		{photo, &image.RGBA{}, Options{}, "the mask is empty"},
		{photo, black, Options{}, "the mask is black everywhere"},
		{photo, white, Options{Invert: true}, "white everywhere and inverted"},
		{photo, red, Options{}, "the mask has colours (red 250, green 10, blue 10 at 15,12)"},
		{photo, photo, Options{}, "the mask has colours"},
		{photo, image.NewGray(image.Rect(0, 0, 40, 60)), Options{}, "the mask has 40x60 pixels and the image 60x40"},
		{photo, image.NewGray(image.Rect(0, 0, 60, 42)), Options{}, "the mask has 60x42 pixels and the image 60x40"},
		{photo, image.NewGray(image.Rect(0, 0, 62, 40)), Options{}, "the mask has 62x40 pixels and the image 60x40"},
		{photo, mask, Options{Feather: 1025}, "feather 1025: expected at most 1024 pixels"},
		{photo, mask, Options{Padding: -1}, "padding -1 around the mask"},
		{photo, mask, Options{Padding: 1 << 30}, "padding 1073741824 around the mask"},
		{photo, mask, Options{Expand: Border{Left: -3}}, "border -3,0,0,0: must not be negative"},
		{photo, nil, Options{Expand: Border{Left: 65_536}}, "a side of more than 65536"},
		{photo, nil, Options{Expand: Border{Left: 20_000, Top: 20_000}}, "more than 100 million pixels"},
	} {
		in, err := New(c.img, c.mask, c.o)
		if err == nil || !strings.Contains(err.Error(), c.want) || in != nil {
			t.Errorf("%+v: %v, %v, want %q", c.o, in, err, c.want)
		} else if text := err.Error(); strings.Contains(text, "\n") || len(text) > 200 {
			t.Errorf("error %q", text)
		}
	}
}

// A mask of another size than the image is resized once for a model, as in diffusers, and not to the
// size of the image before.
func TestMaskIsResizedOnce(t *testing.T) {
	mask := image.NewGray(image.Rect(0, 0, 270, 210))
	drawEllipse(mask, image.Rect(31, 22, 190, 170))
	img := image.NewRGBA(image.Rect(0, 0, 90, 70))
	for _, invert := range []bool{false, true} {
		in := newInput(t, img, mask, Options{Invert: invert})
		direct := mask
		if invert {
			direct = inverted(mask)
		}
		if in.Mask.Rect != img.Rect {
			t.Fatalf("the mask for pasting has bounds %v, expected %v", in.Mask.Rect, img.Rect)
		}
		differs := false
		for _, size := range []image.Point{{64, 48}, {80, 64}, {120, 96}} {
			want := threshold(resample.Lanczos.Gray(direct, size.X, size.Y))
			if _, got := in.At(size.X, size.Y); !bytes.Equal(got.Pix, want.Pix) {
				t.Errorf("inverted %v: another mask at %v", invert, size)
			}
			twice := threshold(resample.Lanczos.Gray(in.Mask, size.X, size.Y))
			differs = differs || !bytes.Equal(twice.Pix, want.Pix)
		}
		if !differs {
			t.Error("a mask that is resized twice is the same at all sizes")
		}
	}
}

// rgbaOf returns a mask as an image that starts at 0, 0.
func rgbaOf(mask *image.Gray) *image.RGBA {
	img := image.NewRGBA(mask.Rect.Sub(mask.Rect.Min))
	draw.Draw(img, img.Rect, mask, mask.Rect.Min, draw.Src)
	return img
}
