package sdapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"image"
	"image/color"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// A fakeEngine makes images of one colour. With stop, each image waits until it can receive from
// it, after one preview.
type fakeEngine struct {
	api.Engine
	stop chan struct{}
	err  error // of Submit
	fail error // of jobs

	mu       sync.Mutex
	requests []engine.Request
	jobs     []*fakeJob
	unloaded int
}

var fakeModels = []engine.ModelInfo{
	{Name: "turbo", Revision: "0123456789abcdef", Default: true, GuidanceUnit: picture.CFGScaleMinusOne,
		Defaults: gomflux.Defaults{Steps: 8, Guidance: 0, Height: 1024, Width: 1024}},
	{Name: "base", Defaults: gomflux.Defaults{Steps: 50, Guidance: 4, Height: 1024, Width: 1024}},
	{Name: "dev", Defaults: gomflux.Defaults{Steps: 28, Guidance: 3.5}, GuidanceUnit: picture.DistilledCFGScale},
	{Name: "cfg", Defaults: gomflux.Defaults{Steps: 28, Guidance: 3.5}, GuidanceUnit: picture.DistilledCFGScale, TrueCFG: true},
	{Name: "edit", Edits: true, Writes: true, Sees: true,
		SizeMultiple: 32, Defaults: gomflux.Defaults{Steps: 40, Guidance: 4, Height: 1024, Width: 1024}},
	{Name: "absent", Missing: "is not on this machine (gomflux pull absent)"},
}

func (e *fakeEngine) Models() []engine.ModelInfo { return fakeModels }

func (e *fakeEngine) Unload() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unloaded++
}

func (e *fakeEngine) Submit(_ context.Context, r engine.Request) (api.Job, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.requests = append(e.requests, r)
	if e.err != nil {
		return nil, e.err
	}
	ctx, cancel := context.WithCancel(context.Background())
	j := &fakeJob{engine: e, request: r, ctx: ctx, cancel: cancel, events: make(chan engine.Event), done: make(chan struct{})}
	j.status = engine.Status{State: engine.Running, Images: len(r.Seeds), Steps: 8, Model: r.Model, Created: time.Now()}
	e.jobs = append(e.jobs, j)
	go j.work()
	return j, nil
}

// last returns the last request.
func (e *fakeEngine) last(t *testing.T) engine.Request {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.requests) == 0 {
		t.Fatal("nothing was submitted")
	}
	return e.requests[len(e.requests)-1]
}

type fakeJob struct {
	api.Job
	engine  *fakeEngine
	request engine.Request
	ctx     context.Context
	cancel  func()
	events  chan engine.Event
	done    chan struct{}

	mu       sync.Mutex
	status   engine.Status
	pictures []*engine.Picture
	err      error
}

func (j *fakeJob) work() {
	defer close(j.done)
	defer close(j.events)
	if j.err = j.engine.fail; j.err != nil {
		return
	}
	if j.request.Messages != nil {
		j.mu.Lock()
		j.status.Answer = &gomflux.Answer{Text: "a cat "}
		j.mu.Unlock()
	}
	if u := j.request.Upscale; u != nil {
		for _, img := range u.Images {
			u.Done(img)
		}
	}
	for i, seed := range j.request.Seeds {
		if j.engine.stop != nil {
			select {
			case j.events <- engine.Event{Kind: engine.EventPreview, Preview: image.NewRGBA(image.Rect(0, 0, 4, 4))}:
			case <-j.ctx.Done():
			}
			select {
			case <-j.engine.stop:
			case <-j.ctx.Done():
				j.err = context.Canceled
				return
			}
		}
		j.mu.Lock()
		j.pictures = append(j.pictures, &engine.Picture{Index: i, Seed: seed, Result: fakeResult(j.request, seed)})
		j.status.Image = i + 1
		j.mu.Unlock()
	}
}

// fakeResult returns an image with the settings that a model would return.
func fakeResult(r engine.Request, seed uint64) *gomflux.Result {
	o := r.Options
	var d gomflux.Defaults
	for _, m := range fakeModels {
		if m.Name == r.Model {
			d = m.Defaults
		}
	}
	s := gomflux.Settings{
		Version: 1, Generator: "gomflux test", Model: r.Model, Prompt: o.Prompt, NegativePrompt: o.NegativePrompt, Seed: seed,
		Steps: cmp.Or(o.Steps, d.Steps), Guidance: d.Guidance, Width: cmp.Or(o.Width, d.Width), Height: cmp.Or(o.Height, d.Height),
		Scheduler: cmp.Or(string(o.Scheduler), string(gomflux.Euler)),
		Created:   time.Now(), Seconds: 1.5, Image: r.Sources.Image, Mask: r.Sources.Mask, References: r.Sources.References,
	}
	if o.Guidance != nil {
		s.Guidance, s.GuidanceUnit = *o.Guidance, o.GuidanceUnit
	}
	for _, l := range r.LoRAs {
		s.LoRAs = append(s.LoRAs, picture.LoRA{Path: l.Path, Scale: l.Scale})
	}
	if o.Image != nil {
		s.ImageStrength = o.ImageStrength
	}
	img := image.NewRGBA(image.Rect(0, 0, 8, 8))
	for i := range 64 {
		img.SetRGBA(i%8, i/8, color.RGBA{uint8(seed), 100, 200, 255})
	}
	return &gomflux.Result{Image: img, Settings: s}
}

func (j *fakeJob) Status() engine.Status {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.status
}

func (j *fakeJob) Pictures() []*engine.Picture {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.pictures
}

func (j *fakeJob) Cancel() { j.cancel() }

func (j *fakeJob) Wait(ctx context.Context) error {
	select {
	case <-j.done:
		return j.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (j *fakeJob) Events(ctx context.Context, _ int) iter.Seq[engine.Event] {
	return func(yield func(engine.Event) bool) {
		for {
			select {
			case e, ok := <-j.events:
				if !ok || !yield(e) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// serve starts a server whose clients are named by the header X-Client.
func serve(t *testing.T, e api.Engine, c api.Config) (*Handler, *httptest.Server) {
	t.Helper()
	h := New(e, c)
	mux := http.NewServeMux()
	mux.Handle(prefix, h)
	mux.Handle("/{$}", h.Root(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<html>") })))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mux.ServeHTTP(w, r.WithContext(engine.WithClient(r.Context(), r.Header.Get("X-Client"))))
	}))
	t.Cleanup(s.Close)
	return h, s
}

// A reply is a response of the server.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// call sends a request to the server. The body of a response with an error must be in
// AUTOMATIC1111's form.
func call(t *testing.T, s *httptest.Server, method, path, body string) reply {
	t.Helper()
	r, err := http.NewRequest(method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return send(t, r)
}

func send(t *testing.T, r *http.Request) reply {
	t.Helper()
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode >= 400 {
		var e map[string]string
		if err := json.Unmarshal(data, &e); err != nil || e["error"] == "" || e["detail"] == "" || e["errors"] == "" || len(e) != 4 {
			t.Errorf("%s %s: status %d, and not an error as of AUTOMATIC1111: %s", r.Method, r.URL, response.StatusCode, data)
		}
	}
	return reply{response.StatusCode, response.Header, data}
}

// decode decodes the JSON of a response with status 200.
func decode[T any](t *testing.T, r reply) (v T) {
	t.Helper()
	if r.status != http.StatusOK {
		t.Fatalf("status %d: %s", r.status, r.body)
	}
	if got := r.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %s", got)
	}
	d := json.NewDecoder(bytes.NewReader(r.body))
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
	return v
}
