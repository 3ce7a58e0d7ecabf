package inpaint

import (
	"image"

	"github.com/gomflux/gomflux/picture"
)

// Region returns the part of the image that a model sees with Options.Crop: the bounds of the mask
// with the padding, enlarged to the ratio of a size where the image allows it
// (VaeImageProcessor.get_crop_region in diffusers).
func (in *Input) Region(width, height int) image.Rectangle {
	size := in.Mask.Rect
	r := bounds(in.Mask).Inset(-in.Padding).Intersect(size)
	ratio := float64(width) / float64(height)
	if w, h := float64(r.Dx()), float64(r.Dy()); w/h > ratio {
		r.Min.Y, r.Max.Y = grow(r.Min.Y, r.Max.Y, int(w/ratio-h), size.Max.Y)
	} else {
		r.Min.X, r.Max.X = grow(r.Min.X, r.Max.X, int(h*ratio-w), size.Max.X)
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

// fill scales an image to fit into a size, and fills the rest with its edges
// (VaeImageProcessor._resize_and_fill).
func fill(img *image.RGBA, width, height int) *image.RGBA {
	w, h := img.Rect.Dx(), img.Rect.Dy()
	tall := ratio(width, height) < ratio(w, h) // the size has room above and below the image
	if tall {
		w, h = width, h*width/w
	} else {
		w, h = w*height/h, height
	}
	resized := picture.Resize(img, max(w, 1), max(h, 1))
	w, h = resized.Rect.Dx(), resized.Rect.Dy()
	left, top := width/2-w/2, height/2-h/2
	out := image.NewRGBA(image.Rect(0, 0, width, height))
	for y := range h {
		copy(out.Pix[out.PixOffset(left, top+y):], resized.Pix[y*resized.Stride:][:4*w])
	}
	if tall {
		for y := range height {
			if edge := min(max(y, top), top+h-1); edge != y {
				next := edge + inward(y < edge, h)
				extrapolate(out.Pix[y*out.Stride:][:4*width], out.Pix[edge*out.Stride:], out.Pix[next*out.Stride:], 4)
			}
		}
		return out
	}
	for x := range width {
		if edge := min(max(x, left), left+w-1); edge != x {
			next := edge + inward(x < edge, w)
			for y := range height {
				at := out.Pix[y*out.Stride:]
				extrapolate(at[4*x:4*x+4], at[4*edge:], at[4*next:], 4)
			}
		}
	}
	return out
}

func ratio(width, height int) float64 { return float64(width) / float64(height) }

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

// extrapolate sets pixels to 9/8 of those of an edge less 1/8 of those next to it: the weights of
// Pillow's bicubic filter half a pixel outside of an image, which diffusers fills with.
func extrapolate(dst, edge, next []uint8, step int) {
	for i := 0; i < len(dst); i += step {
		for k := range 3 {
			dst[i+k] = uint8(min(max((9*int(edge[i+k])-int(next[i+k])+4)>>3, 0), 255))
		}
		dst[i+3] = 255
	}
}

// cover scales an image to cover a size, and crops the rest (VaeImageProcessor._resize_and_crop).
func cover(img *image.RGBA, width, height int) *image.RGBA {
	w, h := img.Rect.Dx(), img.Rect.Dy()
	if r, own := ratio(width, height), ratio(w, h); r > own {
		w, h = width, h*width/w
	} else if r < own {
		w, h = w*height/h, height
	} else {
		w, h = width, height
	}
	resized := picture.Resize(img, w, h)
	at := image.Pt(w/2-width/2, h/2-height/2)
	return resized.SubImage(image.Rectangle{at, at.Add(image.Pt(width, height))}).(*image.RGBA)
}
