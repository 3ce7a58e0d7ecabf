package sdapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
)

const (
	maxImages = 64 // of a request
	maxInit   = 16 // images of an edit
)

// A request is the body of txt2img or img2img. Fields that the client did not send are zero.
type request struct {
	prompt, negative   string
	override           string // the model of override_settings
	keepOverride       bool   // the model stays chosen for later requests
	model              string
	width, height      int
	steps              int
	guidance           *float64 // CFG scale
	distilled          *float64 // Distilled CFG Scale of Forge, for models that take it as an input
	sampler, schedule  string
	seed               *uint64 // nil for random seeds
	batchSize, batches int
	denoising          float64
	init               []string
	mask               string // "" without one
	maskInvert         bool
	maskBlur           int
	maskPadding        *int   // nil for the whole image
	hires              *hires // nil without enable_hr
	sendImages         bool
	echo               map[string]json.RawMessage // the body without secrets and images
	warnings           []string
}

// parseRequest parses the body of txt2img or img2img.
func parseRequest(f *fields, img2img bool) (*request, error) {
	override := f.object("override_settings")
	r := &request{
		prompt: f.text("prompt"), negative: f.text("negative_prompt"),
		override: override.text("sd_model_checkpoint"), keepOverride: !f.flag("override_settings_restore_afterwards", true),
		model: f.text("model"),
		width: f.integer("width", 1, picture.MaxSide, 0), height: f.integer("height", 1, picture.MaxSide, 0),
		steps: f.integer("steps", 1, picture.MaxCount, 0), guidance: f.number("cfg_scale"), distilled: f.number("distilled_cfg_scale"),
		sampler: f.text("sampler_name"), schedule: f.text("scheduler"), seed: f.seed("seed"),
		batchSize: f.integer("batch_size", 1, maxImages, 1), batches: f.integer("n_iter", 1, maxImages, 1),
		denoising: 0.75, sendImages: f.flag("send_images", true),
	}
	if r.sampler == "" {
		r.sampler = f.text("sampler_index")
	}
	strength := "denoising_strength"
	if lenient := (&fields{raw: f.raw}); !f.has("cfg_scale") { // what Draw Things' clients send
		r.guidance = f.number("guidance_scale")
		r.sampler = cmp.Or(r.sampler, lenient.text("sampler")) // which can be a number too
	}
	if !f.has("n_iter") {
		r.batches = f.integer("batch_count", 1, maxImages, 1)
	}
	if !f.has(strength) {
		strength = "strength"
	}
	if v := f.number(strength); v != nil && img2img {
		if r.denoising = *v; !(*v >= 0 && *v <= 1) {
			f.fail(strength, "a number from 0 to 1")
		}
	}
	if img2img {
		r.init = f.texts("init_images")
		r.readMask(f)
	} else {
		r.readHires(f)
	}
	r.ignored(f, override)
	if err := f.err; err != nil {
		return nil, err
	}
	if override.err != nil {
		return nil, override.err
	}
	if n := r.batchSize * r.batches; n > maxImages {
		return nil, errs.Requestf("batch_size %d and n_iter %d: expected at most %d images, found %d", r.batchSize, r.batches, maxImages, n)
	}
	switch {
	case img2img && len(r.init) == 0:
		return nil, errs.Requestf("init_images: expected an image, found nothing")
	case len(r.init) > maxInit:
		return nil, errs.Requestf("init_images: expected at most %d images, found %d", maxInit, len(r.init))
	}
	r.echo = f.raw
	delete(r.echo, "url") // SillyTavern sends its own settings of the server too
	delete(r.echo, "auth")
	if img2img && !f.flag("include_init_images", false) {
		r.echo["init_images"] = json.RawMessage("null")
		r.echo["mask"] = json.RawMessage("null")
	}
	return r, nil
}

