package openai

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/png"
	"io"
	"iter"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// A fakeEngine runs jobs at once.
type fakeEngine struct {
	api.Engine
	models   []engine.ModelInfo
	submit   error // of Submit
	fail     error // of jobs, after they made some images
	made     int   // images that a failing job made
	hang     bool  // jobs never end by themselves
	requests []engine.Request
	jobs     []*fakeJob
	started  chan struct{} // is sent to when a job waits, if not nil
}

type fakeJob struct {
	api.Job
	e        *fakeEngine
	r        engine.Request
	canceled chan struct{}
}

func (e *fakeEngine) Models() []engine.ModelInfo { return e.models }

func (e *fakeEngine) Submit(_ context.Context, r engine.Request) (api.Job, error) {
	if e.submit != nil {
		return nil, e.submit
	}
	for _, l := range r.LoRAs {
		if l.Path != "style" {
			return nil, fmt.Errorf("LoRA %s: %w", l.Path, errs.ErrNotFound)
		}
	}
	e.requests = append(e.requests, r)
	j := &fakeJob{e: e, r: r, canceled: make(chan struct{})}
	e.jobs = append(e.jobs, j)
	return j, nil
}

func (j *fakeJob) Status() engine.Status {
	s := engine.Status{Warnings: j.r.Warnings}
	if j.r.Messages != nil {
		s.Answer = &gomflux.Answer{Text: "a cat", PromptTokens: 9, Tokens: 3, Whole: j.r.Language.MaxTokens > 3}
	}
	return s
}

func (j *fakeJob) Cancel() {
	select {
	case <-j.canceled:
	default:
		close(j.canceled)
	}
}

func (j *fakeJob) wait(ctx context.Context) error {
	if j.e.started != nil {
		j.e.started <- struct{}{}
	}
	select {
	case <-j.canceled:
		return context.Canceled
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (j *fakeJob) Wait(ctx context.Context) error {
	if j.e.hang {
		return j.wait(ctx)
	}
	return j.e.fail
}

func (j *fakeJob) Pictures() (all []*engine.Picture) {
	for i, seed := range j.r.Seeds {
		if j.e.fail != nil && i == j.e.made {
			break
		}
		o := j.r.Options
		img := testImage(max(o.Width, 16), max(o.Height, 16), uint8(seed))
		all = append(all, &engine.Picture{Index: i, Seed: seed, Result: &gomflux.Result{
			Image: img, Transparent: transparentOf(img, &o, j.r.Model == "clear"), PromptTokens: 12,
			Settings: picture.Settings{Version: 1, Model: j.r.Model, Prompt: o.Prompt, Seed: seed, Steps: 2,
				Height: img.Rect.Dy(), Width: img.Rect.Dx(), Created: time.Unix(1e9, 0), Seconds: 2,
				Image: j.r.Sources.Image, Mask: j.r.Sources.Mask, References: j.r.Sources.References},
		}})
	}
	return all
}

func (j *fakeJob) Events(ctx context.Context, _ int) iter.Seq[engine.Event] {
	return func(yield func(engine.Event) bool) {
		send := func(e engine.Event) bool { return yield(e) }
		if !send(engine.Event{Kind: engine.EventQueued}) || !send(engine.Event{Kind: engine.EventLoading}) {
			return
		}
		if j.r.Messages != nil && j.e.fail == nil {
			for _, e := range []engine.Event{
				{Kind: engine.EventText, Text: "hm", Thinking: true}, {Kind: engine.EventText, Text: "a "},
				{Kind: engine.EventText, Text: "cat"}, {Kind: engine.EventWritten, Status: j.Status()},
			} {
				if !send(e) {
					return
				}
			}
		}
		for _, p := range j.Pictures() {
			for part := range max(j.r.Previews, 0) {
				if !send(engine.Event{Kind: engine.EventStep}) ||
					!send(engine.Event{Kind: engine.EventPreview, Part: part, Preview: testImage(2, 2, uint8(part))}) {
					return
				}
			}
			if !send(engine.Event{Kind: engine.EventPicture, Picture: p}) {
				return
			}
		}
		switch {
		case j.e.hang:
			if j.wait(ctx) == context.Canceled && ctx.Err() == nil {
				send(engine.Event{Kind: engine.EventCanceled})
			}
		case j.e.fail != nil:
			send(engine.Event{Kind: engine.EventFailed, Status: engine.Status{Err: j.e.fail}})
		default:
			send(engine.Event{Kind: engine.EventDone})
		}
	}
}

func testImage(width, height int, c uint8) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			img.SetRGBA(x, y, color.RGBA{uint8(x * 7), uint8(y * 5), c, 0xff})
		}
	}
	return img
}

