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
	"net/http"
	"strings"
	"sync"

	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// prefix is the start of all paths, except that of [Handler.Root].
const prefix = "/sdapi/v1/"

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
	engine    api.Engine
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
func New(e api.Engine, c Config) *Handler {
	h := &Handler{
		engine: e, loras: c.LoRAs,
		maxPixels: cmp.Or(c.MaxPixels, picture.MaxPixels),
		chosen:    map[string]string{}, runs: map[string][]*run{},
	}
	if h.loras == nil {
		h.loras = func() []string { return nil }
	}
	get := func(f func(r *http.Request) any) route {
		return route{http.MethodGet: func(w http.ResponseWriter, r *http.Request) { api.WriteJSON(w, http.StatusOK, f(r)) }}
	}
	do := func(f func(r *http.Request)) route {
		return route{http.MethodPost: func(w http.ResponseWriter, r *http.Request) {
			f(r)
			api.WriteJSON(w, http.StatusOK, struct{}{})
		}}
	}
	options := get(h.options)
	options[http.MethodPost] = post(h.setOptions)
	h.routes = map[string]route{
		"txt2img":              {http.MethodPost: post(h.txt2img)},
		"img2img":              {http.MethodPost: post(h.img2img)},
		"options":              options,
		"sd-models":            get(h.modelList),
		"samplers":             get(samplerList),
		"schedulers":           get(schedulerList),
		"upscalers":            get(upscalerList),
		"latent-upscale-modes": get(emptyList),
		"loras":                get(h.loraList),
		"progress":             get(h.progress),
		"interrupt":            do(h.interrupt),
		"skip":                 do(h.interrupt), // of a job with several images, all that are not finished
		"unload-checkpoint":    do(func(*http.Request) { e.Unload() }),
		"png-info":             {http.MethodPost: post(h.pngInfo)},
		"interrogate":          {http.MethodPost: post(h.interrogate)},
		"extra-single-image":   {http.MethodPost: post(h.extraImage)},
		"extra-batch-images":   {http.MethodPost: post(h.extraImages)},
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
		refresh := func(w http.ResponseWriter, r *http.Request) { api.WriteJSON(w, http.StatusOK, nil) } // lists are always new
		h.routes[name] = route{http.MethodPost: refresh}
	}
	return h
}

// post returns the handler of a request whose body is a JSON object, which the server limits.
func post(f func(r *http.Request, body *fields) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var answer any
		body, err := readFields(r.Body)
		if err == nil {
			answer, err = f(r, body)
		}
		if err != nil {
			writeError(w, err)
			return
		}
		api.WriteJSON(w, http.StatusOK, answer)
	}
}

// ServeHTTP answers a request under /sdapi/v1/.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, ok := strings.CutPrefix(r.URL.Path, prefix)
	path = strings.TrimSuffix(path, "/")
	methods := h.routes[path]
	if !ok || methods == nil {
		writeError(w, &api.Error{Status: http.StatusNotFound, Message: "Not Found"})
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
		writeError(w, &api.Error{Status: http.StatusMethodNotAllowed, Message: "Method Not Allowed"})
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
			writeError(w, &api.Error{Status: http.StatusMethodNotAllowed, Message: "Method Not Allowed"})
		default:
			api.WriteJSON(w, http.StatusOK, h.drawThings(engine.Client(r.Context())))
		}
	})
}
