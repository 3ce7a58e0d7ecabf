// Package resample scales images as the reference implementations do, bit for bit:
// Pillow, which diffusers and mflux use, and torchvision.
package resample

import (
	"image"
	"math"
	"runtime"
	"slices"
	"sync"
)

var (
	// Lanczos has three lobes. The result equals that of Pillow's Image.resize with
	// LANCZOS (libImaging/Resample.c): rows first, fixed-point coefficients, 8 bits
	// between the two passes.
	Lanczos = &Filter{3, func(x float64) float64 { return sinc(x) * sinc(x/3) }, pillowPrecision}
	// Bilinear is antialiased: it widens as the image shrinks. It adds no ripples to
	// edges. The result equals that of Pillow's Image.resize with BILINEAR.
	Bilinear = &Filter{1, func(x float64) float64 { return max(1-math.Abs(x), 0) }, pillowPrecision}
	// Bicubic is antialiased, with a = -0.5. The result equals that of torchvision's
	// resize of 8-bit tensors on the CPU, which transformers' image processors use: as
	// Pillow's, with 16-bit coefficients.
	Bicubic = &Filter{2, func(x float64) float64 {
		const a = -0.5
		if x = math.Abs(x); x < 1 {
			return ((a+2)*x-(a+3))*x*x + 1
		}
		return (((x-5)*x+8)*x - 4) * a
	}, torchPrecision}
)

// RGBA scales an opaque image. width and height are in pixels, at least 1.
func (f *Filter) RGBA(img *image.RGBA, width, height int) *image.RGBA {
	return f.Part(img, width, height, image.Rect(0, 0, width, height))
}

// Part returns the part of a scaled opaque image that is inside a rectangle, with the
// coordinates of the scaled image.
func (f *Filter) Part(img *image.RGBA, width, height int, part image.Rectangle) *image.RGBA {
	check(img.Rect, width, height)
	r := img.Rect
	part = part.Intersect(image.Rect(0, 0, width, height))
	out := image.NewRGBA(part)
	if !part.Empty() {
		src := plane{img.Pix[img.PixOffset(r.Min.X, r.Min.Y):], r.Dx(), r.Dy(), img.Stride}
		f.resize(plane{out.Pix, width, height, out.Stride}, src, part, 4)
	}
	return out
}

// Gray scales a grey image. width and height are in pixels, at least 1.
func (f *Filter) Gray(img *image.Gray, width, height int) *image.Gray {
	check(img.Rect, width, height)
	r := img.Rect
	out := image.NewGray(image.Rect(0, 0, width, height))
	src := plane{img.Pix[img.PixOffset(r.Min.X, r.Min.Y):], r.Dx(), r.Dy(), img.Stride}
	f.resize(plane{out.Pix, width, height, out.Stride}, src, out.Rect, 1)
	return out
}

func check(r image.Rectangle, width, height int) {
	if width < 1 || height < 1 {
		panic("resample: resize to less than one pixel")
	}
	if r.Empty() {
		panic("resample: resize of an empty image")
	}
}

// A plane has the pixels of an image.
type plane struct {
	pix                   []uint8
	width, height, stride int
}

// resize computes the part of a scaled image that dst begins with. Pixels have one
// byte, or four in RGBA order.
func (f *Filter) resize(dst, src plane, part image.Rectangle, bytes int) {
	columns, rows := f.kernels(src.width, dst.width), f.kernels(src.height, dst.height)
	first, last := part.Min.Y, part.Max.Y // rows of src that are needed
	if rows != nil {
		end := rows[last-1]
		first, last = rows[first].first, end.first+len(end.weights)
	}
	width := part.Dx()
	src.pix = src.pix[first*src.stride:]
	switch {
	case columns != nil:
		to := dst
		if rows != nil {
			to = plane{make([]uint8, bytes*width*(last-first)), width, last - first, bytes * width}
		}
		parallel(last-first, func(y int) {
			along(columns[part.Min.X:part.Max.X], to.pix[y*to.stride:], src.pix[y*src.stride:], bytes)
		})
		src = to
	case rows == nil:
		for y := range part.Dy() {
			copy(dst.pix[y*dst.stride:][:bytes*width], src.pix[y*src.stride+bytes*part.Min.X:])
		}
	default:
		src.pix = src.pix[bytes*part.Min.X:]
	}
	if rows != nil {
		parallel(part.Dy(), func(y int) {
			k := rows[part.Min.Y+y]
			k.across(dst.pix[y*dst.stride:][:bytes*width], src.pix[(k.first-first)*src.stride:], src.stride, bytes)
		})
	}
}

