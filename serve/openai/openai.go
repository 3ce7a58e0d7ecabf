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
	"io"
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// An Engine runs jobs. *engine.Engine is one.
type Engine[J Job] interface {
	Submit(ctx context.Context, r engine.Request) (J, error)
	Models() []engine.ModelInfo
}

// A Job is a job of an Engine.
type Job interface {
	Status() engine.Status
	Cancel()
	Events(ctx context.Context, after int) iter.Seq[engine.Event]
	Pictures() []*engine.Picture
	Wait(ctx context.Context) error
}

// A Config configures a Handler. Fields with the value zero stand for the defaults.
type Config struct {
	// LoRA returns the LoRA of a name in a request. It must not open what the name may be the
	// path of. nil refuses LoRAs.
	LoRA func(name string) (gomflux.LoRA, error)
	// LoRAs lists names of LoRAs that prompts can name, <lora:name:0.8>. nil leaves those as text.
	LoRAs func() []string
	// MaxBody is the largest body of a request in bytes (default 50 MB).
	MaxBody int64
	// MaxInputPixels is the largest number of pixels of all images of a request (default 64
	// million).
	MaxInputPixels int
	// KeepFiles is how long images are kept under URLs (default an hour).
	KeepFiles time.Duration
	// BaseURL is the beginning of URLs, such as https://example.com. "" stands for the host of
	// the request.
	BaseURL string
	// Now is the clock, time.Now if nil.
	Now func() time.Time
}

// submitter hides the type of an engine's jobs.
type submitter struct {
	Submit func(ctx context.Context, r engine.Request) (Job, error)
	Models func() []engine.ModelInfo
}

// A Handler serves all paths below /v1/. It leaves deadlines and the names of clients to the server.
type Handler struct {
	engine submitter
	config Config
	mux    *http.ServeMux
	files  files
	tick   time.Duration // between comments in a stream without events
}

// New returns the handler of an engine.
func New[J Job](e Engine[J], c Config) *Handler {
	c.MaxBody = cmp.Or(c.MaxBody, 50_000_000)
	c.MaxInputPixels = cmp.Or(c.MaxInputPixels, 64_000_000)
	c.KeepFiles = cmp.Or(c.KeepFiles, time.Hour)
	if c.Now == nil {
		c.Now = time.Now
	}
	h := &Handler{
		engine: submitter{
			Submit: func(ctx context.Context, r engine.Request) (Job, error) { return e.Submit(ctx, r) },
			Models: e.Models,
		},
		config: c, mux: http.NewServeMux(),
		files: files{api.Files{Keep: c.KeepFiles, Most: maxFiles, Now: c.Now}},
		tick:  15 * time.Second,
	}
	h.handle("/v1/images/generations", http.MethodPost, func(w http.ResponseWriter, r *http.Request) { h.images(w, r, false) })
	h.handle("/v1/images/edits", http.MethodPost, func(w http.ResponseWriter, r *http.Request) { h.images(w, r, true) })
	h.handle("/v1/images/variations", http.MethodPost, func(w http.ResponseWriter, r *http.Request) {
		writeError(w, failure(http.StatusNotImplemented, "not_supported", "variations of images are not supported (use /v1/images/edits)"))
	})
	h.handle("/v1/chat/completions", http.MethodPost, h.chat)
	h.handle("/v1/models", http.MethodGet, h.listModels)
	h.handle("/v1/models/{id...}", http.MethodGet, h.oneModel)
	h.handle("/v1/files/{name}", http.MethodGet, h.files.serve)
	h.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, failure(http.StatusNotFound, "unknown_url", "this server has no %s %s (it has %s)", r.Method,
			quoted(r.URL.Path), "/v1/images/generations, /v1/images/edits, /v1/chat/completions and /v1/models"))
	})
	return h
}

// handle adds a route with a method, its HEAD if it is GET, and OPTIONS.
func (h *Handler) handle(pattern, method string, f http.HandlerFunc) {
	methods := []string{method, http.MethodOptions}
	if method == http.MethodGet {
		methods = slices.Insert(methods, 1, http.MethodHead)
	}
	allow := strings.Join(methods, ", ")
	h.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodOptions:
			w.Header().Set("Allow", allow)
			w.WriteHeader(http.StatusNoContent)
		case !slices.Contains(methods, r.Method):
			e := failure(http.StatusMethodNotAllowed, "method_not_allowed", "the method %s is not allowed (expected %s)",
				quoted(r.Method), allow)
			e.allow = allow
			writeError(w, e)
		default:
			f(w, r)
		}
	})
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

// images generates or edits images. The job is canceled when the client goes away.
func (h *Handler) images(w http.ResponseWriter, r *http.Request, edit bool) {
	req, err := h.request(w, r, edit)
	if err != nil {
		writeError(w, err)
		return
	}
	job, ok := h.submit(w, r, req.job)
	if !ok {
		return
	}
	defer job.Cancel() // no effect on a job that has ended
	req.warnings = append(req.warnings, job.Status().Warnings...)
	req.header(w.Header())
	if req.stream {
		h.stream(w, r, req, job)
		return
	}
	if !wait(w, r, job) {
		return
	}
	answer, err := h.answer(r, req, job.Pictures())
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, answer)
}

// submit submits the job of a request, or answers with the error.
func (h *Handler) submit(w http.ResponseWriter, r *http.Request, request engine.Request) (Job, bool) {
	request.Client = engine.Client(r.Context())
	job, err := h.engine.Submit(r.Context(), request)
	if err != nil {
		writeError(w, err)
	}
	return job, err == nil
}

// wait waits for a job, and answers with its error, unless the client is gone.
func wait(w http.ResponseWriter, r *http.Request, job Job) bool {
	err := job.Wait(r.Context())
	if err != nil && r.Context().Err() == nil {
		writeError(w, err)
	}
	return err == nil
}

// request reads a request.
func (h *Handler) request(w http.ResponseWriter, r *http.Request, edit bool) (*request, error) {
	limit := int64(maxJSON)
	if edit {
		limit = h.config.MaxBody
	}
	f, err := h.read(w, r, limit, func(body io.Reader, kind, boundary string) (*form, error) {
		return readBody(body, kind, boundary, edit)
	})
	if err != nil {
		return nil, err
	}
	return h.parse(f, edit)
}
