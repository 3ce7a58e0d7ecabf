// Package sdapi answers the HTTP API of AUTOMATIC1111's web UI (/sdapi/v1/), and the requests
// to / of Draw Things' clients, as the clients that people use send and read them.
//
// Steps, guidance scale and sampler are sliders that these clients send with every request. A
// distilled model uses its own steps and guidance scale instead. The field info of a response
// lists everything that differs from the request as warnings. Unknown fields are ignored, as in
// AUTOMATIC1111.
package sdapi

import (
	"cmp"
	"context"
	"iter"
	"net/http"
	"strings"
	"sync"

	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/engine"
)

// prefix is the start of all paths, except that of [Handler.Root].
const prefix = "/sdapi/v1/"

// An Engine is what the handlers use of an [engine.Engine], whose jobs are of type J.
type Engine[J Job] interface {
	Submit(ctx context.Context, r engine.Request) (J, error)
	Models() []engine.ModelInfo
	Unload()
}

// A Job is what the handlers use of an [engine.Job].
type Job interface {
	Status() engine.Status
	Cancel()
	Pictures() []*engine.Picture
	Wait(ctx context.Context) error
	Events(ctx context.Context, after int) iter.Seq[engine.Event]
}

// A Config configures a handler.
type Config struct {
	// LoRAs lists names of LoRAs for clients that show them. Prompts may name others, which the
	// engine must check: a name is passed on as it is, and must not be opened as a path. nil
	// stands for an empty list.
	LoRAs func() []string
	// MaxPixels is the largest number of pixels of a generated image, which bounds the images of a request
	// by [api.InputPixels]. 0 stands for [picture.MaxPixels].
	MaxPixels int
}

// A Handler answers the requests under /sdapi/v1/.
type Handler struct {
	submit    func(ctx context.Context, r engine.Request) (Job, error)
	models    func() []engine.ModelInfo
	unload    func()
	loras     func() []string
	maxPixels int
	routes    map[string]route

	mu     sync.Mutex
	chosen map[string]string // the model that a client chose, by client
	runs   map[string][]*run // the jobs of a client that have not ended, oldest first
}

// A route has the functions of a path, by method.
type route map[string]http.HandlerFunc

// New returns a handler of the requests under /sdapi/v1/.
func New[J Job](e Engine[J], c Config) *Handler {
	h := &Handler{
		submit: func(ctx context.Context, r engine.Request) (Job, error) {
			job, err := e.Submit(ctx, r)
			if err != nil {
				return nil, err
			}
			return job, nil
		},
		models: e.Models, unload: e.Unload, loras: c.LoRAs,
		maxPixels: cmp.Or(c.MaxPixels, picture.MaxPixels),
		chosen:    map[string]string{}, runs: map[string][]*run{},
	}
	if h.loras == nil {
		h.loras = func() []string { return nil }
	}
	get := func(f func(r *http.Request) any) route {
		return route{http.MethodGet: func(w http.ResponseWriter, r *http.Request) { write(w, http.StatusOK, f(r)) }}
	}
	post := func(f func(r *http.Request)) route {
		return route{http.MethodPost: func(w http.ResponseWriter, r *http.Request) {
			f(r)
			write(w, http.StatusOK, struct{}{})
		}}
	}
	options := get(h.options)
	options[http.MethodPost] = h.setOptions
	h.routes = map[string]route{
		"txt2img":              {http.MethodPost: func(w http.ResponseWriter, r *http.Request) { h.generate(w, r, false) }},
		"img2img":              {http.MethodPost: func(w http.ResponseWriter, r *http.Request) { h.generate(w, r, true) }},
		"options":              options,
		"sd-models":            get(h.modelList),
		"samplers":             get(samplerList),
		"schedulers":           get(schedulerList),
		"upscalers":            get(upscalerList),
		"latent-upscale-modes": get(emptyList),
		"loras":                get(h.loraList),
		"progress":             get(h.progress),
		"interrupt":            post(h.interrupt),
		"skip":                 post(h.interrupt), // of a job with several images, all that are not finished
		"unload-checkpoint":    post(func(*http.Request) { h.unload() }),
		"png-info":             {http.MethodPost: h.pngInfo},
		"interrogate":          {http.MethodPost: h.interrogate},
	}
	for _, name := range []string{
		"sd-vae", "sd-modules", "script-info", "prompt-styles", "hypernetworks", "face-restorers", "realesrgan-models",
	} {
		h.routes[name] = get(emptyList)
	}
	for name, answer := range map[string]any{
		"scripts":    map[string][]string{"txt2img": {}, "img2img": {}},
		"embeddings": map[string]any{"loaded": struct{}{}, "skipped": struct{}{}},
		"cmd-flags":  struct{}{},
		"memory":     map[string]any{"ram": map[string]string{"error": "see /metrics"}, "cuda": map[string]string{"error": "see /metrics"}},
	} {
		h.routes[name] = get(func(*http.Request) any { return answer })
	}
	for _, name := range []string{"refresh-checkpoints", "refresh-loras", "refresh-vae", "refresh-embeddings"} {
		refresh := func(w http.ResponseWriter, r *http.Request) { write(w, http.StatusOK, nil) } // lists are always new
		h.routes[name] = route{http.MethodPost: refresh}
	}
	for name, batch := range map[string]bool{"extra-single-image": false, "extra-batch-images": true} {
		h.routes[name] = route{http.MethodPost: func(w http.ResponseWriter, r *http.Request) { h.extras(w, r, batch) }}
	}
	return h
}

// ServeHTTP answers a request under /sdapi/v1/.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, ok := strings.CutPrefix(r.URL.Path, prefix)
	path = strings.TrimSuffix(path, "/")
	methods := h.routes[path]
	if !ok || methods == nil {
		writeError(w, &statusError{status: http.StatusNotFound, message: "Not Found"})
		return
	}
	r.Pattern = prefix + path // for logs
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	f := methods[method]
	if f == nil {
		for _, m := range []string{http.MethodGet, http.MethodPost} {
			if methods[m] != nil {
				w.Header().Add("Allow", m)
			}
		}
		writeError(w, &statusError{status: http.StatusMethodNotAllowed, message: "Method Not Allowed"})
		return
	}
	f(w, r)
}

// Root returns a handler for GET and HEAD of /. Clients of Draw Things' server read its settings
// there. Browsers, which accept HTML, get the page instead, unless page is nil.
func (h *Handler) Root(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept")
		switch {
		case page != nil && strings.Contains(strings.Join(r.Header.Values("Accept"), ","), "text/html"):
			page.ServeHTTP(w, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			writeError(w, &statusError{status: http.StatusMethodNotAllowed, message: "Method Not Allowed"})
		default:
			write(w, http.StatusOK, h.drawThings(engine.Client(r.Context())))
		}
	})
}
