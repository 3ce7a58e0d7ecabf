package models

import (
	"image"
	"image/color"
	"math"
	"testing"
)

func TestCrop(t *testing.T) {
	tests := []struct {
		r     image.Rectangle
		scale int
		want  image.Rectangle // empty for an error
	}{
		{image.Rect(0, 0, 16, 8), 8, image.Rect(0, 0, 16, 8)},
		{image.Rect(0, 0, 17, 10), 8, image.Rect(0, 1, 16, 9)},
		{image.Rect(2, 3, 25, 18), 8, image.Rect(5, 6, 21, 14)},
		{image.Rect(0, 0, 7, 80), 8, image.Rectangle{}},
		{image.Rect(0, 0, 80, 7), 8, image.Rectangle{}},
	}
	for _, test := range tests {
		got, err := crop(test.r, test.scale)
		if (err != nil) != test.want.Empty() || err == nil && got != test.want {
			t.Errorf("%v by %d: %v, %v, expected %v", test.r, test.scale, got, err, test.want)
		}
	}
}

func TestCompare(t *testing.T) {
	grey := func(r image.Rectangle, v uint8) *image.RGBA {
		img := image.NewRGBA(r)
		for i := range img.Pix {
			img.Pix[i] = v
			if i%4 == 3 {
				img.Pix[i] = 255
			}
		}
		return img
	}
	large := grey(image.Rect(0, 0, 10, 10), 100)
	a := large.SubImage(image.Rect(3, 4, 5, 6)).(*image.RGBA) // 2x2, not at 0
	b := grey(image.Rect(0, 0, 2, 2), 100)
	compared := func(a, b *image.RGBA) (r roundtrip) {
		if err := r.compare(a, b); err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := compared(a, b); r.PSNR != nil || r.Mean != 0 || r.Largest != 0 {
		t.Errorf("equal pictures: %+v", r)
	}
	b.SetRGBA(1, 1, color.RGBA{103, 100, 96, 255})
	// squares 9 and 16 over 12 values
	if r := compared(a, b); math.Abs(*r.PSNR-10*math.Log10(255*255/(25.0/12))) > 1e-9 || math.Abs(r.Mean-7.0/12) > 1e-12 || r.Largest != 4 {
		t.Errorf("found %+v", r)
	}
	if r := compared(grey(b.Rect, 0), grey(b.Rect, 255)); *r.PSNR != 0 || r.Mean != 255 || r.Largest != 255 {
		t.Errorf("black and white: %+v", r)
	}
}
