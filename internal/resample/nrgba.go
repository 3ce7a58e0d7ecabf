package resample

import "image"

// NRGBA scales an image with transparent pixels. width and height are in pixels, at least 1. As in
// Pillow, which scales RGBA in its mode RGBa, the colours are multiplied by alpha before and divided
// by it afterwards, each time in 8 bits, and an image of the same size is not changed.
func (f *Filter) NRGBA(img *image.NRGBA, width, height int) *image.NRGBA {
	check(img.Rect, width, height)
	size := img.Rect.Size()
	if size == image.Pt(width, height) {
		return img
	}
	multiplied, alpha := image.NewRGBA(image.Rectangle{Max: size}), image.NewGray(image.Rectangle{Max: size})
	parallel(size.Y, func(y int) {
		from, to := img.Pix[y*img.Stride:], multiplied.Pix[y*multiplied.Stride:]
		for x := range size.X {
			a := from[4*x+3]
			alpha.Pix[y*alpha.Stride+x] = a
			for c := range 3 {
				to[4*x+c] = times(from[4*x+c], a)
			}
		}
	})
	multiplied, alpha = f.RGBA(multiplied, width, height), f.Gray(alpha, width, height)
	out := (*image.NRGBA)(multiplied)
	parallel(height, func(y int) {
		row := out.Pix[y*out.Stride:]
		for x := range width {
			a := alpha.Pix[y*alpha.Stride+x]
			row[4*x+3] = a
			if a == 0 || a == 255 {
				continue
			}
			for c := range 3 {
				row[4*x+c] = uint8(min(255*int(row[4*x+c])/int(a), 255))
			}
		}
	})
	return out
}

// times returns v·a/255, rounded.
func times(v, a uint8) uint8 {
	t := uint32(v)*uint32(a) + 128
	return uint8((t>>8 + t) >> 8)
}
