package comfy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"image/jpeg"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// A run is a graph that was submitted. Its fields below job are guarded by Handler.mu.
type run struct {
	id, owner, client string
	prompt            json.RawMessage
	extra             map[string]json.RawMessage
	flow              *picture.Workflow
	job               api.Job

	number   int
	ended    bool
	done     bool // with images
	outputs  map[string]map[string]any
	messages []any
}

// saving returns the ids of the nodes that save images.
func (r *run) saving() []string {
	reads := func(id string) bool { return !classes[r.flow.Nodes[id].Class].saves() }
	return slices.DeleteFunc(slices.Sorted(maps.Keys(r.flow.Nodes)), reads)
}

// entry describes the run as in ComfyUI's queue.
func (r *run) entry() []any { return []any{r.number, r.id, r.prompt, r.extra, r.saving()} }

// begin adds a run, which gets a number, and forgets the oldest one that has ended if there are many.
func (h *Handler) begin(r *run) (number int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.number++
	r.number, r.outputs = h.number, map[string]map[string]any{}
	h.runs = append(h.runs, r)
	if i := slices.IndexFunc(h.runs, func(r *run) bool { return r.ended }); i >= 0 && len(h.runs) > maxRuns {
		h.runs = slices.Delete(h.runs, i, i+1)
	}
	h.broadcast(r.owner, "", h.status(r.owner, ""))
	go h.follow(r)
	return r.number
}

// follow reports the events of a run to its client, and keeps its images.
func (h *Handler) follow(r *run) {
	send := func(kind string, data map[string]any) {
		h.mu.Lock()
		defer h.mu.Unlock()
		data["prompt_id"] = r.id
		if strings.HasPrefix(kind, "execution_") {
			data["timestamp"] = time.Now().UnixMilli()
			r.messages = append(r.messages, []any{kind, data})
		}
		h.broadcast(r.owner, r.client, text(kind, data))
	}
	at := ""
	executing := func(id string) {
		if at != id {
			at = id
			send("executing", map[string]any{"node": id, "display_node": id})
		}
	}
	where := func() map[string]any {
		n := r.flow.Nodes[cmp.Or(at, r.flow.Sampler.ID)]
		return map[string]any{"node_id": n.ID, "node_type": n.Class, "executed": []string{}}
	}
	var finished []*engine.Picture
	started := false
	for e := range r.job.Events(context.Background(), 0) {
		if !started && e.Kind != engine.EventQueued && !e.Status.Started.IsZero() {
			started = true
			h.turn.Lock() // until the messages of the run before are sent
			defer h.turn.Unlock()
			send("execution_start", map[string]any{})
			send("execution_cached", map[string]any{"nodes": []string{}})
		}
		switch e.Kind {
		case engine.EventStep:
			executing(r.flow.Sampler.ID)
			send("progress", map[string]any{
				"value": e.Status.Image*e.Status.Steps + e.Status.Step, "max": e.Status.Images * e.Status.Steps, "node": at,
			})
		case engine.EventPreview:
			var b bytes.Buffer
			jpeg.Encode(&b, e.Preview, nil) // in memory: cannot fail
			h.sendImage(r, 1, b.Bytes())
		case engine.EventPicture:
			finished = append(finished, e.Picture)
		case engine.EventDone:
			for _, id := range r.saving() {
				executing(id)
				if output := h.save(r, r.flow.Nodes[id], finished); output != nil {
					send("executed", map[string]any{"node": id, "display_node": id, "output": output})
				}
			}
			send("execution_success", map[string]any{})
		case engine.EventFailed:
			failed := where()
			failed["exception_message"], failed["exception_type"], failed["traceback"] = e.Status.Err.Error(), "RuntimeError", []string{}
			send("execution_error", failed)
		case engine.EventCanceled:
			if started {
				send("execution_interrupted", where())
			}
		}
	}
	h.mu.Lock()
	r.ended, r.done = true, r.job.Status().State == engine.Done
	if !started { // taken out of the queue
		h.runs = slices.DeleteFunc(h.runs, func(other *run) bool { return other == r })
	}
	r.job = nil // whose images are kept elsewhere
	h.broadcast(r.owner, "", h.status(r.owner, ""))
	h.mu.Unlock()
	send("executing", map[string]any{"node": nil})
}

