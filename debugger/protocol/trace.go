package protocol

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/parity/runs"
)

// Events of traces that are not commands.
const (
	EventStart = "start" // the arguments are the words of the command
	EventWatch = "watch" // the result is a Watched
	EventStop  = "stop"  // the result is a TracedStop
	EventEnd   = "end"   // the result is a Status
)

// A TraceLine is a line of a session's trace, the file traces/debug_TIME.jsonl in a log tree. It is
// about a command, a stop, or a watched tensor.
type TraceLine struct {
	Time      string          `json:"time"` // RFC 3339
	Event     string          `json:"event"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     string          `json:"error,omitempty"`
	Duration  float64         `json:"duration"` // seconds
}

// A TracedStop is the result of a stop in a trace.
type TracedStop struct {
	Place
	Variables *Variables `json:"variables,omitempty"`
}

// The files of a session are in this folder of a log tree: debug_TIME.jsonl is its trace, and
// debug_TIME.log what the run has printed.
const (
	TraceFolder  = "traces"
	TracePrefix  = "debug_"
	TraceSuffix  = ".jsonl"
	OutputSuffix = ".log"
)

const (
	maxTraceLine   = 64 << 20 // bytes
	maxTraceFaults = 100      // after which a file is not read further
)

// A TraceFile is the trace of a session.
type TraceFile struct {
	Time string // when the session began, in UTC, as in the file's name
	Path string
}

// Traces lists the traces in a log tree, the newest first.
func Traces(t *runs.Tree) ([]TraceFile, error) {
	dir := filepath.Join(t.Root, TraceFolder)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []TraceFile
	for _, e := range slices.Backward(entries) { // ReadDir sorts by name
		name, ok := strings.CutPrefix(e.Name(), TracePrefix)
		name, isTrace := strings.CutSuffix(name, TraceSuffix)
		if ok && isTrace && e.Type().IsRegular() {
			all = append(all, TraceFile{name, filepath.Join(dir, e.Name())})
		}
	}
	return all, nil
}

// IsSessionFile reports whether a path has the name of a session's trace or output.
func IsSessionFile(path string) bool { return strings.HasPrefix(filepath.Base(path), TracePrefix) }

// newTrace is how long files of a session that nothing else is known of are kept: it may only begin.
const newTrace = time.Minute

// Old lists the files of sessions in a log tree, traces and what runs have printed, except those of the sessions
// that are given, and new ones.
func Old(t *runs.Tree, except []Status) (all []runs.File, err error) {
	dir := filepath.Join(t.Root, TraceFolder)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	kept := map[string]bool{}
	for _, s := range except {
		kept[filepath.Base(s.Trace)], kept[filepath.Base(s.Output)] = true, true
	}
	for _, e := range entries {
		if !IsSessionFile(e.Name()) || kept[e.Name()] || !e.Type().IsRegular() {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > newTrace {
			all = append(all, runs.File{Path: filepath.Join(dir, e.Name()), Size: info.Size()})
		}
	}
	return all, nil
}

// ErrNoTrace is wrapped by errors about traces that a log tree does not have.
var ErrNoTrace = errors.New("no trace")

// FindTrace returns the trace of the session that began at a time, of which the beginning is
// enough, or the newest one.
func FindTrace(t *runs.Tree, time string) (TraceFile, error) {
	all, err := Traces(t)
	if err != nil {
		return TraceFile{}, err
	}
	if len(all) == 0 {
		return TraceFile{}, fmt.Errorf("%w in %s (gomflux debug start begins a session)", ErrNoTrace, filepath.Join(t.Root, TraceFolder))
	}
	prefix := runs.CompactTime(time)
	found := slices.DeleteFunc(slices.Clone(all), func(f TraceFile) bool { return !strings.HasPrefix(f.Time, prefix) })
	switch {
	case time == "" || len(found) == 1:
		return found[0], nil
	case len(found) == 0:
		return TraceFile{}, fmt.Errorf("%w of %s (the newest are %s)", ErrNoTrace, time, newest(all))
	}
	return TraceFile{}, fmt.Errorf("%w %s alone: %d begin like this: %s", ErrNoTrace, time, len(found), newest(found))
}

// newest names up to 3 traces.
func newest(all []TraceFile) string {
	var names []string
	for _, f := range all[:min(3, len(all))] {
		names = append(names, f.Time)
	}
	return strings.Join(names, ", ")
}

// Read calls each for the lines of the trace in their order. Lines that are damaged, such as the
// last one of a session that writes just now, are returned as faults.
func (f TraceFile) Read(each func(TraceLine) error) (faults []error, err error) {
	file, err := os.Open(f.Path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	faults, err = readTrace(file, each)
	for i := range faults {
		faults[i] = fmt.Errorf("%s: %w", f.Path, faults[i])
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", f.Path, oserr.Bare(err))
	}
	return faults, err
}

func readTrace(r io.Reader, each func(TraceLine) error) (faults []error, err error) {
	buffered := bufio.NewReaderSize(r, 1<<16)
	for n := 1; len(faults) < maxTraceFaults; n++ {
		text, err := readLine(buffered, maxTraceLine)
		switch {
		case err == io.EOF:
			return faults, nil
		case errors.Is(err, errTooLong):
			return append(faults, fmt.Errorf("line %d: longer than %d bytes; what follows is not read", n, maxTraceLine)), nil
		case err != nil:
			return faults, err
		}
		line, err := parseTraceLine(text)
		if err != nil {
			faults = append(faults, fmt.Errorf("line %d is damaged: %w", n, err))
			continue
		}
		if err := each(line); err != nil {
			return faults, err
		}
	}
	return append(faults, errors.New("too many damaged lines; what follows is not read")), nil
}

func parseTraceLine(text []byte) (TraceLine, error) {
	var l TraceLine
	if err := checkpoint.ParseJSON(text, &l); err != nil {
		return l, err
	}
	if l.Event == "" {
		return l, errors.New("it has no event")
	}
	return l, nil
}
