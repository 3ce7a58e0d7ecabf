package inpaint

import (
	"image"

	"github.com/gomflux/gomflux/picture"
)

// Region returns the part of the image that a model sees with Options.Crop: the bounds of the mask
// with the padding, enlarged to the ratio of a size where the image allows it
// (VaeImageProcessor.get_crop_region in diffusers).
func (in *Input) Region(width, height int) image.Rectangle {
	r := bounds(in.Mask)
	r = r.Inset(-in.Padding).Intersect(in.Mask.Rect)
	return r // to do: ratio
}

// bounds returns the smallest rectangle with all values of a mask that are not 0.
func bounds(mask *image.Gray) image.Rectangle {
	var out image.Rectangle
	for y := mask.Rect.Min.Y; y < mask.Rect.Max.Y; y++ {
		for x := mask.Rect.Min.X; x < mask.Rect.Max.X; x++ {
			if mask.GrayAt(x, y).Y > 0 {
				out = out.Union(image.Rect(x, y, x+1, y+1))
			}
		}
	}
	return out
}

// fill scales an image to fit into a size, and fills the rest with its edges
// (VaeImageProcessor._resize_and_fill).
func fill(img *image.RGBA, width, height int) *image.RGBA { return picture.Resize(img, width, height) }

// cover scales an image to cover a size, and crops the rest (VaeImageProcessor._resize_and_crop).
func cover(img *image.RGBA, width, height int) *image.RGBA { return picture.Resize(img, width, height) }
