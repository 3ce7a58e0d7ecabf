package openai

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/serve/engine"
)

func TestBadRequests(t *testing.T) {
	h := New(newFake(), testConfig())
	for _, test := range []struct {
		body        string
		status      int
		param, code string
		message     string // a part of it
	}{
		{``, 400, "", "invalid_json", "the body is empty"},
		{`{"prompt": "x"`, 400, "", "invalid_json", "ends too early"},
		{`{"prompt": }`, 400, "", "invalid_json", "not JSON"},
		{`[]`, 400, "", "invalid_json", "found array"},
		{`null`, 400, "", "invalid_json", "found null"},
		{`{} {}`, 400, "", "invalid_json", "found more after it"},
		{`{}`, 400, "prompt", "invalid_value", "is missing"},
		{`{"prompt": null}`, 400, "prompt", "invalid_value", "is missing"},
		{`{"prompt": 1}`, 400, "prompt", "invalid_value", "expected a string, found a number"},
		{`{"prompt": ["x"]}`, 400, "prompt", "invalid_value", "found an array"},
		{`{"prompt": "a\u0000b"}`, 400, "prompt", "invalid_value", "NUL"},
		{`{"prompt": "` + strings.Repeat("é", 32_001) + `"}`, 400, "prompt", "invalid_value", "at most 32000 characters, found 32001"},
		{`{"prompt": "x", "negative_prompt": {}}`, 400, "negative_prompt", "invalid_value", "found an object"},
		{`{"prompt": "x", "cfg_scale": 7}`, 400, "cfg_scale", "unknown_parameter", `unknown parameter "cfg_scale"`},
		{`{"prompt": "x", "svg[model]x": 7, "` + strings.Repeat("y", 200) + `": 1, "svg": 1}`, 400, strings.Repeat("y", 100) + "…",
			"unknown_parameter", "unknown parameter"},
		{`{"prompt": "x", "n": 0}`, 400, "n", "invalid_value", "a whole number from 1 to 10, found 0"},
		{`{"prompt": "x", "n": 11}`, 400, "n", "invalid_value", "found 11"},
		{`{"prompt": "x", "n": 1.5}`, 400, "n", "invalid_value", "found 1.5"},
		{`{"prompt": "x", "n": 1e999}`, 400, "n", "invalid_value", "found 1e999"},
		{`{"prompt": "x", "n": "2"}`, 400, "n", "invalid_value", "found a string"},
		{`{"prompt": "x", "n": true}`, 400, "n", "invalid_value", "found a boolean"},
		{`{"prompt": "x", "size": "big"}`, 400, "size", "invalid_value", `such as 1024x768, found "big"`},
		{`{"prompt": "x", "size": "0x16"}`, 400, "size", "invalid_value", "found"},
		{`{"prompt": "x", "size": "16X16"}`, 400, "size", "invalid_value", "found"},
		{`{"prompt": "x", "size": "-16x16"}`, 400, "size", "invalid_value", "found"},
		{`{"prompt": "x", "size": "9999999999999999999x16"}`, 400, "size", "invalid_value", "found"},
		{`{"prompt": "x", "size": "100000x16"}`, 400, "size", "invalid_value", "a side has at most 65536 pixels"},
		{`{"prompt": "x", "size": "16400x16", "output_format": "webp"}`, 400, "size", "invalid_value", "at most 16384 pixels a side"},
		{`{"prompt": "x", "quality": "best"}`, 400, "quality", "invalid_value", `xhigh, max, standard, hd, found "best"`},
		{`{"prompt": "x", "background": "transparent"}`, 400, "background", "unsupported_value", "transparent"},
		{`{"prompt": "x", "background": "transparent", "output_format": "jpeg"}`, 400, "background", "invalid_value",
			"jpeg images are opaque"},
		{`{"prompt": "x", "background": "red"}`, 400, "background", "invalid_value", "expected auto, opaque, transparent"},
		{`{"prompt": "x", "output_format": "svg"}`, 400, "output_format", "unsupported_value", "does not write svg"},
		{`{"prompt": "x", "output_format": "tiff"}`, 400, "output_format", "invalid_value", "expected png, jpeg"},
		{`{"prompt": "x", "output_compression": 50}`, 400, "output_compression", "invalid_value", "output_format jpeg"},
		{`{"prompt": "x", "output_format": "jpeg", "output_compression": 101}`, 400, "output_compression", "invalid_value", "0 to 100"},
		{`{"prompt": "x", "response_format": "path"}`, 400, "response_format", "invalid_value", "expected b64_json, url"},
		{`{"prompt": "x", "response_format": "url", "stream": true}`, 400, "response_format", "invalid_value", "b64_json"},
		{`{"prompt": "x", "stream": "true"}`, 400, "stream", "invalid_value", "expected true or false, found a string"},
		{`{"prompt": "x", "partial_images": 4}`, 400, "partial_images", "invalid_value", "from 0 to 3, found 4"},
		{`{"prompt": "x", "seed": -1}`, 400, "seed", "invalid_value", "leave it out for a random seed"},
		{`{"prompt": "x", "seed": 18446744073709551616}`, 400, "seed", "invalid_value", "found 18446744073709551616"},
		{`{"prompt": "x", "seed": "1"}`, 400, "seed", "invalid_value", "found a string"},
		{`{"prompt": "x", "steps": 0}`, 400, "steps", "invalid_value", "from 1 to 1048576"},
		{`{"prompt": "x", "steps": 2, "num_inference_steps": 2}`, 400, "num_inference_steps", "invalid_value", "same as steps"},
		{`{"prompt": "x", "guidance": 2, "guidance_scale": 2}`, 400, "guidance_scale", "invalid_value", "same as guidance"},
		{`{"prompt": "x", "guidance_scale": 1e999}`, 400, "guidance_scale", "invalid_value", "expected a number"},
		{`{"prompt": "x", "strength": 0.5}`, 400, "strength", "invalid_value", "/v1/images/edits"},
		{`{"prompt": "x", "image": "data:"}`, 400, "image", "invalid_value", "/v1/images/edits"},
		{`{"prompt": "x", "mask": "data:"}`, 400, "mask", "invalid_value", "/v1/images/edits"},
		{`{"prompt": "x", "scheduler": 1}`, 400, "scheduler", "invalid_value", "expected a string"},
		{`{"prompt": "x", "loras": "style"}`, 400, "loras", "invalid_value", "expected [{"},
		{`{"prompt": "x", "loras": [{"scale": 1}]}`, 400, "loras", "invalid_value", "a name is missing"},
		{`{"prompt": "x", "loras": [{"name": "style", "weight": 1}]}`, 400, "loras", "invalid_value", "weight"},
		{`{"prompt": "x", "loras": [{"name": "/etc/passwd"}]}`, 404, "loras", "model_not_found", "/etc/passwd"},
		{`{"prompt": "x", "loras": [` + strings.Repeat(`{},`, 16) + `{}]}`, 400, "loras", "invalid_value", "at most 16, found 17"},
		{`{"prompt": "x", "model": "other"}`, 404, "model", "model_not_found", "expected one of shapes, owner/editor"},
		{`{"prompt": "x", "model": "gone"}`, 404, "model", "model_not_found", "run gomflux pull gone"},
		{`{"prompt": "x", "model": 5}`, 400, "model", "invalid_value", "expected a string"},
		{`{"prompt": "` + strings.Repeat("x", maxJSON) + `"}`, 413, "", "request_too_large", "1048576 bytes"},
	} {
		checkError(t, postJSON(h, generations, test.body), test.body, test.status, test.param, test.code, test.message)
	}
}

