package api

import (
	"image"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/inpaint"
	"github.com/gomflux/gomflux/picture"
)

// Mask returns the mask of an image file: its transparent pixels if it has some, and otherwise the
// image, in which white is the mask.
func Mask(p *picture.Picture) image.Image {
	if p.Alpha != nil {
		return p.Alpha
	}
	return p.Image
}

// CheckMask returns the error that a job with a mask or a border would end with because of these,
// or because the enlarged image has more than maxPixels. It is a [gomflux.ErrRequest]. What was read
// stays in the options for the engine, which frees it while the job waits.
func CheckMask(o *gomflux.Options, maxPixels int) error {
	if o.Mask == nil && o.Inpaint == (gomflux.InpaintOptions{}) {
		return nil
	}
	if e := o.Inpaint.Expand; o.Image != nil && e != (gomflux.Border{}) {
		size := o.Image.Bounds().Size()
		if size = inpaint.Border(e).Size(size); size.X > maxPixels || size.Y > maxPixels || size.X*size.Y > maxPixels {
			return errs.Requestf("the border makes the image %dx%d: expected at most %d pixels", size.X, size.Y, maxPixels)
		}
	}
	_, err := o.PrepareMask()
	return err
}
