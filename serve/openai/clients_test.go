package openai

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// A clientRequest is a request as a program sends it, according to its code.
type clientRequest struct {
	query  string
	path   string
	body   string // JSON, or "" for a form
	parts  []part
	model  string   // expected
	images int      // expected, 1 if 0
	format string   // expected beginning of the images in base64, PNG if ""
	warns  []string // expected in headers
}

const webpStart = "UklGR"

// clientRequests are those of Open WebUI 0.12, LibreChat and LobeChat. The names and defaults of
// settings that their users choose are the programs' own.
func clientRequests(png []byte) map[string]clientRequest {
	return map[string]clientRequest{
		"Open WebUI": {path: generations, model: "shapes", warns: []string{"dall-e-2"},
			body: `{"model": "dall-e-2", "prompt": "a cat", "n": 1, "size": "512x512", "response_format": "b64_json"}`},
		// model names that begin with gpt-image are sent without response_format
		"Open WebUI, gpt-image": {path: generations, query: "?api-version=2025-04-01-preview", model: "shapes", images: 2,
			warns: []string{"gpt-image-1.5"}, body: `{"model": "gpt-image-1.5", "prompt": "a cat", "n": 2, "size": "auto"}`},
		"Open WebUI, more parameters": {path: generations, model: "shapes", images: 2,
			body: `{"model": "shapes", "prompt": "a cat", "n": 2, "size": "512x512", "response_format": "b64_json",
				"seed": 4, "steps": 8, "guidance_scale": 1.5, "negative_prompt": "dogs"}`},
		"Open WebUI's edit": {path: edits, model: "owner/editor", parts: []part{
			text("model", "dall-e-2"), text("prompt", "a cat"), text("n", "1"), text("size", "512x512"), text("background", "auto"),
			text("response_format", "b64_json"), {"image", "0b6f.png", png},
		}},
		"Open WebUI's edit without a model": {path: edits, model: "owner/editor", parts: []part{
			text("model", ""), text("prompt", "a cat"), text("response_format", "b64_json"), {"image", "0b6f.png", png},
		}},
		"Open WebUI's edit of two images": {path: edits, model: "owner/editor", parts: []part{
			text("model", "owner/editor"), text("prompt", "a cat"), {"image[]", "1a.png", png}, {"image[]", "2b.png", png},
		}},
		"LibreChat": {path: generations, model: "shapes", warns: []string{"gpt-image-1"},
			body: `{"model": "gpt-image-1", "prompt": "a cat", "n": 1, "background": "auto", "output_format": "png",
				"quality": "auto", "size": "auto"}`},
		"LibreChat, webp": {path: generations, model: "shapes", format: webpStart, warns: []string{"gpt-image-1"},
			body: `{"model": "gpt-image-1", "prompt": "a cat", "n": 1, "background": "opaque", "output_format": "webp",
				"output_compression": 100, "quality": "high", "size": "1024x1536"}`},
		"LibreChat, compressed webp": {path: generations, model: "shapes", format: webpStart,
			warns: []string{"output_compression has no effect"},
			body: `{"model": "shapes", "prompt": "a cat", "n": 1, "background": "auto", "output_format": "webp",
				"output_compression": 80, "quality": "auto", "size": "auto"}`},
		"LibreChat's edit": {path: edits, model: "owner/editor", parts: []part{
			text("model", "gpt-image-1"), text("prompt", "a cat"), text("quality", "auto"), text("size", "auto"),
			{"image[]", "a.png", png}, {"image[]", "b.png", png},
		}},
		"LobeChat": {path: generations, model: "shapes",
			body: `{"model": "shapes", "n": 1, "prompt": "a cat", "size": "1024x1024"}`},
		"LobeChat, gpt-image": {path: generations, model: "shapes",
			body: `{"model": "gpt-image-2", "n": 1, "prompt": "a cat", "quality": "medium"}`},
		"LobeChat, dall-e": {path: generations, model: "shapes",
			body: `{"model": "dall-e-3", "n": 1, "prompt": "a cat", "response_format": "b64_json", "size": "1024x1024"}`},
		"LobeChat's edit": {path: edits, model: "owner/editor", parts: []part{
			text("model", "gpt-image-1"), text("n", "1"), text("input_fidelity", "high"), text("prompt", "a cat"), {"image", "a.png", png},
		}},
		"LobeChat's edit of two images": {path: edits, model: "owner/editor", parts: []part{
			text("model", "owner/editor"), text("n", "1"), text("prompt", "a cat"), {"image[]", "a.png", png}, {"image[]", "b.png", png},
		}},
	}
}

// TestClients replays requests of programs, and reads of the answers what they read.
func TestClients(t *testing.T) {
	for name, test := range clientRequests(pngOf(t, testImage(16, 16, 0))) {
		t.Run(name, func(t *testing.T) {
			body, kind := []byte(test.body), "application/json"
			if test.parts != nil {
				body, kind = formOf(t, test.parts...)
			}
			r := post(New(newFake(), testConfig()), test.path+test.query, kind, body)
			warnings := strings.Join(r.Header.Values("X-Gomflux-Warning"), "\n")
			for _, want := range test.warns {
				if !strings.Contains(warnings, want) {
					t.Errorf("warnings %q, expected %q", warnings, want)
				}
			}
			a := decodeAnswer(t, r)
			if a.Model != test.model || len(a.Data) != max(1, test.images) {
				t.Fatalf("answer of %s with %d images", a.Model, len(a.Data))
			}
			start := test.format
			if start == "" {
				start = "iVBOR"
			}
			for _, data := range a.Data {
				if !strings.HasPrefix(data.B64JSON, start) || data.URL != "" {
					t.Errorf("b64_json begins with %.10q, url %q", data.B64JSON, data.URL)
				}
			}
			// LobeChat computes the cost
			if u := a.Usage; u.InputTokens != u.InputDetails.TextTokens+u.InputDetails.ImageTokens || u.OutputTokens == 0 {
				t.Errorf("usage %+v", u)
			}
		})
	}
}

// TestClientsErrors checks what programs show of an error: Open WebUI the status alone, the others
// error.message.
func TestClientsErrors(t *testing.T) {
	r := postJSON(New(newFake(), testConfig()), generations, `{"model": "gpt-image-1", "prompt": "a cat", "background": "transparent"}`)
	var body struct {
		Error struct{ Message, Type, Code string }
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.StatusCode != http.StatusBadRequest ||
		!strings.Contains(body.Error.Message, "transparent") || body.Error.Type != typeRequest || body.Error.Code == "" {
		t.Errorf("status %d, %+v, %v", r.StatusCode, body, err)
	}
}
