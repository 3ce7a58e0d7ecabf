package openai

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gomflux/gomflux/internal/plainjson"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
)

// Limits of requests.
const (
	maxImages = 16
	maxImage  = 50 << 20  // bytes of an image file
	maxField  = 256 << 10 // bytes of a text field of a form
	maxParts  = 128       // parts of a form
	maxJSON   = 1 << 20   // bytes of a body without images
	maxPrompt = 32_000    // characters
	maxName   = 200       // bytes of the file name of an image
)

// An upload is an image file of a request.
type upload struct {
	param string // the field
	name  string // the file's name without folders, "" if it has no name
	data  []byte
}

// A form has the fields, the images and the mask of a request. Fields that are null or, in a form, empty are left out,
// except for an empty prompt.
type form struct {
	values    map[string]string // of fields, by name: JSON, or text in a multipart form
	multipart bool
	err       error // the first one of reading a value
	images    []upload
	mask      *upload // nil without one
}

// add adds an image, or the mask.
func (f *form) add(u upload) error {
	switch {
	case u.param == maskField && f.mask != nil:
		return invalid(maskField, "is there twice")
	case len(u.data) == 0:
		return invalid(u.param, "the image file is empty")
	case u.param == maskField:
		f.mask = &u
		return nil
	case len(f.images) == maxImages:
		return invalid(u.param, "expected at most %d images", maxImages)
	}
	f.images = append(f.images, u)
	return nil
}

const (
	maskField   = "mask"
	markupField = "markup"
	promptField = "prompt"
)

// errMarkup refuses images that show what to change.
func errMarkup() error {
	return unsupported(markupField, "no model of this server takes it (use mask, or describe in the prompt which part to change)")
}

// imageField matches the names under which forms have images.
var imageField = regexp.MustCompile(`^image(\[\d{0,4}\])?$`)

// parseForm reads a multipart form.
func parseForm(body io.Reader, boundary string) (*form, error) {
	if boundary == "" {
		return nil, failure(400, "invalid_form", "Content-Type multipart/form-data: the boundary is missing")
	}
	r, f := multipart.NewReader(body, boundary), &form{values: map[string]string{}, multipart: true}
	var loras loraParts
	for parts := 0; ; parts++ {
		part, err := r.NextRawPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, broken(err)
		}
		if parts == maxParts {
			return nil, failure(400, "invalid_form", "the form has more than %d parts", maxParts)
		}
		name := part.FormName()
		switch {
		case name == markupField:
			return nil, errMarkup()
		case name == maskField, imageField.MatchString(name):
			err = f.addPart(part)
		default:
			err = f.addText(part, name, &loras)
		}
		if err != nil {
			return nil, err
		}
	}
	return f, loras.addTo(f.values)
}

// broken returns the error for a body that cannot be read to its end.
func broken(err error) error {
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return err
	}
	return failure(400, "invalid_body", "the body is damaged or ends too early: %v", err)
}

// readPart reads a part of at most limit bytes. Otherwise the result has one byte more.
func readPart(part io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(part, limit+1))
	if err != nil {
		return nil, broken(err)
	}
	return data, nil
}

// addPart adds the image file of a part.
func (f *form) addPart(part *multipart.Part) error {
	data, err := readPart(part, maxImage)
	if err != nil {
		return err
	}
	name := part.FormName()
	if int64(len(data)) > maxImage {
		return invalid(name, "an image file has more than %d MB", maxImage>>20)
	}
	if part.FileName() == "" && bytes.HasPrefix(data, []byte("data:")) {
		if data, err = fromURL(name, string(data)); err != nil {
			return err
		}
	}
	return f.add(upload{name, part.FileName(), data})
}

func (f *form) addText(part *multipart.Part, name string, loras *loraParts) error {
	data, err := readPart(part, maxField)
	if err != nil {
		return err
	}
	if len(data) > maxField {
		return invalid(quoted(name), "has more than %d KiB", maxField>>10)
	}
	if loras.add(name, string(data)) {
		return nil
	}
	if err := checkName(name, true); err != nil {
		return err
	}
	if f.has(name) {
		return invalid(name, "is there twice")
	}
	if len(data) > 0 || name == promptField {
		f.values[name] = string(data)
	}
	return nil
}

// loraParts are the LoRAs of a form in the style of OpenAI's clients, which flatten objects.
type loraParts struct{ names, scales []string }

func (l *loraParts) add(name, text string) bool {
	switch name {
	case "loras[][name]":
		l.names = append(l.names, text)
	case "loras[][scale]":
		l.scales = append(l.scales, text)
	default:
		return false
	}
	return true
}

