package sdapi

import (
	"bytes"
	"encoding/base64"
	"image"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// timestamp is the layout of AUTOMATIC1111's times.
const timestamp = "20060102150405"

// A run is a job of txt2img or img2img that has not ended.
type run struct {
	job api.Job

	preview atomic.Pointer[string] // the newest one as PNG in base64, nil without one
}

func (h *Handler) begin(client string, job api.Job) *run {
	r := &run{job: job}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.runs[client] = append(h.runs[client], r)
	return r
}

func (h *Handler) end(client string, r *run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	left := slices.DeleteFunc(h.runs[client], func(other *run) bool { return other == r })
	if h.runs[client] = left; len(left) == 0 {
		delete(h.runs, client)
	}
}

// running returns the job of a client that is running, or the oldest that waits, with its status.
// Without a job it returns nil.
func (h *Handler) running(client string) (found *run, status engine.Status) {
	h.mu.Lock()
	runs := slices.Clone(h.runs[client])
	h.mu.Unlock()
	for _, r := range runs {
		switch s := r.job.Status(); {
		case s.State == engine.Running || s.State == engine.Loading:
			return r, s
		case found == nil && !s.State.Ended():
			found, status = r, s
		}
	}
	return found, status
}

// show sets the preview.
func (r *run) show(preview *image.RGBA) {
	var b bytes.Buffer
	if picture.Encode(&b, picture.PNG, preview, nil) == nil {
		r.preview.Store(new(base64.StdEncoding.EncodeToString(b.Bytes())))
	}
}

// progress describes the job of the client. Clients take a progress and a job_count of 0 for idle.
func (h *Handler) progress(r *http.Request) any {
	found, s := h.running(engine.Client(r.Context()))
	done, left, job, count, created := 0.0, s.Left.Seconds(), "", 0, "0"
	var text any
	var preview *string
	if found != nil {
		job, count, created = "gomflux", max(1, s.Images), s.Created.Format(timestamp)
		if skip := r.URL.Query().Get("skip_current_image"); skip != "true" && skip != "1" {
			preview = found.preview.Load()
		}
	}
	switch s.State {
	case engine.Queued:
		text = "Waiting"
	case engine.Loading:
		text = "Loading " + s.Model
	case engine.Running:
		done = min(1, 0.01+(float64(s.Image)+float64(s.Step)/float64(max(1, s.Steps)))/float64(count))
		if took := time.Since(s.Started).Seconds(); s.Left == 0 && !s.Started.IsZero() {
			left = took/done - took
		}
	}
	return map[string]any{
		"progress": done, "eta_relative": left, "current_image": preview, "textinfo": text, // progress is from 0 to 1, and ETA in seconds
		"state": map[string]any{
			"skipped": false, "interrupted": false, "stopping_generation": false, "job": job, "job_count": count,
			"job_timestamp": created, "job_no": s.Image, "sampling_step": s.Step, "sampling_steps": s.Steps,
		},
	}
}

// interrupt cancels the running job of the client.
func (h *Handler) interrupt(r *http.Request) {
	if found, _ := h.running(engine.Client(r.Context())); found != nil {
		found.job.Cancel()
	}
}
