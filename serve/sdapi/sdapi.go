// Package sdapi answers the HTTP API of AUTOMATIC1111's web UI (/sdapi/v1/), and the requests
// to / of Draw Things' clients, as the clients that people use send and read them.
//
// Steps, guidance scale and sampler are sliders that these clients send with every request. A
// distilled model uses its own steps and guidance scale instead. The field info of a response
// lists everything that differs from the request as warnings. Unknown fields are ignored, as in
// AUTOMATIC1111.
package sdapi

import (
	"net/http"
	"strings"
	"sync"

	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// prefix is the start of all paths, except that of [Handler.Root].
const prefix = "/sdapi/v1/"

// A Handler answers the requests under /sdapi/v1/.
type Handler struct {
	api.Config
	engine api.Engine
	mux    api.Mux

	mu     sync.Mutex
	chosen map[string]string // the model that a client chose, by client
	runs   map[string][]*run // the jobs of a client that have not ended, oldest first
}

// New returns a handler of the requests under /sdapi/v1/.
func New(e api.Engine, c api.Config) *Handler {
	h := &Handler{Config: c.WithDefaults(), engine: e, chosen: map[string]string{}, runs: map[string][]*run{}}
	get := func(f func(r *http.Request) any) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { api.WriteJSON(w, http.StatusOK, f(r)) }
	}
	always := func(answer any) http.HandlerFunc { return get(func(*http.Request) any { return answer }) }
	do := func(f func(r *http.Request)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			f(r)
			api.WriteJSON(w, http.StatusOK, struct{}{})
		}
	}
	seeMetrics := map[string]string{"error": "see /metrics"}
	routes := map[string]http.HandlerFunc{
		"POST txt2img":             post(func(r *http.Request, f *fields) (any, error) { return h.generate(r.Context(), f, false) }),
		"POST img2img":             post(func(r *http.Request, f *fields) (any, error) { return h.generate(r.Context(), f, true) }),
		"GET options":              get(h.options),
		"POST options":             post(h.setOptions),
		"GET sd-models":            get(h.modelList),
		"GET samplers":             get(samplerList),
		"GET schedulers":           get(schedulerList),
		"GET upscalers":            get(upscalerList),
		"GET loras":                get(h.loraList),
		"GET progress":             get(h.progress),
		"POST interrupt":           do(h.interrupt),
		"POST skip":                do(h.interrupt), // of a job with several images, all that are not finished
		"POST unload-checkpoint":   do(func(*http.Request) { e.Unload() }),
		"POST png-info":            post(h.pngInfo),
		"POST interrogate":         post(h.interrogate),
		"POST extra-single-image":  post(h.extraImage),
		"POST extra-batch-images":  post(h.extraImages),
		"GET scripts":              always(map[string][]string{"txt2img": {}, "img2img": {}}),
		"GET embeddings":           always(map[string]any{"loaded": struct{}{}, "skipped": struct{}{}}),
		"GET cmd-flags":            always(struct{}{}),
		"GET memory":               always(map[string]any{"ram": seeMetrics, "cuda": seeMetrics}),
		"GET latent-upscale-modes": always([]any{}),
	}
	for _, name := range []string{
		"sd-vae", "sd-modules", "script-info", "prompt-styles", "hypernetworks", "face-restorers", "realesrgan-models",
	} {
		routes["GET "+name] = always([]any{})
	}
	for _, name := range []string{"refresh-checkpoints", "refresh-loras", "refresh-vae", "refresh-embeddings"} {
		routes["POST "+name] = always(nil) // lists are always new
	}
	for route, f := range routes {
		method, name, _ := strings.Cut(route, " ")
		h.mux.HandleFunc(method+" "+prefix+name, f)
		h.mux.HandleFunc(method+" "+prefix+name+"/{$}", f)
	}
	h.mux.Refuse = func(w http.ResponseWriter, _ *http.Request, status int) {
		writeError(w, &api.Error{Status: status, Message: http.StatusText(status)})
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
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

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
