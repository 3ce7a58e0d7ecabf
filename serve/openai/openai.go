// Package openai serves OpenAI's Images API: it generates and edits images, and lists models; and of the
// chat completions what clients need to describe images and to rewrite prompts. The requests and answers
// are those of openai-python 3.54.0.
//
// Fields that OpenAI does not have set what gomflux can do in addition: seed, steps (or
// num_inference_steps), guidance (or guidance_scale), negative_prompt, strength, loras and scheduler.
// A strength is diffusers': 1 minus the image strength of gomflux generate. It makes an edit start
// from its image, which needs no edit model.
//
// Usage counts the tokens of the prompt as the text encoder gets it, with the model's template, and
// for images one token for each 16x16 pixels.
package openai

import (
	"cmp"
	"context"
	"iter"
	"net/http"
	"time"

	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// A Config configures a Handler. Fields with the value zero stand for the defaults.
type Config struct {
	api.Config
	// MaxBody is the largest body of a request in bytes (default 50 MB).
	MaxBody int64
	// BaseURL is the beginning of URLs, such as https://example.com. "" stands for the host of
	// the request.
	BaseURL string
	// Now is the clock, time.Now if nil.
	Now func() time.Time
}

// A Handler serves all paths below /v1/. It leaves deadlines and the names of clients to the server.
type Handler struct {
	engine api.Engine
	config Config
	mux    api.Mux
	files  api.Files     // under URLs
	tick   time.Duration // between comments in a stream without events
}

// New returns the handler of an engine.
func New(e api.Engine, c Config) *Handler {
	c.MaxBody = cmp.Or(c.MaxBody, 50_000_000)
	c.Config = c.WithDefaults()
	if c.Now == nil {
		c.Now = time.Now
	}
	h := &Handler{
		engine: e, config: c,
		files: api.Files{Keep: keepFiles, Most: maxFiles, Now: c.Now},
		tick:  api.Beat,
	}
	for pattern, f := range map[string]func(http.ResponseWriter, *http.Request) error{
		"POST /v1/images/generations": func(w http.ResponseWriter, r *http.Request) error { return h.images(w, r, false) },
		"POST /v1/images/edits":       func(w http.ResponseWriter, r *http.Request) error { return h.images(w, r, true) },
		"POST /v1/images/variations": func(http.ResponseWriter, *http.Request) error {
			return failure(http.StatusNotImplemented, "not_supported", "variations of images are not supported (use /v1/images/edits)")
		},
		"POST /v1/chat/completions": h.chat, "GET /v1/models": h.listModels, "GET /v1/models/{id...}": h.oneModel,
		"GET /v1/files/{name}": h.serveFile,
	} {
		h.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := f(w, r); err != nil && r.Context().Err() == nil { // somebody reads it
				writeError(w, err)
			}
		})
	}
	h.mux.Refuse = refuse
	return h
}

// refuse answers a request without a handler, and OPTIONS for a path that has one.
func refuse(w http.ResponseWriter, r *http.Request, status int) {
	if status == http.StatusNotFound {
		writeError(w, failure(status, "unknown_url", "this server has no %s %s (it has %s)", r.Method, quoted(r.URL.Path),
			"/v1/images/generations, /v1/images/edits, /v1/chat/completions and /v1/models"))
		return
	}
	allow := w.Header().Get("Allow") + ", " + http.MethodOptions
	w.Header().Set("Allow", allow)
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	writeError(w, failure(status, "method_not_allowed", "the method %s is not allowed (expected %s)", quoted(r.Method), allow))
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

// images generates or edits images.
func (h *Handler) images(w http.ResponseWriter, r *http.Request, edit bool) error {
	req, err := h.request(w, r, edit)
	if err != nil {
		return err
	}
	return h.run(w, r, &req.exchange,
		func(s *api.Stream, e engine.Event) error { return h.event(s, req, e) },
		func(job api.Job) (any, error) { return h.answer(r, req, job.Pictures()) })
}

// An exchange is a request, and what is said in the headers of its answer.
type exchange struct {
	job      engine.Request
	warnings []string
	stream   bool
}

// run answers with the events of a job, as event sends them, or at its end. The job is canceled when the client goes
// away.
func (h *Handler) run(w http.ResponseWriter, r *http.Request, x *exchange,
	event func(*api.Stream, engine.Event) error, answer func(api.Job) (any, error),
) error {
	x.job.Client = engine.Client(r.Context())
	job, err := h.engine.Submit(r.Context(), x.job)
	if err != nil {
		return err
	}
	defer job.Cancel() // no effect on a job that has ended
	for _, text := range append(x.warnings, job.Status().Warnings...) {
		w.Header().Add("X-Gomflux-Warning", ascii(text))
	}
	w.Header().Set("X-Gomflux-Model", ascii(x.job.Model))
	if x.stream {
		s := &api.Stream{ResponseWriter: w}
		events := func(ctx context.Context) iter.Seq[engine.Event] { return job.Events(ctx, 0) }
		err := api.Follow(s, r, h.tick, events, func(_ context.Context, e engine.Event) error { return event(s, e) })
		if err == nil || !s.Begun {
			return err
		}
		_ = s.Event(0, "error", map[string]*apiError{"error": publicError(err)}) // which OpenAI's clients raise; they may be gone
		return nil
	}
	if err := job.Wait(r.Context()); err != nil {
		return err
	}
	made, err := answer(job)
	if err == nil {
		api.WriteJSON(w, http.StatusOK, made)
	}
	return err
}

// request reads a request for images.
func (h *Handler) request(w http.ResponseWriter, r *http.Request, edit bool) (*request, error) {
	limit := int64(maxJSON)
	if edit {
		limit = h.config.MaxBody
	}
	f, err := h.read(w, r, limit, edit, func(name string) error { return checkName(name, edit) })
	if err == nil && edit {
		err = f.takeImages()
	}
	if err != nil {
		return nil, err
	}
	return h.parse(f, edit)
}
