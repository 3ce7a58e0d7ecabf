package gomflux

import (
	"image"

	"github.com/gomflux/gomflux/internal/pixels"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/inpaint"
)

// InpaintOptions are options for an image with a mask, see [Options].Mask. The zero value
// regenerates what is white in the mask.
type InpaintOptions struct {
	// Invert regenerates what is black in the mask instead.
	Invert bool
	// Feather is the width, in pixels of the image, over which the generated part fades in
	// where it is pasted into the image. It fades inside the mask only. nil stands for four
	// pixels of the generated part, before it is scaled to the image.
	Feather *int
	// Crop lets the model see only the part of the image around the mask, scaled to
	// Options.Height and Options.Width, which default to the model's default size. Padding
	// is the number of pixels of the image that the model sees around the mask. It
	// corresponds to padding_mask_crop in diffusers.
	Crop    bool
	Padding int
	// NoPasteBack makes Result.Image the image as the model generates it, in the size of
	// Options.Height and Options.Width. What is outside of the mask then differs
	// slightly too.
	NoPasteBack bool
	// Expand enlarges the image (outpainting). The new border is regenerated like a
	// masked part.
	Expand Border
}

// A Border is a number of pixels for each side of an image.
type Border struct{ Left, Top, Right, Bottom int }

// A Masked is an image with its mask, as Generate uses them.
type Masked struct {
	// Image is the opaque image, with the border of Inpaint.Expand.
	Image *image.RGBA
	// Mask has the size of Image. The higher a value, the more of the pixel is regenerated.
	Mask *image.Gray
	// Full is true if the mask is at least half white everywhere, so that the model keeps
	// nothing of the image.
	Full bool
}

// PrepareMask reads and checks Image and Mask, with Inpaint, once for all images that are
// generated with these options or with copies of them. Without it, each call of Generate
// does. The pixels of Image and Mask must not be changed afterwards. If one of the three
// fields is set to something else later, it is read again. Without a mask, the result is nil.
func (o *Options) PrepareMask() (*Masked, error) {
	p, err := o.prepareMask()
	if p == nil {
		return nil, err
	}
	o.prepared = p
	return &Masked{Image: p.input.Image, Mask: p.input.Mask, Full: p.input.Full()}, nil
}

// A preparedMask is an image to inpaint, with what it was made of.
type preparedMask struct {
	input       *inpaint.Input
	image, mask image.Image
}

// inpaints reports whether only a part of an image is generated.
func (o *Options) inpaints() bool { return o.Mask != nil || o.Inpaint.Expand != Border{} }

// prepareMask returns the image to inpaint, nil without one. It is the prepared one if that was
// made of the same fields.
func (o *Options) prepareMask() (*preparedMask, error) {
	if !o.inpaints() {
		if o.Inpaint != (InpaintOptions{}) {
			return nil, errs.Requestf("options of inpainting need a mask")
		}
		return nil, nil
	}
	options := o.Inpaint.internal()
	if p := o.prepared; p != nil && p.input.Options == options && pixels.Same(o.Image, p.image) && pixels.Same(o.Mask, p.mask) {
		return p, nil
	}
	in, err := inpaint.New(o.Image, o.Mask, options)
	if err != nil {
		return nil, errs.Request(err)
	}
	return &preparedMask{in, o.Image, o.Mask}, nil
}

// inpaintAll returns the input of each of some options. Those of the same image and mask
// share it.
func inpaintAll(all []Options) ([]*inpaint.Input, error) {
	inputs := make([]*inpaint.Input, len(all))
	var last *preparedMask
	for i, o := range all {
		if o.prepared == nil {
			o.prepared = last
		}
		p, err := o.prepareMask()
		if err != nil {
			return nil, err
		}
		if p != nil {
			inputs[i], last = p.input, p
		}
	}
	return inputs, nil
}

// internal returns the options for package inpaint, where a negative feather is the default.
func (i *InpaintOptions) internal() inpaint.Options {
	feather := -1
	if i.Feather != nil {
		feather = *i.Feather
	}
	return inpaint.Options{
		Invert: i.Invert, Feather: feather, Crop: i.Crop, Padding: i.Padding, NoPasteBack: i.NoPasteBack,
		Expand: inpaint.Border(i.Expand),
	}
}

// canvas returns the size of an image with its border.
func (i *InpaintOptions) canvas(img image.Image) image.Point {
	return inpaint.Border(i.Expand).Size(img.Bounds().Size())
}

// record adds the options to settings.
func (i *InpaintOptions) record(s *Settings) {
	s.InvertMask, s.NoPasteBack = i.Invert, i.NoPasteBack
	if i.Feather != nil {
		blur := *i.Feather
		s.MaskBlur = &blur
	}
	if i.Crop {
		padding := i.Padding
		s.MaskCrop = &padding
	}
	if e := i.Expand; e != (Border{}) {
		s.Expand = []int{e.Left, e.Top, e.Right, e.Bottom}
	}
}

// inpaintOptionsFrom returns the options that were recorded in settings.
func inpaintOptionsFrom(s *Settings) (o InpaintOptions) {
	o.Invert, o.NoPasteBack = s.InvertMask, s.NoPasteBack
	if s.MaskBlur != nil {
		feather := *s.MaskBlur
		o.Feather = &feather
	}
	if s.MaskCrop != nil {
		o.Crop, o.Padding = true, *s.MaskCrop
	}
	if e := s.Expand; len(e) == 4 {
		o.Expand = Border{e[0], e[1], e[2], e[3]}
	}
	return o
}