func pngOf(t testing.TB, img image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// bomb returns a PNG file with a header of a size that it does not have.
func bomb(t testing.TB, width, height uint32) []byte {
	data := pngOf(t, testImage(1, 1, 0))
	const header = 8 + 4 // the signature, and the length of the first chunk
	binary.BigEndian.PutUint32(data[header+4:], width)
	binary.BigEndian.PutUint32(data[header+8:], height)
	binary.BigEndian.PutUint32(data[header+17:], crc32.ChecksumIEEE(data[header:header+17]))
	return data
}

func dataURL(data []byte) string {
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(data)
}

var testModels = []engine.ModelInfo{
	{Name: "shapes", Default: true, Loaded: true, Licence: family.Licence{
		Name: "FLUX", Commercial: family.CommercialForbidden, Terms: "no commercial use",
	}, Created: time.Unix(1_700_000_000, 0)},
	{Name: "owner/editor", Edits: true, Writes: true},
	{Name: "owner/seer", Writes: true, Sees: true},
	{Name: "words", Writes: true, OnlyWrites: true, Missing: "it is a language model"},
	{Name: "clear", HasAlpha: true, Missing: "is not on this machine (run gomflux pull clear)"},
	{Name: "gone", Missing: "is not on this machine (run gomflux pull gone)"},
}

func newFake() *fakeEngine { return &fakeEngine{models: testModels} }

func testConfig() Config {
	return Config{
		Now: func() time.Time { return time.Unix(1_800_000_000, 0) }, Config: api.Config{MaxPixels: 1 << 18},
	}
}

// A part is a part of a form: a file if it has a name.
type part struct {
	field, name string
	data        []byte
}

func text(field, value string) part { return part{field, "", []byte(value)} }

func formOf(t testing.TB, parts ...part) (body []byte, kind string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, p := range parts {
		var to io.Writer
		var err error
		if p.name == "" {
			to, err = w.CreateFormField(p.field)
		} else {
			to, err = w.CreateFormFile(p.field, p.name)
		}
		if err == nil {
			_, err = to.Write(p.data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), w.FormDataContentType()
}

func post(h http.Handler, path, kind string, body []byte) *http.Response {
	r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body))
	r.Header.Set("Content-Type", kind)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func postJSON(h http.Handler, path, body string) *http.Response {
	return post(h, path, "application/json", []byte(body))
}

const (
	generations = "/v1/images/generations"
	edits       = "/v1/images/edits"
)

// An answer is OpenAI's ImagesResponse. Model and the seeds are additions.
type answer struct {
	Created      int64       `json:"created"`
	Background   string      `json:"background"`
	Data         []imageData `json:"data"`
	OutputFormat string      `json:"output_format"`
	Quality      string      `json:"quality"`
	Size         string      `json:"size"`
	Usage        usage       `json:"usage"`
	Model        string      `json:"model"`
}

type imageData struct {
	B64JSON string `json:"b64_json,omitempty"`
	URL     string `json:"url,omitempty"`
	Seed    uint64 `json:"seed"`
}

type usage struct {
	InputTokens  int          `json:"input_tokens"`
	InputDetails inputDetails `json:"input_tokens_details"`
	OutputTokens int          `json:"output_tokens"`
	TotalTokens  int          `json:"total_tokens"`
}

type inputDetails struct {
	ImageTokens int `json:"image_tokens"`
	TextTokens  int `json:"text_tokens"`
}

// decodeAnswer reads an answer with status 200 strictly: every field must be known.
func decodeAnswer(t *testing.T, r *http.Response) answer {
	t.Helper()
	body, _ := io.ReadAll(r.Body)
	if r.StatusCode != 200 || r.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("status %d, %v: %s", r.StatusCode, r.Header, body)
	}
	var a answer
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		t.Fatal(err)
	}
	return a
}

