package report

import (
	"fmt"
	"image"
	"math"
)

// An ImageDifference measures how two images differ in red, green and blue, from 0 to 255, and in
// alpha if one of them has transparent pixels.
type ImageDifference struct {
	Max    int     `json:"max"`  // largest absolute difference
	Mean   float64 `json:"mean"` // mean absolute difference
	PSNR   Number  `json:"psnr"` // peak signal-to-noise ratio in dB, +Inf for equal images
	SSIM   float64 `json:"ssim"` // structural similarity, 1 for equal images (Wang et al. 2004)
	Width  int     `json:"width"`
	Height int     `json:"height"`
}

// CompareImages compares two images of one size, each an opaque *image.RGBA or an *image.NRGBA. SSIM
// is the mean over the channels of the index with a Gaussian window of 11x11 (sigma 1.5), where the
// window lies inside the image. A side of less than 11 pixels fits into one window.
func CompareImages(first, second image.Image) (ImageDifference, error) {
	a, alpha := channels(first)
	b, more := channels(second)
	n := 3
	if alpha || more {
		n = 4
	}
	if a.Rect.Size() != b.Rect.Size() {
		return ImageDifference{}, fmt.Errorf("images of %dx%d and %dx%d pixels cannot be compared",
			a.Rect.Dx(), a.Rect.Dy(), b.Rect.Dx(), b.Rect.Dy())
	}
	if a.Rect.Empty() {
		return ImageDifference{}, fmt.Errorf("images without pixels cannot be compared")
	}
	w, h := a.Rect.Dx(), a.Rect.Dy()
	d := ImageDifference{Width: w, Height: h}
	var sum, squares float64
	for c := range n {
		p, q := plane(a, c), plane(b, c)
		for i := range p {
			e := math.Abs(p[i] - q[i])
			sum += e
			squares += e * e
			d.Max = max(d.Max, int(e))
		}
		d.SSIM += ssim(p, q, w, h) / float64(n)
	}
	values := float64(n * w * h)
	d.Mean = sum / values
	d.PSNR = Number(10 * math.Log10(255*255*values/squares))
	return d, nil
}

// channels returns an image with colours that are not multiplied by alpha, and reports whether it may
// have transparent pixels.
func channels(img image.Image) (straight *image.NRGBA, alpha bool) {
	if m, ok := img.(*image.NRGBA); ok {
		return m, true
	}
	return (*image.NRGBA)(img.(*image.RGBA)), false // the same bytes, since it is opaque
}

func plane(img *image.NRGBA, channel int) []float64 {
	w, h := img.Rect.Dx(), img.Rect.Dy()
	out := make([]float64, 0, w*h)
	for y := range h {
		row := img.Pix[img.PixOffset(img.Rect.Min.X, img.Rect.Min.Y+y):]
		for x := range w {
			out = append(out, float64(row[4*x+channel]))
		}
	}
	return out
}

func ssim(p, q []float64, w, h int) float64 {
	const c1, c2 = (0.01 * 255) * (0.01 * 255), (0.03 * 255) * (0.03 * 255)
	wx, wy := gaussian(min(11, w)), gaussian(min(11, h))
	mean := func(f func(i int) float64) []float64 {
		values := make([]float64, w*h)
		for i := range values {
			values[i] = f(i)
		}
		return along(along(values, w, h, wx, false), w-len(wx)+1, h, wy, true)
	}
	mp, mq := mean(func(i int) float64 { return p[i] }), mean(func(i int) float64 { return q[i] })
	pp, qq := mean(func(i int) float64 { return p[i] * p[i] }), mean(func(i int) float64 { return q[i] * q[i] })
	pq := mean(func(i int) float64 { return p[i] * q[i] })
	sum := 0.0
	for i := range mp {
		vp, vq, cov := pp[i]-mp[i]*mp[i], qq[i]-mq[i]*mq[i], pq[i]-mp[i]*mq[i]
		sum += (2*mp[i]*mq[i] + c1) * (2*cov + c2) / ((mp[i]*mp[i] + mq[i]*mq[i] + c1) * (vp + vq + c2))
	}
	return sum / float64(len(mp))
}

func gaussian(n int) []float64 {
	out := make([]float64, n)
	sum := 0.0
	for i := range out {
		x := float64(i) - float64(n-1)/2
		out[i] = math.Exp(-x * x / (2 * 1.5 * 1.5))
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

// along convolves w×h values with weights along the rows, or the columns, where the weights lie
// inside.
func along(v []float64, w, h int, weights []float64, columns bool) []float64 {
	wide, step := w, 1
	if columns {
		h, step = h-len(weights)+1, w
	} else {
		w -= len(weights) - 1
	}
	out := make([]float64, 0, w*h)
	for y := range h {
		for x := range w {
			sum := 0.0
			for i, f := range weights {
				sum += f * v[y*wide+x+i*step]
			}
			out = append(out, sum)
		}
	}
	return out
}
