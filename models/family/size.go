package family

import (
	"image"
	"math"
)

// SizeWithin completes the size of an image that is generated from another one of some size: to the same
// shape, or if neither height nor width is given to its own size, of at most some area. Sides are rounded
// down to a multiple.
func SizeWithin(size image.Point, height, width, multiple, area int) (int, int) {
	fit := func(v float64) int { return max(1, int(v+1e-9)/multiple) * multiple }
	w, h := float64(max(1, size.X)), float64(max(1, size.Y)) // the request is refused if it is empty
	switch {
	case height > 0 && width > 0:
	case height > 0:
		width = fit(float64(height) * w / h)
	case width > 0:
		height = fit(float64(width) * h / w)
	default:
		scale := min(1, math.Sqrt(float64(area)/(w*h)))
		height, width = fit(h*scale), fit(w*scale)
	}
	return height, width
}
