package native

import (
	"bytes"
	"context"
	"image/jpeg"
	"iter"
	"net/http"
	"strconv"

	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// previewQuality is on the scale of libjpeg, up to 100.
const previewQuality = 80

// events streams the events of a job. Their numbers are the ids, with which a client resumes.
func (a *API) events(w http.ResponseWriter, r *http.Request) error {
	after := 0
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		var err error
		if after, err = strconv.Atoi(last); err != nil || after < 0 {
			return errs.Requestf("Last-Event-ID: expected the number of an event")
		}
	}
	j, err := a.job(r)
	if err != nil {
		return err
	}
	waited := after > 0 // the client knows that the job is in the queue
	return follow(w, r, "job "+j.ID(), func(ctx context.Context) iter.Seq[engine.Event] { return j.Events(ctx, after) },
		func(ctx context.Context, s *api.Stream, e engine.Event) error {
			kind := string(e.Kind)
			if e.Kind == engine.EventQueued {
				if waited {
					kind = "position"
				}
				waited = true
			}
			return a.send(ctx, s, j.ID(), kind, e)
		})
}

// follow answers with events, as send writes each, until the last one or until the client has gone away. The stream
// begins with a comment.
func follow[E any](w http.ResponseWriter, r *http.Request, comment string,
	events func(context.Context) iter.Seq[E], send func(context.Context, *api.Stream, E) error,
) error {
	s := &api.Stream{ResponseWriter: w}
	if s.Send(": "+comment+"\n\n") == nil {
		_ = api.Follow(s, r, api.Beat, events, func(ctx context.Context, e E) error { return send(ctx, s, e) })
	}
	return nil // errors are those of a client that has gone away
}

// send writes an event of a job.
func (a *API) send(ctx context.Context, s *api.Stream, id, kind string, e engine.Event) error {
	v := eventJSON{jsonJob: a.jobJSON(ctx, e.Status, nil), Bytes: e.Bytes, TotalBytes: e.Total, Text: e.Text, Thinking: e.Thinking}
	if e.Kind != engine.EventQueued {
		v.Prompt, v.Label = "", "" // which may be long, and steps are many
	}
	if e.Preview != nil {
		var b bytes.Buffer
		if err := jpeg.Encode(&b, e.Preview, &jpeg.Options{Quality: previewQuality}); err == nil {
			size := e.Preview.Rect.Size()
			v.Preview = &jsonPreview{Part: e.Part, Format: "jpeg", Width: size.X, Height: size.Y, Data: b.Bytes()}
		}
	}
	if e.Picture != nil {
		p := a.pictureJSON(ctx, id, e.Picture)
		v.Picture = &p
	}
	return s.Event(e.Number, kind, v)
}
