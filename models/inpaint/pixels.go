package inpaint

import (
	"bytes"
	"image"
	"slices"
)

// row returns the values of row y of a mask, counted from its first one.
func row(mask *image.Gray, y int) []uint8 {
	return mask.Pix[y*mask.Stride:][:mask.Rect.Dx()]
}

// atOrigin returns an image whose bounds start at 0, 0, with the same pixels.
func atOrigin(img *image.RGBA) *image.RGBA {
	moved := *img
	moved.Rect = img.Rect.Sub(img.Rect.Min)
	return &moved
}

// threshold makes a mask black and white at one half.
func threshold(mask *image.Gray) *image.Gray {
	return mapped(mask, func(v uint8) uint8 {
		if v >= half {
			return 255
		}
		return 0
	})
}

func inverted(mask *image.Gray) *image.Gray { return mapped(mask, func(v uint8) uint8 { return ^v }) }

// mapped returns a mask with another value for each, whose bounds start at 0, 0.
func mapped(mask *image.Gray, f func(v uint8) uint8) *image.Gray {
	out := image.NewGray(mask.Rect.Sub(mask.Rect.Min))
	for y := range out.Rect.Dy() {
		to := row(out, y)
		for x, v := range row(mask, y) {
			to[x] = f(v)
		}
	}
	return out
}

// fill sets all values.
func fill[T any](values []T, v T) {
	for i := range values {
		values[i] = v
	}
}

// bounds returns the smallest rectangle with all values of a mask that are not 0.
func bounds(mask *image.Gray) image.Rectangle {
	var out image.Rectangle
	for y := range mask.Rect.Dy() {
		if values := bytes.TrimRight(row(mask, y), "\x00"); len(values) > 0 {
			first := slices.IndexFunc(values, func(v uint8) bool { return v != 0 })
			out = out.Union(image.Rect(first, y, len(values), y+1))
		}
	}
	return out.Add(mask.Rect.Min)
}
