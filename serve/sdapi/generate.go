package sdapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
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

// A generated is the response of txt2img and img2img.
type generated struct {
	Images     []string                   `json:"images"` // PNG files in base64
	Parameters map[string]json.RawMessage `json:"parameters"`
	Info       string                     `json:"info"` // an info as JSON
}

// An info describes the images of a response, in AUTOMATIC1111's fields. The settings are those
// that were used, which can differ from the request, see Warnings.
type info struct {
	Prompt                string         `json:"prompt"`
	AllPrompts            []string       `json:"all_prompts"`
	NegativePrompt        string         `json:"negative_prompt"`
	AllNegativePrompts    []string       `json:"all_negative_prompts"`
	Seed                  uint64         `json:"seed"`
	AllSeeds              []uint64       `json:"all_seeds"`
	Subseed               uint64         `json:"subseed"`
	AllSubseeds           []uint64       `json:"all_subseeds"`
	SubseedStrength       float64        `json:"subseed_strength"`
	Width                 int            `json:"width"`
	Height                int            `json:"height"`
	SamplerName           string         `json:"sampler_name"`
	CFGScale              float64        `json:"cfg_scale"`
	Steps                 int            `json:"steps"`
	BatchSize             int            `json:"batch_size"`
	RestoreFaces          bool           `json:"restore_faces"`
	FaceRestorationModel  *string        `json:"face_restoration_model"`
	SDModelName           string         `json:"sd_model_name"`
	SDModelHash           string         `json:"sd_model_hash"`
	SDVAEName             *string        `json:"sd_vae_name"`
	SDVAEHash             *string        `json:"sd_vae_hash"`
	SeedResizeFromW       int            `json:"seed_resize_from_w"`
	SeedResizeFromH       int            `json:"seed_resize_from_h"`
	DenoisingStrength     *float64       `json:"denoising_strength"`
	ExtraGenerationParams map[string]any `json:"extra_generation_params"`
	IndexOfFirstImage     int            `json:"index_of_first_image"`
	Infotexts             []string       `json:"infotexts"`
	Styles                []string       `json:"styles"`
	JobTimestamp          string         `json:"job_timestamp"`
	ClipSkip              int            `json:"clip_skip"`
	Inpainting            bool           `json:"is_using_inpainting_conditioning"`
	Version               string         `json:"version"`

	// Warnings lists what differs from the request. AUTOMATIC1111 does not have this field.
	Warnings []string `json:"warnings"`
}

func (h *Handler) txt2img(r *http.Request, f *fields) (any, error) {
	return h.generate(r.Context(), f, false)
}
func (h *Handler) img2img(r *http.Request, f *fields) (any, error) {
	return h.generate(r.Context(), f, true)
}

func (h *Handler) generate(ctx context.Context, f *fields, img2img bool) (*generated, error) {
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

// response describes finished images. After an interruption there may be no image.
func (p *plan) response(pictures []*engine.Picture) (*generated, error) {
	o, d := &p.Options, p.model.Defaults
	first := picture.Settings{
		Prompt: o.Prompt, NegativePrompt: o.NegativePrompt, Seed: p.Seeds[0], Steps: cmp.Or(o.Steps, d.Steps),
		Width: cmp.Or(o.Width, d.Width), Height: cmp.Or(o.Height, d.Height), Guidance: d.Guidance, GuidanceUnit: p.model.GuidanceUnit,
	}
	if len(pictures) > 0 {
		first = pictures[0].Result.Settings
	}
	out := info{
		Prompt: first.Prompt, NegativePrompt: first.NegativePrompt, Seed: first.Seed, Subseed: first.Seed,
		Width: first.Width, Height: first.Height, SamplerName: samplerName(first.Scheduler),
		CFGScale: max(first.TrueCFGScale, cfgScale(first.Guidance, first.GuidanceUnit)), Steps: first.Steps, BatchSize: p.request.batchSize,
		SDModelName: p.model.Name, SDModelHash: shortHash(p.model), ExtraGenerationParams: map[string]any{},
		Styles: []string{}, JobTimestamp: time.Now().Format(timestamp), ClipSkip: 1, Version: "gomflux " + gomflux.Version(),
		Warnings: append([]string{}, p.request.warnings...), AllPrompts: []string{}, AllNegativePrompts: []string{},
		AllSeeds: []uint64{}, AllSubseeds: []uint64{}, Infotexts: []string{},
	}
	if p.Options.Image != nil {
		out.DenoisingStrength = &p.request.denoising
	}
	images := []string{}
	for _, made := range pictures {
		file, text, err := p.encode(made)
		if err != nil {
			return nil, err
		}
		if p.request.sendImages {
			images = append(images, base64.StdEncoding.EncodeToString(file))
		}
		out.AllPrompts = append(out.AllPrompts, first.Prompt)
		out.AllNegativePrompts = append(out.AllNegativePrompts, first.NegativePrompt)
		out.AllSeeds, out.AllSubseeds = append(out.AllSeeds, made.Seed), append(out.AllSubseeds, made.Seed)
		out.Infotexts = append(out.Infotexts, text)
	}
	text, err := plainjson.Marshal(out, "")
	if err != nil {
		return nil, err
	}
	return &generated{images, p.request.echo, string(text)}, nil
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
