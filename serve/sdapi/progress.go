package sdapi

import (
	"bytes"
	"encoding/base64"
	"image"
	"net/http"
	"slices"
	"sync"
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

	mu      sync.Mutex
	preview *image.RGBA // the newest one, or nil
	encoded string      // preview as PNG in base64, once it was asked for
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
	r.mu.Lock()
	defer r.mu.Unlock()
	r.preview, r.encoded = preview, ""
}

// currentImage returns the preview as PNG in base64, or nil.
func (r *run) currentImage() *string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.preview == nil {
		return nil
	}
	if r.encoded == "" {
		var b bytes.Buffer
		if picture.Encode(&b, picture.PNG, r.preview, nil) != nil {
			return nil
		}
		r.encoded = base64.StdEncoding.EncodeToString(b.Bytes())
	}
	return &r.encoded
}

// A progress is the response of progress.
type progress struct {
	Progress     float64       `json:"progress"`     // from 0 to 1
	ETARelative  float64       `json:"eta_relative"` // in seconds
	State        progressState `json:"state"`
	CurrentImage *string       `json:"current_image"`
	TextInfo     *string       `json:"textinfo"`
}

type progressState struct {
	Skipped            bool   `json:"skipped"`
	Interrupted        bool   `json:"interrupted"`
	StoppingGeneration bool   `json:"stopping_generation"`
	Job                string `json:"job"`
	JobCount           int    `json:"job_count"` // images of the job, 0 without one
	JobTimestamp       string `json:"job_timestamp"`
	JobNo              int    `json:"job_no"` // the image that is being generated
	SamplingStep       int    `json:"sampling_step"`
	SamplingSteps      int    `json:"sampling_steps"`
}

// progress describes the job of the client. Clients take a progress and a job_count of 0 for idle.
func (h *Handler) progress(r *http.Request) any {
	found, s := h.running(engine.Client(r.Context()))
	if found == nil {
		return progress{State: progressState{JobTimestamp: "0"}}
	}
	p := progress{
		ETARelative: s.Left.Seconds(),
		State: progressState{
			Job: "gomflux", JobCount: max(1, s.Images), JobTimestamp: s.Created.Format(timestamp),
			JobNo: s.Image, SamplingStep: s.Step, SamplingSteps: s.Steps,
		},
	}
	switch s.State {
	case engine.Queued:
		text := "Waiting"
		p.TextInfo = &text
	case engine.Loading:
		text := "Loading " + s.Model
		p.TextInfo = &text
	case engine.Running:
		p.Progress = 0.01 + (float64(s.Image)+float64(s.Step)/float64(max(1, s.Steps)))/float64(max(1, s.Images))
		p.Progress = min(1, p.Progress)
		if took := time.Since(s.Started).Seconds(); s.Left == 0 && !s.Started.IsZero() {
			p.ETARelative = took/p.Progress - took
		}
	}
	if skip := r.URL.Query().Get("skip_current_image"); skip != "true" && skip != "1" {
		p.CurrentImage = found.currentImage()
	}
	return p
}

// interrupt cancels the running job of the client.
func (h *Handler) interrupt(r *http.Request) {
	if found, _ := h.running(engine.Client(r.Context())); found != nil {
		found.job.Cancel()
	}
}
