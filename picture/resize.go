package picture

import (
	"image"
	"math"
)

// Resize scales an opaque picture with a Lanczos filter of three lobes. It is
// Pillow's Image.resize with LANCZOS (libImaging/Resample.c), which diffusers'
// VaeImageProcessor and mflux use, to the bit: rows first, coefficients in fixed
// point, 8 bits between the two passes. width and height are in pixels, at
// least 1.
func Resize(img *image.RGBA, width, height int) *image.RGBA {
	if width < 1 || height < 1 {
		panic("picture: Resize to less than one pixel")
	}
	r := img.Rect
	if r.Empty() {
		panic("picture: Resize of an empty picture")
	}
	src := plane{img.Pix[img.PixOffset(r.Min.X, r.Min.Y):], r.Dx(), r.Dy(), img.Stride}
	if width != src.width {
		dst := newPlane(width, src.height)
		columns := lanczos(src.width, width)
		for y := range src.height {
			for x, t := range columns {
				t.apply(dst.pix[y*dst.stride+4*x:], src.pix[y*src.stride:], 4)
			}
		}
		src = dst
	}
	if height != src.height {
		dst := newPlane(width, height)
		for y, t := range lanczos(src.height, height) {
			for x := range width {
				t.apply(dst.pix[y*dst.stride+4*x:], src.pix[4*x:], src.stride)
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

// plane is RGBA pixels.
type plane struct {
	pix                   []uint8
	width, height, stride int
}

func newPlane(width, height int) plane {
	return plane{make([]uint8, 4*width*height), width, height, 4 * width}
}

// taps are the weights of the source pixels that make one, from the one with
// index first on, in units of 2^-precision.
type taps struct {
	first   int
	weights []int32
}

const precision = 32 - 8 - 2

// apply sums the pixels that are step bytes apart.
func (t taps) apply(dst, src []uint8, step int) {
	const half = 1 << (precision - 1)
	var r, g, b int32 = half, half, half
	i := t.first * step
	for _, w := range t.weights {
		p := src[i : i+3 : i+3]
		r += w * int32(p[0])
		g += w * int32(p[1])
		b += w * int32(p[2])
		i += step
	}
	dst[0], dst[1], dst[2], dst[3] = clip(r), clip(g), clip(b), 0xff
}

func clip(v int32) uint8 { return uint8(min(max(v>>precision, 0), 0xff)) }

// lanczos returns the taps of each of out pixels along an axis of in pixels.
func lanczos(in, out int) []taps {
	const lobes = 3
	scale := float64(in) / float64(out)
	stretch := max(scale, 1) // of the filter, where pixels are to be averaged
	support := lobes * stretch
	all := make([]taps, out)
	for i := range all {
		center := (float64(i) + 0.5) * scale
		first := max(int(center-support+0.5), 0)
		last := min(int(center+support+0.5), in)
		weights := make([]float64, last-first)
		sum := 0.0
		for j := range weights {
			x := (float64(j+first) - center + 0.5) * (1 / stretch)
			if x >= -lobes && x < lobes {
				weights[j] = sinc(x) * sinc(x/lobes)
			}
			sum += weights[j]
		}
		all[i] = taps{first, make([]int32, len(weights))}
		for j, w := range weights {
			all[i].weights[j] = int32(math.Round(w * (1 / sum) * (1 << precision)))
		}
	}
	return all
}

func sinc(x float64) float64 {
	if x == 0 {
		return 1
	}
	x *= math.Pi
	return math.Sin(x) / x
}
