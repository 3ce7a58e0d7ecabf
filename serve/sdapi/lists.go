package sdapi

import (
	"bytes"
	"cmp"
	"net/http"
	"strings"

	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// modelList lists the models that can be used. Clients choose one by its title.
func (h *Handler) modelList(*http.Request) any {
	list := []any{}
	for _, m := range h.engine.Models() {
		if m.Missing != "" {
			continue
		}
		var hash any // null if it is not known
		if short := shortHash(m); short != "" {
			hash = short
		}
		list = append(list, map[string]any{
			"title": m.Name, "model_name": m.Name, "hash": hash, "sha256": nil, "filename": m.Name, "config": nil,
		})
	}
	return list
}

// shortHash returns the beginning of a model's commit.
func shortHash(m engine.ModelInfo) string { return m.Revision[:min(10, len(m.Revision))] }

// samplerList lists the schedulers, which AUTOMATIC1111 calls samplers.
func samplerList(*http.Request) any {
	list := []any{}
	for _, c := range scheduler.All {
		list = append(list, map[string]any{
			"name": samplerName(c.Name), "aliases": []string{c.Name, c.ClassName}, "options": struct{}{},
		})
	}
	return list
}

// samplerName returns AUTOMATIC1111's name of a scheduler, such as Euler.
func samplerName(name string) string {
	for _, c := range scheduler.All {
		if c.Name == name && c.ShortName != "" {
			name = c.ShortName
		}
	}
	if name == "" {
		return ""
	}
	return strings.ToUpper(name[:1]) + name[1:]
}

// schedulerList lists the noise schedules: only the model's own.
func schedulerList(*http.Request) any {
	return []any{map[string]any{"name": "automatic", "label": "Automatic", "aliases": nil, "default_rho": -1, "need_inner_model": false}}
}

// loraList lists LoRAs that prompts can name.
func (h *Handler) loraList(*http.Request) any {
	list := []any{}
	for _, name := range h.LoRAs() {
		tag := (&picture.LoRA{Path: name}).Tag()
		list = append(list, map[string]any{"name": tag, "alias": tag, "path": name, "metadata": struct{}{}})
	}
	return list
}

// pngInfo answers png-info: the settings in an image file. Without any, the text is empty.
func (h *Handler) pngInfo(_ *http.Request, f *fields) (any, error) {
	data, err := api.DecodeBase64(f.text("image"))
	if err = cmp.Or(f.err, err); err != nil {
		return nil, err
	}
	info, parameters := "", map[string]any{}
	if found, err := picture.ReadSettings(bytes.NewReader(data)); err == nil {
		s := found.Settings
		info = found.Parameters
		parameters = map[string]any{
			"Prompt": s.Prompt, "Negative prompt": s.NegativePrompt, "Steps": s.Steps, "Seed": s.Seed,
			"Size-1": s.Width, "Size-2": s.Height,
			"Sampler": samplerName(s.Scheduler), "CFG scale": cfgScale(s.Guidance, s.GuidanceUnit), "Model": s.Model,
		}
	}
	return map[string]any{"info": info, "items": map[string]string{"parameters": info}, "parameters": parameters}, nil
}

// options returns the options of the client. Clients change one and send all of them back.
func (h *Handler) options(r *http.Request) any {
	m, _ := h.current(engine.Client(r.Context()))
	return map[string]any{
		"sd_model_checkpoint": m.Name, "sd_checkpoint_hash": shortHash(m), "sd_vae": "Automatic", "samples_format": "png",
		"CLIP_stop_at_last_layers": 1, "eta_noise_seed_delta": 0, "live_previews_enable": true, "img2img_fix_steps": false,
	}
}

// setOptions chooses the model of the client's next requests. Other options are ignored.
func (h *Handler) setOptions(r *http.Request, f *fields) (any, error) {
	name := f.text("sd_model_checkpoint")
	if f.err != nil || name == "" {
		return nil, f.err
	}
	return nil, h.choose(engine.Client(r.Context()), name)
}

// drawThings returns the settings that Draw Things' server has at /.
func (h *Handler) drawThings(client string) any {
	m, _ := h.current(client)
	d := m.Defaults
	guidance := d.Guidance // of models with a distilled scale it is that
	if m.GuidanceUnit != picture.DistilledCFGScale {
		guidance = cfgScale(guidance, m.GuidanceUnit)
	}
	return map[string]any{
		"model": m.Name, "upscaler": nil, "refiner_model": nil, "sampler": samplerName(scheduler.All[0].Name),
		"prompt": "", "negative_prompt": d.NegativePrompt, "steps": d.Steps, "guidance_scale": guidance,
		"width": d.Width, "height": d.Height, "seed": -1, "strength": 1, "batch_size": 1, "batch_count": 1,
		"loras": []string{}, "controls": []string{},
	}
}
