package hints

import (
	"math"

	"github.com/gomflux/gomflux/mlx/hooks"
)

// mask looks for masks [1, 1, h, w] in the size of latents that are inverted, moved, scaled or made
// black and white.
func (s *search) mask() {
	if s.Name.Module != "latents.mask" || s.part != nil || len(s.want.shape) != 4 {
		return
	}
	h, w := s.want.shape[2], s.want.shape[3]
	at := func(move func(y, x int) (int, int)) func() tensor {
		return func() tensor {
			out := s.want.apply(identity)
			for y := range h {
				for x := range w {
					fromY, fromX := move(y, x)
					out.v[y*w+x] = s.want.v[min(max(fromY, 0), h-1)*w+min(max(fromX, 0), w-1)]
				}
			}
			return out
		}
	}
	const inverted = "ours is 1 minus the reference: white and black have changed places"
	variants := []variant{{"mask inverted", inverted, func() tensor { return s.want.apply(func(x float64) float64 { return 1 - x }) }}}
	for _, by := range [][2]int{{0, 1}, {0, -1}, {1, 0}, {-1, 0}, {1, 1}, {-1, -1}} {
		variants = append(variants, variant{"mask offset", "ours is the reference, one position of latents off",
			at(func(y, x int) (int, int) { return y + by[0], x + by[1] })})
	}
	variants = append(variants,
		variant{"mask scale", "ours is a part of the reference at twice its size: the mask is reduced by half as much as the image",
			at(func(y, x int) (int, int) { return y / 2, x / 2 })},
		variant{"mask threshold", "ours is the reference in black and white, which has other values where a position is half masked",
			func() tensor { return s.want.apply(func(x float64) float64 { return math.Floor(x + 0.5) }) }})
	s.try(variants...)
}

// blend looks for mistakes in the latents after a step of inpainting, which are those after the
// scheduler's step where the mask is 1, and those of the image with as much noise where it is 0.
func (s *search) blend() {
	stepped, ok := s.tensor("latents.stepped", hooks.Point{})
	if s.Name.Module != "latents" || s.part != nil || !ok || len(stepped.v) != len(s.want.v) {
		return
	}
	const missing = "ours is what the scheduler's step returns: latents outside the mask are not replaced by those of the image"
	if s.try(variant{"blend missing", missing, func() tensor { return stepped }}) {
		return
	}
	image, ok1 := s.value("latents.image")
	noise, ok2 := s.value("latents.init")
	mask, ok3 := s.value("latents.mask")
	sigmas, ok4 := s.value("sigmas")
	next := s.Name.Step + 1
	if !ok1 || !ok2 || !ok3 || !ok4 || next >= len(sigmas.v) || len(image.v) != len(s.want.v) || len(noise.v) != len(s.want.v) ||
		len(stepped.v)%len(mask.v) != 0 {
		return
	}
	noised := func(sigma float64) tensor {
		return image.with(noise, func(x, n float64) float64 { return (1-sigma)*x + sigma*n })
	}
	over := func(inside, outside tensor) tensor {
		return inside.with(mask, times).with(outside.with(mask, func(x, m float64) float64 { return x * (1 - m) }), plus)
	}
	if !s.isReference(over(stepped, noised(sigmas.v[next]))) {
		return
	}
	variants := []variant{{"blend inverted", "latents are replaced by those of the image inside the mask instead of outside",
		func() tensor { return over(noised(sigmas.v[next]), stepped) }}}
	if sigmas.v[next] > 0 {
		variants = append(variants, variant{"noise missing",
			"the latents outside the mask are the image's without noise, before the last step",
			func() tensor { return over(stepped, image) }})
	}
	for i, sigma := range sigmas.v {
		if i != next && sigma > 0 {
			variants = append(variants, variant{"noise of another step",
				"the latents outside the mask have the noise of another step: it is not renewed for the sigma after this one",
				func() tensor { return over(stepped, noised(sigma)) }})
		}
	}
	s.try(variants...)
}
