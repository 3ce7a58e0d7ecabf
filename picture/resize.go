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

// ResizeBicubic scales an opaque image with an antialiased bicubic filter
// (a = -0.5), which widens as the image shrinks. The result equals that of
// torchvision's resize of 8-bit tensors on the CPU, which transformers' image
// processors use: as [Resize], with 16-bit coefficients. width and height are in
// pixels, at least 1.
func ResizeBicubic(img *image.RGBA, width, height int) *image.RGBA {
	return resample.Bicubic.RGBA(img, width, height)
}
