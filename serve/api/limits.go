package api

import (
	"cmp"
	"fmt"
	"image"
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/inpaint"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/engine"
)

// DefaultSteps is the largest number of steps of an image where nothing else is configured.
const DefaultSteps = 1000

// InputPixels returns the largest number of pixels of all images of a request together: four times those
// of a generated image, for photos of cameras, and at most [picture.MaxPixels].
func InputPixels(maxPixels int) int { return min(4*maxPixels, picture.MaxPixels) }

// CheckLimits refuses a request for a model whose images have more pixels or steps, 0 for DefaultSteps, as a
// [gomflux.ErrRequest]. An image from which a request without a size starts may be larger: it is scaled down, with a warning.
func CheckLimits(r *engine.Request, m engine.ModelInfo, pixels, steps int) error {
	o := &r.Options
	if most := cmp.Or(steps, DefaultSteps); o.Steps > most {
		return errs.Requestf("steps %d: expected at most %d", o.Steps, most)
	}
	height, width := cmp.Or(o.Height, m.Defaults.Height), cmp.Or(o.Width, m.Defaults.Width)
	free := o.Height == 0 && o.Width == 0
	switch {
	case o.Image != nil && !(free && o.Inpaint.Crop):
		size := inpaint.Border(o.Inpaint.Expand).Size(o.Image.Bounds().Size())
		area := cmp.Or(4*m.Defaults.Height*m.Defaults.Width, pixels) // as the model chooses it
		multiple := cmp.Or(m.SizeMultiple, anyMultiple)
		height, width = family.SizeWithin(size, o.Height, o.Width, multiple, min(area, pixels))
		edits := m.Edits && (o.Mask != nil || o.Inpaint.Expand != (gomflux.Border{}))
		if !free || edits || size.X*size.Y <= min(area, pixels) {
			break
		}
		if area > pixels {
			o.Height, o.Width = height, width
		}
		r.Warnings = append(r.Warnings, fmt.Sprintf("the image of %dx%d was scaled down for %s, since no size was given",
			size.X, size.Y, m.Name))
	case free && o.Enlarge == nil:
		return nil // the model's own size
	}
	if e := o.Enlarge; e != nil && e.Scale != 0 {
		if w, h := float64(width)*e.Scale, float64(height)*e.Scale; w*h > float64(pixels) {
			return errs.Requestf("enlarged to %.0fx%.0f: expected at most %d pixels (a scale of %.2f)", w, h, pixels,
				engine.ScaleWithin(width, height, pixels))
		}
	}
	if max(height, width) > picture.MaxSide || height*width > pixels {
		fitting := Fitting(image.Pt(width, height), pixels)
		return errs.Requestf("size %dx%d: expected at most %d pixels (try %dx%d)", width, height, pixels, fitting.X, fitting.Y)
	}
	return nil
}

// anyMultiple is a number whose multiples are sides of images of every model.
const anyMultiple = 64

// Fitting returns a size with at most some pixels, of about the same shape, that every model can generate.
func Fitting(size image.Point, pixels int) image.Point {
	scale := math.Sqrt(float64(pixels) / (float64(size.X) * float64(size.Y)))
	longest := max(1, pixels/anyMultiple/anyMultiple)
	fit := func(side int) int { return min(max(int(float64(side)*scale)/anyMultiple, 1), longest) * anyMultiple }
	return image.Pt(fit(size.X), fit(size.Y))
}

// Round rounds the side of an image to what a model can generate. 0 stays 0.
func Round(side int, m *engine.ModelInfo) int {
	if side == 0 {
		return 0
	}
	multiple := cmp.Or(m.SizeMultiple, 16)
	return max(1, (side+multiple/2)/multiple) * multiple
}

// SizeOfNoise sets the size of an image from noise alone to about that of an image that was given, within some pixels.
func SizeOfNoise(o *gomflux.Options, given image.Point, m *engine.ModelInfo, most int) {
	area := min(cmp.Or(4*m.Defaults.Width*m.Defaults.Height, most), most)
	o.Height, o.Width = family.SizeWithin(given, o.Height, o.Width, cmp.Or(m.SizeMultiple, 16), area)
}

// FindModel finds the model with a name, which can have another case or the extension of a file.
func FindModel(models []engine.ModelInfo, name string, found *engine.ModelInfo) bool {
	i := slices.IndexFunc(models, func(m engine.ModelInfo) bool {
		return m.Is(name) || strings.EqualFold(m.Name, strings.TrimSuffix(name, ".safetensors"))
	})
	if i >= 0 && found != nil {
		*found = models[i]
	}
	return i >= 0
}