// decodeError reads the error of an answer.
func decodeError(t *testing.T, r *http.Response) (message, kind, param, code string) {
	t.Helper()
	var body map[string]map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	e := body["error"]
	for _, name := range []string{"message", "type", "param", "code"} {
		if _, ok := e[name]; !ok || len(e) != 4 || len(body) != 1 {
			t.Fatalf("expected the four fields of an error, found %v", body)
		}
	}
	one := func(name string) string { s, _ := e[name].(string); return s }
	return one("message"), one("type"), one("param"), one("code")
}

func TestGenerate(t *testing.T) {
	e := newFake()
	h := New(e, testConfig())
	r := postJSON(h, generations, `{"prompt": "a red \u003ccircle>", "size": "32x48", "n": 3, "seed": 7, "num_inference_steps": 4.0,
		"guidance_scale": 1.5, "negative_prompt": "blue", "scheduler": "linear", "quality": null, "user": "x", "svg": {"model": "y"},
		"loras": [{"name": "style", "scale": 0.5}, {"name": "style"}, {"name": "style", "scale": 0}]}`)
	a := decodeAnswer(t, r)
	got := e.requests[0]
	o := got.Options
	if o.Prompt != "a red <circle>" || o.NegativePrompt != "blue" || o.Width != 32 || o.Height != 48 || o.Steps != 4 ||
		*o.Guidance != 1.5 || o.Scheduler != gomflux.Linear || got.Model != "shapes" || got.Previews != 0 {
		t.Errorf("request %+v", got)
	}
	if !slices.Equal(got.Seeds, []uint64{7, 8, 9}) {
		t.Errorf("seeds %v", got.Seeds)
	}
	if !slices.Equal(got.LoRAs, []gomflux.LoRA{{Path: "style", Scale: 0.5}, {Path: "style", Scale: 1}}) {
		t.Errorf("LoRAs %v", got.LoRAs)
	}
	want := usage{InputTokens: 12, InputDetails: inputDetails{TextTokens: 12}, OutputTokens: 18, TotalTokens: 30}
	if a.Created != 1_800_000_000 || a.Size != "32x48" || a.Background != "opaque" || a.OutputFormat != "png" || a.Quality != "high" ||
		a.Model != "shapes" || a.Usage != want || len(a.Data) != 3 {
		t.Errorf("answer %+v", a)
	}
	for i, p := range e.jobs[0].Pictures() {
		var b bytes.Buffer
		p.Result.Settings.Created, p.Result.Settings.Seconds = time.Time{}, 0 // as in files of the command
		if err := picture.Encode(&b, picture.PNG, p.Result.Image, &p.Result.Settings); err != nil {
			t.Fatal(err)
		}
		if a.Data[i].B64JSON != base64.StdEncoding.EncodeToString(b.Bytes()) || a.Data[i].Seed != p.Seed {
			t.Errorf("image %d differs", i)
		}
	}
	if r.Header["X-Gomflux-Warning"] != nil || r.Header.Get("X-Gomflux-Model") != "shapes" {
		t.Errorf("header %v", r.Header)
	}
}

