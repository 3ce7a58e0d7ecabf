// Package pixels converts images to interleaved RGB values, as arrays have them,
// and back.
package pixels

import "image"

// FromRGB returns an opaque image of interleaved RGB values.
func FromRGB(rgb []uint8, height, width int) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	for i := range height * width {
		copy(img.Pix[4*i:], rgb[3*i:3*i+3])
		img.Pix[4*i+3] = 255
	}
	return img
}

// RGB returns the interleaved RGB values of an opaque image.
func RGB(img *image.RGBA) []uint8 {
	w, h := img.Rect.Dx(), img.Rect.Dy()
	rgb := make([]uint8, 3*w*h)
	for y := range h {
		row := img.Pix[img.PixOffset(img.Rect.Min.X, img.Rect.Min.Y+y):]
		for x := range w {
			copy(rgb[3*(y*w+x):], row[4*x:4*x+3])
		}
	}
	return rgb
}
