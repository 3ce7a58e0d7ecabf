package native

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

const (
	maxCount      = 64 // images of a job
	maxReferences = 16
	maxLoRAs      = 16
	maxLabel      = 1000 // bytes
	maxTokens     = 8192 // of a text
	maxBoxes      = 64
)

// A jsonRequest is the body of POST /api/v1/jobs. Its names are those of settings where they exist.
type jsonRequest struct {
	Model             string      `json:"model"`
	Prompt            string      `json:"prompt"`
	Enhance           *jsonWriter `json:"enhance"`
	OriginalPrompt    string      `json:"original_prompt"` // of a prompt that was rewritten before
	EnhancedBy        string      `json:"enhanced_by"`
	NegativePrompt    string      `json:"negative_prompt"`
	Height            int         `json:"height"`
	Width             int         `json:"width"`
	Steps             int         `json:"steps"`
	Guidance          *float64    `json:"guidance"`
	GuidanceUnit      string      `json:"guidance_unit"`
	GuidanceInterval  []float64   `json:"guidance_interval"`
	TrueCFGScale      float64     `json:"true_cfg_scale"`
	CFGNormalization  float64     `json:"cfg_normalization"`
	CFGTruncation     float64     `json:"cfg_truncation"`
	StepCache         string      `json:"step_cache"`
	Sigmas            []float64   `json:"sigmas"`
	Seed              json.Number `json:"seed"` // a string of digits too, for clients without 64-bit integers
	Count             *int        `json:"count"`
	MaxSequenceLength int         `json:"max_sequence_length"`
	Scheduler         string      `json:"scheduler"`
	RNG               string      `json:"rng"`
	Background        string      `json:"background"`
	Layers            int         `json:"layers"`
	LoRAs             []jsonLoRA  `json:"loras"`
	NoLoRATags        bool        `json:"no_lora_tags"`
	Image             *jsonImage  `json:"image"`
	ImageStrength     float64     `json:"image_strength"`
	References        []jsonImage `json:"references"`
	Mask              *jsonImage  `json:"mask"`
	InvertMask        bool        `json:"invert_mask"`
	MaskBlur          *int        `json:"mask_blur"`
	MaskCrop          *int        `json:"mask_crop"` // the padding
	Expand            []int       `json:"expand"`    // left, top, right, bottom
	NoPasteBack       bool        `json:"no_paste_back"`
	Enlarge           *jsonLarger `json:"enlarge"`
	Previews          *int        `json:"previews"`
	Label             string      `json:"label"`
}

// A jsonWriter is how a language model writes.
type jsonWriter struct {
	Model     string        `json:"model"`
	MaxTokens int           `json:"max_tokens"`
	Boxes     []gomflux.Box `json:"boxes"`
}

// A jsonLarger is how generated images are enlarged.
type jsonLarger struct {
	Upscaler string  `json:"upscaler"`
	Scale    float64 `json:"scale"`
	Refine   float64 `json:"refine"`
}

type jsonLoRA struct {
	Path string `json:"path"`
	api.LoRA
}

// A jsonImage is an image file.
type jsonImage struct {
	Name string `json:"name"`
	Data string `json:"data"` // base64, or a data URL
}

// readRequest reads the body of a request for a job.
func (a *API) readRequest(r *http.Request) (engine.Request, error) {
	var j jsonRequest
	if err := readJSON(r, &j); err != nil {
		return engine.Request{}, err
	}
	return a.request(r, j)
}

// readJSON reads a body that is a JSON object with the fields of into.
func readJSON(r *http.Request, into any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &api.Error{
			Status: http.StatusUnsupportedMediaType, Code: "bad_request", Message: "expected the content type application/json",
		}
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return errs.Requestf("the body: %w", err)
	}
	return api.DecodeJSON(text, into)
}

