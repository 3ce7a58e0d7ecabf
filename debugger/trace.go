package debugger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/internal/plainjson"
	"github.com/gomflux/gomflux/parity/runs"
)

// NewOutput creates the file for what the run of a new session prints.
func NewOutput(t *runs.Tree) (*os.File, error) {
	dir, err := filepath.Abs(filepath.Join(t.Root, protocol.TraceFolder))
	if err == nil {
		err = os.MkdirAll(dir, 0o777)
	}
	for now := time.Now(); err == nil; now = now.Add(time.Microsecond) { // another session may have the time
		var f *os.File
		f, err = os.OpenFile(filepath.Join(dir, protocol.TracePrefix+runs.Stamp(now)+protocol.OutputSuffix),
			os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o666)
		if err == nil {
			return f, nil
		}
		if errors.Is(err, fs.ErrExist) {
			err = nil
		}
	}
	return nil, fmt.Errorf("output of the session: %w", err)
}

// A trace has a line of JSON for each command and each stop.
type trace struct {
	file string

	mu   sync.Mutex
	out  *os.File
	size int64 // of what is written
	lost bool  // lines are missing, which was reported
}

// newTrace creates the file of a trace, which must not exist.
func newTrace(file string) (*trace, error) {
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o666)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	return &trace{file: file, out: out}, nil
}

// write appends a line about what began at a time. A session goes on without lines that cannot be
// written, for example because the disk is full.
func (t *trace) write(event string, arguments, result any, failed error, began time.Time) {
	text, err := traceLine(event, arguments, result, failed, began)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.out == nil {
		return
	}
	if err == nil {
		err = t.append(text)
	}
	if err != nil && !t.lost {
		t.lost = true
		fmt.Fprintf(os.Stderr, "gomflux: warning: lines are missing in the trace: %v\n", err)
	}
}

// append appends a whole line, or nothing.
func (t *trace) append(text []byte) error {
	n, err := t.out.Write(text)
	if err == nil {
		t.size += int64(n)
		return nil
	}
	return errors.Join(err, t.out.Truncate(t.size))
}

// traceLine returns a line of a trace.
func traceLine(event string, arguments, result any, failed error, began time.Time) ([]byte, error) {
	l := protocol.TraceLine{Time: began.Format(time.RFC3339Nano), Event: event, Duration: time.Since(began).Seconds()}
	if failed != nil {
		l.Error = failed.Error()
	}
	text, err := plainjson.Marshal(struct {
		protocol.TraceLine
		Arguments any `json:"arguments,omitempty"` // in place of those of the line, which are JSON
		Result    any `json:"result,omitempty"`
	}{l, arguments, result}, "")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", event, err)
	}
	return append(text, '\n'), nil
}

func (t *trace) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.out.Close()
	t.out = nil
}
