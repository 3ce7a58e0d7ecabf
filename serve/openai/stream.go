package openai

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/gomflux/gomflux/internal/plainjson"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// An imageEvent is an event of OpenAI's stream: ImageGenPartialImageEvent, ImageGenCompletedEvent or
// those of edits. Model and Seed are additions to completed events.
type imageEvent struct {
	Type         string  `json:"type"`
	B64JSON      string  `json:"b64_json"`
	PartialIndex *int    `json:"partial_image_index,omitempty"`
	CreatedAt    int64   `json:"created_at"`
	Size         string  `json:"size"`
	Quality      string  `json:"quality"`
	Background   string  `json:"background"`
	OutputFormat string  `json:"output_format"`
	Usage        *usage  `json:"usage,omitempty"`
	Model        string  `json:"model,omitempty"`
	Seed         *uint64 `json:"seed,omitempty"`
}

// A stream writes server-sent events. It begins late, so that a job that cannot run is answered with
// an HTTP status.
type stream struct {
	w     http.ResponseWriter
	begun bool
}

// send writes an event, or a comment without a name and data.
func (s *stream) send(name string, data []byte) error {
	if !s.begun {
		s.begun = true
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no") // for reverse proxies
		h.Set("X-Content-Type-Options", "nosniff")
		s.w.WriteHeader(http.StatusOK)
	}
	text := ":\n\n"
	if data != nil {
		text = "data: " + string(data) + "\n\n"
		if name != "" {
			text = "event: " + name + "\n" + text
		}
	}
	if _, err := io.WriteString(s.w, text); err != nil {
		return err
	}
	if err := http.NewResponseController(s.w).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

func (s *stream) sendJSON(name string, v any) error {
	data, err := plainjson.Marshal(v, "")
	if err != nil {
		return err
	}
	return s.send(name, data)
}

// fail ends the stream with an error: an HTTP status if nothing was sent yet, and otherwise an event
// that OpenAI's clients raise.
func (s *stream) fail(err error) {
	if !s.begun {
		writeError(s.w, err)
		return
	}
	_ = s.sendJSON("error", errorBody{publicError(err)}) // the client may be gone
}

// stream answers with the events of a job for images.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request, req *request, job Job) {
	h.follow(w, r, job, func(s *stream, e engine.Event) (bool, error) { return h.event(s, req, e) })
}

// follow streams the events of a job as send does, until that reports the last one.
func (h *Handler) follow(w http.ResponseWriter, r *http.Request, job Job, send func(*stream, engine.Event) (done bool, err error)) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	events := api.Events(ctx, job.Events(ctx, 0))
	s := &stream{w: w}
	tick := time.NewTicker(h.tick)
	defer tick.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-tick.C: // a comment, so that proxies keep the connection
			if s.send("", nil) != nil {
				return
			}
		case e, ok := <-events:
			tick.Reset(h.tick)
			if !ok { // canceled
				return
			}
			if done, err := send(s, e); done || err != nil {
				if err != nil && r.Context().Err() == nil {
					s.fail(err)
				}
				return
			}
		}
	}
}

// event sends an event of a job, if the stream has such events. It reports whether it was the last
// one.
func (h *Handler) event(s *stream, req *request, e engine.Event) (done bool, err error) {
	switch e.Kind {
	case engine.EventPreview:
		return false, h.preview(s, req, e)
	case engine.EventPicture:
		return false, h.completed(s, req, e.Picture)
	}
	return ended(s, e)
}

// ended sends the end of a job, and reports whether the event is that.
func ended(s *stream, e engine.Event) (done bool, err error) {
	switch e.Kind {
	case engine.EventDone:
		return true, s.send("", []byte("[DONE]"))
	case engine.EventFailed:
		err = e.Status.Err
		if err == nil {
			err = errors.New("the job failed")
		}
		return true, err
	case engine.EventCanceled:
		return true, context.Canceled
	}
	return false, nil
}

func (h *Handler) newEvent(req *request, kind string, data []byte) imageEvent {
	prefix := "image_generation."
	if req.edit {
		prefix = "image_edit."
	}
	return imageEvent{
		Type: prefix + kind, B64JSON: base64.StdEncoding.EncodeToString(data), CreatedAt: h.config.Now().Unix(),
		Size: req.size, Quality: req.quality, Background: opaque, OutputFormat: req.format,
	}
}

func (h *Handler) preview(s *stream, req *request, e engine.Event) error {
	if e.Part >= req.job.Previews || e.Preview == nil {
		return nil
	}
	data, err := req.write(e.Preview, nil)
	if err != nil {
		return err
	}
	out := h.newEvent(req, "partial_image", data)
	out.PartialIndex = &e.Part
	return s.sendJSON(out.Type, out)
}

func (h *Handler) completed(s *stream, req *request, p *engine.Picture) error {
	data, err := req.encode(p)
	if err != nil {
		return err
	}
	out := h.newEvent(req, "completed", data)
	one := []*engine.Picture{p}
	used := req.usageOf(one)
	out.Background = req.backgroundOf(one)
	out.Size, out.Usage, out.Model, out.Seed = sizeText(p.Result.Image), &used, req.job.Model, &p.Seed
	return s.sendJSON(out.Type, out)
}
