package openai

import (
	"strings"
	"testing"
)

// TestClients replays requests as programs send them, according to their code.
func TestClients(t *testing.T) {
	img := pngOf(t, testImage(16, 16, 0))
	for name, test := range map[string]struct {
		path  string
		body  string // JSON, or "" for a form
		parts []part
		model string
	}{
		"Open WebUI": {path: generations, model: "shapes",
			body: `{"model": "dall-e-2", "prompt": "a cat", "n": 1, "size": "512x512", "response_format": "b64_json"}`},
		"Open WebUI with more parameters": {path: generations, model: "shapes",
			body: `{"model": "shapes", "prompt": "a cat", "n": 2, "size": "512x512", "response_format": "b64_json",
				"seed": 4, "steps": 8}`},
		"Open WebUI's edit": {path: edits, model: "owner/editor", parts: []part{
			text("model", "dall-e-2"), text("prompt", "a cat"), text("n", "1"), text("size", "512x512"), text("background", "auto"),
			text("response_format", "b64_json"), {"image", "image.png", img},
		}},
		"Open WebUI's edit of two images": {path: edits, model: "owner/editor", parts: []part{
			text("model", "owner/editor"), text("prompt", "a cat"), {"image[]", "image.png", img}, {"image[]", "image.png", img},
		}},
		"LibreChat": {path: generations, model: "shapes",
			body: `{"model": "gpt-image-1", "prompt": "a cat", "background": "auto", "quality": "auto", "size": "auto",
				"n": 1, "user": "u"}`},
		"LibreChat's edit": {path: edits, model: "owner/editor", parts: []part{
			text("model", "gpt-image-1"), text("prompt", "a cat"), text("n", "1"), text("quality", "auto"), text("size", "auto"),
			{"image[]", "a.png", img},
		}},
		"LobeChat": {path: generations, model: "shapes",
			body: `{"model": "dall-e-3", "n": 1, "prompt": "a cat", "response_format": "b64_json", "size": "1024x1024"}`},
		"LobeChat's edit": {path: edits, model: "owner/editor", parts: []part{
			text("input_fidelity", "high"), text("model", "gpt-image-1"), text("n", "1"), text("prompt", "a cat"), {"image", "a.png", img},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			body, kind := []byte(test.body), "application/json"
			if test.parts != nil {
				body, kind = formOf(t, test.parts...)
			}
			a := decodeAnswer(t, post(New(newFake(), testConfig()), test.path, kind, body))
			if a.Model != test.model || len(a.Data) == 0 || !strings.HasPrefix(a.Data[0].B64JSON, "iVBOR") {
				t.Errorf("answer of %s with %d images", a.Model, len(a.Data))
			}
		})
	}
}
