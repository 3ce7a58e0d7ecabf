package models

import (
	"cmp"
	"errors"
	"fmt"
	"image"
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/inpaint"
	"github.com/gomflux/gomflux/models/stepcache"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
)

// A Request describes one image to generate.
type Request struct {
	Prompt         string
	NegativePrompt string
	Height, Width  int // in pixels
	Steps          int
	Sigmas         scheduler.Sigmas // of the steps, nil for the model's own
	Guidance       float64          // guidance scale
	// TrueCFGScale, CFGNormalization and CFGTruncation are the fields of [family.Guidance].
	TrueCFGScale, CFGNormalization, CFGTruncation float64
	// GuidanceInterval is the part of the steps with classifier-free guidance, nil for all of them.
	GuidanceInterval scheduler.Part
	// StepCache is the rule by which most of the transformer is left out in some steps, "" for none.
	StepCache         string
	Seed              uint64
	MaxSequenceLength int     // limit of the prompt's tokens, including those of the model's template
	RefuseLongPrompts bool    // makes a prompt beyond the limit an error instead of truncating it
	Scheduler         string  // "" for the model's own
	RNG               string  // draws the noise: mlx or torch; "" stands for mlx
	Latents           Latents // initial noise, if set

	Image         image.Image // image to start from, if set; it is resized to Height×Width
	ImageStrength float64     // how much of Image is kept, from 0 (nothing) to 1
	// Inpaint, if set, takes the place of Image: an image of which only the masked part is generated.
	// ImageStrength may be 0 then.
	Inpaint *inpaint.Input
	mask    *image.Gray // black and white, Height×Width: see withInpaint
	// showsInpainted reports that the first of References is the image to inpaint.
	showsInpainted bool

	References []image.Image // reference images of an edit
	// Conversions, if set, keeps Image and References as the model takes them, for other runs.
	Conversions *Conversions
	Background  string // one of Backgrounds; "" stands for auto
	Layers      int    // into which the reference image is split, 0 for the model's default: see [Pipeline.DefaultLayers]

	// Split is how the pipeline's group generates the image, one of Splits; "" stands for SplitAuto.
	Split string

	Hook      hooks.Func
	Forked    func(hooks.Fork) // see [hooks.Points]
	Overrides Overrides        // may be nil
	Progress  func(Progress)
	OnStep    func(Step) error // is called after every step; its error ends the run
	// Stopped, if set, returns an error if a run that several processes share is to end. It is called after every step.
	Stopped func() error
}

