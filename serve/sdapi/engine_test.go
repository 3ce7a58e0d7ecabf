package sdapi

import (
	"context"
	"errors"
	"image"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// A fakeModel waits until it can receive from stop, and then returns an image.
type fakeModel struct{ stop chan struct{} }

func (m *fakeModel) Generate(ctx context.Context, o gomflux.Options) (*gomflux.Result, error) {
	o.Progress(gomflux.Progress{Phase: gomflux.PhaseStep, Step: 1, Steps: 8})
	if o.OnStep != nil {
		if err := o.OnStep(gomflux.Step{Step: 1, Steps: 8}); err != nil {
			return nil, err
		}
	}
	select {
	case <-m.stop:
		return fakeResult(engine.Request{Model: "turbo", Options: o}, *o.Seed), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (m *fakeModel) Preview(context.Context, gomflux.Latents) (*image.RGBA, error) {
	return image.NewRGBA(image.Rect(0, 0, 4, 4)), nil
}

func (m *fakeModel) Check(o gomflux.Options) error { return nil }
func (m *fakeModel) Defaults() gomflux.Defaults    { return fakeModels[0].Defaults }
func (m *fakeModel) Multiple() int                 { return 16 }
func (m *fakeModel) Class() string                 { return "Fake" }
func (m *fakeModel) Close() error                  { return nil }

// TestWithEngine runs the handlers with the engine of the server.
func TestWithEngine(t *testing.T) {
	model := &fakeModel{stop: make(chan struct{})}
	e := engine.New(engine.Config{
		Open: func(context.Context, string, []gomflux.LoRA, func(gomflux.Progress)) (engine.Model, error) {
			return model, nil
		},
		Models: func() []engine.ModelInfo { return fakeModels }, Queue: 1, KeepAlive: time.Minute, Keep: time.Minute,
	})
	defer e.Close(t.Context())
	h := New(api.Adapted{Engine: e}, api.Config{})
	s := httptest.NewServer(h)
	defer s.Close()
	replies := make(chan reply)
	generate := func() { replies <- call(t, s, "POST", "/sdapi/v1/txt2img", `{"prompt":"a cat","n_iter":2,"seed":5}`) }
	preview := func() bool {
		found, _ := h.running("")
		return found != nil && found.preview.Load() != nil
	}
	go generate()
	wait(t, "a preview", preview)
	p := decode[progress](t, call(t, s, "GET", "/sdapi/v1/progress", ""))
	if p.State.JobCount != 2 || p.State.SamplingStep != 1 || p.State.SamplingSteps != 8 || p.CurrentImage == nil || p.Progress <= 0.01 {
		t.Errorf("progress %+v", p)
	}
	model.stop <- struct{}{}
	model.stop <- struct{}{}
	if _, info := readMade(t, <-replies, 2); info.AllSeeds[0] != 5 || info.AllSeeds[1] != 6 || len(info.Warnings) != 0 {
		t.Errorf("info %+v", info)
	}
	go generate()
	wait(t, "the third preview", preview)
	go generate() // waits
	wait(t, "the second run", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.runs[""]) == 2
	})
	full := call(t, s, "POST", "/sdapi/v1/txt2img", `{"prompt":"a cat"}`)
	if text := string(full.body); full.status != http.StatusTooManyRequests || full.header.Get("Retry-After") == "" ||
		!strings.Contains(text, "queue is full") {
		t.Errorf("status %d %s", full.status, full.body)
	}
	for range 2 { // the running job, and then the one that waited
		ok(t, call(t, s, "POST", "/sdapi/v1/interrupt", ""))
		if got := <-replies; got.status != http.StatusOK || !strings.Contains(string(got.body), "interrupted after 0 of 2 images") {
			t.Errorf("status %d %s", got.status, got.body)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Close(ended); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if got := call(t, s, "POST", "/sdapi/v1/txt2img", `{}`); got.status != http.StatusServiceUnavailable {
		t.Errorf("status %d after the engine was closed", got.status)
	}
}