// save keeps images as a node does, and returns its output, nil for one that only sends them.
func (h *Handler) save(r *run, n *picture.WorkflowNode, finished []*engine.Picture) map[string]any {
	images := []any{}
	for i, p := range finished {
		var b bytes.Buffer
		api.EncodePNG(&b, p.Result.Pixels(), p.Result.Settings) // in memory: cannot fail
		name := inputFile(r.owner, cmp.Or(n.Text("filename_prefix"), "ComfyUI"))
		name.Name, name.Type = fmt.Sprintf("%.*s_%05d_.png", maxName, name.Name, maxBatch*r.number+i), "output"
		var shown any = &name
		switch n.Class {
		case "SaveImageWebsocket":
			h.sendImage(r, 2, b.Bytes())
			continue
		case "PreviewImage":
			name.Type = "temp"
		case "ETN_SaveImageCache":
			name.Type = "temp"
			shown = map[string]string{"source": "http", "id": name.Name, "content-type": "image/png"}
		}
		h.files.Put(name.key(), b.Bytes())
		images = append(images, shown)
	}
	if len(images) == 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r.outputs[n.ID] = map[string]any{"images": images}
	return r.outputs[n.ID]
}

// sendImage sends an image to the client, after the kind of the message and the format: 1 is JPEG, and 2 PNG.
func (h *Handler) sendImage(r *run, format byte, data []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.broadcast(r.owner, r.client, append([]byte{0, 0, 0, 1, 0, 0, 0, format}, data...))
}

// queueInfo describes the queue of an owner. mu must be held.
func (h *Handler) queueInfo(owner string) any {
	n := 0
	for _, r := range h.runs {
		if r.owner == owner && !r.ended {
			n++
		}
	}
	return map[string]any{"exec_info": map[string]int{"queue_remaining": n}}
}

func (h *Handler) promptInfo(_ http.ResponseWriter, r *http.Request) (any, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.queueInfo(h.Owner(r)), nil
}

func (h *Handler) queue(_ http.ResponseWriter, r *http.Request) (any, error) {
	all, owner := map[string][]any{"queue_running": {}, "queue_pending": {}}, h.Owner(r)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.runs {
		if part := map[bool]string{true: "queue_pending", false: "queue_running"}[r.waits()]; r.owner == owner && !r.ended {
			all[part] = append(all[part], r.entry())
		}
	}
	return all, nil
}

// waits reports whether a run is in the queue. Handler.mu must be held.
func (r *run) waits() bool { return !r.ended && r.job.Status().State == engine.Queued }

// change removes graphs from the queue or the history, or interrupts those that run, by its path.
func (h *Handler) change(w http.ResponseWriter, r *http.Request) (any, error) {
	var c struct {
		Clear  bool     `json:"clear"`
		Delete []string `json:"delete"`
		ID     string   `json:"prompt_id"`
	}
	if err := readJSON(w, r, &c); err != nil {
		return nil, err
	}
	owner, of := h.Owner(r), path.Base(r.URL.Path)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.runs = slices.DeleteFunc(h.runs, func(r *run) bool {
		named := r.owner == owner && (c.Clear || slices.Contains(c.Delete, r.id))
		interrupted := r.owner == owner && of == "interrupt" && (c.ID == "" || c.ID == r.id)
		if !r.ended && (r.waits() && named && of == "queue" || !r.waits() && interrupted) {
			r.job.Cancel()
		}
		return r.ended && named && of == "history"
	})
	return nil, nil
}

// history describes the runs that have ended, or the one that the path names.
func (h *Handler) history(_ http.ResponseWriter, r *http.Request) (any, error) {
	owner, id, all := h.Owner(r), r.PathValue("id"), map[string]any{}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.runs {
		if r.owner == owner && r.ended && (id == "" || r.id == id) {
			text := map[bool]string{true: "success", false: "error"}[r.done]
			all[r.id] = map[string]any{
				"prompt": r.entry(), "outputs": r.outputs, "meta": struct{}{},
				"status": map[string]any{"status_str": text, "completed": r.done, "messages": r.messages},
			}
		}
	}
	return all, nil
}