// TestEmptyPrompt: an empty prompt is one, and only a missing one is refused (TestBadRequests).
func TestEmptyPrompt(t *testing.T) {
	e := newFake()
	h := New(e, testConfig())
	decodeAnswer(t, postJSON(h, generations, `{"prompt": ""}`))
	body, kind := formOf(t, text("prompt", ""), part{"image", "a.png", pngOf(t, testImage(16, 16, 1))})
	decodeAnswer(t, post(h, edits, kind, body))
	if len(e.requests) != 2 || e.requests[0].Options.Prompt != "" || e.requests[1].Options.Prompt != "" {
		t.Errorf("requests %+v", e.requests)
	}
}

func TestRandomSeeds(t *testing.T) {
	e := newFake()
	decodeAnswer(t, postJSON(New(e, testConfig()), generations, `{"prompt": "x", "n": 10}`))
	seeds := slices.Compact(slices.Sorted(slices.Values(e.requests[0].Seeds)))
	if len(seeds) < 9 || seeds[len(seeds)-1] >= 1<<32 {
		t.Errorf("seeds %v", seeds)
	}
}

func TestModelNames(t *testing.T) {
	for _, test := range []struct{ path, name, model, warning string }{
		{generations, "", "shapes", ""},
		{generations, "shapes", "shapes", ""},
		{generations, "owner/editor", "owner/editor", ""},
		{generations, "gpt-image-2.6-flare", "shapes", "shapes was used, since gpt-image-2.6-flare is a model of OpenAI"},
		{generations, "dall-e-3", "shapes", "shapes was used, since dall-e-3 is a model of OpenAI"},
		{generations, "chatgpt-image-latest", "shapes", "shapes was used, since chatgpt-image-latest is a model of OpenAI"},
		{edits, "", "owner/editor", "owner/editor was used: shapes takes no reference images"},
		{edits, "dall-e-2", "owner/editor", "owner/editor was used: shapes takes no reference images"},
		{edits, "owner/editor", "owner/editor", ""},
	} {
		h := New(newFake(), testConfig())
		body, _ := json.Marshal(map[string]any{"prompt": "x", "model": test.name})
		if test.path == edits {
			body, _ = json.Marshal(map[string]any{"prompt": "x", "model": test.name, "image": dataURL(pngOf(t, testImage(3, 3, 0)))})
		}
		r := postJSON(h, test.path, string(body))
		a := decodeAnswer(t, r)
		if a.Model != test.model || r.Header.Get("X-Gomflux-Warning") != test.warning {
			t.Errorf("%s %q: %s, %q", test.path, test.name, a.Model, r.Header.Get("X-Gomflux-Warning"))
		}
	}
}

func TestQualityWarning(t *testing.T) {
	for quality, want := range map[string]string{"low": "low", "hd": "high", "standard": "medium", "auto": "high", "xhigh": "xhigh"} {
		r := postJSON(New(newFake(), testConfig()), generations, `{"prompt": "x", "quality": "`+quality+`"}`)
		if a := decodeAnswer(t, r); a.Quality != want || (r.Header.Get("X-Gomflux-Warning") == "") != (quality == "auto") {
			t.Errorf("%s: %s, %q", quality, a.Quality, r.Header.Get("X-Gomflux-Warning"))
		}
	}
}

