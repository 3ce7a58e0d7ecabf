package inpaint

import (
	"fmt"
	"image"
	"math"

	"github.com/gomflux/gomflux/internal/resample"
	"github.com/gomflux/gomflux/picture"
)

// half is the least value of a mask that a model sees as white.
const half = 128

// maxSpread is the largest difference between the channels of a pixel that counts as grey: the noise
// of lossy compression.
const maxSpread = 32

// read returns a mask for an image of some size.
func read(img image.Image, size image.Point) (*image.Gray, error) {
	if img.Bounds().Empty() {
		return nil, fmt.Errorf("the mask is empty: its bounds are %v", img.Bounds())
	}
	given := img.Bounds().Size()
	if !sameProportions(given, size) {
		return nil, fmt.Errorf("the mask has %dx%d pixels and the image %dx%d: expected the same size or proportions "+
			"(diffusers stretches such a mask to the image: do so in an image editor if that is meant)",
			given.X, given.Y, size.X, size.Y)
	}
	if mask, ok := AlphaMask(img); ok {
		return mask, nil
	}
	return luma(img)
}

// resized returns a mask in the size of an image.
func resized(mask *image.Gray, size image.Point) *image.Gray {
	if mask.Rect.Size() == size {
		return mask
	}
	return resample.Bilinear.Gray(mask, size.X, size.Y)
}

// sameProportions reports whether a size is another one, scaled and rounded to whole pixels.
func sameProportions(a, b image.Point) bool {
	w := float64(b.X) * float64(a.Y) / float64(b.Y)
	h := float64(b.Y) * float64(a.X) / float64(b.X)
	return math.Abs(w-float64(a.X)) <= 1 || math.Abs(h-float64(a.Y)) <= 1
}

// luma returns a black, white and grey image with one channel. An image with colours is an error.
func luma(img image.Image) (*image.Gray, error) {
	if m, ok := img.(*image.Gray); ok {
		return mapped(m, func(v uint8) uint8 { return v }), nil
	}
	m := picture.Opaque(img)
	gray := image.NewGray(image.Rect(0, 0, m.Rect.Dx(), m.Rect.Dy()))
	for y := range gray.Rect.Dy() {
		to, from := row(gray, y), m.Pix[y*m.Stride:]
		for x := range to {
			p := from[4*x : 4*x+3 : 4*x+3]
			r, g, b := p[0], p[1], p[2]
			if max(r, g, b)-min(r, g, b) > maxSpread {
				return nil, fmt.Errorf("the mask has colours (red %d, green %d, blue %d at %d,%d): expected black, white and grey",
					r, g, b, x, y)
			}
			to[x] = uint8((19595*uint32(r) + 38470*uint32(g) + 7471*uint32(b) + 1<<15) >> 16)
		}
	}
	return gray, nil
}

// AlphaMask returns the mask of an image with an alpha channel: 255 where the image is transparent, 0
// where it is opaque, the rule of OpenAI's Images API. The mask starts at 0, 0. ok is false if all of
// the image is opaque.
//
// picture.Decode returns opaque images; the alpha channel is in Picture.Alpha, which is an image too.
func AlphaMask(img image.Image) (mask *image.Gray, ok bool) {
	alpha := picture.AlphaOf(img)
	if alpha == nil {
		return nil, false
	}
	mask = image.NewGray(alpha.Rect)
	for i, a := range alpha.Pix {
		mask.Pix[i] = ^a
	}
	return mask, true
}
