// Package inpaint prepares an image and its mask for inpainting, and pastes the generated part back
// into the image. It computes on pixels only and does not use MLX.
package inpaint

import (
	"errors"
	"fmt"
	"image"
	"sync"

	"github.com/gomflux/gomflux/picture"
)

// Options are the options of an [Input]. The zero value inpaints the white part of the mask and
// pastes it back with the mask as it is.
type Options struct {
	// Crop lets the model see only the part of the image around the mask, enlarged to the size of
	// the run (padding_mask_crop in diffusers), with Padding more pixels on each side.
	Crop    bool
	Padding int
	// NoPasteBack returns images as the model generates them, in the size of the run.
	NoPasteBack bool
}

// An Input is an image of which a part is to be repainted.
type Input struct {
	Image *image.RGBA // opaque
	Mask  *image.Gray // in the size of Image; the higher a value, the more of it is repainted
	Options

	mu   sync.Mutex
	last *scaled
}

// New checks an image and its mask, which is resized to the image. Errors are about the request.
func New(img, mask image.Image, o Options) (*Input, error) {
	switch {
	case img == nil:
		return nil, errors.New("a mask needs an image to inpaint")
	case mask == nil:
		return nil, errors.New("inpainting needs a mask")
	case img.Bounds().Empty():
		return nil, fmt.Errorf("the image to inpaint is empty: its bounds are %v", img.Bounds())
	case mask.Bounds().Empty():
		return nil, fmt.Errorf("the mask is empty: its bounds are %v", mask.Bounds())
	}
	in := &Input{Image: picture.Opaque(img), Options: o}
	size := in.Image.Rect.Size()
	in.Mask = resizeGray(toGray(mask), size.X, size.Y)
	if !hasWhite(in.Mask) {
		return nil, errors.New("the mask is black everywhere, so there is nothing to inpaint (white is what is repainted)")
	}
	return in, nil
}

// A scaled is the part of the input that a model sees in some size.
type scaled struct {
	size image.Point
	img  *image.RGBA
	mask *image.Gray
}

// At returns what a model sees that generates images of some size, in pixels: the image, or its part
// around the mask, in that size, and the mask, which is black and white there: 255 where the mask is
// at least half white, as in diffusers.
func (in *Input) At(width, height int) (*image.RGBA, *image.Gray) {
	in.mu.Lock()
	defer in.mu.Unlock()
	size := image.Pt(width, height)
	if in.last == nil || in.last.size != size {
		img, mask := in.Image, in.Mask
		if in.Crop {
			region := in.Region(width, height)
			img = fill(img.SubImage(region).(*image.RGBA), width, height)
			mask = grayOf(fill(rgbaOf(mask.SubImage(region).(*image.Gray)), width, height))
		} else {
			img, mask = picture.Resize(img, width, height), resizeGray(mask, width, height)
		}
		in.last = &scaled{size, img, threshold(mask)}
	}
	return in.last.img, in.last.mask
}

// Size returns the size of the images that Paste returns for generated ones of some size.
func (in *Input) Size(generated image.Point) image.Point {
	if in.NoPasteBack {
		return generated
	}
	return in.Image.Rect.Size()
}

// Paste pastes a generated image into the image. Pixels where the mask is 0 stay as they are.
func (in *Input) Paste(generated *image.RGBA) *image.RGBA {
	if in.NoPasteBack {
		return generated
	}
	region := in.Image.Rect
	size := generated.Rect.Size()
	if in.Crop {
		region = in.Region(size.X, size.Y)
		generated = cover(generated, region.Dx(), region.Dy())
	} else {
		generated = picture.Resize(generated, region.Dx(), region.Dy())
	}
	return blend(in.Image, generated, in.Mask, region)
}
