package inpaint

import (
	"image"
	"image/color"

	"github.com/gomflux/gomflux/picture"
)

// toGray returns the luma of an image.
func toGray(img image.Image) *image.Gray {
	r := img.Bounds()
	gray := image.NewGray(image.Rect(0, 0, r.Dx(), r.Dy()))
	for y := range r.Dy() {
		for x := range r.Dx() {
			gray.Pix[y*gray.Stride+x] = color.GrayModel.Convert(img.At(r.Min.X+x, r.Min.Y+y)).(color.Gray).Y
		}
	}
	return gray
}

// rgbaOf returns a mask as an image.
func rgbaOf(mask *image.Gray) *image.RGBA {
	r := mask.Rect
	img := image.NewRGBA(image.Rect(0, 0, r.Dx(), r.Dy()))
	for y := range r.Dy() {
		for x := range r.Dx() {
			v := mask.GrayAt(r.Min.X+x, r.Min.Y+y).Y
			copy(img.Pix[y*img.Stride+4*x:], []uint8{v, v, v, 255})
		}
	}
	return img
}

// grayOf returns the first channel of an image, the inverse of rgbaOf.
func grayOf(img *image.RGBA) *image.Gray {
	r := img.Rect
	gray := image.NewGray(image.Rect(0, 0, r.Dx(), r.Dy()))
	for y := range r.Dy() {
		for x := range r.Dx() {
			gray.Pix[y*gray.Stride+x] = img.Pix[img.PixOffset(r.Min.X+x, r.Min.Y+y)]
		}
	}
	return gray
}

// resizeGray scales a mask as images are scaled.
func resizeGray(mask *image.Gray, width, height int) *image.Gray {
	if mask.Rect.Size() == image.Pt(width, height) {
		return mask
	}
	return grayOf(picture.Resize(rgbaOf(mask), width, height))
}

// threshold makes a mask black and white at one half.
func threshold(mask *image.Gray) *image.Gray {
	out := image.NewGray(mask.Rect)
	for i, v := range mask.Pix {
		if v >= 128 {
			out.Pix[i] = 255
		}
	}
	return out
}

func hasWhite(mask *image.Gray) bool {
	for _, v := range mask.Pix {
		if v > 0 {
			return true
		}
	}
	return false
}

// blend returns an image with a region of it replaced, as much as the mask asks for at each pixel.
func blend(img, replacement *image.RGBA, mask *image.Gray, region image.Rectangle) *image.RGBA {
	out := image.NewRGBA(img.Rect)
	copy(out.Pix, img.Pix)
	for y := region.Min.Y; y < region.Max.Y; y++ {
		for x := region.Min.X; x < region.Max.X; x++ {
			m := int(mask.GrayAt(x, y).Y)
			p := image.Pt(x, y).Sub(region.Min).Add(replacement.Rect.Min)
			at, from := out.PixOffset(x, y), replacement.PixOffset(p.X, p.Y)
			for k := range 3 {
				out.Pix[at+k] = uint8((int(out.Pix[at+k])*(255-m) + int(replacement.Pix[from+k])*m + 127) / 255)
			}
		}
	}
	return out
}