// checkNumbers checks everything of a request but its prompts, which need a tokenizer.
func (p *Pipeline) checkNumbers(r Request) error {
	if err := p.checkSize(r); err != nil {
		return err
	}
	switch {
	case r.Steps < 1:
		return errs.Requestf("steps %d: must be at least 1 (the model's default is %d)", r.Steps, p.Defaults.Steps)
	case r.Steps > picture.MaxCount:
		return errs.Requestf("steps %d: must be at most %d", r.Steps, picture.MaxCount)
	}
	if err := r.checkSigmas(); err != nil {
		return err
	}
	if !(r.Guidance >= 0) || math.IsInf(r.Guidance, 0) {
		return errs.Requestf("guidance %g: must be a number, 0 or more (the model's default is %g)", r.Guidance, p.Defaults.Guidance)
	}
	if _, err := p.family.Guidance(r.guidance()); err != nil {
		return errs.Request(err)
	}
	if err := cmp.Or(p.checkCFG(&r), p.checkGuidanceInterval(&r), r.checkStepCache()); err != nil {
		return err
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
	if err := cmp.Or(p.checkBackground(&r), p.checkLayers(&r)); err != nil {
		return err
	}
	if err := p.checkInpaint(&r); err != nil {
		return err
	}
	inpainted := 0
	if r.showsInpainted {
		inpainted = 1
	}
	return cmp.Or(p.checkReferences(r.References, inpainted), r.checkImage())
}

func (r *Request) guidance() family.Guidance {
	return family.Guidance{
		Scale: r.Guidance, TrueCFG: r.TrueCFGScale, Normalization: r.CFGNormalization, Truncation: r.CFGTruncation,
	}
}

// checkCFG refuses options of classifier-free guidance that the model's class does not have.
func (p *Pipeline) checkCFG(r *Request) error {
	class := family.Find(p.Class)
	for _, o := range []struct {
		name        string
		value, most float64
		has         func(*family.Class) bool
		needsCFG    bool
	}{
		{"true CFG scale", r.TrueCFGScale, math.MaxFloat64, family.HasTrueCFG, false},
		{"CFG normalization", r.CFGNormalization, math.MaxFloat64, family.HasBoundsCFG, true},
		{"CFG truncation", r.CFGTruncation, 1, family.HasBoundsCFG, true},
	} {
		switch {
		case o.value == 0:
		case !o.has(class) && !o.needsCFG && class.NeedsNegativePrompt:
			return errs.Requestf("%s %g: diffusers' true_cfg_scale is the guidance scale of %s (--guidance)", o.name, o.value, p.Class)
		case !o.has(class):
			return errs.Requestf("%s %g: %s does not have it (%s does)", o.name, o.value, p.Class, family.NamesWith(o.has))
		case !(o.value > 0 && o.value <= o.most): // also NaN
			if o.most == 1 {
				return errs.Requestf("%s %g: must be above 0 and at most 1", o.name, o.value)
			}
			return errs.Requestf("%s %g: must be a number above 0", o.name, o.value)
		case o.needsCFG && !p.UsesNegativePrompt(*r):
			return errs.Requestf("%s %g: needs classifier-free guidance, which this model does not use at guidance %g (leave it out)",
				o.name, o.value, r.Guidance)
		}
	}
	return nil
}

// checkGuidanceInterval refuses an interval that no guided step is in.
func (p *Pipeline) checkGuidanceInterval(r *Request) error {
	part := r.GuidanceInterval
	if part == nil {
		return nil
	}
	if err := part.Check(); err != nil {
		return errs.Requestf("guidance interval %v: %w", []float64(part), err)
	}
	if !p.UsesNegativePrompt(*r) {
		return errs.Requestf("guidance interval %s: needs classifier-free guidance, which this model does not use at guidance %g "+
			"(leave it out)", part, r.Guidance)
	}
	if first, end := part.Steps(r.Steps); max(first, r.firstStep()) >= end {
		return errs.Requestf("guidance interval %s: contains none of the %d steps that run (leave it out, or choose a "+
			"guidance scale that disables it)", part, r.Steps-r.firstStep())
	}
	return nil
}

// checkSigmas refuses sigmas of another number of steps.
func (r *Request) checkSigmas() error {
	if err := r.Sigmas.Check(); err != nil {
		return errs.Requestf("sigmas: %w", err)
	}
	if n := len(r.Sigmas); n > 0 && n != r.Steps {
		return errs.Requestf("steps %d: the sigmas are those of %d steps (leave out the steps)", r.Steps, n)
	}
	return nil
}

// checkStepCache refuses a step cache of an unknown rule, and for few steps.
func (r *Request) checkStepCache() error {
	if r.StepCache == "" {
		return nil
	}
	if _, err := stepcache.ParseRule(r.StepCache); err != nil {
		return errs.Requestf("step cache %q: %w", r.StepCache, err)
	}
	if steps := r.Steps - r.firstStep(); steps < stepcache.MinSteps {
		return errs.Requestf("step cache %s: needs at least %d steps, and %d run (leave it out, or ask for more steps)", r.StepCache,
			stepcache.MinSteps, max(0, steps))
	}
	return nil
}

// enlargeHint is the hint for images that are too large.
const enlargeHint = " (generate a smaller image, and enlarge it with gomflux upscale)"

func (p *Pipeline) checkSize(r Request) error {
	m := p.Multiple()
	for _, side := range []struct {
		name  string
		value int
	}{{"height", r.Height}, {"width", r.Width}} {
		if side.value > picture.MaxSide {
			return errs.Requestf("%s %d: must be at most %d%s", side.name, side.value, picture.MaxSide, enlargeHint)
		}
		if side.value < m || side.value%m != 0 {
			try := max(m, (side.value+m/2)/m*m)
			return errs.Requestf("%s %d: must be a positive multiple of %d (try %d)", side.name, side.value, m, try)
		}
	}
	if n := r.Height * r.Width; n > picture.MaxPixels {
		return errs.Requestf("an image of %dx%d has %d megapixels, expected at most %d%s", r.Width, r.Height, n/1_000_000,
			picture.MaxPixels/1_000_000, enlargeHint)
	}
	return nil
}

// checkImage checks the image to start from.
func (r *Request) checkImage() error {
	switch {
	case r.Image == nil:
		return nil
	case r.Image.Bounds().Empty():
		return errs.Requestf("the image to start from is empty: its bounds are %v", r.Image.Bounds())
	case r.mask != nil && r.ImageStrength == 0:
		return nil
	case !(r.ImageStrength > 0 && r.ImageStrength <= 1):
		return errs.Requestf("image strength %g: must be above 0, which would keep nothing of the image, and below 1", r.ImageStrength)
	case r.firstStep() >= r.Steps:
		return errs.Requestf("image strength %g of %d steps leaves no step to run (try a lower strength, or more steps)",
			r.ImageStrength, r.Steps)
	}
	return nil
}

// SizeFor completes the size of an image that is generated from another one: that image's own size,
// rounded down to a multiple, and at most four times the area of the model's default size, in which a
// prompt of one token fits.
func (p *Pipeline) SizeFor(size image.Point, height, width int) (int, int) {
	area := 4 * p.Defaults.Height * p.Defaults.Width
	for {
		h, w := family.SizeWithin(size, height, width, p.Multiple(), area)
		lh, lw := p.latentSize(h, w)
		if height > 0 || width > 0 || area < p.Multiple()*p.Multiple() || p.family.Fits(lh, lw, 1) == nil {
			return h, w
		}
		area = area * 9 / 10
	}
}

// EditSize returns the size of an edit of reference images for a request without a size. For images
// that Check refuses it is the default size.
func (p *Pipeline) EditSize(references []image.Image) image.Point {
	if len(references) == 0 || p.checkReferences(references, 0) != nil {
		return image.Pt(p.Defaults.Width, p.Defaults.Height)
	}
	var sizes []image.Point
	for _, img := range references {
		sizes = append(sizes, img.Bounds().Size())
	}
	return p.family.(family.Editor).EditSize(sizes, p.Multiple())
}

// editor returns how n reference images are prepared.
func (p *Pipeline) editor(n int) family.Editor {
	editor := p.family.(family.Editor)
	if c, ok := editor.(family.ReferenceCounter); ok {
		return c.ForReferences(n)
	}
	return editor
}

// firstStep returns the first step that runs, from 0.
func (r *Request) firstStep() int {
	switch {
	case r.Image == nil:
		return 0
	case r.mask != nil:
		return firstInpaintStep(r.Steps, r.ImageStrength)
	}
	return scheduler.FirstStep(r.Steps, r.ImageStrength)
}

// checkReferences returns an error if the model cannot take the reference images, of which the first
// ones are inpainted: the transformer sees these in the size of the run.
func (p *Pipeline) checkReferences(references []image.Image, inpainted int) error {
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
		return errs.Requestf("%s does not take reference images (the models that edit are %s)", p.Class, family.Editors())
	}
	_, shown := p.family.(family.VisionEncoder)
	for i, img := range references {
		switch err := checkReference(editor, img); {
		case err == nil || i < inpainted && !shown:
		case i < inpainted:
			return errs.Requestf("the image to inpaint %w", err)
		default:
			return errs.Request(&ReferenceError{i - inpainted, err})
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

// A ReferenceError is an error about one of a request's References.
type ReferenceError struct {
	Index int // from 0
	Err   error
}

func (e *ReferenceError) Error() string { return fmt.Sprintf("image %d: %v", e.Index+1, e.Err) }
func (e *ReferenceError) Unwrap() error { return e.Err }

// isOverridden reports whether the request has an override.
func (r *Request) isOverridden(name string, step int) bool {
	return r.Overrides != nil && r.Overrides.Has(name, step)
}