func checkError(t *testing.T, r *http.Response, about string, status int, wantParam, wantCode, part string) {
	t.Helper()
	if len(about) > 100 {
		about = about[:100] + "…"
	}
	message, kind, param, code := decodeError(t, r)
	if r.StatusCode != status || param != wantParam || code != wantCode || !strings.Contains(message, part) || kind != typeRequest {
		t.Errorf("%s:\nstatus %d, %s, %s, %s: %s\nexpected %d, %s, %s: %s", about, r.StatusCode, kind, param, code, message,
			status, wantParam, wantCode, part)
	}
	if strings.Contains(message, "\n") || len(message) > 1000 {
		t.Errorf("%s: message %q", about, message)
	}
}

func TestBadEdits(t *testing.T) {
	img := pngOf(t, testImage(8, 8, 0))
	var many []part
	for range 17 {
		many = append(many, part{"image[]", "a.png", img})
	}
	var parts []part
	for range maxParts + 1 {
		parts = append(parts, text("user", ""))
	}
	prompt, one := text("prompt", "x"), part{"image", "a.png", img}
	h := New(newFake(), testConfig())
	for name, test := range map[string]struct {
		parts       []part
		status      int
		param, code string
		message     string
	}{
		"no image":    {[]part{prompt}, 400, "image", "invalid_value", "is missing"},
		"no prompt":   {[]part{one}, 400, "prompt", "invalid_value", "is missing"},
		"17 images":   {append(many, prompt), 400, "image[]", "invalid_value", "at most 16"},
		"empty image": {[]part{prompt, {"image", "a.png", nil}}, 400, "image", "invalid_value", "is empty"},
		"no image file": {[]part{prompt, {"image", "a.png", []byte("hello")}}, 400, "image", "invalid_image_file",
			"image 1: not a PNG"},
		"GIF": {[]part{prompt, {"image", "a.gif", []byte("GIF89a")}}, 400, "image", "invalid_image_file",
			"GIF is not supported"},
		"truncated image": {[]part{prompt, one, {"image[]", "a", img[:50]}}, 400, "image[]", "invalid_image_file",
			"image 2: the PNG file is"},
		"bomb": {[]part{prompt, {"image", "a", bomb(t, 60000, 60000)}}, 400, "image", "invalid_image_file",
			"60000x60000: more pixels than the 1048576"},
		"many bombs": {[]part{prompt, one, {"image", "a", bomb(t, 1024, 1024)}}, 400, "image",
			"invalid_image_file", "1024x1024: more pixels than"},
		"opaque mask": {[]part{prompt, one, {"mask", "m.png", img}}, 400, "mask", "invalid_value", "has no transparent pixels"},
		"another size": {[]part{prompt, one, {"mask", "m.png", clearFile(t, 8, 9)}}, 400, "mask", "invalid_value",
			"the size of the image, found 8x9"},
		"empty mask":   {[]part{prompt, one, {"mask", "m.png", nil}}, 400, "mask", "invalid_value", "is empty"},
		"two masks":    {[]part{prompt, one, {"mask", "a", img}, {"mask", "b", img}}, 400, "mask", "invalid_value", "is there twice"},
		"no mask file": {[]part{prompt, one, {"mask", "a", []byte("hello")}}, 400, "mask", "invalid_image_file", "not a PNG"},
		"bomb as a mask": {[]part{prompt, one, {"mask", "a", bomb(t, 60000, 60000)}}, 400, "mask", "invalid_image_file",
			"more pixels than"},
		"two with a mask": {[]part{prompt, one, one, {"mask", "a", img}, text("model", "shapes")}, 400, "image", "invalid_value",
			"shapes takes one image with a mask, found 2"},
		"markup": {[]part{prompt, one, {"markup", "m.png", img}}, 400, "markup", "unsupported_value", "use mask"},
		"cannot edit": {[]part{prompt, one, text("model", "shapes")}, 400, "model", "unsupported_value",
			"use owner/editor, or give strength"},
		"unknown model":   {[]part{prompt, one, text("model", "x")}, 404, "model", "model_not_found", "expected one of"},
		"missing model":   {[]part{prompt, one, text("model", "gone")}, 404, "model", "model_not_found", "gomflux pull gone"},
		"strength 0":      {[]part{prompt, one, text("strength", "0")}, 400, "strength", "invalid_value", "above 0"},
		"strength 1.5":    {[]part{prompt, one, text("strength", "1.5")}, 400, "strength", "invalid_value", "at most 1, found 1.5"},
		"strength NaN":    {[]part{prompt, one, text("strength", "NaN")}, 400, "strength", "invalid_value", `found "NaN"`},
		"strength of two": {[]part{prompt, one, one, text("strength", "0.5")}, 400, "strength", "invalid_value", "found 2 images"},
		"spaces":          {[]part{prompt, one, text("n", " ")}, 400, "n", "invalid_value", `found " "`},
		"n":               {[]part{prompt, one, text("n", "11")}, 400, "n", "invalid_value", "found 11"},
		"stream":          {[]part{prompt, one, text("stream", "yes")}, 400, "stream", "invalid_value", `found "yes"`},
		"twice":           {[]part{prompt, prompt, one}, 400, "prompt", "invalid_value", "is there twice"},
		"unknown field":   {[]part{prompt, one, text("cfg", "7")}, 400, "cfg", "unknown_parameter", `unknown parameter "cfg"`},
		"not UTF-8":       {[]part{text("prompt", "a\xff"), one}, 400, "prompt", "invalid_value", "not valid UTF-8"},
		"long field":      {[]part{text("prompt", strings.Repeat("x", maxField+1)), one}, 400, `"prompt"`, "invalid_value", "256 KiB"},
		"many parts":      {parts, 400, "user", "invalid_value", "is there twice"},
		"LoRA":            {[]part{prompt, one, text("loras[][name]", "x")}, 404, "loras", "model_not_found", "LoRA x"},
		"bad scale": {[]part{prompt, one, text("loras[][name]", "style"), text("loras[][scale]", "a")}, 400,
			"loras", "invalid_value", "scale"},
		"scales":       {[]part{prompt, one, text("loras[][scale]", "1")}, 400, "loras", "invalid_value", "0 names and 1 scales"},
		"URL as image": {[]part{prompt, {"image", "", []byte("http://x")}}, 400, "image", "invalid_image_file", "not a PNG"},
	} {
		if name == "many parts" {
			for i := range test.parts {
				test.parts[i].field = fmt.Sprintf("svg[%d]", i)
			}
			test.param, test.code, test.message = "", "invalid_form", "more than 128 parts"
		}
		body, kind := formOf(t, test.parts...)
		checkError(t, post(h, edits, kind, body), name, test.status, test.param, test.code, test.message)
	}
}

