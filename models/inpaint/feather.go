package inpaint

import (
	"image"
	"math"
	"slices"
)

const (
	// MaxFeather is the largest Options.Feather.
	MaxFeather = 1024
	// DefaultFeather is the width of the default feather, in pixels of the generated image.
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

// blend returns an image with a region of it replaced, as much as alpha asks for at each pixel.
func (a *alpha) blend(img, replacement *image.RGBA, region image.Rectangle) *image.RGBA {
	out := image.NewRGBA(img.Rect)
	for y := range img.Rect.Dy() {
		copy(out.Pix[y*out.Stride:][:4*img.Rect.Dx()], img.Pix[y*img.Stride:])
	}
	part := a.bounds.Intersect(region)
	for y := part.Min.Y; y < part.Max.Y; y++ {
		to := out.Pix[out.PixOffset(part.Min.X, y):]
		p := image.Pt(part.Min.X, y).Sub(region.Min).Add(replacement.Rect.Min)
		from := replacement.Pix[replacement.PixOffset(p.X, p.Y):]
		for x, v := range a.mask.Pix[a.mask.PixOffset(part.Min.X, y):][:part.Dx()] {
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
// times d/r. d is the distance to the nearest pixel where the mask is 0, at most feather+1. r is how
// wide the mask is there: the largest d within reach inside the mask, less a quarter of the way to
// it. So parts that are too thin for the feather do not vanish: the values on their centre lines
// stay, and along a straight border the last full step is feather pixels inside.
//
// Where d rises by at least a quarter of the distance between two pixels, d/r does not fall.
func feathered(mask *image.Gray, feather int) *image.Gray {
	if feather == 0 {
		return mask
	}
	part := bounds(mask)
	f := newField(mask, part, feather+1)
	f.distances()
	wide := f.widths()
	out := image.NewGray(mask.Rect)
	for y := range f.height {
		at := mask.PixOffset(part.Min.X, part.Min.Y+y)
		from, to := mask.Pix[at:][:f.width], out.Pix[at:][:f.width]
		d, r := f.d[y*f.width:][:f.width], wide[y*f.width:][:f.width]
		for x, v := range from {
			if v > 0 {
				to[x] = uint8((2*uint32(v)*uint32(d[x]) + uint32(r[x])) / (2 * uint32(r[x])))
			}
		}
	}
	return out
}

// A field has distances of pixels to the outside of a mask, as multiples of limit/full pixels.
type field struct {
	width, height int
	d             []uint16
	limit         int // largest distance, in pixels
}

const full = 60000

// newField returns the field of a part of a mask, with 1 inside and 0 outside of it.
func newField(mask *image.Gray, part image.Rectangle, limit int) *field {
	// a line around the part is outside unless the image ends there
	f := &field{part.Dx(), part.Dy(), make([]uint16, part.Dx()*part.Dy()), limit}
	for y := range f.height {
		d := f.d[y*f.width:][:f.width]
		for x, v := range mask.Pix[mask.PixOffset(part.Min.X, part.Min.Y+y):][:f.width] {
			if v > 0 {
				d[x] = 1
			}
		}
	}
	return f
}

func (f *field) distances() {}

func (f *field) widths() []uint16 { return slices.Clone(f.d) }
