package profile

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// A trace writes Chrome's trace event format, which Perfetto reads, while the run goes on. Slices
// are written when they end. All are on one thread, and nested: a slice begins after the one around
// it, and ends before it.
type trace struct {
	w      *bufio.Writer // keeps the first error
	begun  bool
	before memory
}

// An event is an element of traceEvents. Times are in microseconds.
type event struct {
	Name     string   `json:"name"`
	Category string   `json:"cat,omitempty"`
	Phase    string   `json:"ph"` // M for metadata, X for slices, C for counters
	Time     float64  `json:"ts"`
	Duration *float64 `json:"dur,omitempty"`
	Process  int      `json:"pid"`
	Thread   int      `json:"tid"`
	Args     any      `json:"args,omitempty"`
}

// shortest is the duration of the shortest slice of host work.
const shortest = 20 * time.Microsecond

// memory is MLX's memory in bytes. Peak is the highest active memory since the last counter.
type memory struct {
	Active int `json:"active"`
	Peak   int `json:"peak"`
	Cache  int `json:"cache"`
}

// sliceArgs describe a slice.
type sliceArgs struct {
	Module   string  `json:"module,omitempty"` // or value: the whole name
	Class    string  `json:"class,omitempty"`
	Step     *int    `json:"evaluation,omitempty"` // of the denoising model
	Call     int     `json:"call,omitempty"`
	Negative bool    `json:"negative,omitempty"`
	Shape    []int   `json:"shape,omitempty"`
	Dtype    string  `json:"dtype,omitempty"`
	Self     float64 `json:"self_us"`
	Total    float64 `json:"total_us"`
	Host     float64 `json:"host_us,omitempty"`
	Peak     int     `json:"peak_memory_bytes"`
	Active   int     `json:"active_memory_bytes"`
	Cache    int     `json:"cache_memory_bytes"`
}

func newTrace(w io.Writer) *trace {
	t := &trace{w: bufio.NewWriterSize(w, 1<<16)}
	t.w.WriteString("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")
	t.write(event{Name: "process_name", Phase: "M", Process: 1, Args: map[string]string{"name": "gomflux"}})
	t.write(event{Name: "thread_name", Phase: "M", Process: 1, Thread: 1, Args: map[string]string{"name": "MLX"}})
	return t
}

func (t *trace) write(e event) {
	if t.begun {
		t.w.WriteString(",\n")
	}
	t.begun = true
	text, err := json.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("profile: %v", err)) // an event has no values that cannot be encoded
	}
	t.w.Write(text)
}

// microseconds returns a time with the precision of the clock.
func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// slice writes a frame that has ended.
func (t *trace) slice(f *frame, dur time.Duration) {
	e := event{Name: f.name, Category: string(f.kind), Phase: "X", Time: microseconds(f.start), Duration: new(microseconds(dur)),
		Process: 1, Thread: 1}
	args := sliceArgs{Self: microseconds(f.self), Total: microseconds(f.total), Host: microseconds(f.host),
		Peak: f.peak, Active: t.before.Active, Cache: t.before.Cache}
	if f.kind == moduleFrame {
		args.Module = f.name
	}
	if n := f.call; n != nil {
		args.Class, args.Call, args.Negative, args.Shape, args.Dtype = n.tap.Class, n.tap.Call, n.tap.Negative, n.shape, n.dtype
		if e.Name = short(f.name); n.tap.Class == "" {
			e.Name, e.Category = f.name, "value"
		}
		if n.tap.Step >= 0 {
			args.Step = &n.tap.Step
		}
	}
	e.Args = args
	t.write(e)
}

// short returns the last part of a module's name, and the part before it if it is an index.
func short(name string) string {
	if _, key, ok := strings.Cut(name, ":"); ok {
		return key
	}
	dot := strings.LastIndexByte(name, '.')
	if last := name[dot+1:]; dot > 0 && last[0] >= '0' && last[0] <= '9' {
		dot = strings.LastIndexByte(name[:dot], '.')
	}
	return name[dot+1:]
}

// parent returns the name of the module around a module, or "".
func parent(name string) string {
	return name[:max(0, len(name)-len(short(name))-1)]
}

// host writes a slice for work between evaluations, unless it is short.
func (t *trace) host(start, end time.Duration) {
	if end-start < shortest {
		return
	}
	// inside the slices around it, whose ends it may share
	t.write(event{Name: "host", Category: "host", Phase: "X", Time: microseconds(start + 1), Duration: new(microseconds(end - start - 2)),
		Process: 1, Thread: 1})
}

// memory writes the counters, if they have changed.
func (t *trace) memory(now time.Duration, m memory) {
	if m != t.before {
		t.write(event{Name: "MLX memory", Phase: "C", Time: microseconds(now), Process: 1, Args: m})
		t.before = m
	}
}

// close writes the end, and returns the first error.
func (t *trace) close(facts map[string]any) error {
	text, err := json.Marshal(facts)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.w, "\n],\"otherData\":%s}\n", text)
	return t.w.Flush()
}
