package sdapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/plainjson"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// generate answers txt2img or img2img.
func (h *Handler) generate(ctx context.Context, f *fields, img2img bool) (any, error) {
	req, err := parseRequest(f, img2img)
	if err != nil {
		return nil, err
	}
	p, err := h.plan(ctx, req)
	if err != nil {
		return nil, err
	}
	job, err := h.run(ctx, &p.Request)
	if err != nil && (job == nil || err != errInterrupted) {
		return nil, p.sent(err)
	}
	p.request.warnings = append(p.request.warnings, job.Status().Warnings...)
	pictures := job.Pictures()
	if err != nil {
		p.request.warn("interrupted after %d of %d images", len(pictures), len(p.Seeds))
	}
	return p.response(pictures)
}

// sent returns an error about the guidance scale with the field and the value that the client sent.
func (p *plan) sent(err error) error {
	text, isGuidance := strings.CutPrefix(err.Error(), "guidance ")
	if !isGuidance || !errors.Is(err, gomflux.ErrRequest) || p.Options.Guidance == nil {
		return err
	}
	name := "cfg_scale"
	if p.Options.Guidance == p.request.distilled {
		name = "distilled_cfg_scale"
	}
	_, reason, _ := strings.Cut(text, ": ")
	return errs.Requestf("%s %g: %s", name, *p.Options.Guidance, reason)
}

// errInterrupted is the error of a job that its client has ended.
var errInterrupted = &api.Error{Status: http.StatusServiceUnavailable, Message: "the job was interrupted"}

// run runs a job to its end, and cancels it if the client goes away. Without a job, it was refused, or nobody reads
// the response.
func (h *Handler) run(ctx context.Context, q *engine.Request) (api.Job, error) {
	job, err := h.engine.Submit(ctx, *q)
	if err != nil {
		return nil, err
	}
	q.Options.ForgetPrepared() // the engine has a copy
	defer job.Cancel()         // has no effect on a job that has ended
	run := h.begin(q.Client, job)
	defer h.end(q.Client, run)
	for e := range job.Events(ctx, 0) {
		if e.Kind == engine.EventPreview {
			run.show(e.Preview)
		}
	}
	err = job.Wait(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, &api.Error{Status: http.StatusServiceUnavailable, Message: "the request was canceled"}
	case errors.Is(err, context.Canceled):
		err = errInterrupted
	}
	return job, err
}

// response describes finished images, in AUTOMATIC1111's fields. The settings are those that were used, which can differ
// from the request: that is in warnings, a field that AUTOMATIC1111 does not have. After an interruption there may be no image.
func (p *plan) response(pictures []*engine.Picture) (any, error) {
	o, d := &p.Options, p.model.Defaults
	first := picture.Settings{
		Prompt: o.Prompt, NegativePrompt: o.NegativePrompt, Seed: p.Seeds[0], Steps: cmp.Or(o.Steps, d.Steps),
		Width: cmp.Or(o.Width, d.Width), Height: cmp.Or(o.Height, d.Height), Guidance: d.Guidance, GuidanceUnit: p.model.GuidanceUnit,
	}
	if len(pictures) > 0 {
		first = pictures[0].Result.Settings
	}
	images, prompts, negatives, infotexts, seeds := []string{}, []string{}, []string{}, []string{}, []uint64{}
	for _, made := range pictures {
		file, text, err := p.encode(made)
		if err != nil {
			return nil, err
		}
		if p.request.sendImages {
			images = append(images, base64.StdEncoding.EncodeToString(file))
		}
		prompts, negatives = append(prompts, first.Prompt), append(negatives, first.NegativePrompt)
		seeds, infotexts = append(seeds, made.Seed), append(infotexts, text)
	}
	var denoising *float64
	if o.Image != nil {
		denoising = &p.request.denoising
	}
	info, err := plainjson.Marshal(map[string]any{
		"prompt": first.Prompt, "all_prompts": prompts, "negative_prompt": first.NegativePrompt, "all_negative_prompts": negatives,
		"seed": first.Seed, "all_seeds": seeds, "subseed": first.Seed, "all_subseeds": seeds, "subseed_strength": 0,
		"seed_resize_from_w": 0, "seed_resize_from_h": 0, "width": first.Width, "height": first.Height,
		"sampler_name": samplerName(first.Scheduler), "steps": first.Steps, "batch_size": p.request.batchSize,
		"cfg_scale":     max(first.TrueCFGScale, cfgScale(first.Guidance, first.GuidanceUnit)),
		"restore_faces": false, "face_restoration_model": nil,
		"sd_model_name": p.model.Name, "sd_model_hash": shortHash(p.model), "sd_vae_name": nil, "sd_vae_hash": nil,
		"denoising_strength": denoising, "extra_generation_params": struct{}{}, "index_of_first_image": 0, "infotexts": infotexts,
		"styles": []string{}, "job_timestamp": time.Now().Format(timestamp), "clip_skip": 1, "is_using_inpainting_conditioning": false,
		"version": "gomflux " + gomflux.Version(), "warnings": append([]string{}, p.request.warnings...),
	}, "")
	return map[string]any{"images": images, "parameters": p.request.echo, "info": string(info)}, err
}

// encode returns the PNG file of an image, the same as the command writes, and its parameters
// text.
func (p *plan) encode(made *engine.Picture) (file []byte, parameters string, err error) {
	s := made.Result.Settings
	var b bytes.Buffer
	if err := api.EncodePNG(&b, made.Result.Pixels(), s); err != nil {
		return nil, "", err
	}
	if api.Recorded(s) != nil {
		found, err := picture.ReadSettings(bytes.NewReader(b.Bytes()))
		if err != nil {
			return nil, "", err
		}
		parameters = found.Parameters
	}
	return b.Bytes(), parameters, nil
}
