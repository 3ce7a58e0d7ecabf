package picture

import (
	"image"

	"github.com/gomflux/gomflux/internal/resample"
)

// Resize scales an opaque image with a Lanczos filter of three lobes. The result
// equals that of Pillow's Image.resize with LANCZOS (libImaging/Resample.c), which
// diffusers' VaeImageProcessor and mflux use: rows first, fixed-point
// coefficients, 8 bits between the two passes. width and height are in pixels, at
// least 1.
func Resize(img *image.RGBA, width, height int) *image.RGBA {
	return resample.Lanczos.RGBA(img, width, height)
}

// Reflect returns an image in the middle of a larger one, whose other pixels are its reflection: without the outermost
// ones, or if a side has at most 16 pixels, with them.
func Reflect(img image.Image, size image.Point) *image.RGBA {
	bounds := img.Bounds()
	repeated := 0
	if min(bounds.Dx(), bounds.Dy()) <= 16 {
		repeated = 1
	}
	inside := func(i, n int) int { // numpy's modes reflect and symmetric
		period := max(1, 2*(n-1+repeated))
		i = ((i % period) + period) % period
		return min(i, period-repeated-i)
	}
	out := image.NewRGBA(image.Rectangle{Max: size})
	before := size.Sub(bounds.Size()).Div(2)
	for y := range size.Y {
		for x := range size.X {
			out.Set(x, y, img.At(bounds.Min.X+inside(x-before.X, bounds.Dx()), bounds.Min.Y+inside(y-before.Y, bounds.Dy())))
		}
	}
	return out
}

// ResizeBicubic scales an opaque image with an antialiased bicubic filter
// (a = -0.5), which widens as the image shrinks. The result equals that of
// torchvision's resize of 8-bit tensors on the CPU, which transformers' image
// processors use: as [Resize], with 16-bit coefficients. width and height are in
// pixels, at least 1.
func ResizeBicubic(img *image.RGBA, width, height int) *image.RGBA {
	return resample.Bicubic.RGBA(img, width, height)
}