func TestJPEG(t *testing.T) {
	e := newFake()
	h := New(e, testConfig())
	sizes := map[string]int{}
	for _, extra := range []string{"", `, "output_compression": 100`, `, "output_compression": 10`, `, "output_compression": 0`} {
		a := decodeAnswer(t, postJSON(h, generations, `{"prompt": "x", "seed": 1, "size": "64x64", "output_format": "jpeg"`+extra+`}`))
		data, err := base64.StdEncoding.DecodeString(a.Data[0].B64JSON)
		if err != nil {
			t.Fatal(err)
		}
		p, err := picture.Decode(bytes.NewReader(data))
		if err != nil || p.Format != picture.JPEG || a.OutputFormat != "jpeg" {
			t.Fatalf("%v: %v", p, err)
		}
		found, err := picture.ReadSettings(bytes.NewReader(data))
		if err != nil || found.Settings.Prompt != "x" {
			t.Fatalf("%v: %v", found, err)
		}
		if extra == "" {
			var b bytes.Buffer
			one := e.jobs[0].Pictures()[0].Result
			one.Settings.Created, one.Settings.Seconds = time.Time{}, 0
			if err := picture.Encode(&b, picture.JPEG, one.Image, &one.Settings); err != nil || !bytes.Equal(b.Bytes(), data) {
				t.Errorf("without output_compression the bytes differ from those of the command (%v)", err)
			}
		}
		sizes[extra] = len(data)
	}
	if !(sizes[`, "output_compression": 100`] > sizes[""] && sizes[""] > sizes[`, "output_compression": 10`] &&
		sizes[`, "output_compression": 10`] > sizes[`, "output_compression": 0`]) {
		t.Errorf("sizes %v", sizes)
	}
}

