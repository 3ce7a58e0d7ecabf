package picture

import (
	"image"
	"math"
	"slices"
)

// Resize scales an opaque image with a Lanczos filter of three lobes. The result
// equals that of Pillow's Image.resize with LANCZOS (libImaging/Resample.c), which
// diffusers' VaeImageProcessor and mflux use: rows first, fixed-point
// coefficients, 8 bits between the two passes. width and height are in pixels, at
// least 1.
func Resize(img *image.RGBA, width, height int) *image.RGBA {
	return resize(img, width, height, func(in, out int) axis { return lanczos.axis(in, out).fixed(pillowPrecision) })
}

// ResizeBilinear scales an opaque image with an antialiased bilinear filter, which
// adds no ripples to the edges of a mask. The result equals that of Pillow's
// Image.resize with BILINEAR. width and height are in pixels, at least 1.
func ResizeBilinear(img *image.RGBA, width, height int) *image.RGBA {
	return resize(img, width, height, func(in, out int) axis { return triangle.axis(in, out).fixed(pillowPrecision) })
}

// ResizeBicubic scales an opaque image with an antialiased bicubic filter
// (a = -0.5), which widens as the image shrinks. The result equals that of
// torchvision's resize of 8-bit tensors on the CPU, which transformers' image
// processors use: as [Resize], with 16-bit coefficients. width and height are in
// pixels, at least 1.
func ResizeBicubic(img *image.RGBA, width, height int) *image.RGBA {
	return resize(img, width, height, func(in, out int) axis {
		weights := bicubic.axis(in, out)
		return weights.fixed(torchPrecision(weights.largest()))
	})
}

func resize(img *image.RGBA, width, height int, along func(in, out int) axis) *image.RGBA {
	if width < 1 || height < 1 {
		panic("picture: resize to less than one pixel")
	}
	r := img.Rect
	if r.Empty() {
		panic("picture: resize of an empty image")
	}
	src := plane{img.Pix[img.PixOffset(r.Min.X, r.Min.Y):], r.Dx(), r.Dy(), img.Stride}
	if width != src.width {
		dst := newPlane(width, src.height)
		columns := along(src.width, width)
		for y := range src.height {
			for x := range width {
				columns.apply(x, dst.pix[y*dst.stride+4*x:], src.pix[y*src.stride:], 4)
			}
		}
		src = dst
	}
	if height != src.height {
		dst := newPlane(width, height)
		rows := along(src.height, height)
		for y := range height {
			for x := range width {
				rows.apply(y, dst.pix[y*dst.stride+4*x:], src.pix[4*x:], src.stride)
			}
		}
		src = dst
	}
	dst := image.NewRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		copy(dst.Pix[y*dst.Stride:][:4*width], src.pix[y*src.stride:])
	}
	return dst
}

// plane has the pixels of an image, in RGBA order.
type plane struct {
	pix                   []uint8
	width, height, stride int
}

func newPlane(width, height int) plane {
	return plane{make([]uint8, 4*width*height), width, height, 4 * width}
}

// axis has the taps of each pixel along an axis in fixed point: the weights are
// multiples of 2^-precision.
type axis struct {
	taps      []taps[int32]
	precision int
}

// taps are the weights of the source pixels that contribute to a pixel. The first
// source pixel has index first.
type taps[T int32 | float64] struct {
	first   int
	weights []T
}

// apply computes pixel i from source pixels that are step bytes apart.
func (a axis) apply(i int, dst, src []uint8, step int) {
	t := a.taps[i]
	half := int32(1) << (a.precision - 1)
	r, g, b := half, half, half
	at := t.first * step
	for _, w := range t.weights {
		p := src[at : at+3 : at+3]
		r += w * int32(p[0])
		g += w * int32(p[1])
		b += w * int32(p[2])
		at += step
	}
	dst[0], dst[1], dst[2], dst[3] = a.clip(r), a.clip(g), a.clip(b), 0xff
}

func (a axis) clip(v int32) uint8 { return uint8(min(max(v>>a.precision, 0), 0xff)) }

// A filter weights source pixels by their distance from the centre of the computed
// pixel. The distance is in pixels of the smaller image.
type filter struct {
	support float64 // distance beyond which the weight is 0
	weight  func(x float64) float64
}

var (
	lanczos  = filter{3, func(x float64) float64 { return sinc(x) * sinc(x/3) }}
	triangle = filter{1, func(x float64) float64 { return max(1-math.Abs(x), 0) }}
	bicubic  = filter{2, func(x float64) float64 {
		const a = -0.5
		if x = math.Abs(x); x < 1 {
			return ((a+2)*x-(a+3))*x*x + 1
		}
		return (((x-5)*x+8)*x - 4) * a
	}}
)

func sinc(x float64) float64 {
	if x == 0 {
		return 1
	}
	x *= math.Pi
	return math.Sin(x) / x
}

// weighing has the taps of each pixel along an axis. The weights of a pixel sum to
// 1.
type weighing []taps[float64]

// axis returns the taps for scaling in pixels to out pixels.
func (f filter) axis(in, out int) weighing {
	scale := float64(in) / float64(out)
	stretch := max(scale, 1) // widens the filter if the image shrinks
	support := f.support * stretch
	all := make(weighing, out)
	for i := range all {
		center := (float64(i) + 0.5) * scale
		first := max(int(center-support+0.5), 0)
		last := min(int(center+support+0.5), in)
		weights := make([]float64, last-first)
		sum := 0.0
		for j := range weights {
			x := (float64(j+first) - center + 0.5) * (1 / stretch)
			if x >= -f.support && x < f.support {
				weights[j] = f.weight(x)
			}
			sum += weights[j]
		}
		for j := range weights {
			weights[j] *= 1 / sum
		}
		all[i] = taps[float64]{first, weights}
	}
	return all
}

func (w weighing) fixed(precision int) axis {
	a := axis{make([]taps[int32], len(w)), precision}
	for i, t := range w {
		a.taps[i] = taps[int32]{t.first, make([]int32, len(t.weights))}
		for j, weight := range t.weights {
			a.taps[i].weights[j] = int32(math.Round(weight * float64(int(1)<<precision)))
		}
	}
	return a
}

func (w weighing) largest() float64 {
	most := 0.0
	for _, t := range w {
		most = max(most, slices.Max(t.weights))
	}
	return most
}

const pillowPrecision = 32 - 8 - 2

// torchPrecision returns the largest precision with which the weights fit 16 bits.
func torchPrecision(largest float64) int {
	precision := 0
	for precision < pillowPrecision && int(0.5+largest*float64(int(2)<<precision)) < 1<<15 {
		precision++
	}
	return precision
}
