package openai

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"image"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/engine"
)

// TestTransparent generates and edits with a model whose images have an alpha channel, and with others.
func TestTransparent(t *testing.T) {
	models := []engine.ModelInfo{
		{Name: "shapes", Default: true}, {Name: "clear", Edits: true, HasAlpha: true}, {Name: "editor", Edits: true},
	}
	for _, test := range []struct {
		model, background, format string
		want                      string // background of the answer
	}{
		{"clear", "transparent", "png", "transparent"},
		{"clear", "transparent", "webp", "transparent"},
		{"clear", "auto", "png", "transparent"},
		{"clear", "auto", "jpeg", "opaque"},
		{"clear", "opaque", "png", "opaque"},
		{"shapes", "auto", "png", "opaque"},
		{"shapes", "opaque", "png", "opaque"},
	} {
		for _, stream := range []bool{false, true} {
			e := &fakeEngine{models: models}
			body, _ := json.Marshal(map[string]any{"prompt": "x", "model": test.model, "background": test.background,
				"output_format": test.format, "stream": stream})
			r := postJSON(New(e, testConfig()), generations, string(body))
			var file, background string
			if stream {
				var m map[string]any
				if err := json.Unmarshal([]byte(readEvents(t, r.Body)[0].data), &m); err != nil {
					t.Fatal(err)
				}
				file, background = m["b64_json"].(string), m["background"].(string)
			} else {
				a := decodeAnswer(t, r)
				file, background = a.Data[0].B64JSON, a.Background
			}
			if o := e.requests[0].Options; string(o.Background) != test.background {
				t.Errorf("%+v: the engine got background %q", test, o.Background)
			}
			if background != test.want {
				t.Errorf("%+v, stream %v: background %q", test, stream, background)
			}
			data, _ := base64.StdEncoding.DecodeString(file)
			p, err := picture.Decode(bytes.NewReader(data))
			if err != nil || (p.Transparent != nil) != (test.want == transparent) {
				t.Errorf("%+v, stream %v: the file has transparent pixels: %v (%v)", test, stream, p.Transparent != nil, err)
			}
		}
	}

	// models whose images are opaque
	_, _, param, code := decodeError(t, postJSON(New(&fakeEngine{models: models}, testConfig()), generations,
		`{"prompt": "x", "background": "transparent"}`))
	if param != "background" || code != "unsupported_value" {
		t.Errorf("param %s, code %s", param, code)
	}
	message, _, _, _ := decodeError(t, postJSON(New(&fakeEngine{models: models}, testConfig()), generations,
		`{"prompt": "x", "background": "transparent"}`))
	if !strings.Contains(message, "the images of shapes are opaque (use clear)") {
		t.Errorf("message %q", message)
	}

	// images to edit
	for name, warning := range map[string]string{
		"clear": "", "editor": "the transparent pixels of image 2 are white for editor",
	} {
		e := &fakeEngine{models: models}
		body, _ := json.Marshal(map[string]any{"prompt": "x", "model": name, "image": []string{
			dataURL(pngOf(t, testImage(8, 8, 0))), dataURL(clearFile(t, 8, 8))}})
		r := postJSON(New(e, testConfig()), edits, string(body))
		decodeAnswer(t, r)
		if got := r.Header.Get("X-Gomflux-Warning"); got != warning {
			t.Errorf("%s: warning %q, expected %q", name, got, warning)
		}
		references := e.requests[0].Options.References
		if _, ok := references[1].(*image.NRGBA); !ok || len(references) != 2 {
			t.Errorf("%s: references %T, expected the transparency of the second", name, references[1])
		}
	}
}

// transparentOf is what a model with an alpha channel generates for some options.
func transparentOf(img *image.RGBA, o *gomflux.Options, alpha bool) *image.NRGBA {
	if !alpha || o.Background == gomflux.OpaqueBackground {
		return nil
	}
	n := image.NewNRGBA(img.Rect)
	copy(n.Pix, img.Pix)
	n.Pix[3] = 77
	return n
}
