package family

import (
	"cmp"
	"errors"
	"fmt"
	"image"
	"math"
	"slices"

	"github.com/gomflux/gomflux/picture"
)

// flux1Kontext is diffusers' FluxKontextPipeline: FLUX.1-dev trained to edit one image,
// whose tokens follow those of the new image.
type flux1Kontext struct {
	flux1
	preferred []image.Point // the sizes that a reference image may be resized to
}

var kontextDefaults = defaults(28, 2.5)

// kontextPreferred are the sizes, each of about a megapixel, that the published model
// was trained with (PREFERRED_KONTEXT_RESOLUTIONS).
var kontextPreferred = []image.Point{
	{X: 672, Y: 1568}, {X: 688, Y: 1504}, {X: 720, Y: 1456}, {X: 752, Y: 1392}, {X: 800, Y: 1328}, {X: 832, Y: 1248},
	{X: 880, Y: 1184}, {X: 944, Y: 1104}, {X: 1024, Y: 1024}, {X: 1104, Y: 944}, {X: 1184, Y: 880}, {X: 1248, Y: 832},
	{X: 1328, Y: 800}, {X: 1392, Y: 752}, {X: 1456, Y: 720}, {X: 1504, Y: 688}, {X: 1568, Y: 672},
}

// kontextMinSide is the shortest side of a reference image, one patch of the published
// model: a shorter one has no ratio in whole patches.
const kontextMinSide = 16

func configureFlux1Kontext(l *Configs) (Pipeline, Networks) {
	f := &flux1Kontext{preferred: kontextPreferred}
	// small models name their own sizes, all widths and heights in a row
	var own struct {
		Sizes []int `json:"preferred_sizes"`
	}
	l.Index(&own)
	if len(own.Sizes) > 0 {
		f.preferred = nil
	}
	for size := range slices.Chunk(own.Sizes, 2) {
		if len(size) < 2 || min(size[0], size[1]) < 1 || max(size[0], size[1]) > picture.MaxPixels/min(size[0], size[1]) {
			l.CheckIndex(fmt.Errorf("preferred_sizes %v: expected widths and heights in turn", own.Sizes))
			return nil, nil
		}
		f.preferred = append(f.preferred, image.Pt(size[0], size[1]))
	}
	return f, f.declareEqual(l)
}

func (f *flux1Kontext) Defaults() Defaults { return kontextDefaults }

func (f *flux1Kontext) CheckReferences(n int) error {
	switch {
	case n == 0:
		return errors.New("this model edits images and needs one (as in gomflux edit; FLUX.1-dev generates from a prompt alone)")
	case n > 1:
		return tooManyReferences(n)
	}
	return nil
}

// ReplacesInpainted marks image_reference of FluxKontextInpaintPipeline.
func (f *flux1Kontext) ReplacesInpainted() {}

func (f *flux1Kontext) CheckReference(size image.Point) error {
	if min(size.X, size.Y) < kontextMinSide {
		return fmt.Errorf("has %dx%d pixels, and the model needs %d on each side", size.X, size.Y, kontextMinSide)
	}
	return nil
}

// ReferenceSize is the preferred size whose ratio of width to height is nearest to that
// of an image cut to whole patches; of several the narrowest.
func (f *flux1Kontext) ReferenceSize(size image.Point, multiple int) image.Point {
	cut := func(p image.Point) image.Point {
		return image.Pt(max(p.X/multiple, 1)*multiple, max(p.Y/multiple, 1)*multiple)
	}
	ratio := func(p image.Point) float64 { return float64(p.X) / float64(p.Y) }
	own := ratio(cut(size))
	return cut(slices.MinFunc(f.preferred, func(a, b image.Point) int {
		return cmp.Or(cmp.Compare(math.Abs(own-ratio(a)), math.Abs(own-ratio(b))), cmp.Compare(a.X, b.X), cmp.Compare(a.Y, b.Y))
	}))
}

// EditSize is the size that the reference image is resized to.
func (f *flux1Kontext) EditSize(sizes []image.Point, multiple int) image.Point {
	return f.ReferenceSize(sizes[0], multiple)
}
