package sdapi

import (
	"cmp"
	"context"
	"fmt"
	"image"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

const (
	// previews is how many previews of an image are made for progress.
	previews = 8
	// distilledSteps is the number of default steps below which a model counts as distilled.
	distilledSteps = 12
	// maxClients is the largest number of clients whose chosen model is kept.
	maxClients = 1000
)

// distilled reports whether a model has few steps or no guidance, so that the sliders of clients,
// which are meant for other models, would spoil its images.
func distilled(d gomflux.Defaults) bool { return d.Steps < distilledSteps || d.Guidance <= 1 }

// checkpointHash matches the hash after the name in AUTOMATIC1111's titles of models.
var checkpointHash = regexp.MustCompile(` \[[0-9a-f]+\]$`)

// findModel returns the model with a name or title of AUTOMATIC1111.
func (h *Handler) findModel(name string) (engine.ModelInfo, bool) {
	var m engine.ModelInfo
	models := h.engine.Models()
	ok := api.FindModel(models, name, &m) || api.FindModel(models, checkpointHash.ReplaceAllString(name, ""), &m)
	return m, ok
}

// current returns the model that a client chose, or the default model.
func (h *Handler) current(client string) (engine.ModelInfo, bool) {
	h.mu.Lock()
	name := h.chosen[client]
	h.mu.Unlock()
	if name != "" {
		if m, ok := h.findModel(name); ok {
			return m, true
		}
	}
	models := h.engine.Models()
	for _, accept := range []func(engine.ModelInfo) bool{
		func(m engine.ModelInfo) bool { return m.Default },
		func(m engine.ModelInfo) bool { return m.Missing == "" },
		func(engine.ModelInfo) bool { return true },
	} {
		for _, m := range models {
			if accept(m) {
				return m, true
			}
		}
	}
	return engine.ModelInfo{}, false
}

// choose sets the model of the next requests of a client.
func (h *Handler) choose(client, name string) error {
	m, ok := h.findModel(name)
	switch {
	case !ok:
		return api.NotFoundf("model %q not found (GET %ssd-models lists the models)", name, prefix)
	case m.Missing != "":
		return api.NotFoundf("model %s: %s", m.Name, m.Missing)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.chosen[client]; !ok && len(h.chosen) >= maxClients {
		for other := range h.chosen {
			delete(h.chosen, other)
			break
		}
	}
	h.chosen[client] = m.Name
	return nil
}

// model returns the model of a request.
func (h *Handler) model(client string, r *request) (engine.ModelInfo, error) {
	m, ok := h.current(client)
	switch named, known := h.findModel(r.model); {
	case r.override != "":
		if m, ok = h.findModel(r.override); !ok {
			return m, api.NotFoundf("model %q not found (GET %ssd-models lists the models)", r.override, prefix)
		}
	case known:
		m = named
	case r.model != "" && ok:
		r.warn("model %s is not known, and %s was used", r.model, m.Name)
	}
	switch {
	case !ok:
		return m, api.NotFoundf("the server has no model (gomflux pull fetches one)")
	case m.Missing != "":
		return m, api.NotFoundf("model %s: %s", m.Name, m.Missing)
	}
	if r.override != "" && r.keepOverride {
		return m, h.choose(client, r.override)
	}
	return m, nil
}

func (r *request) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// A plan is a request for the engine, and what is recorded about it.
type plan struct {
	engine.Request
	model   engine.ModelInfo
	request *request
}

// plan translates a request. Where it cannot be followed exactly, it adds warnings.
func (h *Handler) plan(ctx context.Context, r *request) (*plan, error) {
	client := engine.Client(ctx)
	m, err := h.model(client, r)
	if err != nil {
		return nil, err
	}
	prompt, tags, err := picture.CutLoRAs(r.prompt)
	if err != nil {
		return nil, errs.Requestf("prompt: %v", err)
	}
	p := &plan{model: m, request: r}
	p.Request = engine.Request{Client: client, Model: m.Name, Previews: previews}
	for _, l := range api.NamedLoRAs(tags, h.LoRAs()) {
		if strings.Contains(l.Path, "/") || slices.Contains(h.LoRAs(), l.Path) {
			p.LoRAs = append(p.LoRAs, l)
		} else {
			r.warn("the LoRA %s was not found and was ignored (GET %sloras lists the LoRAs)", l.Path, prefix)
		}
	}
	p.Options = gomflux.Options{Prompt: prompt, NegativePrompt: r.negative}
	p.setSize()
	p.setSampling()
	if err := p.setImages(h.MaxPixels); err != nil {
		return nil, err
	}
	if err := p.setHires(h.MaxPixels); err != nil {
		return nil, err
	}
	p.Seeds = api.Seeds(r.seed, r.batchSize*r.batches)
	return p, nil
}

// setSize rounds the size to what the model can generate.
func (p *plan) setSize() {
	r, o := p.request, &p.Options
	if o.Width, o.Height = api.Round(r.width, &p.model), api.Round(r.height, &p.model); o.Width != r.width || o.Height != r.height {
		r.warn("the size %dx%d was rounded to %dx%d, multiples of %d", r.width, r.height, o.Width, o.Height,
			cmp.Or(p.model.SizeMultiple, 16))
	}
}

// setSampling sets steps, guidance and scheduler.
func (p *plan) setSampling() {
	r, d := p.request, p.model.Defaults
	own := func(what string, sent, own float64) {
		if d.Steps > 0 && sent != own {
			r.warn("%s %g was not used: %s is distilled and uses its own, %g", what, sent, p.model.Name, own)
		}
	}
	switch {
	case !distilled(d):
		p.Options.Steps = r.steps
		p.setGuidance()
	default:
		if r.steps > 0 {
			own("steps", float64(r.steps), float64(d.Steps))
		}
		if r.guidance != nil {
			own("cfg_scale", *r.guidance, cfgScale(d.Guidance, p.model.GuidanceUnit))
		}
		if r.negative != "" && d.Guidance <= 1 {
			r.warn("negative_prompt has no effect: %s has no classifier-free guidance", p.model.Name)
		}
	}
	if r.sampler != "" {
		if name, err := scheduler.Name(r.sampler); err == nil {
			p.Options.Scheduler = gomflux.Scheduler(name)
		} else {
			r.warn("sampler_name %s is not known, and the model's own scheduler was used", r.sampler)
		}
	}
	if s := r.schedule; s != "" && !strings.EqualFold(s, "automatic") && !strings.EqualFold(s, "simple") {
		r.warn("scheduler %s was not used: the model's own noise schedule was", s)
	}
}

// setGuidance sets the guidance scale.
func (p *plan) setGuidance() {
	r, o := p.request, &p.Options
	switch {
	case r.distilled != nil && p.model.GuidanceUnit == picture.DistilledCFGScale:
		o.Guidance, o.GuidanceUnit = r.distilled, picture.DistilledCFGScale
		if r.guidance != nil && *r.guidance > 1 && p.model.TrueCFG {
			o.TrueCFGScale = *r.guidance
		} else if r.guidance != nil && *r.guidance != 1 {
			r.warn("cfg_scale %g was not used: %s takes distilled_cfg_scale", *r.guidance, p.model.Name)
		}
	case r.guidance != nil:
		o.Guidance, o.GuidanceUnit = r.guidance, picture.CFGScale
	}
	if p.model.TrueCFG && r.negative != "" && o.TrueCFGScale == 0 {
		r.warn("negative_prompt has no effect: %s needs a cfg_scale above 1 in addition to distilled_cfg_scale for it", p.model.Name)
	}
}

// cfgScale returns a guidance scale as AUTOMATIC1111's CFG scale, which is 1 for distilled scales.
func cfgScale(scale float64, unit picture.GuidanceUnit) float64 {
	if cfg, ok := unit.Convert(scale, picture.CFGScale); ok {
		return cfg
	}
	return 1
}

// setImages decodes the input images. Models that edit take them as references; others start from
// one.
func (p *plan) setImages(maxPixels int) error {
	var images []image.Image
	var sources []picture.SourceImage
	left := api.InputPixels(maxPixels)
	for i, text := range p.request.init {
		name := fmt.Sprintf("init_images[%d]", i)
		decoded, err := decodeImage(text, &left)
		if err != nil {
			return errs.Requestf("%s: %v", name, err)
		}
		images = append(images, decoded.Pixels())
		if decoded.Transparent != nil && !p.model.HasAlpha {
			p.request.warn("the transparent pixels of %s are white for %s", name, p.model.Name)
		}
		sources = append(sources, picture.SourceImage{Path: name, SHA256: decoded.SHA256})
	}
	r, o := p.request, &p.Options
	r.init = nil // may be large, and the job may wait for long
	switch {
	case len(images) == 0:
	case r.mask != "":
		return p.setMask(images, sources, &left)
	case p.model.Edits:
		o.References, p.Sources.References = images, sources
		r.warn("denoising_strength was not used: %s edits images instead of starting from them", p.model.Name)
	case len(images) > 1:
		return errs.Requestf("init_images: %s starts from one image, found %d", p.model.Name, len(images))
	case r.denoising == 1: // only noise
		api.SizeOfNoise(o, images[0].Bounds().Size(), &p.model, maxPixels)
		r.warn("denoising_strength 1 keeps nothing of the image")
	default:
		o.Image, p.Sources.Image = images[0], &sources[0]
		// the part of the steps that is skipped; with strength 0, the last step still runs
		o.ImageStrength = min(math.Nextafter(1, 0), 1-r.denoising)
	}
	return nil
}

// setMask makes the first image one to inpaint. For models that edit, the others are references.
func (p *plan) setMask(images []image.Image, sources []picture.SourceImage, left *int) error {
	r, o := p.request, &p.Options
	mask, err := decodeImage(r.mask, left)
	if err != nil {
		return errs.Requestf("mask: %v", err)
	}
	r.mask = ""
	p.Sources = engine.Sources{
		Image: &sources[0], Mask: &picture.SourceImage{Path: "mask", SHA256: mask.SHA256}, References: sources[1:],
	}
	o.Image, o.References, o.Mask = images[0], images[1:], api.Mask(mask)
	o.ImageStrength = 0
	if r.denoising < 1 {
		o.ImageStrength = min(math.Nextafter(1, 0), 1-r.denoising)
	}
	o.Inpaint = gomflux.InpaintOptions{Invert: r.maskInvert, Feather: &r.maskBlur, Crop: r.maskPadding != nil}
	size := images[0].Bounds().Size()
	switch asked := image.Pt(r.width, r.height); {
	case o.Inpaint.Crop:
		o.Inpaint.Padding = *r.maskPadding
	case r.width > 0 && r.height > 0 && asked != size:
		o.Inpaint.NoPasteBack = true
		r.warn("all of the image was generated, since the size %v differs from its size %v", asked, size)
	}
	if err := api.CheckMask(o, picture.MaxPixels); err != nil {
		return errs.Requestf("mask: %v", err)
	}
	return nil
}
