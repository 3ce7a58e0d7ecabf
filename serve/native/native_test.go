package native

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/draw"
	"image/jpeg"
	"image/png"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
	"github.com/gomflux/gomflux/serve/gallery"
)

// A service is the interface to a fake engine. Each answer is checked against openapi.json.
type service struct {
	*testing.T
	engine  *fakeEngine
	api     *API
	server  *httptest.Server
	doc     map[string]any
	schemas map[string]*jsonschema.Schema
}

// failing is the log of an API that must have nothing to log.
type failing struct{ *testing.T }

func (f failing) Write(line []byte) (int, error) {
	f.Errorf("logged: %s", line)
	return len(line), nil
}

func serve(t *testing.T, edit func(*Config)) *service {
	g, err := gallery.Open(t.TempDir(), gallery.DefaultSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	c := Config{
		Config:  api.Config{MaxPixels: 1 << 16, LoRAs: func() []string { return []string{"style"} }},
		Gallery: g,
		Log:     slog.New(slog.NewTextHandler(failing{t}, nil)),
	}
	if edit != nil {
		edit(&c)
	}
	s := &service{T: t, engine: &fakeEngine{}}
	s.api = New(s.engine, c)
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		s.api.ServeHTTP(w, r.WithContext(engine.WithClient(r.Context(), r.Header.Get("Client"))))
	}))
	t.Cleanup(s.server.Close)
	t.Cleanup(func() { // before the gallery is removed
		for _, j := range s.engine.jobs {
			j.Cancel()
		}
		if err := s.api.Wait(context.Background()); err != nil {
			t.Error(err)
		}
	})
	var components struct {
		Components struct {
			Schemas map[string]*jsonschema.Schema
		}
	}
	local := bytes.ReplaceAll(openAPI, []byte("#/components/schemas/"), []byte("#/$defs/"))
	if err := errors.Join(json.Unmarshal(openAPI, &s.doc), json.Unmarshal(local, &components)); err != nil {
		t.Fatal(err)
	}
	s.schemas = components.Components.Schemas
	return s
}

// call sends a request and checks the status and, by openapi.json, the answer.
func (s *service) call(method, path, body string, status int, into any, header ...string) http.Header {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), method, s.server.URL+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	if strings.HasPrefix(body, "{") {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("Client", "ann")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.Fatal(err)
	}
	if answer.StatusCode != status {
		s.Fatalf("%s %s: %s: %s, expected %d", method, path, answer.Status, text, status)
	}
	if kind := answer.Header.Get("Content-Type"); kind == "application/json" {
		s.validate(s.answerSchema(method, path, status), text)
	}
	switch into := into.(type) {
	case nil:
	case *[]byte:
		*into = text
	default:
		if err := json.Unmarshal(text, into); err != nil {
			s.Fatalf("%s: %v", text, err)
		}
	}
	return answer.Header
}

// answerSchema returns the schema of an answer in openapi.json.
func (s *service) answerSchema(method, path string, status int) any {
	s.Helper()
	path, _, _ = strings.Cut(path, "?")
	for route := range s.api.routes() {
		routeMethod, routePath, _ := strings.Cut(route, " ")
		pattern, parts := strings.Split(routePath, "/"), strings.Split(path, "/")
		same := len(pattern) == len(parts) && routeMethod == method
		for i := 0; same && i < len(parts); i++ {
			same = pattern[i] == parts[i] || strings.HasPrefix(pattern[i], "{")
		}
		if !same {
			continue
		}
		at := any(s.doc)
		for _, key := range []string{"paths", routePath, strings.ToLower(method), "responses", fmt.Sprint(status)} {
			if at = at.(map[string]any)[key]; at == nil {
				s.Fatalf("%s %s %d is not in openapi.json", method, path, status)
			}
		}
		content, ok := at.(map[string]any)["content"]
		if !ok {
			return map[string]any{"$ref": "#/components/schemas/Error"}
		}
		return content.(map[string]any)["application/json"].(map[string]any)["schema"]
	}
	return map[string]any{"$ref": "#/components/schemas/Error"}
}

// validate checks JSON against a schema of openapi.json.
func (s *service) validate(schema any, text []byte) {
	s.Helper()
	raw, err := json.Marshal(schema)
	if err != nil {
		s.Fatal(err)
	}
	var parsed jsonschema.Schema
	if err := json.Unmarshal(bytes.ReplaceAll(raw, []byte("#/components/schemas/"), []byte("#/$defs/")), &parsed); err != nil {
		s.Fatal(err)
	}
	parsed.Defs = map[string]*jsonschema.Schema{}
	for name, d := range s.schemas {
		parsed.Defs[name] = d.CloneSchemas()
	}
	resolved, err := parsed.Resolve(nil)
	if err != nil {
		s.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		s.Fatal(err)
	}
	if err := resolved.Validate(v); err != nil {
		s.Fatalf("%s\ndoes not match openapi.json: %v", text, err)
	}
}