func (a *API) request(r *http.Request, j jsonRequest) (q engine.Request, err error) {
	if len(j.Label) > maxLabel {
		return q, errs.Requestf("label: %d bytes, expected at most %d", len(j.Label), maxLabel)
	}
	q = engine.Request{Client: engine.Client(r.Context()), Model: j.Model, Previews: -1, Label: j.Label, Options: gomflux.Options{
		Prompt: j.Prompt, OriginalPrompt: j.OriginalPrompt, EnhancedBy: j.EnhancedBy, NegativePrompt: j.NegativePrompt,
		Height: j.Height, Width: j.Width, Steps: j.Steps,
		Guidance: j.Guidance, GuidanceUnit: picture.GuidanceUnit(j.GuidanceUnit), GuidanceInterval: j.GuidanceInterval,
		TrueCFGScale: j.TrueCFGScale, CFGNormalization: j.CFGNormalization, CFGTruncation: j.CFGTruncation,
		StepCache: j.StepCache, Sigmas: j.Sigmas,
		MaxSequenceLength: j.MaxSequenceLength, Scheduler: gomflux.Scheduler(j.Scheduler), RNG: gomflux.RNG(j.RNG),
		Background: gomflux.Background(j.Background), Layers: j.Layers, ImageStrength: j.ImageStrength,
	}}
	q.Options.Inpaint = j.inpaint()
	if err := a.check(j); err != nil {
		return q, err
	}
	if j.Previews != nil {
		q.Previews = *j.Previews
	}
	if q.Seeds, err = j.seeds(); err != nil {
		return q, err
	}
	if w := j.Enhance; w != nil {
		q.Language = &gomflux.LanguageOptions{
			Model: w.Model, MaxTokens: w.MaxTokens, Boxes: w.Boxes, Seed: q.Seeds[0], Height: j.Height, Width: j.Width,
		}
	}
	if q.LoRAs, err = chooseLoRAs(j.LoRAs); err != nil {
		return q, err
	}
	if e := j.Enlarge; e != nil {
		if q.Options.Enlarge, err = api.Enlarge(e.Upscaler, e.Scale, e.Refine); err != nil {
			return q, errs.Requestf("enlarge: %v", err)
		}
	}
	if !j.NoLoRATags {
		if err := api.CutLoRAs(&q, a.LoRAs, maxLoRAs); err != nil {
			return q, errs.Requestf("prompt: %v", err)
		}
	}
	if err = a.decodeAll(j, &q); err == nil {
		err = api.CheckMask(&q.Options, api.InputPixels(a.MaxPixels))
	}
	return q, err
}

// inpaint returns the options for a mask.
func (j *jsonRequest) inpaint() gomflux.InpaintOptions {
	o := gomflux.InpaintOptions{Invert: j.InvertMask, Feather: j.MaskBlur, NoPasteBack: j.NoPasteBack}
	if j.MaskCrop != nil {
		o.Crop, o.Padding = true, *j.MaskCrop
	}
	if e := j.Expand; len(e) == 4 {
		o.Expand = gomflux.Border{Left: e[0], Top: e[1], Right: e[2], Bottom: e[3]}
	}
	return o
}

// decodeAll adds the images of a request to that for the engine.
func (a *API) decodeAll(j jsonRequest, q *engine.Request) error {
	pixels := api.InputPixels(a.MaxPixels) // left
	if j.Image != nil {
		img, source, err := decode("image", "image", *j.Image, &pixels)
		if err != nil {
			return err
		}
		q.Options.Image, q.Sources.Image = img.Pixels(), &source
	}
	if j.Mask != nil {
		mask, source, err := decode("mask", "mask", *j.Mask, &pixels)
		if err != nil {
			return err
		}
		q.Options.Mask, q.Sources.Mask = api.Mask(mask), &source
	}
	for i, ref := range j.References {
		img, source, err := decode(fmt.Sprintf("references[%d]", i), fmt.Sprintf("reference-%d", i+1), ref, &pixels)
		if err != nil {
			return err
		}
		q.Options.References = append(q.Options.References, img.Pixels())
		q.Sources.References = append(q.Sources.References, source)
	}
	return nil
}

