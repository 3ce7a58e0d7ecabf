package models

import (
	"image"
	"math"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
)

// Latents are the latents of one image: float32, in the shape of diffusers' pipeline without the
// batch axis.
type Latents struct {
	Shape []int // [C, h, w]; decoding and previews also accept [1, C, h, w]
	Data  []float32
}

func latentsOf(x *mlx.Array) Latents { return Latents{Shape: x.Shape(), Data: x.Floats()} }

// size returns the number of values in the shape, or -1 if no slice can have so many.
func (l Latents) size() int {
	n := 1
	for _, d := range l.Shape {
		if d < 0 || n > 0 && d > math.MaxInt/n {
			return -1
		}
		n *= d
	}
	return n
}

// imageShape returns the shape without a batch axis of size 1.
func (l Latents) imageShape() []int {
	if len(l.Shape) == 4 && l.Shape[0] == 1 {
		return l.Shape[1:]
	}
	return l.Shape
}

// A Projection maps latents to colours without the decoder. In a model folder it is
// vae/latent_rgb_factors.json.
type Projection component.Projection

// Picture returns an image with one pixel for each position of the latents.
func (p *Projection) Picture(l Latents) (*image.RGBA, error) {
	shape := l.imageShape()
	if len(shape) != 3 || shape[0] != len(p.Factors) || shape[1] < 1 || shape[2] < 1 || len(l.Data) != l.size() {
		return nil, errs.Requestf("%d latents of shape %v: expected [%d, h, w]", len(l.Data), l.Shape, len(p.Factors))
	}
	h, w := shape[1], shape[2]
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	for i := range h * w {
		sum := p.Bias
		for c := range shape[0] {
			z := float64(l.Data[c*h*w+i])
			for k, weight := range p.Factors[c] {
				sum[k] += z * weight
			}
		}
		for k, v := range sum {
			if math.IsNaN(v) {
				v = -1 // the conversion of NaN to an integer depends on the processor
			}
			img.Pix[4*i+k] = uint8(math.Round(127.5 * (1 + min(1, max(-1, v)))))
		}
		img.Pix[4*i+3] = 255
	}
	return img, nil
}
