package report

import (
	"image"
	"image/color"
	"math"
	"testing"
)

func TestCompareImages(t *testing.T) {
	const w, h = 24, 17
	a, b := image.NewRGBA(image.Rect(0, 0, w, h)), image.NewRGBA(image.Rect(5, 5, 5+w, 5+h))
	for y := range h {
		for x := range w {
			c := color.RGBA{uint8(x * 9), uint8(y * 13), uint8((x*x + 7*y) % 251), 255}
			a.SetRGBA(x, y, c)
			c.R ^= uint8(x * y % 8)
			c.B += 3
			b.SetRGBA(x+5, y+5, c)
		}
	}
	same, err := CompareImages(a, a)
	if err != nil || same.Max != 0 || same.Mean != 0 || same.PSNR != Infinite || math.Abs(same.SSIM-1) > 1e-12 {
		t.Errorf("a picture and itself: %+v, %v", same, err)
	}
	d, err := CompareImages(a, b)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", d)
	// computed with NumPy from the formulas
	want := ImageDifference{Max: 7, Mean: 1.6862745098039216, PSNR: 40.537829166117376, SSIM: 0.9941713794650291}
	psnr := math.Abs(float64(d.PSNR - want.PSNR))
	if d.Max != want.Max || math.Abs(d.Mean-want.Mean) > 1e-9 || psnr > 1e-9 || math.Abs(d.SSIM-want.SSIM) > 1e-9 {
		t.Errorf("found %+v, expected %+v", d, want)
	}
	if _, err := CompareImages(a, image.NewRGBA(image.Rect(0, 0, w, w))); err == nil {
		t.Error("pictures of other sizes were compared")
	}
	clear := image.NewNRGBA(a.Rect)
	copy(clear.Pix, a.Pix)
	for i := 3; i < len(clear.Pix)/2; i += 4 {
		clear.Pix[i] -= 12
	}
	for _, pair := range [][2]image.Image{{a, clear}, {clear, a}} {
		d, err := CompareImages(pair[0], pair[1])
		if want := 12 * 0.5 / 4; err != nil || d.Max != 12 || math.Abs(d.Mean-want) > 1e-9 || d.SSIM >= 1 {
			t.Errorf("alpha: %+v, %v, expected a mean of %v", d, err, want)
		}
	}
	if d, err := CompareImages(clear, clear); err != nil || d.Max != 0 || math.Abs(d.SSIM-1) > 1e-12 {
		t.Errorf("a transparent picture and itself: %+v, %v", d, err)
	}
	small := a.SubImage(image.Rect(2, 2, 5, 4)).(*image.RGBA)
	if d, err := CompareImages(small, small); err != nil || math.Abs(d.SSIM-1) > 1e-12 {
		t.Errorf("a small picture and itself: %+v, %v", d, err)
	}
}
