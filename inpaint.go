package gomflux

import (
	"image"
	"reflect"

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

// inpaints reports whether only a part of an image is generated.
func (o *Options) inpaints() bool { return o.Mask != nil || o.Inpaint.Expand != Border{} }

// inpaint returns the image to inpaint with its mask, nil without one.
func (o *Options) inpaint() (*inpaint.Input, error) {
	if !o.inpaints() {
		if o.Inpaint != (InpaintOptions{}) {
			return nil, errs.Requestf("options of inpainting need a mask")
		}
		return nil, nil
	}
	i := &o.Inpaint
	in, err := inpaint.New(o.Image, o.Mask, inpaint.Options{
		Invert: i.Invert, Feather: i.feather(), Crop: i.Crop, Padding: i.Padding,
		NoPasteBack: i.NoPasteBack, Expand: inpaint.Border(i.Expand),
	})
	if err != nil {
		return nil, errs.Request(err)
	}
	return in, nil
}

// inpaintAll returns the input of each of some options. Those of the same image and mask
// share it.
func inpaintAll(all []Options) (inputs []*inpaint.Input, err error) {
	inputs = make([]*inpaint.Input, len(all))
	for i := range all {
		o := &all[i]
		if i > 0 && o.Inpaint == all[i-1].Inpaint && same(o.Image, all[i-1].Image) && same(o.Mask, all[i-1].Mask) {
			inputs[i] = inputs[i-1]
			continue
		}
		if inputs[i], err = o.inpaint(); err != nil {
			return nil, err
		}
	}
	return inputs, nil
}

// same reports whether two images are known to be the same one.
func same(a, b image.Image) bool {
	return (a == nil || reflect.ValueOf(a).Comparable()) && (b == nil || reflect.ValueOf(b).Comparable()) && a == b
}

// feather returns the width for package inpaint, where a negative one is the default.
func (i *InpaintOptions) feather() int {
	if i.Feather == nil {
		return -1
	}
	return *i.Feather
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