func TestOpenAPIHasTheRoutes(t *testing.T) {
	s := serve(t, nil)
	var described, served []string
	for path, methods := range s.doc["paths"].(map[string]any) {
		for method := range methods.(map[string]any) {
			described = append(described, strings.ToUpper(method)+" "+path)
		}
	}
	for route := range s.api.routes() {
		served = append(served, route)
	}
	slices.Sort(described)
	slices.Sort(served)
	if !slices.Equal(described, served) {
		t.Errorf("openapi.json has %q, expected %q", described, served)
	}
	var fields []string
	for f := range reflect.TypeFor[jsonRequest]().Fields() {
		fields = append(fields, f.Tag.Get("json"))
	}
	var properties []string
	for name := range s.schemas["JobRequest"].Properties {
		properties = append(properties, name)
	}
	slices.Sort(fields)
	slices.Sort(properties)
	if !slices.Equal(fields, properties) {
		t.Errorf("JobRequest has %q, expected %q", properties, fields)
	}
	var text []byte
	s.call("GET", "/api/v1/openapi.json", "", 200, &text)
	if !bytes.Equal(text, openAPI) {
		t.Error("another file is served")
	}
}

func encoded(t *testing.T, w, h int) string {
	var b bytes.Buffer
	if err := picture.Encode(&b, picture.PNG, testImage(w, h), nil); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

func TestSubmit(t *testing.T) {
	s := serve(t, nil)
	img := encoded(t, 16, 8)
	var j jsonJob
	body := `{"prompt":"a <cat>","negative_prompt":"dog","height":64,"width":128,"steps":3,"guidance":0,"guidance_unit":"cfg",
		"guidance_interval":[0,0.5],"true_cfg_scale":2.5,"cfg_normalization":1,"cfg_truncation":0.7,
		"step_cache":"easy:0.1","seed":18446744073709551614,"count":2,"max_sequence_length":99,"scheduler":"linear","rng":"torch",
		"background":"opaque",
		"loras":[{"path":"style","scale":0.5},{"path":"owner/name:a.safetensors","partial":true},{"path":"style","scale":0}],
		"image":{"data":"` + img + `","name":"../x/cat.png"},"image_strength":0.3,
		"references":[{"data":"data:image/png;base64,` + img + `"}],
		"previews":3}`
	s.validate(map[string]any{"$ref": "#/components/schemas/JobRequest"}, []byte(body))
	h := s.call("POST", "/api/v1/jobs", body, 202, &j)
	if j.ID != "job0" || j.State != engine.Queued || j.Model != "shapes" || j.Images != 2 || h.Get("Location") != "/api/v1/jobs/job0" {
		t.Errorf("answer %+v", j)
	}
	_, r := s.engine.last()
	o := r.Options
	if o.Image.Bounds().Dx() != 16 || len(o.References) != 1 {
		t.Errorf("images %v, %v", o.Image, o.References)
	}
	o.Image, o.References = nil, nil
	guidance := 0.0
	want := engine.Request{
		Client: "ann", Model: "shapes", Previews: 3, Seeds: []uint64{math.MaxUint64 - 1, math.MaxUint64},
		LoRAs: []gomflux.LoRA{{Path: "style", Scale: 0.5}, {Path: "owner/name:a.safetensors", Scale: 1, Partial: true}},
	}
	wantOptions := gomflux.Options{
		Prompt: "a <cat>", NegativePrompt: "dog", Height: 64, Width: 128, Steps: 3, Guidance: &guidance,
		GuidanceUnit: picture.CFGScale, GuidanceInterval: []float64{0, 0.5},
		TrueCFGScale: 2.5, CFGNormalization: 1, CFGTruncation: 0.7,
		StepCache: "easy:0.1", MaxSequenceLength: 99, Scheduler: "linear", RNG: "torch",
		Background: "opaque", ImageStrength: 0.3,
	}
	r.Options, r.Sources = gomflux.Options{}, engine.Sources{}
	if !reflect.DeepEqual(r, want) || !reflect.DeepEqual(o, wantOptions) {
		t.Errorf("request %+v\n%+v\nexpected %+v\n%+v", r, o, want, wantOptions)
	}
	job, _ := s.engine.last()
	job.finishes(0, 5)
	s.call("GET", "/api/v1/jobs/job0", "", 200, &j)
	from := j.Pictures[0].Settings
	if from.Image.Path != "cat.png" || len(from.Image.SHA256) != 64 || from.References[0].Path != "reference-1.png" {
		t.Errorf("sources %+v, %+v", from.Image, from.References)
	}
	var stored []byte
	s.call("GET", s.follow("job0", "", func(e sse) bool { return e.kind == "picture" })[1].data.Picture.URL, "", 200, &stored)
	found, err := picture.ReadSettings(bytes.NewReader(stored))
	if err != nil || !reflect.DeepEqual(found.Settings.Image, from.Image) || len(found.Settings.References) != 1 {
		t.Errorf("stored settings %+v (%v)", found, err)
	}

	s.call("POST", "/api/v1/jobs", `{"prompt":"a <lora:STYLE:0.5> cat","loras":[{"path":"x"}],"true_cfg_scale":3}`, 202, nil)
	loras := []gomflux.LoRA{{Path: "x", Scale: 1}, {Path: "style", Scale: 0.5}}
	if _, r := s.engine.last(); r.Options.Prompt != "a cat" || r.Options.TrueCFGScale != 3 || !reflect.DeepEqual(r.LoRAs, loras) {
		t.Errorf("request %+v", r)
	}
	s.call("POST", "/api/v1/jobs", `{"prompt":"a <lora:style:0.5> cat","no_lora_tags":true}`, 202, nil)
	if _, r := s.engine.last(); r.Options.Prompt != "a <lora:style:0.5> cat" || r.LoRAs != nil {
		t.Errorf("request %+v", r)
	}
	s.call("POST", "/api/v1/jobs", `{"prompt":"","seed":"12"}`, 202, nil)
	if _, r := s.engine.last(); !slices.Equal(r.Seeds, []uint64{12}) || r.Previews != -1 || r.Options.Guidance != nil {
		t.Errorf("request %+v", r)
	}
	s.call("POST", "/api/v1/jobs", `{"count":4}`, 202, nil)
	_, r = s.engine.last()
	slices.Sort(r.Seeds)
	if len(slices.Compact(r.Seeds)) != 4 || r.Seeds[3] > math.MaxUint32 {
		t.Errorf("random seeds %d", r.Seeds)
	}
}

// TestMask checks the fields of inpainting.
func TestMask(t *testing.T) {
	s := serve(t, nil)
	img, mask := encoded(t, 16, 8), maskFile(t, 16, 8)
	body := `{"prompt":"a","image":{"data":"` + img + `"},"mask":{"data":"` + mask + `","name":"m.png"},"invert_mask":true,
		"mask_blur":0,"mask_crop":9,"expand":[0,1,2,3],"no_paste_back":true}`
	s.validate(map[string]any{"$ref": "#/components/schemas/JobRequest"}, []byte(body))
	s.call("POST", "/api/v1/jobs", body, 202, nil)
	job, r := s.engine.last()
	blur := 0
	want := gomflux.InpaintOptions{Invert: true, Feather: &blur, Crop: true, Padding: 9, NoPasteBack: true,
		Expand: gomflux.Border{Top: 1, Right: 2, Bottom: 3}}
	if o := r.Options; o.Mask == nil || o.Image == nil || o.ImageStrength != 0 || !reflect.DeepEqual(o.Inpaint, want) {
		t.Errorf("options %+v, expected %+v", o.Inpaint, want)
	}
	job.finishes(0, 5)
	var j jsonJob
	s.call("GET", "/api/v1/jobs/job0", "", 200, &j)
	if from := j.Pictures[0].Settings; from.Mask == nil || from.Mask.Path != "m.png" || len(from.Mask.SHA256) != 64 {
		t.Errorf("the mask of the settings: %+v", from.Mask)
	}
	for body, want := range map[string]string{
		`{"mask":{"data":"` + mask + `"}}`:                                                       "a mask needs an image",
		`{"image":{"data":"` + img + `"},"invert_mask":true}`:                                    "need a mask",
		`{"image":{"data":"` + img + `"},"mask":{"data":"` + maskFile(t, 16, 16) + `"}}`:         "the same size or proportions",
		`{"image":{"data":"` + img + `"},"mask":{"data":"` + img + `"}}`:                         "the mask has colours",
		`{"image":{"data":"` + img + `"},"mask":{"data":"aGVsbG8="}}`:                            "mask: not a PNG",
		`{"image":{"data":"` + img + `"},"expand":[1,2,3]}`:                                      "expand [1 2 3]: expected four",
		`{"image":{"data":"` + img + `"},"mask":{"data":"` + mask + `"},"mask_blur":-1}`:         "mask_blur -1",
		`{"image":{"data":"` + img + `"},"mask":{"data":"` + mask + `"},"mask_crop":-1}`:         "mask_crop -1",
		`{"image":{"data":"` + img + `"},"mask":{"data":"` + mask + `"},"mask_blur":9999}`:       "feather 9999",
		`{"image":{"data":"` + img + `"},"expand":[60000,0,0,0],"mask":{"data":"` + mask + `"}}`: "the border makes the image 60016x8",
	} {
		var e struct{ Error jsonError }
		s.call("POST", "/api/v1/jobs", body, 400, &e)
		if !strings.Contains(e.Error.Message, want) {
			t.Errorf("%.80s: %q, expected %q", body, e.Error.Message, want)
		}
	}
}

// maskFile returns a mask whose left half is white.
func maskFile(t *testing.T, width, height int) string {
	t.Helper()
	mask := image.NewGray(image.Rect(0, 0, width, height))
	draw.Draw(mask, image.Rect(0, 0, width/2, height), image.White, image.Point{}, draw.Src)
	var b bytes.Buffer
	if err := png.Encode(&b, mask); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

func TestBadRequests(t *testing.T) {
	s := serve(t, nil)
	wide := encoded(t, 513, 512)
	half := encoded(t, 512, 320)
	for body, want := range map[string]string{
		`{`:                                              "ends too early",
		`{"prompt":1}`:                                   "prompt: expected a string, found JSON number",
		`{"image":"data:"}`:                              "image: expected an object, found JSON string",
		`{"loras":{}}`:                                   "loras: expected an array, found JSON object",
		`{"steps":1.5}`:                                  "steps: expected a whole number, found JSON number 1.5",
		`{"prompt":"a"} {}`:                              "found more after it",
		`{"prompt":"a","stepz":1}`:                       "stepz",
		`{"prompt":"a","steps":-1}`:                      "steps -1",
		`{"prompt":"a","count":0}`:                       "count 0",
		`{"prompt":"a","count":65}`:                      "count 65",
		`{"prompt":"a","seed":-1}`:                       "seed -1",
		`{"prompt":"a","seed":1.5}`:                      "seed 1.5",
		`{"prompt":"a","previews":-2}`:                   "previews -2",
		`{"prompt":"a","image_strength":0.5}`:            "image_strength needs an image",
		`{"seed":18446744073709551615,"count":2}`:        "seed 18446744073709551615",
		`{"loras":[{"scale":1}]}`:                        "loras[0].path is missing",
		`{"image":{"data":"https://example.com/a.png"}}`: "URL, which is not fetched",
		`{"image":{"data":"file:///etc/passwd"}}`:        "URL, which is not fetched",
		`{"image":{"data":"data:text/plain,a"}}`:         "base64",
		`{"image":{"data":"%%%"}}`:                       "image.data: expected base64",
		`{"image":{"data":"aGVsbG8="}}`:                  "not a PNG",
		`{"image":{"data":"` + wide + `"}}`:              "513x512: more pixels than",
		`{"references":[{"data":"` + half + `"},{"data":"` + half + `"}]}`:  "references[1]: 512x320: more pixels than",
		`{"references":[` + strings.Repeat(`{"data":""},`, 16) + `{}]}`:     "17 references",
		`{"loras":[` + strings.Repeat(`{"path":"style"},`, 16) + `{}]}`:     "17 loras",
		`{"image":{"data":"","url":"a"}}`:                                   "url",
		`{"prompt":"a","guidance":"high"}`:                                  "guidance: expected a number, found JSON string",
		`{"prompt":"a","seed":"99999999999999999999999999999999999999999"}`: "seed 9999",
	} {
		var e struct{ Error jsonError }
		s.call("POST", "/api/v1/jobs", body, 400, &e)
		if e.Error.Code != "bad_request" || !strings.Contains(e.Error.Message, want) {
			t.Errorf("%.80s: %+v, expected %q", body, e.Error, want)
		}
	}
	s.call("POST", "/api/v1/jobs", `{"prompt":"`+strings.Repeat("a", 2<<20)+`"}`, 413, nil)
	s.call("POST", "/api/v1/jobs", `{"prompt":"a"}`, 415, nil, "Content-Type", "text/plain")
	if len(s.engine.requests) != 0 {
		t.Errorf("%d jobs were submitted", len(s.engine.requests))
	}
	if h := s.call("PUT", "/api/v1/jobs", "", 405, nil); h.Get("Allow") != "GET, HEAD, POST" {
		t.Errorf("Allow: %s", h.Get("Allow"))
	}
	s.call("GET", "/api/v1/nothing", "", 404, nil)
	s.call("GET", "/api/v1/jobs/nothing", "", 404, nil)
	s.call("DELETE", "/api/v1/jobs/nothing", "", 404, nil)
	s.call("GET", "/api/v1/jobs/nothing/events", "", 404, nil)
}

func TestEngineErrors(t *testing.T) {
	s := serve(t, nil)
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{&engine.FullError{Jobs: 3, Retry: 1500 * time.Millisecond}, 429, "queue_full"},
		{engine.ErrClosed, 503, "closing"},
		{fmt.Errorf("model x: %w (gomflux pull x)", gomflux.ErrNotFound), 404, "not_found"},
		{fmt.Errorf("height 45: %w", gomflux.ErrRequest), 400, "bad_request"},
	} {
		s.engine.err = c.err
		for path, body := range map[string]string{
			"jobs": `{"prompt":"a","enhance":{}}`, "enhance": `{"prompt":"a"}`, "describe": `{"image":{"data":"` + encoded(t, 8, 8) + `"}}`,
		} {
			var e struct{ Error jsonError }
			h := s.call("POST", "/api/v1/"+path, body, c.status, &e)
			if e.Error.Code != c.code || e.Error.Message != c.err.Error() {
				t.Errorf("%s, %v: %+v", path, c.err, e)
			}
			if retry := h.Get("Retry-After"); (retry == "2") != (c.status == 429) {
				t.Errorf("%s: Retry-After %q with status %d", path, retry, c.status)
			}
		}
	}
}

// An sse is an event as a client receives it.
type sse struct {
	id, kind string
	data     eventJSON
}

// follow reads the events of a job until done returns true or the stream ends.
func (s *service) follow(id, last string, done func(sse) bool) (all []sse) {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), "GET", s.server.URL+"/api/v1/jobs/"+id+"/events", nil)
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("Client", "ann")
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	defer answer.Body.Close()
	if kind := answer.Header.Get("Content-Type"); answer.StatusCode != 200 || kind != "text/event-stream" {
		s.Fatalf("%s, %s", answer.Status, kind)
	}
	var e sse
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch key {
		case "id":
			e.id = value
		case "event":
			e.kind = value
		case "data":
			s.validate(map[string]any{"$ref": "#/components/schemas/Event"}, []byte(value))
			if err := json.Unmarshal([]byte(value), &e.data); err != nil {
				s.Fatal(err)
			}
			if all = append(all, e); done(e) {
				return all
			}
			e = sse{}
		}
	}
	return all
}

