package debugger

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gomflux/gomflux/parity/debug"
)

// The files of a session are in the folder traces of a log tree: debug_TIME.jsonl is its trace, and
// debug_TIME.log what the run has printed.
const (
	TraceFolder     = "traces"
	TracePrefix     = "debug_"
	TraceTime       = "20060102T150405.000000Z" // in UTC
	TraceExtension  = ".jsonl"
	OutputExtension = ".log"
)

// NewOutput creates the file for what the run of a new session prints.
func NewOutput(t *debug.Tree) (*os.File, error) {
	dir, err := filepath.Abs(filepath.Join(t.Root, TraceFolder))
	if err == nil {
		err = os.MkdirAll(dir, 0o777)
	}
	for now := time.Now(); err == nil; now = now.Add(time.Microsecond) { // another session may have the time
		var f *os.File
		f, err = os.OpenFile(filepath.Join(dir, TracePrefix+now.UTC().Format(TraceTime)+OutputExtension),
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
	lost error // why lines are missing
}

// newTrace creates the file of a trace, which must not exist.
func newTrace(file string) (*trace, error) {
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o666)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	return &trace{file: file, out: out}, nil
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
