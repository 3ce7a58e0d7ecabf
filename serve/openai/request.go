package openai

import (
	"cmp"
	"encoding/json"
	"image"
	"io"
	"math"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
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
	exchange
	edit bool

	quality     string // as answered
	format      string // of the answer's images
	compression int    // of JPEG, 0 for the default
	url         bool   // whether to answer with URLs
	size        string // WxH, or auto

	inputUnits int // image tokens of the input
}

// read reads the body of a request, of at most limit bytes: a JSON object whose names check accepts, if it is set, or
// a form if it can be one.
func (h *Handler) read(w http.ResponseWriter, r *http.Request, limit int64, forms bool, check func(name string) error) (*form, error) {
	kind, attributes, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil && r.Header.Get("Content-Type") != "" {
		return nil, failure(http.StatusUnsupportedMediaType, "unsupported_media_type", "Content-Type: %v", err)
	}
	if r.ContentLength > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	body, f := http.MaxBytesReader(w, r.Body, limit), (*form)(nil)
	switch {
	case kind == "multipart/form-data" && forms:
		f, err = parseForm(body, attributes["boundary"])
	case kind == "" || kind == "application/json":
		f, err = parseJSON(body, check)
	default:
		expected := "application/json"
		if forms {
			expected = "multipart/form-data or application/json"
		}
		return nil, failure(http.StatusUnsupportedMediaType, "unsupported_media_type", "Content-Type: expected %s, found %s",
			expected, quoted(kind))
	}
	if err == nil {
		// the server notices that a client goes away only after the end of the body
		if _, err = io.Copy(io.Discard, body); err != nil {
			err = broken(err)
		}
	}
	return f, err
}

// parse returns the request of a form. It opens no file and fetches no URL.
func (h *Handler) parse(f *form, edit bool) (*request, error) {
	r := &request{edit: edit}
	r.parsePrompt(f)
	r.parseOutput(f)
	r.parseAnswer(f)
	r.parseSize(f)
	r.parseSampling(f)
	strength, given := f.float("strength")
	switch {
	case f.err != nil:
	case given && !edit:
		f.invalid("strength", "has no effect without an image: use /v1/images/edits")
	case given && !(strength > 0 && strength <= 1):
		f.invalid("strength", "expected a number above 0 and at most 1, found %g", strength)
	case edit && len(f.images) == 0:
		f.invalid("image", "is missing")
	case given && len(f.images) > 1 && f.mask == nil:
		f.invalid("strength", "needs a single image to start from, found %d images", len(f.images))
	}
	name := f.string("model")
	if f.err != nil {
		return nil, f.err
	}
	model, warning, err := resolve(h.engine.Models(), name, edit && !given && f.mask == nil, false)
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
	if r.job.LoRAs, err = f.loras(); err != nil {
		return nil, err
	}
	if err := api.CutLoRAs(&r.job, h.config.LoRAs, maxLoRAs); err != nil {
		return nil, invalid(promptField, "%v", err)
	}
	if !edit {
		return r, nil
	}
	return r, h.addImages(r, f, model, strength)
}