func TestEvents(t *testing.T) {
	s := serve(t, nil)
	s.call("POST", "/api/v1/jobs", `{"prompt":"a <cat>","count":2}`, 202, nil)
	j, _ := s.engine.last()
	j.happens(engine.Event{Kind: engine.EventQueued})
	j.happens(engine.Event{Kind: engine.EventLoading, Bytes: 5, Total: 10})
	j.happens(engine.Event{Kind: engine.EventStep})
	j.happens(engine.Event{Kind: engine.EventPreview, Preview: testImage(8, 4), Part: 1})
	result := j.finishes(0, 7)
	first := s.follow("job0", "", func(e sse) bool { return e.kind == "picture" })
	var kinds []string
	for i, e := range first {
		kinds = append(kinds, e.kind)
		if e.id != fmt.Sprint(i+1) || e.data.ID != "job0" || e.data.Images != 2 {
			t.Errorf("event %+v", e)
		}
	}
	if want := []string{"queued", "position", "loading", "step", "preview", "picture"}; !slices.Equal(kinds, want) {
		t.Fatalf("events %q, expected %q", kinds, want)
	}
	if e := first[2].data; e.Bytes != 5 || e.TotalBytes != 10 {
		t.Errorf("loading %+v", e)
	}
	p := first[4].data.Preview
	img, err := jpeg.Decode(bytes.NewReader(p.Data))
	if err != nil || img.Bounds().Dx() != 8 || p.Width != 8 || p.Height != 4 || p.Part != 1 {
		t.Errorf("preview %+v (%v)", p, err)
	}
	made := first[5].data.Picture
	if made.Seed != 7 || made.Name == "" || made.Seconds["encode"] != 1 || made.Settings.Prompt != "a <cat>" {
		t.Errorf("picture %+v", made)
	}
	var stored, again []byte
	s.call("GET", made.URL, "", 200, &stored)
	s.call("GET", "/api/v1/jobs/job0/pictures/0", "", 200, &again)
	var want bytes.Buffer
	if err := api.EncodePNG(&want, result.Image, result.Settings); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(stored, want.Bytes()) || !bytes.Equal(again, stored) {
		t.Error("the images differ from the command's")
	}
	s.call("GET", "/api/v1/jobs/job0/pictures/1", "", 404, nil)

	// the client comes back
	j.end(engine.Failed, fmt.Errorf("too large: %w", gomflux.ErrMemory))
	rest := s.follow("job0", "5", func(sse) bool { return false })
	if len(rest) != 2 || rest[0].kind != "picture" || rest[1].kind != "failed" || rest[1].data.Error.Code != "memory" {
		t.Errorf("after event 5: %+v", rest)
	}
	s.call("GET", "/api/v1/jobs/job0/events", "", 400, nil, "Last-Event-ID", "x")
}

