package inpaint

import (
	"fmt"
	"image"
	"strings"

	"github.com/gomflux/gomflux/internal/quote"
)

// shapes are the shapes of [ParseShape].
var shapes = map[string]func(mask *image.Gray, shape image.Rectangle){
	"rect":    drawRect,
	"ellipse": drawEllipse,
}

// IsShape reports whether a text describes a mask for [ParseShape] and is no name of a file.
func IsShape(text string) bool {
	name, _, found := strings.Cut(text, ":")
	return found && shapes[name] != nil
}

// ParseShape returns a mask in some size with a white shape: "rect:X,Y,WIDTH,HEIGHT" or
// "ellipse:X,Y,WIDTH,HEIGHT", with the bounds of the ellipse. X and Y are the top left corner, in
// pixels. Parts outside of the size are cut off.
func ParseShape(text string, size image.Point) (image.Image, error) {
	name, numbers, _ := strings.Cut(text, ":")
	draw := shapes[name]
	v, err := integers(numbers, ",", 4)
	if draw == nil || err != nil {
		return nil, fmt.Errorf("mask %s: expected rect:X,Y,WIDTH,HEIGHT or ellipse:X,Y,WIDTH,HEIGHT in pixels", quote.Text(text))
	}
	if v[2] < 1 || v[3] < 1 {
		return nil, fmt.Errorf("mask %s: expected a width and a height of at least 1 pixel", quote.Text(text))
	}
	mask := image.NewGray(image.Rectangle{Max: size})
	draw(mask, image.Rect(v[0], v[1], v[0]+v[2], v[1]+v[3]))
	if bounds(mask).Empty() {
		return nil, fmt.Errorf("mask %s: no part of it is inside the image of %dx%d pixels", quote.Text(text), size.X, size.Y)
	}
	return mask, nil
}

func drawRect(mask *image.Gray, r image.Rectangle) {
	r = r.Intersect(mask.Rect)
	for y := r.Min.Y; y < r.Max.Y; y++ {
		fill(row(mask, y)[r.Min.X:r.Max.X], 255)
	}
}

// drawEllipse draws the pixels whose centres are inside an ellipse.
func drawEllipse(mask *image.Gray, r image.Rectangle) {
	w, h := float64(r.Dx()), float64(r.Dy())
	part := r.Intersect(mask.Rect)
	for y := part.Min.Y; y < part.Max.Y; y++ {
		v := (2*float64(y-r.Min.Y) + 1 - h) / h // -1 at the top, 1 at the bottom
		values := row(mask, y)
		for x := part.Min.X; x < part.Max.X; x++ {
			if u := (2*float64(x-r.Min.X) + 1 - w) / w; u*u+v*v <= 1 {
				values[x] = 255
			}
		}
	}
}