func TestWebP(t *testing.T) {
	e := newFake()
	h := New(e, testConfig())
	for extra, warns := range map[string]bool{"": false, `, "output_compression": 100`: false, `, "output_compression": 80`: true} {
		r := postJSON(h, generations,
			`{"prompt": "x", "seed": 1, "size": "64x64", "output_format": "webp", "response_format": "url"`+extra+`}`)
		a := decodeAnswer(t, r)
		if warning := r.Header.Get("X-Gomflux-Warning"); strings.Contains(warning, "output_compression has no effect") != warns {
			t.Errorf("%s: warning %q", extra, warning)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", strings.TrimPrefix(a.Data[0].URL, "http://example.com"), nil))
		var want bytes.Buffer
		one := e.jobs[len(e.jobs)-1].Pictures()[0].Result
		one.Settings.Created, one.Settings.Seconds = time.Time{}, 0
		if err := picture.Encode(&want, picture.WebP, one.Image, &one.Settings); err != nil {
			t.Fatal(err)
		}
		if w.Header().Get("Content-Type") != "image/webp" || a.OutputFormat != "webp" || !bytes.Equal(w.Body.Bytes(), want.Bytes()) {
			t.Errorf("%s: %s, %d bytes, expected those of gomflux generate", extra, w.Header(), w.Body.Len())
		}
	}
}

func TestURL(t *testing.T) {
	e, c := newFake(), testConfig()
	now := time.Unix(1_800_000_000, 0)
	c.Now = func() time.Time { return now }
	h := New(e, c)
	a := decodeAnswer(t, postJSON(h, generations, `{"prompt": "x", "n": 2, "response_format": "url"}`))
	get := func(url string) *httptest.ResponseRecorder {
		path, ok := strings.CutPrefix(url, "http://example.com")
		if !ok || len(path) != len("/v1/files/")+32+len(".png") {
			t.Fatalf("url %s", url)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w
	}
	if a.Data[0].URL == a.Data[1].URL || a.Data[0].B64JSON != "" {
		t.Errorf("answer %v", a.Data)
	}
	w := get(a.Data[1].URL)
	if img, err := png.Decode(w.Body); err != nil || img.Bounds().Dx() != 16 || w.Header().Get("Content-Type") != "image/png" {
		t.Errorf("%v: %v", w.Header(), err)
	}
	now = now.Add(time.Hour)
	if w := get(a.Data[1].URL); w.Code != 404 {
		t.Errorf("after an hour: status %d", w.Code)
	}
	c.BaseURL = "https://images.example"
	a = decodeAnswer(t, postJSON(New(e, c), generations, `{"prompt": "x", "response_format": "url"}`))
	if !strings.HasPrefix(a.Data[0].URL, "https://images.example/v1/files/") {
		t.Errorf("url %s", a.Data[0].URL)
	}
}

func TestEdit(t *testing.T) {
	one, two := pngOf(t, testImage(20, 40, 1)), pngOf(t, testImage(16, 16, 2))
	quoteAll := func(list ...[]byte) string {
		var urls []string
		for _, data := range list {
			urls = append(urls, dataURL(data))
		}
		text, _ := json.Marshal(urls)
		return string(text)
	}
	multi := func(parts ...part) func() ([]byte, string) {
		return func() ([]byte, string) { return formOf(t, append(parts, text("prompt", "x"), text("seed", "5"))...) }
	}
	object := func(images string) func() ([]byte, string) {
		return func() ([]byte, string) {
			return []byte(`{"prompt": "x", "seed": 5, ` + images + `}`), "application/json; charset=utf-8"
		}
	}
	for name, test := range map[string]struct {
		body  func() ([]byte, string)
		names []string // of the images
		kept  float64  // image strength, if the image is the one to start from
	}{
		"one file":       {multi(part{"image", "a/b\\cat.png", one}), []string{"cat.png"}, 0},
		"two files":      {multi(part{"image[]", "cat.png", one}, part{"image[]", "dög.png", two}), []string{"cat.png", "dög.png"}, 0},
		"a data: URL":    {object(`"image": "` + dataURL(one) + `"`), []string{"image-1"}, 0},
		"two data: URLs": {object(`"image": ` + quoteAll(one, two)), []string{"image-1", "image-2"}, 0},
		"references":     {object(`"images": [{"image_url": "` + dataURL(one) + `"}]`), []string{"image-1"}, 0},
		"strength":       {multi(part{"image", "cat.png", one}, text("strength", "0.9")), []string{"cat.png"}, 0.1},
		"full strength":  {object(`"strength": 1, "image": "` + dataURL(one) + `"`), []string{"image-1"}, leastKept},
		"Python's stream": {multi(part{"image", "cat.png", one}, text("stream", "False"), text("n", "1"), text("user", ""),
			text("loras[][name]", "style"), text("loras[][scale]", "0.5"), text("svg[model]", "x")), []string{"cat.png"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := newFake()
			body, kind := test.body()
			a := decodeAnswer(t, post(New(e, testConfig()), edits, kind, body))
			data, _ := base64.StdEncoding.DecodeString(a.Data[0].B64JSON)
			found, err := picture.ReadSettings(bytes.NewReader(data))
			if err != nil {
				t.Fatal(err)
			}
			o := e.requests[0].Options
			images, sources := o.References, found.Settings.References
			tokens := 2 * 3
			if test.kept != 0 {
				images, sources = []image.Image{o.Image}, []picture.SourceImage{*found.Settings.Image}
				if o.ImageStrength != test.kept || o.References != nil || a.Model != "shapes" {
					t.Errorf("image strength %v", o.ImageStrength)
				}
			} else if o.Image != nil || a.Model != "owner/editor" {
				t.Errorf("model %s", a.Model)
			}
			if len(images) != len(test.names) || images[0].Bounds().Dy() != 40 || len(sources) != len(test.names) {
				t.Fatalf("%d images, sources %v", len(images), sources)
			}
			for i, name := range test.names {
				if sources[i].Path != name || len(sources[i].SHA256) != 64 {
					t.Errorf("source %v, expected %s", sources[i], name)
				}
			}
			if len(images) == 2 {
				tokens++
			}
			if a.Usage.InputDetails.ImageTokens != tokens || a.Usage.TotalTokens != 12+tokens+1 || a.Data[0].Seed != 5 {
				t.Errorf("usage %+v", a.Usage)
			}
			if strings.HasPrefix(name, "Python") && (len(e.requests[0].LoRAs) != 1 || e.requests[0].LoRAs[0].Scale != 0.5) {
				t.Errorf("LoRAs %v", e.requests[0].LoRAs)
			}
		})
	}
}

// clearFile returns a PNG file whose left half is transparent.
func clearFile(t *testing.T, width, height int) []byte {
	t.Helper()
	img := image.NewNRGBA(image.Rect(0, 0, width, height))
	for i := range width * height {
		if i%width >= width/2 {
			img.Pix[4*i+3] = 0xff
		}
	}
	return pngOf(t, img)
}

// TestMask checks edits with a mask, which any model can make.
func TestMask(t *testing.T) {
	img, other, mask := pngOf(t, testImage(20, 40, 1)), pngOf(t, testImage(16, 16, 2)), clearFile(t, 20, 40)
	for name, test := range map[string]struct {
		parts       []part
		model       string
		references  int
		kept        float64
		noPasteBack bool
	}{
		"default model": {nil, "shapes", 0, 0, false},
		"strength":      {[]part{text("strength", "0.75")}, "shapes", 0, 0.25, false},
		"full strength": {[]part{text("strength", "1")}, "shapes", 0, 0, false},
		"editor":        {[]part{text("model", "owner/editor"), {"image", "b.png", other}}, "owner/editor", 1, 0, false},
		"its size":      {[]part{text("size", "20x40")}, "shapes", 0, 0, false},
		"another size":  {[]part{text("size", "64x32")}, "shapes", 0, 0, true},
	} {
		e := newFake()
		parts := append([]part{{"image", "a.png", img}, {"mask", "m.png", mask}, text("prompt", "x")}, test.parts...)
		body, kind := formOf(t, parts...)
		a := decodeAnswer(t, post(New(e, testConfig()), edits, kind, body))
		o := e.requests[0].Options
		if a.Model != test.model || o.Image == nil || o.Mask == nil || len(o.References) != test.references ||
			o.ImageStrength != test.kept || o.Inpaint != (gomflux.InpaintOptions{NoPasteBack: test.noPasteBack}) {
			t.Errorf("%s: model %s, options %+v", name, a.Model, o)
		}
		if _, _, _, alpha := o.Mask.At(3, 5).RGBA(); alpha != 0 {
			t.Errorf("%s: the mask is opaque at its left", name)
		}
		data, _ := base64.StdEncoding.DecodeString(a.Data[0].B64JSON)
		found, err := picture.ReadSettings(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		s := found.Settings
		if s.Image == nil || s.Image.Path != "a.png" || s.Mask == nil || s.Mask.Path != "m.png" || len(s.References) != test.references {
			t.Errorf("%s: image %v, mask %v, references %v", name, s.Image, s.Mask, s.References)
		}
	}
	body := `{"prompt": "x", "image": "` + dataURL(img) + `", "mask": {"image_url": "` + dataURL(mask) + `"}}`
	e := newFake()
	decodeAnswer(t, post(New(e, testConfig()), edits, "application/json", []byte(body)))
	if o := e.requests[0].Options; o.Mask == nil || o.Image == nil {
		t.Errorf("JSON: options %+v", o)
	}
}

func TestEngineErrors(t *testing.T) {
	for name, test := range map[string]struct {
		err                error
		status             int
		kind, param, code  string
		retry, shouldRetry string
	}{
		"full":      {&engine.FullError{Jobs: 9, Retry: 1500 * time.Millisecond}, 429, typeRate, "", "rate_limit_exceeded", "2", ""},
		"closed":    {fmt.Errorf("job: %w", engine.ErrClosed), 503, typeServer, "", "server_shutting_down", "5", ""},
		"not found": {fmt.Errorf("gone: %w", gomflux.ErrNotFound), 404, typeRequest, "", "model_not_found", "", ""},
		"size": {errs.Requestf("height 45: must be a positive multiple of 8 (try 48)"), 400, typeRequest, "size",
			"invalid_value", "", ""},
		"canceled": {context.Canceled, 503, typeServer, "", "canceled", "", "false"},
		"other":    {errors.New("disk is damaged"), 500, typeServer, "", "internal_error", "", "false"},
	} {
		for _, at := range []string{"submit", "job", "stream"} {
			e := newFake()
			body := `{"prompt": "x"}`
			if e.fail = test.err; at == "submit" {
				e.submit, e.fail = test.err, nil
			}
			if at == "stream" {
				body = `{"prompt": "x", "stream": true, "partial_images": 1}`
			}
			r := postJSON(New(e, testConfig()), generations, body)
			message, kind, param, code := decodeError(t, r)
			if r.StatusCode != test.status || kind != test.kind || param != test.param || code != test.code || message == "" ||
				r.Header.Get("Retry-After") != test.retry || r.Header.Get("X-Should-Retry") != test.shouldRetry {
				t.Errorf("%s, %s: status %d, %q %s %s %s, %v", name, at, r.StatusCode, message, kind, param, code, r.Header)
			}
		}
	}
}

func TestModels(t *testing.T) {
	h := New(newFake(), testConfig())
	get := func(method, path string) (*http.Response, map[string]any) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		var body map[string]any
		_ = json.Unmarshal(w.Body.Bytes(), &body) // OPTIONS has no body
		return w.Result(), body
	}
	_, list := get("GET", "/v1/models")
	data := list["data"].([]any)
	if list["object"] != "list" || len(data) != 4 || data[1].(map[string]any)["id"] != "owner/editor" ||
		data[1].(map[string]any)["owned_by"] != "owner" {
		t.Errorf("%v", list)
	}
	if r, m := get("GET", "/v1/models/words"); r.StatusCode != 200 || m["writes"] != true {
		t.Errorf("%v", m)
	}
	for _, path := range []string{"/v1/models/owner/editor", "/v1/models/owner%2Feditor"} {
		if r, m := get("GET", path); r.StatusCode != 200 || m["id"] != "owner/editor" || m["object"] != "model" || m["edits"] != true {
			t.Errorf("%s: %v", path, m)
		}
	}
	if r, m := get("GET", "/v1/models/dall-e-2"); m["id"] != "shapes" || r.Header.Get("X-Gomflux-Warning") == "" ||
		m["created"] != 1.7e9 || m["licence"] != "FLUX" || m["commercial_use"] != "forbidden" || m["licence_terms"] != "no commercial use" {
		t.Errorf("%v", m)
	}
	for path, want := range map[string]string{"/v1/models/gone": "gomflux pull gone", "/v1/models/other": "shapes, owner/editor"} {
		r, m := get("GET", path)
		if message := fmt.Sprint(m["error"]); r.StatusCode != 404 || !strings.Contains(message, want) {
			t.Errorf("%s: status %d, %v", path, r.StatusCode, m)
		}
	}
}

func TestMethods(t *testing.T) {
	h := New(newFake(), testConfig())
	for _, test := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"OPTIONS", generations, 204, "POST, OPTIONS"},
		{"OPTIONS", edits, 204, "POST, OPTIONS"},
		{"OPTIONS", "/v1/models", 204, "GET, HEAD, OPTIONS"},
		{"OPTIONS", "/v1/models/shapes", 204, "GET, HEAD, OPTIONS"},
		{"HEAD", "/v1/models", 200, ""},
		{"GET", generations, 405, "POST, OPTIONS"},
		{"DELETE", "/v1/models/shapes", 405, "GET, HEAD, OPTIONS"},
		{"POST", "/v1/images/variations", 501, ""},
		{"GET", "/v1/images/variations", 405, "POST, OPTIONS"},
		{"GET", "/v1/files/x.png", 404, ""},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(test.method, test.path, nil))
		if w.Code != test.status || w.Header().Get("Allow") != test.allow {
			t.Errorf("%s %s: status %d, Allow %q", test.method, test.path, w.Code, w.Header().Get("Allow"))
		}
		if w.Code >= 400 {
			decodeError(t, w.Result())
		}
	}
}