func TestLiveEventsAndCancel(t *testing.T) {
	s := serve(t, nil)
	s.call("POST", "/api/v1/jobs", `{"prompt":"a"}`, 202, nil)
	j, _ := s.engine.last()
	all := s.follow("job0", "", func(e sse) bool {
		switch e.kind {
		case "queued":
			j.happens(engine.Event{Kind: engine.EventStep})
		case "step":
			s.call("DELETE", "/api/v1/jobs/job0", "", 202, nil)
		}
		return false
	})
	if len(all) != 3 || all[2].kind != "canceled" || all[2].data.State != engine.Canceled {
		t.Errorf("events %+v", all)
	}
}

// TestNobodyReads finishes a job whose events no client reads.
func TestNobodyReads(t *testing.T) {
	s := serve(t, nil)
	s.call("POST", "/api/v1/jobs", `{"prompt":"a"}`, 202, nil)
	j, _ := s.engine.last()
	j.finishes(0, 7)
	j.end(engine.Done, nil)
	if err := s.api.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	var g jsonGallery
	s.call("GET", "/api/v1/pictures", "", 200, &g)
	if g.Count != 1 || len(g.Pictures) != 1 || g.Bytes == 0 || g.Size != gallery.DefaultSize {
		t.Fatalf("gallery %+v", g)
	}
	p := g.Pictures[0]
	if string(p.Settings["seed"]) != "7" || p.Width != 8 || p.Settings["seconds"] != nil {
		t.Errorf("image %+v", p)
	}
	if h := s.call("GET", p.URL+"?download=1", "", 200, nil); h.Get("Content-Disposition") != `attachment; filename="`+p.Name+`"` {
		t.Errorf("headers %v", h)
	}
	s.call("GET", "/api/v1/pictures?limit=0", "", 400, nil)
	s.call("GET", "/api/v1/pictures?limit=101", "", 400, nil)
	s.call("DELETE", p.URL, "", 204, nil)
	s.call("DELETE", p.URL, "", 404, nil)
	s.call("GET", p.URL, "", 404, nil)
	s.call("GET", "/api/v1/pictures/..%2f..%2fetc%2fpasswd", "", 404, nil)
}

