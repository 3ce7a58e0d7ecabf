package models

import (
	"errors"
	"fmt"
	"image"
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
)

// A Request is what one picture is made from.
type Request struct {
	Prompt         string
	NegativePrompt string
	Height, Width  int
	Steps          int
	Guidance       float64
	Seed           uint64
	// MaxSequenceLength is how many tokens the prompt may have, with the text
	// that the model's template puts around it.
	MaxSequenceLength int
	// RefuseLongPrompts makes a prompt of more tokens an error, which else is cut.
	RefuseLongPrompts bool
	Scheduler         string // "" is the model's own
	RNG               string // draws the noise: mlx, which "" stands for, or torch
	// Latents, if set, are the initial noise.
	Latents Latents
	// Image, if set, is the picture to start from: resized to Height×Width and
	// kept the more the higher ImageStrength is, from 0 (nothing) to 1.
	Image         image.Image
	ImageStrength float64
	// References, if set, are pictures that the model is shown, which not all can.
	References []image.Image

	Hook hooks.Func
	// Given, if set, are values that are not to be computed.
	Given    Given
	Progress func(Progress)
	// OnStep is called after every step. Its error ends the run.
	OnStep func(Step) error
}

// checkNumbers checks a request without its prompts, which need a tokenizer.
func (p *Pipeline) checkNumbers(r Request) error {
	m := p.Multiple()
	for _, side := range []struct {
		name  string
		value int
	}{{"height", r.Height}, {"width", r.Width}} {
		if side.value > picture.MaxSide {
			return errs.Requestf("%s %d: must be at most %d", side.name, side.value, picture.MaxSide)
		}
		if side.value < m || side.value%m != 0 {
			return errs.Requestf("%s %d: must be a positive multiple of %d (try %d)", side.name, side.value, m, max(m, (side.value+m/2)/m*m))
		}
	}
	if n := r.Height * r.Width; n > picture.MaxPixels {
		return errs.Requestf("a picture of %dx%d has %d megapixels, at most %d can be made", r.Width, r.Height, n/1_000_000, picture.MaxPixels/1_000_000)
	}
	if r.Steps < 1 {
		return errs.Requestf("steps %d: must be at least 1 (this model is meant for %d)", r.Steps, p.Defaults.Steps)
	}
	if r.Steps > picture.MaxCount {
		return errs.Requestf("steps %d: must be at most %d", r.Steps, picture.MaxCount)
	}
	if math.IsNaN(r.Guidance) || math.IsInf(r.Guidance, 0) || r.Guidance < 0 {
		return errs.Requestf("guidance %g: must be a number from 0, which is none (this model is meant for %g)", r.Guidance, p.Defaults.Guidance)
	}
	if _, err := p.family.Guidance(r.Guidance); err != nil {
		return errs.Request(err)
	}
	if r.Scheduler != "" {
		if _, err := scheduler.Name(r.Scheduler); err != nil {
			return errs.Request(err)
		}
	}
	if r.RNG != "" && !slices.Contains(scheduler.RNGs, r.RNG) {
		return errs.Requestf("unknown random number generator %q, expected one of %s", r.RNG, strings.Join(scheduler.RNGs, ", "))
	}
	if r.MaxSequenceLength < 1 || r.MaxSequenceLength > picture.MaxCount {
		return errs.Requestf("max sequence length %d: must be at least 1, and at most %d", r.MaxSequenceLength, picture.MaxCount)
	}
	if err := p.checkReferences(r.References); err != nil {
		return err
	}
	if r.Image != nil {
		if r.Image.Bounds().Empty() {
			return errs.Requestf("the picture to start from is empty: its bounds are %v", r.Image.Bounds())
		}
		if !(r.ImageStrength > 0 && r.ImageStrength <= 1) {
			return errs.Requestf("image strength %g: must be above 0, which would keep nothing of the picture, and below 1", r.ImageStrength)
		}
		if r.start() >= r.Steps {
			return errs.Requestf("image strength %g of %d steps leaves no step that changes anything (a lower strength, or more steps)", r.ImageStrength, r.Steps)
		}
	}
	return nil
}

// SizeFor completes the size of what is made from a picture of some size: the
// picture's own, cut to a multiple, and no larger than four times the area
// that the model is meant for.
func (p *Pipeline) SizeFor(size image.Point, height, width int) (int, int) {
	m := p.Multiple()
	fit := func(v float64) int { return max(1, int(v+1e-9)/m) * m }
	w, h := float64(max(1, size.X)), float64(max(1, size.Y)) // Check refuses an empty one
	switch {
	case height > 0 && width > 0:
	case height > 0:
		width = fit(float64(height) * w / h)
	case width > 0:
		height = fit(float64(width) * h / w)
	default:
		most := 4 * float64(p.Defaults.Height) * float64(p.Defaults.Width)
		shrink := min(1, math.Sqrt(most/(w*h)))
		height, width = fit(h*shrink), fit(w*shrink)
	}
	return height, width
}

// EditSize is the size of what is made of pictures, where a request has none:
// that of the defaults for pictures that Check refuses.
func (p *Pipeline) EditSize(references []image.Image) image.Point {
	if len(references) == 0 || p.checkReferences(references) != nil {
		return image.Pt(p.Defaults.Width, p.Defaults.Height)
	}
	var sizes []image.Point
	for _, img := range references {
		sizes = append(sizes, img.Bounds().Size())
	}
	return p.family.(family.Editor).EditSize(sizes, p.Multiple())
}

// start is the first step that runs.
func (r *Request) start() int {
	if r.Image == nil {
		return 0
	}
	return scheduler.FirstStep(r.Steps, r.ImageStrength)
}

// checkReferences says what of some pictures the model cannot be shown.
func (p *Pipeline) checkReferences(references []image.Image) error {
	editor, ok := p.family.(family.Editor)
	if ok {
		if err := editor.CheckReferences(len(references)); err != nil {
			return errs.Request(err)
		}
	}
	if len(references) == 0 {
		return nil
	}
	if !ok {
		return errs.Requestf("%s makes pictures from a prompt and edits none (%s edit)", p.Class, family.Editors())
	}
	for i, img := range references {
		if err := checkReference(editor, img); err != nil {
			return errs.Request(&ReferenceError{i, err})
		}
	}
	return nil
}

func checkReference(e family.Editor, img image.Image) error {
	if img == nil {
		return errors.New("is nil")
	}
	if img.Bounds().Empty() {
		return fmt.Errorf("is empty: its bounds are %v", img.Bounds())
	}
	return e.CheckReference(img.Bounds().Size())
}

// A ReferenceError is what is wrong with one of a request's References.
type ReferenceError struct {
	Index int // from 0
	Err   error
}

func (e *ReferenceError) Error() string { return fmt.Sprintf("picture %d: %v", e.Index+1, e.Err) }
func (e *ReferenceError) Unwrap() error { return e.Err }

// has reports whether a value is given.
func (r *Request) has(name string, step int) bool { return r.Given != nil && r.Given.Has(name, step) }