func TestBadForms(t *testing.T) {
	img := pngOf(t, testImage(8, 8, 0))
	c := testConfig()
	c.MaxBody = 60 << 20
	h := New(newFake(), c)
	body, kind := formOf(t, text("prompt", "x"), part{"image", "a.png", img})
	large, largeKind := formOf(t, text("prompt", "x"), part{"image", "a.png", make([]byte, maxImage+1)})
	url := dataURL(img)
	for name, test := range map[string]struct {
		kind, body  string
		status      int
		param, code string
		message     string
	}{
		"without end":    {kind, string(body[:len(body)-10]), 400, "", "invalid_body", "ends too early"},
		"other boundary": {"multipart/form-data; boundary=x", string(body), 400, "", "invalid_body", "damaged"},
		"no boundary":    {"multipart/form-data", string(body), 400, "", "invalid_form", "the boundary is missing"},
		"form encoding":  {"application/x-www-form-urlencoded", "prompt=x", 415, "", "unsupported_media_type", "multipart/form-data or"},
		"bad type":       {"a/b; c", "prompt=x", 415, "", "unsupported_media_type", "Content-Type"},
		"50 MB":          {largeKind, string(large), 400, "image", "invalid_value", "more than 50 MB"},
		"URL": {"", `{"prompt": "x", "image": "https://example.com/a.png"}`, 400, "image",
			"unsupported_value", "fetches no URLs"},
		"file":       {"", `{"prompt": "x", "image": "file:///etc/passwd"}`, 400, "image", "unsupported_value", "fetches no URLs"},
		"file id":    {"", `{"prompt": "x", "images": [{"file_id": "f"}]}`, 400, "images", "unsupported_value", "file_id"},
		"number":     {"", `{"prompt": "x", "images": 1}`, 400, "images", "invalid_value", "expected a data: URL"},
		"null":       {"", `{"prompt": "x", "images": [null]}`, 400, "images", "invalid_value", "expected a data: URL"},
		"no base64":  {"", `{"prompt": "x", "image": "data:image/png,abc"}`, 400, "image", "invalid_value", "with base64"},
		"bad base64": {"", `{"prompt": "x", "image": "data:image/png;base64,?"}`, 400, "image", "invalid_value", "is not base64"},
		"text":       {"", `{"prompt": "x", "image": "data:text/html;base64,AAAA"}`, 400, "image", "invalid_value", "text/html"},
		"both and mask": {"", `{"prompt": "x", "image": "` + url + `", "mask": "` + url + `"}`, 400, "mask",
			"invalid_value", "has no transparent pixels"},
		"mask of a URL": {"", `{"prompt": "x", "image": "` + url + `", "mask": {"image_url": "https://example.com/a.png"}}`, 400, "mask",
			"unsupported_value", "fetches no URLs"},
		"17 data: URLs": {"", `{"prompt": "x", "image": [` + strings.Repeat(`"`+url+`",`, 16) + `"` + url + `"]}`, 400,
			"image", "invalid_value", "at most 16"},
		"too large": {"", strings.Repeat(" ", 60<<20+1), 413, "", "request_too_large", "62914560 bytes"},
	} {
		checkError(t, post(h, edits, test.kind, []byte(test.body)), name, test.status, test.param, test.code, test.message)
	}
	checkError(t, post(h, generations, kind, body), "form", 415, "", "unsupported_media_type", "expected application/json, found")

	for kind, body := range map[string]string{kind: string(body[:90]), "application/json": "{"} {
		r, _ := http.NewRequest(http.MethodPost, edits, io.MultiReader(strings.NewReader(body), slow{}))
		r.Header.Set("Content-Type", kind)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		checkError(t, w.Result(), "slow client", 400, "", "invalid_body", "i/o timeout")
	}
}