// TestPictureRoutes searches images, marks favourites, and removes several, as their owner and as another.
func TestPictureRoutes(t *testing.T) {
	s := serve(t, func(c *Config) { c.Private = true })
	var names []string
	for i, prompt := range []string{"a cat", "a dog", "a cat and a dog"} {
		e, err := s.api.Gallery.Add("ann", image.NewRGBA(image.Rect(0, 0, 8, 8)), picture.Settings{
			Generator: "t", Model: "owner/Model", Prompt: prompt, Seed: uint64(i), Steps: 1, Height: 8, Width: 8,
		})
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, e.Name)
	}
	const list = "/api/v1/pictures"
	favourite := list + "/" + names[1] + "/favourite"
	s.call("PUT", favourite, "", 404, nil, "Client", "bob")
	s.call("PUT", favourite, "", 204, nil)
	s.call("PUT", list+"/x/favourite", "", 404, nil)
	s.call("GET", favourite, "", 405, nil)
	for query, want := range map[string]int{
		"q=CAT": 2, "q=dog+cat": 1, "q=x": 0, "model=model": 3, "model=other": 0,
		"favourite=true": 1, "favourite=true&q=cat": 0, "favourite=false": 3,
	} {
		var g jsonGallery
		s.call("GET", list+"?"+query, "", 200, &g)
		if len(g.Pictures) != want || g.Count != 3 {
			t.Errorf("%s: %d images of %d, expected %d", query, len(g.Pictures), g.Count, want)
		}
		for _, p := range g.Pictures {
			if p.Favourite != (p.Name == names[1]) {
				t.Errorf("%s: favourite %v", p.Name, p.Favourite)
			}
		}
	}
	s.call("GET", list+"?favourite=x", "", 400, nil)
	s.call("DELETE", favourite, "", 404, nil, "Client", "bob")
	s.call("DELETE", favourite, "", 204, nil)
	s.call("DELETE", list, "", 400, nil)
	s.call("DELETE", list+"?"+strings.Repeat("name=x&", 101), "", 400, nil)
	some := list + "?name=" + names[0] + "&name=x&name=" + names[2]
	for _, c := range []struct {
		client  string
		removed int
	}{{"bob", 0}, {"ann", 2}, {"ann", 0}} {
		var answer struct{ Removed int }
		s.call("DELETE", some, "", 200, &answer, "Client", c.client)
		if answer.Removed != c.removed {
			t.Errorf("%s removed %d images, expected %d", c.client, answer.Removed, c.removed)
		}
	}
	s.call("GET", list+"/"+names[1], "", 200, nil)
	// the favourites of a small gallery
	small, err := gallery.Open(t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	s8 := picture.Settings{Generator: "t", Model: "m", Steps: 1, Height: 8, Width: 8}
	e, err := small.Add("ann", image.NewRGBA(image.Rect(0, 0, 8, 8)), s8)
	if err != nil {
		t.Fatal(err)
	}
	s.api.Gallery = small
	s.call("PUT", list+"/"+e.Name+"/favourite", "", 409, nil)
}

