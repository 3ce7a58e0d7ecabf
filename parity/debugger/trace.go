package debugger

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// TraceFolder is the folder of a log tree with the traces of debugging sessions.
const TraceFolder = "traces"

// TraceTime is the format of the time in the name of a trace, debug_TIME.jsonl.
const TraceTime = "20060102T150405.000000Z"

// A trace has a line of JSON for each command and each stop.
type trace struct {
	file string

	mu   sync.Mutex
	out  *os.File
	lost error // why lines are missing
}

// newTrace creates the trace of a session that began at a time.
func newTrace(root string, began time.Time) (*trace, error) {
	dir := filepath.Join(root, TraceFolder)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	for { // another session may have begun in the same microsecond
		file := filepath.Join(dir, "debug_"+began.UTC().Format(TraceTime)+".jsonl")
		out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o666)
		if os.IsExist(err) {
			began = began.Add(time.Microsecond)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("trace: %w", err)
		}
		if file, err = filepath.Abs(file); err != nil {
			return nil, err
		}
		return &trace{file: file, out: out}, nil
	}
}

func (t *trace) now() time.Time { return time.Now() }

// A line of a trace.
type line struct {
	Time      string  `json:"time"` // RFC 3339
	Event     string  `json:"event"`
	Arguments any     `json:"arguments,omitempty"`
	Result    any     `json:"result,omitempty"`
	Error     string  `json:"error,omitempty"`
	Duration  float64 `json:"duration"` // seconds
}

// write appends a line about what began at a time. A session goes on without a trace that cannot be
// written, for example because the disk is full.
func (t *trace) write(event string, arguments, result any, failed error, began time.Time) {
	l := line{
		Time: began.Format(time.RFC3339Nano), Event: event, Arguments: arguments, Result: result, Duration: time.Since(began).Seconds(),
	}
	if failed != nil {
		l.Error = failed.Error()
	}
	text, err := json.Marshal(l)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lost != nil || t.out == nil {
		return
	}
	if err == nil {
		_, err = t.out.Write(append(text, '\n'))
	}
	if err != nil {
		t.lost = err
		fmt.Fprintf(os.Stderr, "gomflux: warning: the trace ends here: %v\n", err)
	}
}

func (t *trace) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.out.Close()
	t.out = nil
}
