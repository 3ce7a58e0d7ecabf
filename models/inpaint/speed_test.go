package inpaint

import (
	"image"
	"testing"
)

// BenchmarkPhoto inpaints a part of a photo of 24 million pixels in 1248x832.
func BenchmarkPhoto(b *testing.B) {
	const w, h, width, height = 6000, 4000, 1248, 832
	photo := scene(w, h)
	for name, part := range map[string]image.Rectangle{
		"half":  image.Rect(900, 600, 5100, 3400),
		"small": image.Rect(2000, 1200, 2600, 1700),
	} {
		mask := image.NewGray(image.Rect(0, 0, w, h))
		drawEllipse(mask, part)
		drawn := rgbaOf(mask)
		for _, crop := range []bool{false, true} {
			o := Options{Feather: -1, Crop: crop, Padding: 32}
			label := name
			if crop {
				label += "-crop"
			}
			generated, _ := newInput(b, photo, drawn, o).At(width, height)
			b.Run(label, func(b *testing.B) {
				for b.Loop() {
					in := newInput(b, photo, drawn, o)
					in.At(width, height)
					in.Paste(generated)
				}
			})
		}
	}
}

func newInput(t testing.TB, photo, mask image.Image, o Options) *Input {
	t.Helper()
	in, err := New(photo, mask, o)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// scene returns a picture with the steps of a photo: noise of all scales, the finer the weaker.
func scene(width, height int) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			p := img.Pix[img.PixOffset(x, y):][:4]
			for k := range 3 {
				v, weight := 0, 64
				for scale := 64; scale >= 1; scale /= 2 {
					v += weight * noise(x, y, scale, k) / 255
					weight = weight * 5 / 8
				}
				p[k] = uint8(40 + v)
			}
			p[3] = 255
		}
	}
	return img
}

// noise returns a value from 0 to 255 that changes smoothly over scale pixels.
func noise(x, y, scale, k int) int {
	at := func(i, j int) int {
		n := uint32(i)*0x9e3779b1 ^ uint32(j)*0x85ebca77 ^ uint32(scale*3+k)*0xc2b2ae3d
		n ^= n >> 15
		n *= 0x2c1b3c6d
		n ^= n >> 12
		return int(n>>8) & 255
	}
	i, j, u, v := x/scale, y/scale, x%scale, y%scale
	top := at(i, j)*(scale-u) + at(i+1, j)*u
	bottom := at(i, j+1)*(scale-u) + at(i+1, j+1)*u
	return (top*(scale-v) + bottom*v) / (scale * scale)
}