// TestStoringPanics: a bug while an image is stored is in the log, and the image is not in the gallery.
func TestStoringPanics(t *testing.T) {
	var log bytes.Buffer
	s := serve(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	s.call("POST", "/api/v1/jobs", `{"prompt":"a"}`, 202, nil)
	j, _ := s.engine.last()
	broken := &gomflux.Result{Image: &image.RGBA{Rect: image.Rect(0, 0, 8, 8)}}
	j.happens(engine.Event{Kind: engine.EventPicture, Picture: engine.NewPicture(0, 0, broken)})
	j.end(engine.Done, nil)
	all := s.follow("job0", "", func(sse) bool { return false })
	if p := all[1].data.Picture; p.Name != "" {
		t.Errorf("stored as %s", p.Name)
	}
	if text := log.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "id=job0") {
		t.Errorf("log: %s", text)
	}
}

func TestNoGallery(t *testing.T) {
	s := serve(t, func(c *Config) { c.Gallery = nil })
	s.call("POST", "/api/v1/jobs", `{"prompt":"a"}`, 202, nil)
	j, _ := s.engine.last()
	j.finishes(0, 7)
	j.end(engine.Done, nil)
	all := s.follow("job0", "", func(sse) bool { return false })
	if p := all[1].data.Picture; p.Name != "" || p.URL != "/api/v1/jobs/job0/pictures/0" {
		t.Errorf("picture %+v", p)
	}
	s.call("GET", "/api/v1/jobs/job0/pictures/0", "", 200, nil)
	s.call("GET", "/api/v1/pictures", "", 404, nil)
}

