package models

import (
	"image"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/picture"
)

// The values of Request.Background.
const (
	BackgroundAuto        = "auto"        // as the model generates it
	BackgroundTransparent = "transparent" // the model must be able to generate transparent pixels
	BackgroundOpaque      = "opaque"      // transparent pixels are blended with white
)

// Backgrounds lists the values of Request.Background.
var Backgrounds = []string{BackgroundAuto, BackgroundTransparent, BackgroundOpaque}

// checkBackground returns an error if the model cannot generate the background of a request.
func (p *Pipeline) checkBackground(r *Request) error {
	switch {
	case r.Background != "" && !slices.Contains(Backgrounds, r.Background):
		return errs.Requestf("unknown background %q, expected one of %s", r.Background, strings.Join(Backgrounds, ", "))
	case r.Background != BackgroundTransparent:
		return nil
	case !p.HasAlpha():
		return errs.Requestf("background transparent: the images of %s are opaque (%s)", p.Class, family.TransparentModels())
	case r.Inpaint != nil:
		return errs.Requestf("background transparent: an inpainted image is opaque (leave out the mask or the background)")
	}
	return nil
}

// keepsTransparency reports whether the results may have transparent pixels.
func (r *Run) keepsTransparency() bool {
	return r.HasAlpha() && r.Inpaint == nil && r.Background != BackgroundOpaque
}

// fitReference returns a reference image in the size in which it is encoded.
func (r *Run) fitReference(img input) image.Image {
	editor := r.editor(len(r.References))
	size := r.referenceSize(img.Bounds().Size())
	cropper, ok := editor.(family.Cropper)
	if !ok {
		return r.resized(img, size.X, size.Y)
	}
	before := cropper.Uncropped(img.Bounds().Size())
	resized := r.resized(img, before.X, before.Y).(interface {
		image.Image
		SubImage(image.Rectangle) image.Image
	})
	if size.X > before.X || size.Y > before.Y {
		return picture.Reflect(resized, size)
	}
	at := resized.Bounds().Min.Add(before.Sub(size).Div(2))
	return resized.SubImage(image.Rectangle{at, at.Add(size)})
}