// along computes the pixels of a row, each with a kernel of its own.
func along(kernels []kernel, to, from []uint8, bytes int) {
	if bytes == 1 {
		for x := range kernels {
			to[x] = kernels[x].gray(from[kernels[x].first:], 1)
		}
		return
	}
	for x := range kernels {
		kernels[x].rgba(to[4*x:4*x+4], from[4*kernels[x].first:], 4)
	}
}

// across computes the pixels of a row from rows that are stride bytes apart.
func (k *kernel) across(to, from []uint8, stride, bytes int) {
	if bytes == 1 {
		for x := range to {
			to[x] = k.gray(from[x:], stride)
		}
		return
	}
	for i := 0; i < len(to); i += 4 {
		k.rgba(to[i:i+4], from[i:], stride)
	}
}

// parallel calls a function for each number below n, on all cores.
func parallel(n int, each func(i int)) {
	const least = 16 // that are worth a goroutine
	var all sync.WaitGroup
	chunk := max((n+runtime.GOMAXPROCS(0)-1)/runtime.GOMAXPROCS(0), least)
	for start := 0; start < n; start += chunk {
		all.Go(func() {
			for i := start; i < min(start+chunk, n); i++ {
				each(i)
			}
		})
	}
	all.Wait()
}

// A kernel has the weights of the source pixels that contribute to a pixel, in fixed
// point: multiples of 2^-precision. The first source pixel has index first.
type kernel struct {
	first     int
	weights   []int32
	precision int
}

// gray computes a value from source values that are step bytes apart.
func (k *kernel) gray(src []uint8, step int) uint8 {
	v := int32(1) << (k.precision - 1)
	at := 0
	for _, w := range k.weights {
		v += w * int32(src[at])
		at += step
	}
	return k.clip(v)
}

// rgba computes an opaque pixel from source pixels that are step bytes apart.
func (k *kernel) rgba(dst, src []uint8, step int) {
	half := int32(1) << (k.precision - 1)
	r, g, b := half, half, half
	at := 0
	for _, w := range k.weights {
		p := src[at : at+3 : at+3]
		r += w * int32(p[0])
		g += w * int32(p[1])
		b += w * int32(p[2])
		at += step
	}
	dst[0], dst[1], dst[2], dst[3] = k.clip(r), k.clip(g), k.clip(b), 0xff
}

func (k *kernel) clip(v int32) uint8 { return uint8(min(max(v>>k.precision, 0), 0xff)) }

// A Filter weights source pixels by their distance from the centre of the computed
// pixel. The distance is in pixels of the smaller image.
type Filter struct {
	support   float64 // distance beyond which the weight is 0
	weight    func(x float64) float64
	precision func(largest float64) int // bits of the fixed-point weights, by the largest weight
}

func sinc(x float64) float64 {
	if x == 0 {
		return 1
	}
	x *= math.Pi
	return math.Sin(x) / x
}

// kernels returns the kernel of each pixel for scaling in pixels to out pixels, or nil
// if there is nothing to scale.
func (f *Filter) kernels(in, out int) []kernel {
	if in == out {
		return nil
	}
	firsts, weights := f.weights(in, out)
	largest := 0.0
	for _, w := range weights {
		largest = max(largest, slices.Max(w))
	}
	precision := f.precision(largest)
	kernels := make([]kernel, out)
	for i, w := range weights {
		fixed := make([]int32, len(w))
		for j := range w {
			fixed[j] = int32(math.Round(w[j] * float64(int(1)<<precision)))
		}
		kernels[i] = kernel{firsts[i], fixed, precision}
	}
	return kernels
}

// weights returns the weights of each pixel for scaling in pixels to out pixels, which
// sum to 1, and the index of the first source pixel that they are for.
func (f *Filter) weights(in, out int) (firsts []int, all [][]float64) {
	scale := float64(in) / float64(out)
	stretch := max(scale, 1) // widens the filter if the image shrinks
	support := f.support * stretch
	for i := range out {
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
		firsts, all = append(firsts, first), append(all, weights)
	}
	return firsts, all
}

const mostPrecision = 32 - 8 - 2

func pillowPrecision(float64) int { return mostPrecision }

// torchPrecision returns the largest precision with which the weights fit 16 bits.
func torchPrecision(largest float64) int {
	precision := 0
	for precision < mostPrecision && int(0.5+largest*float64(int(2)<<precision)) < 1<<15 {
		precision++
	}
	return precision
}
