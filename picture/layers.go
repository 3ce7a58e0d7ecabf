package picture

import (
	"image"
	"math"
)

// Compose returns images of one size, each over the ones before.
func Compose(layers ...*image.NRGBA) *image.NRGBA {
	size := layers[0].Rect.Size()
	out := image.NewNRGBA(image.Rectangle{Max: size})
	for y := range size.Y {
		for x := range size.X {
			var colour [3]float64 // times alpha, from 0 to 255
			alpha := 0.0
			for _, l := range layers {
				p := l.Pix[l.PixOffset(l.Rect.Min.X+x, l.Rect.Min.Y+y):]
				a := float64(p[3]) / 255
				for k := range colour {
					colour[k] = float64(p[k])*a + colour[k]*(1-a)
				}
				alpha = a + alpha*(1-a)
			}
			if alpha == 0 {
				continue
			}
			at := out.Pix[out.PixOffset(x, y):]
			for k, v := range colour {
				at[k] = uint8(math.Round(v / alpha))
			}
			at[3] = uint8(math.Round(255 * alpha))
		}
	}
	return out
}