// addTo adds the LoRAs as the JSON that a form may have instead.
func (l *loraParts) addTo(f map[string]string) error {
	if len(l.names)+len(l.scales) == 0 {
		return nil
	}
	if len(l.scales) > 0 && len(l.scales) != len(l.names) {
		return invalid("loras", "%d names and %d scales: give each LoRA both", len(l.names), len(l.scales))
	}
	all := []map[string]any{}
	for i, name := range l.names {
		one := map[string]any{"name": name}
		if len(l.scales) > 0 {
			one["scale"] = json.Number(l.scales[i])
		}
		all = append(all, one)
	}
	text, err := plainjson.Marshal(all, "")
	if err != nil {
		return invalid("loras", "scale: %v", err)
	}
	f["loras"] = string(text)
	return nil
}

// takeImages moves the images of a JSON request from its fields.
func (f *form) takeImages() error {
	if f.has(markupField) {
		return errMarkup()
	}
	for _, name := range []string{maskField, "image", "images"} {
		v, ok := f.take(name)
		if !ok {
			continue
		}
		list := []json.RawMessage{json.RawMessage(v)}
		if v[0] == '[' && name != maskField {
			if err := json.Unmarshal([]byte(v), &list); err != nil {
				return invalid(name, "%v", err)
			}
		}
		for _, raw := range list {
			url, err := imageURL(name, raw)
			if err != nil {
				return err
			}
			if err := f.addURL(name, url); err != nil {
				return err
			}
		}
	}
	return nil
}

// addURL adds the image of a data: URL.
func (f *form) addURL(name, url string) error {
	data, err := fromURL(name, url)
	if err != nil {
		return err
	}
	return f.add(upload{param: name, data: data})
}

// imageURL returns the URL of an image in JSON: a string, or an object with image_url.
func imageURL(name string, raw json.RawMessage) (string, error) {
	var url string
	if json.Unmarshal(raw, &url) == nil && raw[0] == '"' {
		return url, nil
	}
	var reference struct {
		URL  *string `json:"image_url"`
		File *string `json:"file_id"`
	}
	switch err := json.Unmarshal(raw, &reference); {
	case err == nil && reference.File != nil:
		return "", unsupported(name, "this server keeps no uploaded files: expected image_url with a data: URL, found file_id")
	case err != nil || reference.URL == nil:
		return "", invalid(name, "expected a data: URL, or an object with it as image_url")
	}
	return *reference.URL, nil
}

// fromURL decodes a data: URL. Other URLs are refused, so that clients cannot make the server send
// requests.
func fromURL(name, url string) ([]byte, error) {
	if !strings.HasPrefix(url, "data:") {
		return nil, unsupported(name, "this server fetches no URLs: expected data:image/png;base64,…")
	}
	kind, text, ok := api.CutDataURL(url)
	if !ok {
		return nil, invalid(name, "expected a data: URL with base64, as in data:image/png;base64,…")
	}
	if media, _, err := mime.ParseMediaType(kind); err != nil || !strings.HasPrefix(media, "image/") {
		return nil, invalid(name, "expected a data: URL of an image, found the type %s", quoted(kind))
	}
	if base64.StdEncoding.DecodedLen(len(text)) > maxImage+2 {
		return nil, invalid(name, "an image file has more than %d MB", maxImage>>20)
	}
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, invalid(name, "the data: URL is not base64: %v", err)
	}
	return data, nil
}

// decode decodes the images of a request, which have at most maxPixels together with the mask. The mask
// is the last image.
func (f *form) decode(maxPixels int) (images []*picture.Picture, sources []picture.SourceImage, err error) {
	all := f.images
	if f.mask != nil {
		all = append(slices.Clone(all), *f.mask)
	}
	f.images, f.mask = nil, nil // the files, which may be large
	for i, u := range all {
		p, err := api.DecodeImage(u.data, &maxPixels)
		if err != nil {
			return nil, nil, badImage(u.param, i, err)
		}
		all[i].data = nil
		images = append(images, p)
		sources = append(sources, picture.SourceImage{Path: sourceName(u.name, i), SHA256: p.SHA256})
	}
	return images, sources, nil
}

func badImage(param string, i int, err error) error {
	e := invalid(param, "image %d: %v", i+1, err)
	if param == maskField {
		e = invalid(param, "%v", err)
	}
	code := "invalid_image_file"
	e.Code = &code
	return e
}

// sourceName returns the name of an image for the settings of what is generated from it.
func sourceName(name string, i int) string {
	name = path.Base(strings.ReplaceAll(name, `\`, "/"))
	clean := func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return -1
		}
		return r
	}
	name = strings.Map(clean, name)
	if name == "." || name == "/" || len(name) > maxName {
		name = ""
	}
	return cmp.Or(name, fmt.Sprintf("image-%d", i+1))
}
