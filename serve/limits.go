package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/gomflux/gomflux/internal/units"
)

var errSlow = errors.New("the request's body arrives too slowly")

// A body is the body of a request, bounded in size and time.
type body struct {
	io.ReadCloser
	control *http.ResponseController
	timing  *timing
	began   time.Time
	read    int64
	release func() // of the bytes that were taken for it
	problem int    // the status of the answer if it could not be read, 0 if it could
	ended   bool   // all of it has been read
}

// openBody waits until there is room for a request's body, and bounds it. The status of an answer
// is 0 if it can be read.
func (s *Server) openBody(w http.ResponseWriter, r *http.Request) (b *body, status int, message string) {
	if r.ContentLength > s.MaxBody {
		return nil, http.StatusRequestEntityTooLarge, tooLarge(s.MaxBody).Error()
	}
	if r.Body == nil || r.Body == http.NoBody {
		return nil, 0, ""
	}
	size := r.ContentLength
	if size < 0 {
		size = s.MaxBody
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.timing.room)
	defer cancel()
	if s.bodies.Acquire(ctx, size) != nil {
		return nil, http.StatusServiceUnavailable, "too many requests are being read (try again in a few seconds)"
	}
	return &body{
		ReadCloser: http.MaxBytesReader(w, r.Body, s.MaxBody), control: http.NewResponseController(w), timing: &s.timing,
		began: time.Now(), release: sync.OnceFunc(func() { s.bodies.Release(size) }),
	}, 0, ""
}

func tooLarge(largest int64) error {
	return fmt.Errorf("the request is larger than the %s that this server reads", units.Bytes(largest))
}

// Read reads as [io.Reader] does. A client that sends less than timing.rate is cut off. At the end there is
// no deadline any more: net/http waits then for a client that leaves, and takes a deadline that passes for one.
func (b *body) Read(p []byte) (int, error) {
	if b.ended {
		return 0, io.EOF
	}
	patience := b.timing.body + time.Duration(b.read)*time.Second/time.Duration(b.timing.rate)
	b.control.SetReadDeadline(b.began.Add(patience)) // not all connections have deadlines
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	switch large := (*http.MaxBytesError)(nil); {
	case err == nil:
		return n, nil
	case errors.As(err, &large):
		b.problem = http.StatusRequestEntityTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.problem, err = http.StatusRequestTimeout, errSlow
	case err == io.EOF:
		b.ended = true // net/http removes the deadline
	}
	b.release()
	return n, err
}

func (b *body) Close() error {
	b.release()
	return b.ReadCloser.Close()
}

// A response is an answer whose client must not take too long to read it.
type response struct {
	http.ResponseWriter
	control *http.ResponseController
	patient time.Duration // for a piece
	body    *body         // of the request, nil if it has no body or was refused before
	unread  bool          // the request has a body
	status  int           // 0 before it is written
	bytes   int64
}

// piece is the number of bytes that a client must read within timing.write.
const piece = 64 << 10

func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader writes the status. A bad request is called by its name if its body was too large or
// too slow.
func (w *response) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	if status >= 200 {
		if w.body != nil && w.body.problem != 0 && status == http.StatusBadRequest {
			status = w.body.problem
		}
		if status >= 400 {
			w.leaveBody()
		}
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// leaveBody keeps net/http from waiting for the rest of a body that nobody reads.
func (w *response) leaveBody() {
	if w.unread && (w.body == nil || !w.body.ended) {
		w.Header().Set("Connection", "close")
		w.control.SetReadDeadline(time.Now().Add(time.Second))
	}
}

func (w *response) Write(p []byte) (n int, err error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	defer w.limited()()
	for len(p) > 0 && err == nil {
		w.limit()
		var m int
		m, err = w.ResponseWriter.Write(p[:min(piece, len(p))])
		n, p = n+m, p[m:]
	}
	w.bytes += int64(n)
	return n, err
}

// FlushError flushes the answer, for [http.ResponseController].
func (w *response) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	defer w.limited()()
	return w.control.Flush()
}

// Flush implements [http.Flusher].
func (w *response) Flush() { w.FlushError() }

func (w *response) limit() { w.control.SetWriteDeadline(time.Now().Add(w.patient)) }

// limited sets a deadline and returns a function that removes it: HTTP/2 ends a stream whose
// deadline has passed even if nothing is written.
func (w *response) limited() (done func()) {
	w.limit()
	return func() { w.control.SetWriteDeadline(time.Time{}) }
}
