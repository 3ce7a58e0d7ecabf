package comfy

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"github.com/gomflux/gomflux/internal/plainjson"
	"github.com/gomflux/gomflux/serve/engine"
)

const (
	patience = 30 * time.Second // for which a client may not read
	maxQueue = 256              // messages that wait for a client
)

// A socket is a client's WebSocket.
type socket struct {
	owner, id string
	out       chan []byte // JSON, or an image with a head
	cancel    func()
}

// socket answers GET /ws.
func (h *Handler) socket(w http.ResponseWriter, r *http.Request) (any, error) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	s := &socket{h.Owner(r), cmp.Or(r.URL.Query().Get("clientId"), engine.NewID()), make(chan []byte, maxQueue), cancel}
	h.mu.Lock() // before Accept, after which the client may expect messages
	h.sockets[s] = true
	s.send(h.status(s.owner, s.id))
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.sockets, s)
		h.mu.Unlock()
	}()
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{OriginPatterns: h.Origins})
	if err != nil {
		return nil, nil // Accept has answered
	}
	defer c.CloseNow()
	go func() { // what clients send has no effect
		defer cancel()
		for err := error(nil); err == nil; {
			_, _, err = c.Read(ctx)
		}
	}()
	for err == nil {
		select {
		case m := <-s.out:
			kind := websocket.MessageText
			if m[0] != '{' {
				kind = websocket.MessageBinary
			}
			limited, done := context.WithTimeout(ctx, patience)
			err = c.Write(limited, kind, m)
			done()
		case <-h.over:
			c.Close(websocket.StatusGoingAway, "the server is shutting down")
			return nil, nil
		case <-ctx.Done():
			return nil, nil
		}
	}
	return nil, nil
}

// send queues a message. A client that does not read misses images, and is cut off by others.
func (s *socket) send(m []byte) {
	if m[0] != '{' && len(s.out) > maxQueue/2 {
		return
	}
	select {
	case s.out <- m:
	default:
		s.cancel()
	}
}

// text returns a message with a type and data, which are strings and numbers.
func text(kind string, data map[string]any) []byte {
	text, _ := plainjson.Marshal(map[string]any{"type": kind, "data": data}, "") // cannot fail
	return text
}

// broadcast sends a message to the sockets of an owner with an id, "" for all. mu must be held.
func (h *Handler) broadcast(owner, id string, m []byte) {
	for s := range h.sockets {
		if s.owner == owner && (id == "" || s.id == id) {
			s.send(m)
		}
	}
}

// status returns the message about the queue, with the id of the socket in its first one. mu must be held.
func (h *Handler) status(owner, id string) []byte {
	return text("status", map[string]any{"status": h.queueInfo(owner), "sid": id})
}
