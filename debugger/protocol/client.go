package protocol

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/plainjson"
)

const (
	maxAnswer   = 256 << 20        // length of an answer's line, in bytes
	listenWait  = 10 * time.Second // for a new session to open its socket
	endWait     = 2 * time.Second  // for the process of a session that no longer answers to end
	dialRetries = 10 * time.Millisecond
)

// An AnswerError is the error of an answer.
type AnswerError struct {
	Message string
	Code    int // the exit code for it
}

func (e *AnswerError) Error() string { return e.Message }

// A Client sends commands to a session. Its methods can be called by several
// goroutines, one of which is served at a time.
type Client struct {
	folder  *Folder
	session string
	mu      sync.Mutex
	conn    net.Conn
	r       *bufio.Reader
}

// Dial connects to a live session. If the session has only begun, it waits until the
// session listens. The error is an [*EndedError] if the session has ended, or
// [ErrNoSession].
func Dial(ctx context.Context, f *Folder, name string) (*Client, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	for end := time.Now().Add(listenWait); ; {
		c, err := dial(ctx, f, name)
		switch {
		case err == nil:
			return c, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, err
		}
		s, lookErr := f.look(name)
		switch {
		case lookErr != nil:
			return nil, lookErr
		case s == nil:
			return nil, fmt.Errorf("%w %s", ErrNoSession, name)
		case s.Ended():
			return nil, &EndedError{*s}
		case time.Now().After(end):
			return nil, fmt.Errorf("session %s does not answer: %w", name, err)
		}
		time.Sleep(dialRetries)
	}
}

// dial is Dial without waiting.
func dial(ctx context.Context, f *Folder, name string) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", f.file(name, socketSuffix))
	if err != nil {
		return nil, err
	}
	return &Client{folder: f, session: name, conn: conn, r: bufio.NewReader(conn)}, nil
}

// Close closes the connection. The session lives on.
func (c *Client) Close() error { return c.conn.Close() }

// Do sends a command and decodes the answer into result, a pointer or nil. Arguments
// are one of the types of this package, or nil. The error is an [*AnswerError] if the
// session refuses the command, an [*EndedError] if the session ends without an answer,
// or the cause of the context. Except after the first, the client cannot be used again.
func (c *Client) Do(ctx context.Context, command string, arguments, result any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	line, err := encodeRequest(command, arguments)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err = c.conn.Write(line)
	answer, readErr := readLine(c.r, maxAnswer) // even if not all was written: it may be the reason
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(readErr, errTooLong):
		return fmt.Errorf("session %s: %w", c.session, readErr)
	case readErr != nil:
		return c.lost(errors.Join(err, readErr))
	}
	var a Answer
	if err := checkpoint.ParseJSON(answer, &a); err != nil {
		return fmt.Errorf("session %s: its answer is damaged: %w", c.session, err)
	}
	if !a.OK {
		return &AnswerError{a.Error, a.Code}
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(a.Result, result); err != nil {
		return fmt.Errorf("session %s: its answer is damaged: %w", c.session, err)
	}
	return nil
}

func encodeRequest(command string, arguments any) ([]byte, error) {
	line, err := plainjson.Marshal(struct {
		Request
		Arguments any `json:"arguments,omitempty"` // in place of those of the request, which are JSON
	}{Request{Command: command}, arguments}, "")
	if err == nil && len(line) > maxRequest {
		err = fmt.Errorf("%s: %d bytes of arguments, expected at most %d", command, len(line), maxRequest)
	}
	return append(line, '\n'), err
}

// lost returns the error for a session that has closed the connection.
func (c *Client) lost(cause error) error {
	for end := time.Now().Add(endWait); time.Now().Before(end); time.Sleep(dialRetries) {
		s, err := c.folder.look(c.session)
		switch {
		case err != nil:
			return errors.Join(cause, err)
		case s == nil:
			return fmt.Errorf("%w %s: it has ended", ErrNoSession, c.session)
		case s.Ended():
			return &EndedError{*s}
		}
	}
	return fmt.Errorf("session %s has closed the connection: %w", c.session, cause)
}