// readMask reads the mask of inpainting with its options, and their defaults in AUTOMATIC1111.
func (r *request) readMask(f *fields) {
	const fill = "inpainting_fill"
	if r.mask = f.text("mask"); r.mask == "" {
		return
	}
	r.maskInvert = f.integer("inpainting_mask_invert", 0, 1, 0) == 1
	r.maskBlur = f.integer("mask_blur", 0, 256, 4)
	if f.flag("inpaint_full_res", true) {
		padding := f.integer("inpaint_full_res_padding", 0, picture.MaxSide, 0)
		r.maskPadding = &padding
	}
	if f.has(fill) && f.integer(fill, 0, 3, 0) != 1 && r.denoising < 1 {
		r.warn("inpainting_fill was not used: the masked part starts from the image")
	}
}

// fields are the members of a JSON object, which are read as leniently as AUTOMATIC1111 does:
// null stands for a missing member, and numbers may be strings. err is the first error.
type fields struct {
	raw map[string]json.RawMessage
	err error
}

func readFields(r io.Reader) (*fields, error) {
	body, err := io.ReadAll(r)
	if err != nil {
		return nil, errs.Requestf("cannot read the body: %w", err)
	}
	raw, err := api.DecodeObject(body)
	if err != nil {
		return nil, invalid("the body: %v", err)
	}
	return &fields{raw: raw}, nil
}

// has reports whether the object has a member other than null.
func (f *fields) has(name string) bool { return len(f.raw[name]) > 0 && string(f.raw[name]) != "null" }

func (f *fields) fail(name, expected string) {
	if f.err == nil {
		found := f.raw[name]
		if len(found) > 40 {
			found = append(bytes.Clone(found[:40]), "..."...)
		}
		f.err = invalid("%s: expected %s, found %s", name, expected, found)
	}
}

// read decodes a member into v, if the object has it.
func (f *fields) read(name string, v any, expected string) {
	if f.has(name) && json.Unmarshal(f.raw[name], v) != nil {
		f.fail(name, expected)
	}
}

func (f *fields) text(name string) (s string) {
	f.read(name, &s, "a string")
	return s
}

func (f *fields) flag(name string, otherwise bool) bool {
	f.read(name, &otherwise, "true or false")
	return otherwise
}

func (f *fields) object(name string) *fields {
	o := &fields{}
	f.read(name, &o.raw, "an object")
	return o
}

// texts reads an array of strings, or a single one.
func (f *fields) texts(name string) (list []string) {
	if raw := f.raw[name]; len(raw) > 0 && raw[0] == '"' {
		return []string{f.text(name)}
	}
	f.read(name, &list, "an array of strings")
	return list
}

// literal reads a number, which may be a string, as it is written.
func (f *fields) literal(name string) string {
	raw, expected := f.raw[name], "a number"
	if len(raw) > 0 && raw[0] == '"' {
		var s string
		f.read(name, &s, expected)
		return strings.TrimSpace(s)
	}
	var n json.Number
	f.read(name, &n, expected)
	return n.String()
}

func (f *fields) number(name string) *float64 {
	s := f.literal(name)
	if s == "" {
		return nil
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		f.fail(name, "a number")
		return nil
	}
	return &v
}

func (f *fields) integer(name string, least, most, otherwise int) int {
	v := f.number(name)
	switch {
	case v == nil:
		return otherwise
	case *v != math.Trunc(*v) || *v < float64(least) || *v > float64(most):
		f.fail(name, "a whole number from "+strconv.Itoa(least)+" to "+strconv.Itoa(most))
		return otherwise
	}
	return int(*v)
}

// seed reads a seed. A negative one stands for a random seed, for which it returns nil.
func (f *fields) seed(name string) *uint64 {
	if n, err := strconv.ParseUint(f.literal(name), 10, 64); err == nil {
		return &n
	}
	v := f.number(name)
	switch {
	case v == nil || *v < 0:
		return nil
	case *v != math.Trunc(*v) || *v > 1<<53:
		f.fail(name, "a whole number")
		return nil
	}
	n := uint64(*v)
	return &n
}

// decodeImage decodes an image that is sent as base64 or as a data: URL. It is refused before its
// pixels are decoded if it has more than *left, from which it takes its own.
func decodeImage(text string, left *int) (*picture.Picture, error) {
	data, err := api.DecodeBase64(text)
	if err != nil {
		return nil, err
	}
	return api.DecodeImage(data, left)
}
