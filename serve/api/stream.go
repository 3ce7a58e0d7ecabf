package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/gomflux/gomflux/internal/plainjson"
)

// Beat is the time between comments in a stream without events. They keep the connection open, and show that the
// client has gone away.
const Beat = 15 * time.Second

// WriteJSON answers with JSON. A client that has gone away is no error.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	text, err := plainjson.Marshal(v, "")
	if err != nil { // a number that is not finite
		status, text = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be written as JSON"}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(text)+1))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	w.Write(append(text, '\n'))
}

// A Stream writes server-sent events. It begins with the first one, so that a job that cannot run is
// answered with an HTTP status.
type Stream struct {
	http.ResponseWriter
	Begun bool
}

// Send writes text in the format of events.
func (s *Stream) Send(text string) error {
	if !s.Begun {
		s.Begun = true
		s.Header().Set("Content-Type", "text/event-stream")
		s.Header().Set("Cache-Control", "no-cache")
		s.Header().Set("X-Accel-Buffering", "no") // nginx would collect events
	}
	if _, err := io.WriteString(s, text); err != nil {
		return err
	}
	if err := http.NewResponseController(s.ResponseWriter).Flush(); !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// Event writes an event with JSON, with a number unless that is 0, and of a kind unless that is empty.
func (s *Stream) Event(number int, kind string, v any) error {
	text, err := plainjson.Marshal(v, "")
	if err != nil {
		return err
	}
	if kind != "" {
		kind = "event: " + kind + "\n"
	}
	if number > 0 {
		kind = fmt.Sprintf("id: %d\n%s", number, kind)
	}
	return s.Send(fmt.Sprintf("%sdata: %s\n\n", kind, text))
}

// Follow has send write the events of a stream until the last one, an error, or until the client has gone away, and
// comments where no events come.
func Follow[E any](s *Stream, r *http.Request, beat time.Duration, events func(context.Context) iter.Seq[E],
	send func(context.Context, E) error,
) (err error) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	c := make(chan E)
	go func() {
		defer close(c)
		for e := range events(ctx) {
			select {
			case c <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for err == nil {
		select {
		case e, ok := <-c:
			if !ok {
				return nil
			}
			ticker.Reset(beat)
			err = send(ctx, e)
		case <-ticker.C:
			err = s.Send(":\n\n")
		}
	}
	return err
}