func TestPrivate(t *testing.T) {
	for _, private := range []bool{true, false} {
		s := serve(t, func(c *Config) { c.Private = private })
		s.call("POST", "/api/v1/jobs", `{"prompt":"a"}`, 202, nil)
		j, _ := s.engine.last()
		j.finishes(0, 7)
		j.end(engine.Done, nil)
		all := s.follow("job0", "", func(sse) bool { return false })
		status, count := 200, 1
		if private {
			status, count = 404, 0
		}
		url := all[1].data.Picture.URL
		s.call("GET", url, "", 200, nil)
		for _, path := range []string{url, "/api/v1/jobs/job0", "/api/v1/jobs/job0/pictures/0"} {
			s.call("GET", path, "", status, nil, "Client", "bob")
		}
		if private {
			s.call("DELETE", url, "", 404, nil, "Client", "bob")
			s.call("DELETE", "/api/v1/jobs/job0", "", 404, nil, "Client", "bob")
			s.call("GET", "/api/v1/jobs/job0/events", "", 404, nil, "Client", "bob")
		}
		var g jsonGallery
		s.call("GET", "/api/v1/pictures", "", 200, &g, "Client", "bob")
		var jobs struct{ Jobs []jsonJob }
		s.call("GET", "/api/v1/jobs", "", 200, &jobs, "Client", "bob")
		if g.Count != count || len(jobs.Jobs) != count {
			t.Errorf("private %v: bob sees %d images and %d jobs", private, g.Count, len(jobs.Jobs))
		}
	}
}

