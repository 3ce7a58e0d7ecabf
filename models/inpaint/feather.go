package inpaint

import (
	"image"
	"math"
)

const (
	// MaxFeather is the largest Options.Feather.
	MaxFeather = 1024
	// DefaultFeather is the width of the default feather, in pixels of the generated image: half a
	// cell of most latents. If the generated part is 30 levels brighter, it makes the seam's largest
	// step 8 levels, and keeps 5 % of what a disc of 120 pixels is to replace (8 pixels: 5 levels and
	// 11 %; 16 pixels: 3 levels and 22 %; none, as in diffusers: 30 levels). See TestSeam.
	DefaultFeather = 4
)

// An alpha is how much of the generated image is pasted at each pixel, from 0 to 255.
type alpha struct {
	feather int
	mask    *image.Gray
	bounds  image.Rectangle // all values that are not 0
}

// alphaAt returns the alpha for an image of which a pixel has become scale pixels of the Input.
func (in *Input) alphaAt(scale float64) *alpha {
	feather := in.Feather
	if feather < 0 {
		feather = min(max(int(math.Round(DefaultFeather*scale)), 1), MaxFeather)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.alpha == nil || in.alpha.feather != feather {
		mask := feathered(in.Mask, feather)
		in.alpha = &alpha{feather, mask, bounds(mask)}
	}
	return in.alpha
}

// blend returns an image with a part of it replaced, as much as alpha asks for at each pixel.
func (a *alpha) blend(img, part *image.RGBA) *image.RGBA {
	out := image.NewRGBA(img.Rect)
	for y := range img.Rect.Dy() {
		copy(out.Pix[y*out.Stride:][:4*img.Rect.Dx()], img.Pix[y*img.Stride:])
	}
	r := part.Rect
	for y := r.Min.Y; y < r.Max.Y; y++ {
		to, from := out.Pix[out.PixOffset(r.Min.X, y):], part.Pix[part.PixOffset(r.Min.X, y):]
		for x, v := range a.mask.Pix[a.mask.PixOffset(r.Min.X, y):][:r.Dx()] {
			if v == 0 {
				continue
			}
			m := uint32(v)
			d, s := to[4*x:4*x+3:4*x+3], from[4*x:4*x+3:4*x+3]
			d[0] = uint8((uint32(d[0])*(255-m) + uint32(s[0])*m + 127) / 255)
			d[1] = uint8((uint32(d[1])*(255-m) + uint32(s[1])*m + 127) / 255)
			d[2] = uint8((uint32(d[2])*(255-m) + uint32(s[2])*m + 127) / 255)
		}
	}
	return out
}

// feathered returns a mask that fades in over a number of pixels inside the given one: its values
// times d/r. d is the distance to the nearest pixel outside (below 8 of 255), at most feather+1. r is
// how wide the mask is there: the largest d that can be reached inside the mask, less a quarter of the
// way to it. So parts that are too thin for the feather keep their values where they are the farthest
// from the outside, and do not vanish.
//
// Where d rises by at least a quarter of the distance between two pixels, d/r does not fall. The
// first pixel inside a straight border has 1/(3/4*feather+1) of the mask.
func feathered(mask *image.Gray, feather int) *image.Gray {
	if feather == 0 {
		return mask
	}
	part := bounds(mask)
	f := newField(mask, part, feather+1)
	wide := f.widths()
	out := image.NewGray(mask.Rect)
	for y := range f.height {
		at := mask.PixOffset(part.Min.X, part.Min.Y+y)
		from, to := mask.Pix[at:][:f.width], out.Pix[at:][:f.width]
		d, r := f.row(f.d, y), f.row(wide, y)
		for x, v := range from {
			if d[x] > 0 {
				to[x] = uint8((2*uint32(v)*uint32(d[x]) + uint32(r[x])) / (2 * uint32(r[x])))
			}
		}
	}
	return out
}