// slow is the rest of a body that never comes.
type slow struct{}

func (slow) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

func TestNoModels(t *testing.T) {
	e := &fakeEngine{}
	h := New(e, Config{})
	checkError(t, postJSON(h, generations, `{"prompt": "x"}`), "no default", 404, "model", "model_not_found", "no default model")
	checkError(t, postJSON(h, generations, `{"prompt": "x", "loras": [{"name": "y"}]}`), "no default", 404, "model",
		"model_not_found", "")
	e.models = []engine.ModelInfo{{Name: "a", Default: true, Missing: "is gone"}}
	checkError(t, postJSON(h, generations, `{"prompt": "x"}`), "missing default", 404, "model", "model_not_found", "model a: is gone")
	e.models[0].Missing = ""
	checkError(t, postJSON(h, generations, `{"prompt": "x", "loras": [{"name": "y"}]}`), "LoRA", 404, "loras",
		"model_not_found", "LoRA y")
	image := dataURL(pngOf(t, testImage(8, 8, 0)))
	checkError(t, postJSON(h, edits, `{"prompt": "x", "image": "`+image+`"}`), "no editor", 400, "model", "unsupported_value",
		"a takes no reference images (give strength")
}

func TestSourceName(t *testing.T) {
	for name, want := range map[string]string{
		"": "image-3", "cat.png": "cat.png", "../../x": "x", `C:\a\b.png`: "b.png", "/": "image-3", "a\x00\n\x7fb": "ab",
		strings.Repeat("x", 300): "image-3", "a\xffb": "ab",
	} {
		if got := sourceName(name, 2); got != want {
			t.Errorf("%q: %q, expected %q", name, got, want)
		}
	}
}