// addImages decodes the images of an edit.
func (h *Handler) addImages(r *request, f *form, model *engine.ModelInfo, strength float64) error {
	masked := f.mask != nil
	decoded, sources, err := f.decode(api.InputPixels(h.config.MaxPixels))
	if err != nil {
		return err
	}
	if masked {
		last := len(decoded) - 1
		if last > 1 && !model.Edits {
			return invalid("image", "%s takes one image with a mask, found %d", model.Name, last)
		}
		if err := r.setMask(decoded[0].Image, decoded[last]); err != nil {
			return err
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
	return nil
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

func (r *request) parsePrompt(f *form) {
	o := &r.job.Options
	for name, to := range map[string]*string{promptField: &o.Prompt, "negative_prompt": &o.NegativePrompt} {
		*to = f.string(name)
		if n := utf8.RuneCountInString(*to); n > maxPrompt {
			f.invalid(name, "expected at most %d characters, found %d", maxPrompt, n)
		}
	}
	if !f.has(promptField) {
		f.invalid(promptField, "is missing")
	}
}

// parseOutput reads how the images are to look and how they are encoded.
func (r *request) parseOutput(f *form) {
	quality := f.word("quality", "auto", "low", "medium", qualityHigh, "xhigh", "max", "standard", "hd")
	switch r.quality = quality; quality {
	case "auto", "hd":
		r.quality = qualityHigh
	case "standard":
		r.quality = "medium"
	}
	if quality != "auto" {
		r.warnings = append(r.warnings, "quality has no effect: use steps")
	}
	background := f.word("background", "auto", opaque, transparent)
	r.job.Options.Background = gomflux.Background(background)
	r.format = f.word("output_format", outputPNG, outputJPEG, outputWebP, "gif", "svg")
	compression, given := f.int("output_compression", 0, 100)
	switch {
	case r.format == "gif" || r.format == "svg":
		f.fail(unsupported("output_format", "this server does not write %s (expected png, jpeg or webp)", r.format))
	case background == transparent && r.format == outputJPEG:
		f.invalid("background", "jpeg images are opaque (expected output_format png or webp)")
	case given && r.format == outputPNG && compression != 100:
		f.invalid("output_compression", "png images are always compressed without loss (expected 100, or output_format jpeg)")
	case given && r.format == outputJPEG:
		r.compression = max(1, compression)
	case given && r.format == outputWebP && compression != 100:
		r.warnings = append(r.warnings, "output_compression has no effect: webp images are written without loss (jpeg has it)")
	}
}

// parseAnswer reads how the images are to be sent.
func (r *request) parseAnswer(f *form) {
	r.url = f.word("response_format", asJSON, asURL) == asURL
	r.stream = f.bool("stream")
	partial, _ := f.int("partial_images", 0, maxPartial)
	if !r.stream {
		return
	}
	if r.url {
		f.invalid("response_format", "events have their images as b64_json")
	}
	r.job.Previews = partial
}

var sizes = regexp.MustCompile(`^([1-9]\d*)x([1-9]\d*)$`)

// parseSize reads the size of the images.
func (r *request) parseSize(f *form) {
	if r.size = cmp.Or(f.string("size"), autoSize); r.size == autoSize {
		return
	}
	m := sizes.FindStringSubmatch(r.size)
	if m == nil || len(m[1]) > sideDigits || len(m[2]) > sideDigits {
		f.invalid("size", "expected auto or a width and height such as 1024x768, found %s", quoted(r.size))
		return
	}
	o := &r.job.Options
	o.Width, _ = strconv.Atoi(m[1])
	o.Height, _ = strconv.Atoi(m[2])
	switch side := max(o.Width, o.Height); {
	case side > picture.MaxSide:
		f.invalid("size", "%s: a side has at most %d pixels", r.size, picture.MaxSide)
	case r.format == outputWebP && side > maxWebPSide:
		f.invalid("size", "%s: a webp image has at most %d pixels a side (try output_format png)", r.size, maxWebPSide)
	}
}

// parseSampling reads how images are generated. Their seeds are those from seed on, or random ones.
func (r *request) parseSampling(f *form) {
	o := &r.job.Options
	o.Steps, _ = f.int(f.either("steps", "num_inference_steps"), 1, picture.MaxCount)
	if guidance, given := f.float(f.either("guidance", "guidance_scale")); given {
		o.Guidance = &guidance
	}
	o.Scheduler = gomflux.Scheduler(f.string("scheduler"))
	n, _ := f.int("n", 1, maxN)
	if seed := f.seed("seed"); f.err == nil {
		r.job.Seeds = api.Seeds(seed, max(1, n))
	}
}

// loras reads the LoRAs. The engine refuses names that are files.
func (f *form) loras() (all []gomflux.LoRA, err error) {
	v, ok := f.values["loras"]
	if !ok {
		return nil, nil
	}
	var list []struct {
		Name string `json:"name"`
		api.LoRA
	}
	d := json.NewDecoder(strings.NewReader(v))
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
		all = l.AppendTo(all, l.Name)
	}
	return all, nil
}

// theirs matches the names of OpenAI's models, and Open WebUI's default among them.
var theirs = regexp.MustCompile(`^(gpt-image|dall-e|chatgpt-image)-`)

// resolve returns the model of a name, with a warning if it is another than the name suggests. An
// edit needs a model that takes reference images, and one that only writes needs writes.
func resolve(models []engine.ModelInfo, name string, edit, writes bool) (*engine.ModelInfo, string, error) {
	if name != "" && !theirs.MatchString(name) {
		return named(models, name, edit, writes)
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

func named(models []engine.ModelInfo, name string, edit, writes bool) (*engine.ModelInfo, string, error) {
	i := slices.IndexFunc(models, func(m engine.ModelInfo) bool { return m.Is(name) })
	switch {
	case i < 0:
		return nil, "", unknownModel("model %s: is not a model of this server (expected one of %s)", quoted(name), usable(models))
	case models[i].Missing != "" && !(writes && models[i].OnlyWrites):
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

// ascii escapes characters that headers cannot have.
func ascii(text string) string {
	q := strconv.QuoteToASCII(text)
	return q[1 : len(q)-1]
}
