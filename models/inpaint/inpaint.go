// Package inpaint prepares an image and its mask for inpainting and outpainting, and pastes the
// generated part back into the image. It computes on pixels only and does not use MLX.
//
// In a mask, white is what is repainted. A model sees it in black and white: white where the mask is
// at least half white (128 of 255), as in diffusers. Shades of grey count when the generated part is
// pasted back: a pixel of value v gets v/255 of it.
package inpaint

import (
	"errors"
	"fmt"
	"image"
	"sync"

	"github.com/gomflux/gomflux/internal/resample"
	"github.com/gomflux/gomflux/picture"
)

// Options are the options of an [Input]. The zero value inpaints the white part of the mask and
// pastes it back with the mask as it is.
type Options struct {
	// Invert repaints the black part of the mask instead of the white one.
	Invert bool
	// Feather is the width, in pixels of the image, over which the pasted part fades in. It fades
	// inside the mask only, and less wide where the mask is thin. A negative width is the default,
	// [DefaultFeather].
	Feather int
	// Crop lets the model see only the part of the image around the mask, enlarged to the size of
	// the run (padding_mask_crop in diffusers), with Padding more pixels on each side.
	Crop    bool
	Padding int
	// NoPasteBack returns images as the model generates them, in the size of the run.
	NoPasteBack bool
	// Expand enlarges the canvas. The new border is repainted, in addition to the mask. What a model
	// sees in it continues the edges of the image, more blurred with the distance: it matters to
	// models that see the canvas as a reference image, and if the start is not all noise. A feather
	// is inside the border, so the image itself stays as it is.
	Expand Border
}

func (o Options) check() error {
	switch {
	case o.Feather > MaxFeather:
		return fmt.Errorf("feather %d: expected at most %d pixels", o.Feather, MaxFeather)
	case o.Padding < 0:
		return fmt.Errorf("padding %d around the mask: must not be negative", o.Padding)
	case o.Padding > picture.MaxSide:
		return fmt.Errorf("padding %d around the mask: expected at most %d pixels", o.Padding, picture.MaxSide)
	}
	return nil
}

// An Input is an image of which a part is to be repainted.
type Input struct {
	Image *image.RGBA // opaque, with the border of Options.Expand
	Mask  *image.Gray // in the size of Image; the higher a value, the more of it is repainted
	// Photo is the part of Image that is not a border of Options.Expand.
	Photo image.Rectangle
	Options

	given *image.Gray // the mask in its own size, if that is not the image's and there is no border
	mu    sync.Mutex
	last  *scaled
	alpha *alpha
}

// New checks an image and its mask, which is resized to the image. The mask is black, white and grey,
// or has transparent pixels ([AlphaMask]). It may be nil if Options.Expand adds a border. Errors are
// about the request.
func New(img, mask image.Image, o Options) (*Input, error) {
	switch {
	case img == nil:
		return nil, errors.New("a mask needs an image to inpaint")
	case mask == nil && o.Expand == Border{}:
		return nil, errors.New("inpainting needs a mask")
	case img.Bounds().Empty():
		return nil, fmt.Errorf("the image to inpaint is empty: its bounds are %v", img.Bounds())
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	in := &Input{Image: atOrigin(picture.Opaque(img)), Options: o}
	in.Photo = in.Image.Rect
	var err error
	if mask != nil {
		if in.given, err = read(mask, in.Photo.Size()); err != nil {
			return nil, err
		}
		if o.Invert {
			in.given = inverted(in.given)
		}
		in.Mask = resized(in.given, in.Photo.Size())
	}
	if o.Expand != (Border{}) || in.Mask == in.given {
		in.given = nil
	}
	if o.Expand != (Border{}) {
		if err := in.expand(); err != nil {
			return nil, err
		}
	}
	switch empty := bounds(in.Mask).Empty(); {
	case empty && o.Invert:
		return nil, errors.New("the mask is white everywhere and inverted, so there is nothing to inpaint")
	case empty:
		return nil, errors.New("the mask is black everywhere, so there is nothing to inpaint (white is what is repainted)")
	}
	return in, nil
}

// Full reports whether the mask is at least half white everywhere, so that a model keeps nothing of
// the image.
func (in *Input) Full() bool {
	for y := range in.Mask.Rect.Dy() {
		for _, v := range row(in.Mask, y) {
			if v < half {
				return false
			}
		}
	}
	return true
}

// Check returns an error if nothing of the mask is left in what a model sees that generates images of
// some size, in pixels.
func (in *Input) Check(width, height int) error {
	if _, mask := in.At(width, height); !bounds(mask).Empty() {
		return nil
	}
	if in.Crop {
		return fmt.Errorf("the mask has no part that is at least half white at %dx%d pixels", width, height)
	}
	return fmt.Errorf("the mask has no part that is at least half white at %dx%d pixels (crop to the mask if it is small)",
		width, height)
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
			fit := fitted(region.Size(), size)
			img = resample.Lanczos.RGBA(img.SubImage(region).(*image.RGBA), fit.X, fit.Y)
			mask = resample.Lanczos.Gray(mask.SubImage(region).(*image.Gray), fit.X, fit.Y)
			whole := image.Rectangle{Max: size}
			img = &image.RGBA{Pix: filled(img.Pix, img.Stride, 4, fit, size), Stride: 4 * width, Rect: whole}
			mask = &image.Gray{Pix: filled(mask.Pix, mask.Stride, 1, fit, size), Stride: width, Rect: whole}
		} else {
			if in.given != nil { // once, as diffusers does
				mask = in.given
			}
			img, mask = picture.Resize(img, width, height), resample.Lanczos.Gray(mask, width, height)
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
	size := generated.Rect.Size()
	region, scaled, at := in.Image.Rect, in.Image.Rect.Size(), image.Point{}
	if in.Crop {
		region = in.Region(size.X, size.Y)
		scaled, at = covering(size, region.Size())
	}
	a := in.alphaAt(max(float64(scaled.X)/float64(size.X), float64(scaled.Y)/float64(size.Y)))
	at = at.Sub(region.Min) // from coordinates of the image to those of the scaled one
	part := resample.Lanczos.Part(generated, scaled.X, scaled.Y, a.bounds.Intersect(region).Add(at))
	part.Rect = part.Rect.Sub(at)
	return a.blend(in.Image, part)
}
