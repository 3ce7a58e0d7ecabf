package openai

import (
	"bytes"
	"cmp"
	"encoding/json"
	"image"
	"io"
	"math"
	"mime"
	"mime/multipart"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

const (
	maxN        = 10
	maxPartial  = 3
	maxLoRAs    = 16
	leastKept   = 1e-6 // stands for nothing of the image to start from, since 0 is a default
	sideDigits  = 6
	opaque      = "opaque"
	transparent = "transparent"
	autoSize    = "auto"
	asURL       = "url"
	asJSON      = "b64_json"
	outputPNG   = "png"
	outputJPEG  = "jpeg"
	outputWebP  = "webp"
	maxWebPSide = 1 << 14
	qualityHigh = "high"
)

// A request is a request for images.
type request struct {
	edit     bool
	job      engine.Request
	warnings []string

	quality     string // as answered
	format      string // of the answer's images
	compression int    // of JPEG, 0 for the default
	url         bool   // whether to answer with URLs
	stream      bool
	size        string // WxH, or auto

	inputUnits int // image tokens of the input
}

// read reads the body of a request, of at most limit bytes.
func (h *Handler) read(w http.ResponseWriter, r *http.Request, limit int64,
	parse func(body io.Reader, kind, boundary string) (*form, error),
) (*form, error) {
	kind, attributes, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil && r.Header.Get("Content-Type") != "" {
		return nil, failure(http.StatusUnsupportedMediaType, "unsupported_media_type", "Content-Type: %v", err)
	}
	if r.ContentLength > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	body := http.MaxBytesReader(w, r.Body, limit)
	f, err := parse(body, kind, attributes["boundary"])
	if err == nil {
		// the server notices that a client goes away only after the end of the body
		if _, err = io.Copy(io.Discard, body); err != nil {
			err = broken(err)
		}
	}
	return f, err
}

func readBody(body io.Reader, kind, boundary string, edit bool) (*form, error) {
	switch {
	case kind == "multipart/form-data" && edit:
		if boundary == "" {
			return nil, failure(400, "invalid_form", "Content-Type multipart/form-data: the boundary is missing")
		}
		return parseForm(multipart.NewReader(body, boundary))
	case edit:
		return readJSON(body, kind, "multipart/form-data or application/json", edit)
	}
	return readJSON(body, kind, "application/json", edit)
}

// readJSON reads a body with the fields of a request for images.
func readJSON(body io.Reader, kind, expected string, edit bool) (*form, error) {
	f, err := readFields(body, kind, expected, func(name string) error { return checkName(name, edit) })
	if err == nil && edit {
		err = f.takeImages()
	}
	return f, err
}

// readFields reads a body that is a JSON object.
func readFields(body io.Reader, kind, expected string, check func(name string) error) (*form, error) {
	if kind != "" && kind != "application/json" {
		return nil, failure(http.StatusUnsupportedMediaType, "unsupported_media_type",
			"Content-Type: expected %s, found %s", expected, quoted(kind))
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return nil, broken(err)
	}
	fields, err := parseJSON(bytes.TrimSpace(data), check)
	return &form{fields: fields}, err
}

// parse returns the request of a form. It opens no file and fetches no URL.
func (h *Handler) parse(f *form, edit bool) (*request, error) {
	r := &request{edit: edit}
	for _, step := range []func(fields) error{r.parsePrompt, r.parseOutput, r.parseAnswer, h.sizeOf(r), r.parseSampling, r.parseSeeds} {
		if err := step(f.fields); err != nil {
			return nil, err
		}
	}
	strength, given, err := f.fields.float("strength")
	switch {
	case err != nil:
		return nil, err
	case given && !edit:
		return nil, invalid("strength", "has no effect without an image: use /v1/images/edits")
	case given && !(strength > 0 && strength <= 1):
		return nil, invalid("strength", "expected a number above 0 and at most 1, found %g", strength)
	case edit && len(f.images) == 0:
		return nil, invalid("image", "is missing")
	case given && len(f.images) > 1 && f.mask == nil:
		return nil, invalid("strength", "needs a single image to start from, found %d images", len(f.images))
	}
	name, err := f.fields.string("model")
	if err != nil {
		return nil, err
	}
	model, warning, err := resolve(h.engine.Models(), name, edit && !given && f.mask == nil)
	if err != nil {
		return nil, err
	}
	r.job.Model = model.Name
	if warning != "" {
		r.warnings = append(r.warnings, warning)
	}
	if r.job.Options.Background == gomflux.TransparentBackground && !model.HasAlpha {
		return nil, noTransparency(h.engine.Models(), model)
	}
	if r.job.LoRAs, err = h.loras(f.fields); err != nil {
		return nil, err
	}
	if h.config.LoRAs != nil {
		if err := api.CutLoRAs(&r.job, h.config.LoRAs, maxLoRAs); err != nil {
			return nil, invalid(promptField, "%v", err)
		}
	}
	if !edit {
		return r, nil
	}
	masked := f.mask != nil
	decoded, sources, err := f.decode(h.config.MaxInputPixels)
	if err != nil {
		return nil, err
	}
	if masked {
		last := len(decoded) - 1
		if last > 1 && !model.Edits {
			return nil, invalid("image", "%s takes one image with a mask, found %d", model.Name, last)
		}
		if err := r.setMask(decoded[0].Image, decoded[last]); err != nil {
			return nil, err
		}
		r.job.Sources.Mask = &sources[last]
		decoded, sources = decoded[:last], sources[:last]
	}
	r.setImages(decoded, sources, strength)
	for i, p := range decoded {
		if p.Transparent != nil && !model.HasAlpha {
			r.warnings = append(r.warnings, "the transparent pixels of image "+strconv.Itoa(i+1)+" are white for "+model.Name)
		}
	}
	return r, nil
}

// setImages sets the images to edit, or with a strength or a mask the image to start from.
func (r *request) setImages(decoded []*picture.Picture, sources []picture.SourceImage, strength float64) {
	var images []image.Image
	for _, p := range decoded {
		images = append(images, p.Pixels())
		r.inputUnits += imageTokens(p.Image.Rect.Dx(), p.Image.Rect.Dy())
	}
	o, from := &r.job.Options, &r.job.Sources
	if strength == 0 && o.Mask == nil {
		o.References, from.References = images, sources
		return
	}
	o.Image, from.Image = images[0], &sources[0]
	if len(images) > 1 {
		o.References, from.References = images[1:], sources[1:]
	}
	if strength == 0 {
		return
	}
	// rounded, since 1-0.9 is less than 0.1, which would leave out a step less
	o.ImageStrength = math.Round((1-strength)*1e9) / 1e9
	if o.Mask == nil {
		o.ImageStrength = max(o.ImageStrength, leastKept)
	}
}

// setMask sets the mask of an image: its transparent pixels. If the request has another size than the
// image, all of the image is generated in that size.
func (r *request) setMask(img *image.RGBA, mask *picture.Picture) error {
	o := &r.job.Options
	size := img.Rect.Size()
	if found := mask.Image.Rect.Size(); found != size {
		return invalid(maskField, "expected %dx%d pixels, the size of the image, found %dx%d", size.X, size.Y, found.X, found.Y)
	}
	if mask.Alpha == nil {
		return invalid(maskField, "has no transparent pixels (the transparent part of the mask is edited)")
	}
	o.Mask = mask.Alpha
	if o.Width > 0 && image.Pt(o.Width, o.Height) != size {
		o.Inpaint.NoPasteBack = true
		r.warnings = append(r.warnings, "all of the image was generated, since size differs from its size")
	}
	return nil
}

func (r *request) parsePrompt(f fields) (err error) {
	o := &r.job.Options
	for _, text := range []struct {
		name string
		to   *string
	}{{promptField, &o.Prompt}, {"negative_prompt", &o.NegativePrompt}} {
		if *text.to, err = f.string(text.name); err != nil {
			return err
		}
		if n := utf8.RuneCountInString(*text.to); n > maxPrompt {
			return invalid(text.name, "expected at most %d characters, found %d", maxPrompt, n)
		}
	}
	if _, ok := f[promptField]; !ok {
		return invalid(promptField, "is missing")
	}
	return nil
}

// parseOutput reads how the images are to look and how they are encoded.
func (r *request) parseOutput(f fields) error {
	quality, err := f.word("quality", "auto", "low", "medium", qualityHigh, "xhigh", "max", "standard", "hd")
	if err != nil {
		return err
	}
	switch r.quality = quality; quality {
	case "auto", "hd":
		r.quality = qualityHigh
	case "standard":
		r.quality = "medium"
	}
	if quality != "auto" {
		r.warnings = append(r.warnings, "quality has no effect: use steps")
	}
	background, err := f.word("background", "auto", opaque, transparent)
	if err != nil {
		return err
	}
	r.job.Options.Background = gomflux.Background(background)
	if r.format, err = f.word("output_format", outputPNG, outputJPEG, outputWebP, "gif", "svg"); err != nil {
		return err
	}
	if r.format == "gif" || r.format == "svg" {
		return unsupported("output_format", "this server does not write %s (expected png, jpeg or webp)", r.format)
	}
	if background == transparent && r.format == outputJPEG {
		return invalid("background", "jpeg images are opaque (expected output_format png or webp)")
	}
	compression, given, err := f.int("output_compression", 0, 100)
	switch {
	case err != nil:
		return err
	case given && r.format == outputPNG && compression != 100:
		return invalid("output_compression", "png images are always compressed without loss (expected 100, or output_format jpeg)")
	case given && r.format == outputJPEG:
		r.compression = max(1, compression)
	case given && r.format == outputWebP && compression != 100:
		r.warnings = append(r.warnings, "output_compression has no effect: webp images are written without loss (jpeg has it)")
	}
	return nil
}

// parseAnswer reads how the images are to be sent.
func (r *request) parseAnswer(f fields) error {
	format, err := f.word("response_format", asJSON, asURL)
	if err != nil {
		return err
	}
	r.url = format == asURL
	if r.stream, err = f.bool("stream"); err != nil {
		return err
	}
	partial, _, err := f.int("partial_images", 0, maxPartial)
	if err != nil {
		return err
	}
	if !r.stream {
		return nil
	}
	if r.url {
		return invalid("response_format", "events have their images as b64_json")
	}
	r.job.Previews = partial
	return nil
}

var sizes = regexp.MustCompile(`^([1-9]\d*)x([1-9]\d*)$`)

// sizeOf returns a function that reads the size of the images.
func (h *Handler) sizeOf(r *request) func(fields) error {
	return func(f fields) error {
		text, err := f.string("size")
		if err != nil {
			return err
		}
		r.size = autoSize
		if text == "" || text == autoSize {
			return nil
		}
		m := sizes.FindStringSubmatch(text)
		if m == nil || len(m[1]) > sideDigits || len(m[2]) > sideDigits {
			return invalid("size", "expected auto or a width and height such as 1024x768, found %s", quoted(text))
		}
		width, _ := strconv.Atoi(m[1])
		height, _ := strconv.Atoi(m[2])
		if side := max(width, height); side > picture.MaxSide {
			return invalid("size", "%s: a side has at most %d pixels", text, picture.MaxSide)
		}
		if side := max(width, height); r.format == outputWebP && side > maxWebPSide {
			return invalid("size", "%s: a webp image has at most %d pixels a side (try output_format png)", text, maxWebPSide)
		}
		r.size, r.job.Options.Width, r.job.Options.Height = text, width, height
		return nil
	}
}

func (r *request) parseSampling(f fields) error {
	o := &r.job.Options
	name, err := f.either("steps", "num_inference_steps")
	if err != nil {
		return err
	}
	if o.Steps, _, err = f.int(name, 1, picture.MaxCount); err != nil {
		return err
	}
	if name, err = f.either("guidance", "guidance_scale"); err != nil {
		return err
	}
	guidance, given, err := f.float(name)
	if err != nil {
		return err
	}
	if given {
		o.Guidance = &guidance
	}
	scheduler, err := f.string("scheduler")
	o.Scheduler = gomflux.Scheduler(scheduler)
	return err
}

// parseSeeds sets the seeds: those from seed on, or random ones.
func (r *request) parseSeeds(f fields) error {
	n, given, err := f.int("n", 1, maxN)
	if err != nil {
		return err
	}
	if !given {
		n = 1
	}
	seed, err := f.seed("seed")
	if err != nil {
		return err
	}
	r.job.Seeds = api.Seeds(seed, n)
	return nil
}

// loras reads the LoRAs. Their names are those that the server knows, never files.
func (h *Handler) loras(f fields) (all []gomflux.LoRA, err error) {
	v, ok := f["loras"]
	if !ok {
		return nil, nil
	}
	var list []struct {
		Name    string   `json:"name"`
		Scale   *float64 `json:"scale"`
		Partial bool     `json:"partial"`
	}
	d := json.NewDecoder(strings.NewReader(v.text))
	d.DisallowUnknownFields()
	if err := d.Decode(&list); err != nil {
		return nil, invalid("loras", `expected [{"name": "…", "scale": 1}]: %v`, err)
	}
	if len(list) > maxLoRAs {
		return nil, invalid("loras", "expected at most %d, found %d", maxLoRAs, len(list))
	}
	for _, l := range list {
		if l.Name == "" {
			return nil, invalid("loras", "a name is missing")
		}
		if h.config.LoRA == nil {
			return nil, invalid("loras", "this server has no LoRAs")
		}
		known, err := h.config.LoRA(l.Name)
		if err != nil {
			e := publicError(err)
			if e.status == http.StatusNotFound {
				param := "loras"
				e.Param = &param
			}
			return nil, e
		}
		known.Partial = l.Partial
		if l.Scale != nil {
			known.Scale = *l.Scale
			if known.Scale == 0 {
				continue // has no effect, and gomflux reads 0 as the default
			}
		}
		all = append(all, known)
	}
	return all, nil
}

// theirs matches the names of OpenAI's models, and Open WebUI's default among them.
var theirs = regexp.MustCompile(`^(gpt-image|dall-e|chatgpt-image)-`)

// resolve returns the model of a name, with a warning if it is another than the name suggests. An
// edit needs a model that takes reference images.
func resolve(models []engine.ModelInfo, name string, edit bool) (*engine.ModelInfo, string, error) {
	if name != "" && !theirs.MatchString(name) {
		return named(models, name, edit)
	}
	i := slices.IndexFunc(models, func(m engine.ModelInfo) bool { return m.Default })
	if i < 0 {
		return nil, "", unknownModel("the server has no default model: name one of %s", usable(models))
	}
	m := &models[i]
	if edit && !m.Edits {
		editor := slices.IndexFunc(models, func(m engine.ModelInfo) bool { return m.Edits && m.Missing == "" })
		if editor < 0 {
			return nil, "", cannotEdit(models, m)
		}
		m = &models[editor]
		return m, m.Name + " was used: " + models[i].Name + " takes no reference images", nil
	}
	if m.Missing != "" {
		return nil, "", unknownModel("model %s: %s", m.Name, m.Missing)
	}
	if name != "" {
		return m, m.Name + " was used, since " + name + " is a model of OpenAI", nil
	}
	return m, "", nil
}

func named(models []engine.ModelInfo, name string, edit bool) (*engine.ModelInfo, string, error) {
	i := slices.IndexFunc(models, func(m engine.ModelInfo) bool { return m.Is(name) })
	switch {
	case i < 0:
		return nil, "", unknownModel("model %s: is not a model of this server (expected one of %s)", quoted(name), usable(models))
	case models[i].Missing != "":
		return nil, "", unknownModel("model %s: %s", name, models[i].Missing)
	case edit && !models[i].Edits:
		return nil, "", cannotEdit(models, &models[i])
	}
	return &models[i], "", nil
}

func cannotEdit(models []engine.ModelInfo, m *engine.ModelInfo) error {
	hint := "give strength to start from the image"
	if editors := names(models, " or ", func(m *engine.ModelInfo) bool { return m.Edits }); editors != "" {
		hint = "use " + editors + ", or " + hint
	}
	return unsupported("model", "%s takes no reference images (%s)", m.Name, hint)
}

func noTransparency(models []engine.ModelInfo, m *engine.ModelInfo) error {
	able := names(models, " or ", func(m *engine.ModelInfo) bool { return m.HasAlpha })
	if able == "" {
		return unsupported("background", "no model of this server generates transparent images (expected opaque or auto)")
	}
	return unsupported("background", "the images of %s are opaque (use %s)", m.Name, able)
}

// usable lists the models that are there.
func usable(models []engine.ModelInfo) string {
	return cmp.Or(names(models, ", ", func(*engine.ModelInfo) bool { return true }), "no models")
}

// names joins the names of the models that are there and can do something.
func names(models []engine.ModelInfo, between string, can func(*engine.ModelInfo) bool) string {
	var list []string
	for _, m := range models {
		if m.Missing == "" && can(&m) {
			list = append(list, m.Name)
		}
	}
	return strings.Join(list, between)
}

func unknownModel(format string, args ...any) error {
	e := failure(http.StatusNotFound, "model_not_found", format, args...)
	param := "model"
	e.Param = &param
	return e
}

// header writes the warnings and the name of the model.
func (r *request) header(h http.Header) {
	for _, text := range r.warnings {
		h.Add("X-Gomflux-Warning", ascii(text))
	}
	h.Set("X-Gomflux-Model", ascii(r.job.Model))
}

// ascii escapes characters that headers cannot have.
func ascii(text string) string {
	q := strconv.QuoteToASCII(text)
	return q[1 : len(q)-1]
}

// unix returns the seconds of a time, now if it is zero.
func unix(t, now time.Time) int64 {
	if t.IsZero() {
		t = now
	}
	return t.Unix()
}
