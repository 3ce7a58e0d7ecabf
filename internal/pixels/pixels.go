// Package pixels converts images to interleaved RGB values, as arrays have them,
// and back, and compares images.
package pixels

import (
	"image"
	"reflect"
)

// Same reports whether two images, which may be nil, are known to be the same one.
func Same(a, b image.Image) bool {
	return (a == nil || reflect.ValueOf(a).Comparable()) && (b == nil || reflect.ValueOf(b).Comparable()) && a == b
}

// FromRGB returns an opaque image of interleaved RGB values.
func FromRGB(rgb []uint8, height, width int) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	for i := range height * width {
		copy(img.Pix[4*i:], rgb[3*i:3*i+3])
		img.Pix[4*i+3] = 255
	}
	return img
}

// RGBA returns the interleaved RGBA values of an image.
func RGBA(img *image.NRGBA) []uint8 {
	w, h := img.Rect.Dx(), img.Rect.Dy()
	rgba := make([]uint8, 0, 4*w*h)
	for y := range h {
		rgba = append(rgba, img.Pix[img.PixOffset(img.Rect.Min.X, img.Rect.Min.Y+y):][:4*w]...)
	}
	return rgba
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
