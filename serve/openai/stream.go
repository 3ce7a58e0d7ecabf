package openai

import (
	"context"
	"encoding/base64"
	"maps"

	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

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

// send sends an event about an image: OpenAI's ImageGenPartialImageEvent, ImageGenCompletedEvent or those of edits.
func (h *Handler) send(s *api.Stream, req *request, kind string, file []byte, more map[string]any) error {
	prefix := "image_generation."
	if req.edit {
		prefix = "image_edit."
	}
	event := map[string]any{
		"type": prefix + kind, "b64_json": base64.StdEncoding.EncodeToString(file), "created_at": h.config.Now().Unix(),
		"size": req.size, "quality": req.quality, "background": opaque, "output_format": req.format,
	}
	maps.Copy(event, more)
	return s.Event(0, prefix+kind, event)
}

func (h *Handler) preview(s *api.Stream, req *request, e engine.Event) error {
	if e.Part >= req.job.Previews || e.Preview == nil {
		return nil
	}
	file, err := req.write(e.Preview, nil)
	if err != nil {
		return err
	}
	return h.send(s, req, "partial_image", file, map[string]any{"partial_image_index": e.Part})
}

// completed sends a finished image. The model and the seed are additions.
func (h *Handler) completed(s *api.Stream, req *request, p *engine.Picture) error {
	file, err := req.encode(p)
	if err != nil {
		return err
	}
	one := []*engine.Picture{p}
	return h.send(s, req, "completed", file, map[string]any{
		"background": req.backgroundOf(one), "size": sizeText(p.Result.Image), "usage": req.usageOf(one), "model": req.job.Model,
		"seed": p.Seed,
	})
}
