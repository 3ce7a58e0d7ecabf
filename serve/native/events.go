package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image/jpeg"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

const (
	// beat is the time between comments in a stream without events, which keep the connection
	// open and detect that the client has gone away.
	beat = 15 * time.Second
	// writeTimeout is the time that a client has to read an event.
	writeTimeout = 30 * time.Second
	// previewQuality is on the scale of libjpeg, up to 100.
	previewQuality = 80
)

// events streams the events of a job. Their numbers are the ids, with which a client resumes.
func (a *API) events(w http.ResponseWriter, r *http.Request) error {
	after := 0
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		var err error
		if after, err = strconv.Atoi(last); err != nil || after < 0 {
			return badRequest("Last-Event-ID: expected the number of an event")
		}
	}
	j, err := a.job(r)
	if err != nil {
		return err
	}
	waited := after > 0 // the client knows that the job is in the queue
	return streamEvents(w, r, "job "+j.ID(), func(ctx context.Context) iter.Seq[engine.Event] { return j.Events(ctx, after) },
		func(ctx context.Context, e engine.Event) string {
			kind := string(e.Kind)
			if e.Kind == engine.EventQueued {
				if waited {
					kind = "position"
				}
				waited = true
			}
			return a.eventText(ctx, j.ID(), kind, e)
		})
}

// streamEvents writes events, each as text returns it, until the last one or until the client has
// gone away. The stream begins with a comment.
func streamEvents[E any](w http.ResponseWriter, r *http.Request, comment string,
	events func(context.Context) iter.Seq[E], text func(context.Context, E) string,
) error {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would collect events
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	c := api.Events(ctx, events(ctx))
	s := &stream{w: w, control: http.NewResponseController(w)}
	s.write(": " + comment + "\n\n")
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for s.err == nil {
		select {
		case e, ok := <-c:
			if !ok {
				return nil
			}
			s.write(text(ctx, e))
		case <-ticker.C:
			s.write(":\n\n")
		}
	}
	return ignored(s.err)
}

// A stream writes events, each within [writeTimeout].
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	err     error
}

func (s *stream) write(text string) {
	if err := s.control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		s.err = err
		return
	}
	if _, s.err = s.w.Write([]byte(text)); s.err == nil {
		s.err = s.control.Flush()
	}
}

// eventText returns an event in the format of server-sent events.
func (a *API) eventText(ctx context.Context, id, kind string, e engine.Event) string {
	v := eventJSON{jsonJob: a.jobJSON(e.Status, nil), Bytes: e.Bytes, TotalBytes: e.Total, Text: e.Text, Thinking: e.Thinking}
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
		rec, name := a.record(id), ""
		if rec.names != nil && a.Gallery != nil {
			name = rec.wait(ctx, e.Picture.Index)
		}
		p := pictureJSON(id, rec, e.Picture, name)
		v.Picture = &p
	}
	return fmt.Sprintf("id: %d\nevent: %s\ndata: %s\n\n", e.Number, kind, marshal(v))
}
