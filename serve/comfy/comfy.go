// Package comfy answers the HTTP API of ComfyUI and the messages of its WebSocket, for the graphs that
// clients send to generate an image: with one sampler, from a prompt, an image, a mask or reference
// images. nodes.txt lists the nodes that are known; package picture follows the graph, as it does in
// files of ComfyUI. A graph with others is refused with their names.
//
// A batch has consecutive seeds. Images that are sent and generated are kept in memory, the newest ones.
package comfy

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

const (
	maxGraph = 1 << 20 // bytes of a body with a graph
	maxRuns  = 100     // graphs whose history is kept
	maxBatch = 64
	maxName  = 200       // bytes
	maxFiles = 256 << 20 // bytes of all images
)

// A Config configures a handler.
type Config struct {
	api.Config
	// Origins are those of other servers whose pages may open the WebSocket.
	Origins []string
}

// A Handler answers requests.
type Handler struct {
	Config
	engine api.Engine
	files  api.Files     // that were sent or generated
	over   chan struct{} // is closed when the server shuts down

	turn    sync.Mutex // is locked by the run whose messages are sent
	mu      sync.Mutex
	runs    []*run // oldest first
	number  int    // of the newest run
	sockets map[*socket]bool
}

// New returns a handler.
func New(e api.Engine, c Config) *Handler {
	c.Config = c.WithDefaults()
	return &Handler{Config: c, engine: e, files: api.Files{Most: maxFiles}, sockets: map[*socket]bool{}, over: make(chan struct{})}
}

// Mount mounts the routes, which ComfyUI has below /api too. Those with etn are of Krita's plugin.
func (h *Handler) Mount(mux *http.ServeMux) {
	always := func(v any) route { return func(http.ResponseWriter, *http.Request) (any, error) { return v, nil } }
	for pattern, f := range map[string]route{
		"POST /prompt": h.prompt, "GET /prompt": h.promptInfo, "GET /queue": h.queue, "POST /queue": h.change,
		"POST /interrupt": h.change, "GET /history": h.history, "POST /history": h.change, "GET /history/{id}": h.history,
		"GET /view": h.view, "POST /upload/image": h.upload, "POST /upload/mask": h.upload, "GET /ws": h.socket,
		"GET /object_info": h.objectInfo, "GET /object_info/{class}": h.objectInfo, "GET /system_stats": h.stats,
		"GET /models": always([]string{"checkpoints", "diffusion_models", "loras"}), "GET /models/{folder}": h.modelFolder,
		"GET /embeddings": always([]string{}), "GET /extensions": always([]string{}), "GET /features": always(struct{}{}),
		"PUT /etn/image/{id}": h.putImage, "GET /etn/image/{id}": h.view, "GET /etn/languages": always([]string{}),
		"POST /etn/workflow/subscribe": always(struct{}{}),
	} {
		method, path, _ := strings.Cut(pattern, " ")
		mux.HandleFunc(pattern, f.serve)
		mux.HandleFunc(method+" /api"+path, f.serve)
	}
}

// A route answers a request. The answer is JSON unless it is nil.
type route func(w http.ResponseWriter, r *http.Request) (any, error)

func (f route) serve(w http.ResponseWriter, r *http.Request) {
	answer, err := f(w, r)
	status := http.StatusOK
	if err != nil {
		refused, ok := errors.AsType[*refusal](err)
		if status = http.StatusBadRequest; !ok {
			api.SetRetryAfter(w.Header(), err)
			refused, status = refuse("invalid_prompt", err.Error(), ""), api.Status(err)
		}
		answer = refused
	}
	if answer != nil {
		api.WriteJSON(w, status, answer)
	}
}

// readJSON reads a body, whose content type clients do not always set. An empty one changes nothing.
func readJSON(w http.ResponseWriter, r *http.Request, into any) error {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxGraph))
	if err == nil && len(data) > 0 && json.Unmarshal(data, into) != nil {
		err = errs.Requestf("the body: expected a JSON object")
	}
	return err
}

// HangUp closes all sockets.
func (h *Handler) HangUp() { close(h.over) }

// prompt submits a graph.
func (h *Handler) prompt(w http.ResponseWriter, r *http.Request) (any, error) {
	var body struct {
		Prompt json.RawMessage            `json:"prompt"`
		ID     string                     `json:"prompt_id"`
		Client string                     `json:"client_id"`
		Extra  map[string]json.RawMessage `json:"extra_data"`
	}
	if err := readJSON(w, r, &body); err != nil {
		return nil, err
	}
	flow, err := h.read(body.Prompt)
	if err != nil {
		return nil, err
	}
	q, err := h.request(r.Context(), h.Owner(r), flow)
	if err != nil {
		return nil, err
	}
	var method string
	if json.Unmarshal(body.Extra["preview_method"], &method); method != "" && method != "none" && method != "default" {
		q.Previews = -1
	}
	id := cmp.Or(body.ID, engine.NewID())
	n := &run{id: id, owner: h.Owner(r), client: body.Client, prompt: body.Prompt, extra: body.Extra, flow: flow}
	if n.job, err = h.engine.Submit(r.Context(), q); err != nil {
		return nil, err
	}
	warnings := append([]string{}, n.job.Status().Warnings...)
	return map[string]any{"prompt_id": n.id, "number": h.begin(n), "node_errors": struct{}{}, "warnings": warnings}, nil
}

// stats describes the machine, as far as the server knows it.
func (h *Handler) stats(http.ResponseWriter, *http.Request) (any, error) {
	var free int64
	for _, m := range h.engine.Models() {
		free = max(free, m.Free)
	}
	return map[string]any{
		"system": map[string]any{"os": runtime.GOOS, "ram_total": free, "ram_free": free, "comfyui_version": "0.3.75", // with this API
			"python_version": "", "pytorch_version": "", "embedded_python": false, "argv": []string{}},
		"devices": []any{map[string]any{"name": "gomflux " + gomflux.Version(), "type": "mlx", "index": 0, "vram_total": free,
			"vram_free": free, "torch_vram_total": 0, "torch_vram_free": 0}},
	}, nil
}