func FuzzJSON(f *testing.F) {
	for _, seed := range []string{`{"prompt":"x","n":2,"seed":1}`, `{"prompt":"x","loras":[{"name":"style","scale":1}],"strength":0.5}`,
		`{"prompt":"x","size":"64x64","image":"data:image/png;base64,AAAA"}`, `{"images":[{"image_url":"data:"}]}`, `[]`, `{"n":`} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, body []byte, edit bool) {
		path := generations
		if edit {
			path = edits
		}
		e := newFake()
		r := postJSON(New(e, testConfig()), path, string(body))
		if r.StatusCode == 200 {
			checkRequest(t, e.requests[0])
		} else if r.StatusCode >= 500 {
			t.Errorf("status %d", r.StatusCode)
		} else {
			decodeError(t, r)
		}
	})
}

func FuzzForm(f *testing.F) {
	img := pngOf(f, testImage(4, 4, 0))
	body, kind := formOf(f, text("prompt", "x"), part{"image", "a.png", img}, text("n", "2"), text("loras[][name]", "style"))
	f.Add(body, kind)
	f.Add(body[:40], kind)
	f.Add([]byte("--x\r\nContent-Disposition: form-data; name=n\r\n\r\n \r\n--x--"), "multipart/form-data; boundary=x")
	f.Fuzz(func(t *testing.T, body []byte, kind string) {
		e := newFake()
		r := post(New(e, testConfig()), edits, kind, body)
		if r.StatusCode == 200 {
			checkRequest(t, e.requests[0])
		} else if r.StatusCode >= 500 {
			t.Errorf("status %d", r.StatusCode)
		} else {
			decodeError(t, r)
		}
	})
}

// checkRequest checks what holds for every request that reaches the engine.
func checkRequest(t *testing.T, r engine.Request) {
	o := r.Options
	if len(r.Seeds) < 1 || len(r.Seeds) > 10 || o.Width*o.Height > 1<<22 || (o.Width == 0) != (o.Height == 0) ||
		o.Steps < 0 || o.Steps > 1<<20 || r.Previews < 0 || r.Previews > 3 || len(o.References) > 16 ||
		o.Image != nil && !(o.ImageStrength > 0 && o.ImageStrength < 1) {
		t.Errorf("request %+v", r)
	}
}
