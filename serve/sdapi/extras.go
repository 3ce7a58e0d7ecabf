package sdapi

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// none is AUTOMATIC1111's name for no upscaler.
const none = "None"

// upscalerList lists what enlarges images after the entry that stands for no upscaler, which clients expect first.
func upscalerList(*http.Request) any {
	var list []any
	for _, u := range append([]api.Upscaler{{Name: none, Scale: 4}}, api.Upscalers()...) {
		list = append(list, map[string]any{"name": u.Name, "scale": u.Scale, "model_name": nil, "model_path": nil, "model_url": nil})
	}
	return list
}

func (h *Handler) extraImage(r *http.Request, f *fields) (any, error) {
	images, err := h.enlarge(r, f, []string{f.text("image")})
	if err != nil {
		return nil, err
	}
	return map[string]any{"html_info": "", "image": images[0]}, nil
}

func (h *Handler) extraImages(r *http.Request, f *fields) (any, error) {
	var list []struct {
		Data string `json:"data"`
	}
	f.read("imageList", &list, "a list of images")
	var texts []string
	for _, item := range list {
		texts = append(texts, item.Data)
	}
	images, err := h.enlarge(r, f, texts)
	return map[string]any{"html_info": "", "images": images}, err
}

// enlarge returns enlarged images as PNG files in base64.
func (h *Handler) enlarge(r *http.Request, f *fields, texts []string) ([]string, error) {
	name, o := f.text("upscaler_1"), gomflux.UpscaleOptions{}
	if f.integer("resize_mode", 0, 1, 0) == 1 {
		o.Width = f.integer("upscaling_resize_w", 1, picture.MaxSide, 512)
		o.Height = f.integer("upscaling_resize_h", 1, picture.MaxSide, 512)
	} else if o.Scale = 2; f.number("upscaling_resize") != nil {
		if o.Scale = *f.number("upscaling_resize"); !(o.Scale >= 1) {
			f.fail("upscaling_resize", "a number from 1")
		}
	}
	if f.err != nil {
		return nil, f.err
	}
	if len(texts) == 0 || len(texts) > maxImages {
		return nil, errs.Requestf("imageList: expected 1 to %d images, found %d", maxImages, len(texts))
	}
	if name != "" && !strings.EqualFold(name, none) {
		u, err := api.FindUpscaler(name)
		if err != nil {
			return nil, err
		}
		name = u.Name
	}
	left := api.InputPixels(h.MaxPixels)
	var images []image.Image
	for _, text := range texts {
		decoded, err := decodeImage(text, &left)
		if err != nil {
			return nil, errs.Requestf("image: %v", err)
		}
		images = append(images, decoded.Pixels())
	}
	if name != "" && !strings.EqualFold(name, none) {
		var large []image.Image
		q := &engine.Request{Client: engine.Client(r.Context()), Upscale: &engine.Upscaling{
			Upscaler: name, Images: images, UpscaleOptions: o, MaxPixels: h.MaxPixels,
			Done: func(img image.Image) { large = append(large, img) },
		}}
		if _, err := h.run(r.Context(), q); err != nil {
			return nil, err
		}
		images = large
	}
	var out []string
	for _, img := range images {
		var b bytes.Buffer
		if err := picture.Encode(&b, picture.PNG, img, nil); err != nil {
			return nil, err
		}
		out = append(out, base64.StdEncoding.EncodeToString(b.Bytes()))
	}
	return out, nil
}

// A hires is what enable_hr asks for: enlarging a generated image, and generating it again.
type hires struct {
	scale         float64
	width, height int
	upscaler      string
}

// unusedHires are the fields of enable_hr that have no effect here, with values that change nothing.
var unusedHires = map[string][]string{
	"hr_second_pass_steps": nil, "hr_checkpoint_name": {`"Use same checkpoint"`}, "hr_additional_modules": {`["Use same choices"]`},
	"hr_sampler_name": {`"Use same sampler"`}, "hr_scheduler": {`"Use same scheduler"`}, "hr_prompt": nil, "hr_negative_prompt": nil,
	"hr_cfg": {"1"}, "hr_distilled_cfg": {"3.5"}, "firstphase_width": nil, "firstphase_height": nil,
}

// readHires reads the fields of enable_hr.
func (r *request) readHires(f *fields) {
	if isOff(f.raw["enable_hr"], nil) {
		return
	}
	r.hires = &hires{scale: 2, width: f.integer("hr_resize_x", 0, picture.MaxSide, 0),
		height: f.integer("hr_resize_y", 0, picture.MaxSide, 0), upscaler: f.text("hr_upscaler")}
	if v := f.number("hr_scale"); v != nil {
		if r.hires.scale = *v; !(*v >= 1 && *v <= gomflux.LanczosScale) {
			f.fail("hr_scale", fmt.Sprintf("a number from 1 to %d", gomflux.LanczosScale))
		}
	}
	if v := f.number("denoising_strength"); v != nil {
		if r.denoising = *v; !(*v >= 0 && *v <= 1) {
			f.fail("denoising_strength", "a number from 0 to 1")
		}
	}
	var ignored []string
	for name, defaults := range unusedHires {
		if raw := f.raw[name]; len(raw) > 0 && !isOff(json.RawMessage(raw), defaults) {
			ignored = append(ignored, name)
		}
	}
	if slices.Sort(ignored); len(ignored) > 0 {
		r.warn("%s was ignored: the enlarged image has the other fields", strings.Join(ignored, ", "))
	}
}

// setHires sets how the generated image is enlarged.
func (p *plan) setHires(maxPixels int) error {
	hr, o := p.request.hires, &p.Options
	if hr == nil {
		return nil
	}
	e := &gomflux.EnlargeOptions{Upscaler: gomflux.Lanczos}
	if u, err := api.FindUpscaler(hr.upscaler); err == nil {
		e.Upscaler = u.Name
	} else {
		p.request.warn("hr_upscaler %s is not known, and %s was used (GET %supscalers lists those that are)", hr.upscaler,
			e.Upscaler, prefix)
	}
	width, height := cmp.Or(o.Width, p.model.Defaults.Width), cmp.Or(o.Height, p.model.Defaults.Height)
	e.Scale = hr.scale
	if hr.width > 0 || hr.height > 0 {
		e.Scale, e.Width, e.Height = 0, hr.width, hr.height
		hr.scale = max(float64(hr.width)/float64(width), float64(hr.height)/float64(height))
	}
	if float64(width)*float64(height)*hr.scale*hr.scale > float64(maxPixels) {
		return errs.Requestf("hr_scale %g: an image of %dx%d would have more than %d pixels (try %.2f)", hr.scale, width, height, maxPixels,
			engine.ScaleWithin(width, height, maxPixels))
	}
	if p.request.denoising > 0 {
		e.Refine = &gomflux.RefineOptions{Strength: min(math.Nextafter(1, 0), p.request.denoising)}
	}
	o.Enlarge = e
	return nil
}
