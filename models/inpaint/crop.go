package inpaint

import "image"

// Region returns the part of the image that a model sees with Options.Crop: the bounds of the mask
// with the padding, enlarged to the ratio of a size where the image allows it
// (VaeImageProcessor.get_crop_region in diffusers).
func (in *Input) Region(width, height int) image.Rectangle {
	size := in.Mask.Rect
	r := bounds(in.Mask).Inset(-in.Padding).Intersect(size)
	wanted := ratio(image.Pt(width, height))
	if w, h := float64(r.Dx()), float64(r.Dy()); w/h > wanted {
		r.Min.Y, r.Max.Y = grow(r.Min.Y, r.Max.Y, int(w/wanted-h), size.Max.Y)
	} else {
		r.Min.X, r.Max.X = grow(r.Min.X, r.Max.X, int(h*wanted-w), size.Max.X)
	}
	return r
}

// grow enlarges an interval by n on both sides together and moves it into [0, limit), or returns
// all of that.
func grow(low, high, n, limit int) (int, int) {
	low -= n / 2
	high += n - n/2
	if over := high - limit; over > 0 {
		low, high = low-over, limit
	}
	if low < 0 {
		low, high = 0, high-low
	}
	return low, min(high, limit)
}

// fitted returns the size in which an image fits into another size with its own proportions.
func fitted(img, size image.Point) image.Point {
	if ratio(size) < ratio(img) {
		return image.Pt(size.X, max(img.Y*size.X/img.X, 1))
	}
	return image.Pt(max(img.X*size.Y/img.Y, 1), size.Y)
}

// covering returns the size in which an image covers another size with its own proportions, and where
// the first pixel of that size is (VaeImageProcessor._resize_and_crop in diffusers).
func covering(img, size image.Point) (scaled, at image.Point) {
	scaled = size
	if r, own := ratio(size), ratio(img); r > own {
		scaled.Y = img.Y * size.X / img.X
	} else if r < own {
		scaled.X = img.X * size.Y / img.Y
	}
	return scaled, image.Pt(scaled.X/2-size.X/2, scaled.Y/2-size.Y/2)
}

// filled returns the pixels of an image of a size with a fitted image in its centre, whose rows are stride bytes apart,
// and fills the rest with the edges of that (VaeImageProcessor._resize_and_fill in diffusers). Pixels have one byte, or
// four.
func filled(pix []uint8, stride, bytes int, fitted, size image.Point) []uint8 {
	w, h := fitted.X, fitted.Y
	left, top := size.X/2-w/2, size.Y/2-h/2
	out, line := make([]uint8, bytes*size.X*size.Y), bytes*size.X
	for y := range h {
		copy(out[(top+y)*line+bytes*left:], pix[y*stride:][:bytes*w])
	}
	for y := range size.Y {
		if edge := min(max(y, top), top+h-1); edge != y {
			next := edge + inward(y < edge, h)
			extrapolate(out[y*line:][:line], out[edge*line:], out[next*line:])
		}
	}
	for x := range size.X {
		if edge := min(max(x, left), left+w-1); edge != x {
			next := edge + inward(x < edge, w)
			for y := range size.Y {
				at := out[y*line:]
				extrapolate(at[bytes*x:bytes*(x+1)], at[bytes*edge:], at[bytes*next:])
			}
		}
	}
	return out
}

func ratio(size image.Point) float64 { return float64(size.X) / float64(size.Y) }

// inward returns the step from the first or last of n lines to the next one.
func inward(first bool, n int) int {
	switch {
	case n == 1:
		return 0
	case first:
		return 1
	}
	return -1
}

// extrapolate sets values to 9/8 of those of an edge less 1/8 of those next to it: the weights of
// Pillow's bicubic filter half a pixel outside of an image, which diffusers fills with.
func extrapolate(dst, edge, next []uint8) {
	for i := range dst {
		dst[i] = uint8(min(max((9*int(edge[i])-int(next[i])+4)>>3, 0), 255))
	}
}
