package openai

import (
	"context"
	"encoding/base64"

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

// ended sends the end of a job, if an event is that.
func ended(s *api.Stream, e engine.Event) error {
	switch e.Kind {
	case engine.EventDone:
		return s.Send("data: [DONE]\n\n")
	case engine.EventFailed:
		return e.Status.Err
	case engine.EventCanceled:
		return context.Canceled
	}
	return nil
}

// event sends an event of a job for images, if the stream has such events.
func (h *Handler) event(s *api.Stream, req *request, e engine.Event) error {
	switch e.Kind {
	case engine.EventPreview:
		return h.preview(s, req, e)
	case engine.EventPicture:
		return h.completed(s, req, e.Picture)
	}
	return ended(s, e)
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

func (h *Handler) preview(s *api.Stream, req *request, e engine.Event) error {
	if e.Part >= req.job.Previews || e.Preview == nil {
		return nil
	}
	data, err := req.write(e.Preview, nil)
	if err != nil {
		return err
	}
	out := h.newEvent(req, "partial_image", data)
	out.PartialIndex = &e.Part
	return s.Event(out.Type, out)
}

func (h *Handler) completed(s *api.Stream, req *request, p *engine.Picture) error {
	data, err := req.encode(p)
	if err != nil {
		return err
	}
	out := h.newEvent(req, "completed", data)
	one := []*engine.Picture{p}
	used := req.usageOf(one)
	out.Background = req.backgroundOf(one)
	out.Size, out.Usage, out.Model, out.Seed = sizeText(p.Result.Image), &used, req.job.Model, &p.Seed
	return s.Event(out.Type, out)
}
