package picture

import (
	"image"
	"image/color"

	"github.com/gomflux/gomflux/internal/resample"
)

// Transparent converts an image with transparent pixels to 8-bit RGBA, whose colours are not
// multiplied by alpha, as files have them. It returns an *image.NRGBA unchanged, and otherwise a
// new image that starts at 0, 0. It returns nil if all of the image is opaque; [Opaque] converts
// that.
func Transparent(img image.Image) *image.NRGBA {
	if m, ok := img.(interface{ Opaque() bool }); ok && m.Opaque() {
		return nil
	}
	if m, ok := img.(*image.NRGBA); ok {
		return m
	}
	r := img.Bounds()
	dst := image.NewNRGBA(image.Rect(0, 0, r.Dx(), r.Dy()))
	at := straight(img)
	least := uint8(255)
	i := 0
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			p := dst.Pix[i : i+4 : i+4]
			p[0], p[1], p[2], p[3] = at(x, y)
			least = min(least, p[3])
			i += 4
		}
	}
	if least == 255 {
		return nil
	}
	return dst
}

// onWhite returns an image with transparent pixels blended with white, and others unchanged.
func onWhite(img image.Image) image.Image {
	if Transparent(img) == nil {
		return img
	}
	return Opaque(img)
}

// straight returns a function that reads a pixel of an image, with colours that are not multiplied
// by alpha.
func straight(src image.Image) func(x, y int) (r, g, b, a uint8) {
	switch m := src.(type) {
	case *image.NYCbCrA: // only WebP has them
		under := pixels(&m.YCbCr, WebP)
		return func(x, y int) (r, g, b, a uint8) {
			r, g, b = under(x, y)
			return r, g, b, m.A[m.AOffset(x, y)]
		}
	case *image.Paletted:
		palette := [256]color.NRGBA{} // an index beyond the palette is black, as in Pillow
		for i := range palette {
			palette[i].A = 0xff
			if i < len(m.Palette) {
				palette[i] = color.NRGBAModel.Convert(m.Palette[i]).(color.NRGBA)
			}
		}
		return func(x, y int) (r, g, b, a uint8) {
			c := palette[m.ColorIndexAt(x, y)]
			return c.R, c.G, c.B, c.A
		}
	case *image.NRGBA:
		return func(x, y int) (r, g, b, a uint8) {
			c := m.NRGBAAt(x, y)
			return c.R, c.G, c.B, c.A
		}
	case *image.NRGBA64:
		round := func(v uint16) uint8 { return uint8((uint32(v) + 128) / 257) }
		return func(x, y int) (r, g, b, a uint8) {
			c := m.NRGBA64At(x, y)
			return round(c.R), round(c.G), round(c.B), round(c.A)
		}
	case *image.Alpha:
		return func(x, y int) (r, g, b, a uint8) { return 0, 0, 0, m.AlphaAt(x, y).A }
	}
	return func(x, y int) (r, g, b, a uint8) {
		c := color.NRGBAModel.Convert(src.At(x, y)).(color.NRGBA)
		return c.R, c.G, c.B, c.A
	}
}

// ResizeTransparent is [Resize] for an image with transparent pixels. As in Pillow, colours are
// multiplied by alpha for it, so that those of transparent pixels do not show at edges.
func ResizeTransparent(img *image.NRGBA, width, height int) *image.NRGBA {
	return resample.Lanczos.NRGBA(img, width, height)
}
