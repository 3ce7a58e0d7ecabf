package protocol

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/plainjson"
)

// The limits of a server.
const (
	maxRequest     = 1 << 20 // length of a request's line, in bytes
	maxConnections = 64
	writeTimeout   = 30 * time.Second
	watchInterval  = 100 * time.Millisecond // how often a waiting client is checked
)

// Variables for tests.
var (
	idleTimeout = 10 * time.Minute // from one answer to the end of the next request
	grace       = 2 * time.Second  // for answers in progress when the session ends
)

var errTooLong = errors.New("the line is too long")

// A Handler executes a request. Its context is cancelled when the client has gone.
type Handler func(ctx context.Context, r Request) Answer

// Serve answers the requests of clients until the context is cancelled, and closes the
// listener. Each connection has a goroutine, so the handler can be called several
// times at once. Lines that are not a request never reach the handler. When the context
// is cancelled, answers in progress get a short time to end; only then are the
// handlers' contexts cancelled.
func Serve(ctx context.Context, l *net.UnixListener, handler Handler) error {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	s := &server{ctx: base, handler: handler, conns: map[*net.UnixConn]bool{}}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	err := s.accept(ctx, l)
	s.shutDown()
	return err
}

type server struct {
	ctx     context.Context
	handler Handler
	group   sync.WaitGroup

	mu      sync.Mutex
	conns   map[*net.UnixConn]bool
	closing bool
}

func (s *server) accept(ctx context.Context, l *net.UnixListener) error {
	for {
		c, err := l.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // such as too many open files
			time.Sleep(watchInterval)
			continue
		}
		if uid, err := peerUID(c); err != nil || uid != os.Geteuid() {
			c.Close()
			continue
		}
		if !s.add(c) {
			write(c, Refuse(1, fmt.Errorf("the session has %d connections already", maxConnections)))
			c.Close()
			continue
		}
		s.group.Go(func() {
			defer s.drop(c)
			s.serve(c)
		})
	}
}

func (s *server) add(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= maxConnections {
		return false
	}
	s.conns[c] = true
	return true
}

func (s *server) drop(c *net.UnixConn) {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// shutDown ends idle connections, and the others after a time.
func (s *server) shutDown() {
	s.mu.Lock()
	s.closing = true
	for c := range s.conns {
		c.SetReadDeadline(time.Unix(1, 0))
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.group.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(grace):
		s.mu.Lock()
		for c := range s.conns {
			c.Close()
		}
		s.mu.Unlock()
	}
}

// await sets the time that a client has for its next request, and reports whether
// the server accepts one.
func (s *server) await(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	c.SetReadDeadline(time.Now().Add(idleTimeout))
	return true
}

func (s *server) serve(c *net.UnixConn) {
	r := bufio.NewReader(c)
	for s.await(c) {
		line, err := readLine(r, maxRequest)
		if errors.Is(err, errTooLong) {
			write(c, Refuse(2, fmt.Errorf("the request is longer than %d bytes", maxRequest)))
			return
		}
		if err != nil {
			return
		}
		request, err := parseRequest(line)
		if err != nil {
			write(c, Refuse(2, fmt.Errorf("invalid request: %w", err)))
			return
		}
		if write(c, s.handle(c, request)) != nil {
			return
		}
	}
}

// handle calls the handler with a context that ends when the client has gone.
func (s *server) handle(c *net.UnixConn, r Request) Answer {
	ctx, cancel := context.WithCancel(s.ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		t := time.NewTicker(watchInterval)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				if gone(c) {
					cancel()
				}
			}
		}
	})
	defer watch.Wait()
	defer cancel()
	return s.handler(ctx, r)
}

// gone reports whether a client has closed its connection. A client that has only
// finished writing, as in printf | nc -N, still waits for its answer.
func gone(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	hangUp := false
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(fds, 0)
		hangUp = err == nil && n > 0 && fds[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
	})
	return err != nil || hangUp
}

func write(c *net.UnixConn, a Answer) error {
	text, err := plainjson.Marshal(a, "")
	if err != nil {
		if text, err = plainjson.Marshal(Refuse(1, err), ""); err != nil {
			return err
		}
	}
	c.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err = c.Write(append(text, '\n'))
	return err
}

// readLine reads a line without its end. The last line needs no newline. The error is
// errTooLong, or that of reading.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > limit+1 || len(line) > limit && err != nil {
			return nil, errTooLong
		}
		switch {
		case err == nil || err == io.EOF && len(line) > 0:
			return bytes.TrimSuffix(line, []byte("\n")), nil
		case err != bufio.ErrBufferFull:
			return nil, err
		}
	}
}

// parseRequest parses a line from a client.
func parseRequest(line []byte) (Request, error) {
	var r Request
	err := checkpoint.ParseJSON(line, new(json.RawMessage)) // whose arguments have no duplicate keys either
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		err = d.Decode(&r)
	}
	if err != nil {
		return Request{}, err
	}
	if r.Command == "" {
		return Request{}, errors.New("it has no command")
	}
	if string(r.Arguments) == "null" {
		r.Arguments = nil
	}
	if len(r.Arguments) > 0 && r.Arguments[0] != '{' {
		return Request{}, errors.New("expected an object of arguments")
	}
	return r, nil
}

// Accepted returns the answer with a result.
func Accepted(result any) Answer {
	text, err := plainjson.Marshal(result, "")
	if err != nil {
		return Refuse(1, err)
	}
	return Answer{OK: true, Result: text}
}

// Refuse returns the answer with an error and the exit code for it.
func Refuse(code int, err error) Answer { return Answer{Error: err.Error(), Code: code} }