// check checks what does not depend on the model.
func (a *API) check(j jsonRequest) error {
	for name, n := range map[string]int{
		"height": j.Height, "width": j.Width, "steps": j.Steps, "max_sequence_length": j.MaxSequenceLength,
	} {
		if n < 0 {
			return errs.Requestf("%s %d: expected a positive number", name, n)
		}
	}
	switch {
	case j.Enhance != nil && (j.Enhance.MaxTokens < 0 || j.Enhance.MaxTokens > maxTokens):
		return errs.Requestf("enhance.max_tokens %d: expected 0 to %d", j.Enhance.MaxTokens, maxTokens)
	case j.Enhance != nil && len(j.Enhance.Boxes) > maxBoxes:
		return errs.Requestf("enhance.boxes: %d boxes, expected at most %d", len(j.Enhance.Boxes), maxBoxes)
	case j.Count != nil && (*j.Count < 1 || *j.Count > maxCount):
		return errs.Requestf("count %d: expected 1 to %d", *j.Count, maxCount)
	case j.Previews != nil && *j.Previews < -1:
		return errs.Requestf("previews %d: expected -1 (after each step), 0 (no previews) or a number", *j.Previews)
	case len(j.References) > maxReferences:
		return errs.Requestf("%d references: expected at most %d", len(j.References), maxReferences)
	case len(j.LoRAs) > maxLoRAs:
		return errs.Requestf("%d loras: expected at most %d", len(j.LoRAs), maxLoRAs)
	case j.Image == nil && j.ImageStrength != 0:
		return errs.Requestf("image_strength needs an image")
	}
	return j.checkMask()
}

// checkMask checks the options for a mask.
func (j *jsonRequest) checkMask() error {
	e := j.Expand
	outside := func(n int) bool { return n < 0 || n > picture.MaxSide }
	switch {
	case e != nil && (len(e) != 4 || slices.ContainsFunc(e, outside)):
		return errs.Requestf("expand %v: expected four numbers of pixels, left, top, right and bottom", e)
	case j.MaskBlur != nil && outside(*j.MaskBlur):
		return errs.Requestf("mask_blur %d: expected a number of pixels, 0 or more", *j.MaskBlur)
	case j.MaskCrop != nil && outside(*j.MaskCrop):
		return errs.Requestf("mask_crop %d: expected a number of pixels, 0 or more", *j.MaskCrop)
	}
	return nil
}

// seeds returns the seeds of the images.
func (j jsonRequest) seeds() ([]uint64, error) {
	n := 1
	if j.Count != nil {
		n = *j.Count
	}
	if j.Seed == "" {
		return api.Seeds(nil, n), nil
	}
	first, err := strconv.ParseUint(string(j.Seed), 10, 64)
	if err != nil || first > math.MaxUint64-uint64(n-1) {
		return nil, errs.Requestf("seed %s: expected a whole number from 0 to 2^64-%d", j.Seed, n)
	}
	return api.Seeds(&first, n), nil
}

// chooseLoRAs returns the LoRAs that change something.
func chooseLoRAs(asked []jsonLoRA) (chosen []gomflux.LoRA, err error) {
	for i, l := range asked {
		if l.Path == "" {
			return nil, errs.Requestf("loras[%d].path is missing", i)
		}
		chosen = l.AppendTo(chosen, l.Path)
	}
	return chosen, nil
}

// decode decodes an image of a request if it has at most some number of pixels, from which it
// subtracts them.
func decode(field, name string, j jsonImage, pixels *int) (*picture.Picture, picture.SourceImage, error) {
	var none picture.SourceImage
	data, err := api.DecodeBase64(j.Data)
	if err != nil {
		return nil, none, errs.Requestf("%s.data: %v", field, err)
	}
	pic, err := api.DecodeImage(data, pixels)
	if err != nil {
		return nil, none, errs.Requestf("%s: %v", field, err)
	}
	if base := path.Base(strings.ToValidUTF8(j.Name, "")); j.Name != "" && base != "/" && len(base) <= 255 {
		name = base
	} else {
		name += "." + strings.ToLower(pic.Format.String())
	}
	return pic, picture.SourceImage{Path: name, SHA256: pic.SHA256}, nil
}