func TestModelsAndSettings(t *testing.T) {
	s := serve(t, nil)
	var m struct {
		Models    []engine.ModelInfo
		MaxPixels int `json:"max_pixels"`
		MaxInput  int `json:"max_input_pixels"`
	}
	s.call("GET", "/api/v1/models", "", 200, &m)
	if m.MaxPixels != s.api.MaxPixels || m.MaxPixels == 0 || m.MaxInput != 4*m.MaxPixels {
		t.Errorf("max_pixels %d, expected %d; max_input_pixels %d", m.MaxPixels, s.api.MaxPixels, m.MaxInput)
	}
	if len(m.Models) != 2 || !m.Models[0].Default || m.Models[0].Defaults.Steps != 4 || m.Models[1].Missing == "" {
		t.Errorf("models %+v", m)
	}
	var l struct{ LoRAs []jsonLoRA }
	s.call("GET", "/api/v1/loras", "", 200, &l)
	if len(l.LoRAs) != 1 || l.LoRAs[0].Path != "style" {
		t.Errorf("LoRAs %+v", l)
	}
	var file bytes.Buffer
	settings := &picture.Settings{Generator: "g", Model: "m", Prompt: "p", Seed: 1 << 63, Steps: 1, Height: 4, Width: 8}
	if err := picture.Encode(&file, picture.JPEG, testImage(8, 4), settings); err != nil {
		t.Fatal(err)
	}
	var f jsonFound
	s.call("POST", "/api/v1/settings", file.String(), 200, &f)
	if f.Source != picture.SourceGomflux || f.Format != "JPEG" || f.Width != 8 || string(f.Settings["seed"]) != "9223372036854775808" {
		t.Errorf("settings %+v", f)
	}
	if _, ok := f.Settings["guidance"]; !ok || f.Settings["revision"] != nil {
		t.Errorf("settings %+v", f.Settings)
	}
	var bare bytes.Buffer
	if err := picture.Encode(&bare, picture.PNG, testImage(8, 4), nil); err != nil {
		t.Fatal(err)
	}
	s.call("POST", "/api/v1/settings", bare.String(), 422, nil)
	s.call("POST", "/api/v1/settings", "hello", 400, nil)
	s.call("POST", "/api/v1/settings", "", 400, nil)
	s.call("POST", "/api/v1/settings", "\x89PNG\r\n\x1a\n"+strings.Repeat("a", 2<<20), 413, nil)
}

// FuzzSubmit checks that no body is an internal error, and that what is accepted is within limits.
func FuzzSubmit(f *testing.F) {
	f.Add(`{"prompt":"a","seed":1,"count":2,"width":64,"height":64}`)
	f.Add(`{"image":{"data":"data:image/png;base64,aGVsbG8=","name":"a/b"},"references":[{"data":""}],"loras":[{"path":"x","scale":0}]}`)
	e := &fakeEngine{}
	api := New(e, Config{Config: api.Config{MaxPixels: 1 << 16}})
	f.Fuzz(func(t *testing.T, body string) {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/api/v1/jobs", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		if !json.Valid(w.Body.Bytes()) || w.Code != 202 && w.Code != 400 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		if w.Code != 202 {
			return
		}
		_, q := e.last()
		o := q.Options
		if n := len(q.Seeds); n < 1 || n > maxCount || o.Height < 0 || o.Width < 0 || o.Height*o.Width > 1<<16 || q.Model == "" {
			t.Errorf("%s was accepted", body)
		}
		e.jobs, e.requests = nil, nil
	})
}

// FuzzSettings sends files of any bytes, of which the settings are read.
func FuzzSettings(f *testing.F) {
	s := &picture.Settings{Model: "shapes", Prompt: "a cat", Steps: 8, Height: 4, Width: 8}
	for _, format := range []picture.Format{picture.PNG, picture.JPEG, picture.WebP} {
		var file bytes.Buffer
		if err := picture.Encode(&file, format, testImage(8, 4), s); err != nil {
			f.Fatal(err)
		}
		f.Add(file.Bytes())
	}
	f.Add([]byte(`{"gomflux":{"version":1,"seed":18446744073709551615}}`))
	api := New(&fakeEngine{}, Config{})
	f.Fuzz(func(t *testing.T, file []byte) {
		w := httptest.NewRecorder()
		api.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", "/api/v1/settings", bytes.NewReader(file)))
		if !json.Valid(w.Body.Bytes()) || w.Code >= 500 {
			t.Errorf("status %d: %s", w.Code, w.Body)
		}
	})
}
