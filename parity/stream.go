package parity

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/report"
	"github.com/gomflux/gomflux/parity/runs"
)

// Keys of the metadata in a stream, which is a sequence of safetensors files without anything
// between them. The files have tensors, as they are computed, or one of these keys.
const (
	// The first file: the run's settings.json as it is known at the beginning, with the names of the
	// reference's modules in "modules".
	streamSettings = "settings"
	streamFinished = "finished" // a module's call, with step and number, has finished
	streamEnd      = "end"      // the last file

	maxStreamHeader = 16 << 20 // bytes
	maxStreamNames  = 1 << 22
)

// ErrStream is wrapped by errors about the stream of a reference's run, such as its early end.
var ErrStream = errors.New("the reference's stream")

// A MemoryError reports that the tensors that the reference has computed earlier than this program,
// or in another order, do not fit into memory.
type MemoryError struct {
	Waiting string // the tensor that this program compares next, which has not come
	Next    string // the tensor that does not fit
	Oldest  string // of those that are held and still needed
	Held    int    // number of tensors that are still needed
	Bytes   int64  // of those tensors
	Limit   int64
}

func (e *MemoryError) Error() string {
	text := fmt.Sprintf("%s does not come before %s, which does not fit into %s", e.Waiting, e.Next, units.Bytes(e.Limit))
	if e.Waiting == e.Next {
		text = fmt.Sprintf("%s does not fit into %s", e.Next, units.Bytes(e.Limit))
	}
	if e.Held > 0 {
		text += fmt.Sprintf(": %d tensors with %s are not compared yet, from %s on", e.Held, units.Bytes(e.Bytes), e.Oldest)
	}
	return text
}

// A stream has the tensors of a run of the reference that goes on. It reads as far as this program's
// run needs them, so the reference waits, and holds what this program has not computed yet. What it
// has compared stays for hints until the room is needed. It belongs to the MLX thread.
type stream struct {
	run     *Run
	in      *bufio.Reader
	limit   int64 // bytes of tensors that are held
	stopped func() error

	untapped func(name string) string // why this program never compares a tensor, or ""
	twice    func(module string) bool // whether both passes compare a tensor

	modules  map[string]bool // of the reference
	names    map[string]bool // of the tensors that have come
	finished map[string]hooks.Name
	phase    int // the furthest that has come
	reached  int // the furthest that this program has asked for
	held     []*holding
	byName   map[string]*holding // the same
	size     int64               // bytes
	buffer   []byte
	ended    bool
}

// A holding is a tensor in memory.
type holding struct {
	name  string
	bytes int64
	phase int
	uses  int // comparisons to come
}

// openStream reads the settings at the beginning of a stream. An error of stopped, such as a
// cancellation, takes precedence over those of reading.
func openStream(in io.Reader, limit int64, stopped func() error) (*Run, error) {
	s := &stream{
		in: bufio.NewReaderSize(in, 1<<16), limit: limit, stopped: stopped, phase: before, reached: before,
		modules: map[string]bool{}, names: map[string]bool{}, finished: map[string]hooks.Name{}, byName: map[string]*holding{},
	}
	s.run = &Run{arrays: map[string]*mlx.Array{}, dtypes: map[string]string{}, live: s}
	h, err := s.header()
	if err != nil {
		return nil, err
	}
	text, ok := h.Metadata[streamSettings]
	if !ok || len(h.Names) > 0 {
		return nil, fmt.Errorf("%w does not begin with its settings", ErrStream)
	}
	var more struct{ Modules []string }
	for _, to := range []any{&s.run.Settings, &s.run.given, &more} {
		if err := json.Unmarshal([]byte(text), to); err != nil {
			return nil, fmt.Errorf("%w: settings: %w", ErrStream, err)
		}
	}
	if len(more.Modules) == 0 {
		return nil, fmt.Errorf("%w: settings: no modules", ErrStream)
	}
	for _, m := range more.Modules {
		s.modules[m] = true
	}
	s.run.Files, s.run.Shapes, s.run.Aliases = nil, nil, nil
	return s.run, nil
}

// header reads the next header.
func (s *stream) header() (*checkpoint.Header, error) {
	h, err := checkpoint.ReadHeader(s.in, maxStreamHeader)
	if err != nil {
		return nil, s.failed(err)
	}
	return h, nil
}

func (s *stream) failed(err error) error {
	if stop := s.stopped(); stop != nil {
		return stop
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w ends before the run does: %w", ErrStream, io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("%w: %w", ErrStream, err)
}

// next reads what comes next. A tensor that does not fit is an error that mentions the one waited
// for, "" if none is; then tensors are not kept.
func (s *stream) next(waiting string) error {
	if err := s.stopped(); err != nil {
		return err
	}
	h, err := s.header()
	if err != nil {
		return err
	}
	for _, name := range h.Names {
		if err := s.take(h.Tensors[name], waiting); err != nil {
			return err
		}
	}
	if name, ok := h.Metadata[streamFinished]; ok {
		n, err := hooks.ParseName(name)
		if err != nil {
			return s.failed(err)
		}
		s.finished[n.Module] = n
	}
	_, s.ended = h.Metadata[streamEnd]
	return nil
}

// take reads a tensor's data.
func (s *stream) take(t checkpoint.Tensor, waiting string) error {
	if s.names[t.Name] {
		return s.failed(fmt.Errorf("tensor %s comes twice", quote.Text(t.Name)))
	}
	if len(s.names) == maxStreamNames {
		return s.failed(fmt.Errorf("more than %d tensors", maxStreamNames))
	}
	s.names[t.Name] = true
	s.phase = max(s.phase, phaseOf(t.Name))
	h := &holding{name: t.Name, bytes: t.Bytes(), phase: phaseOf(t.Name), uses: s.uses(t.Name)}
	kept := waiting != "" || report.IsImage(h.name)
	fits := kept && s.makeRoom(h.bytes)
	switch {
	case kept && !fits && s.needed(h):
		return s.full(waiting, t.Name)
	case !fits:
		if _, err := io.CopyN(io.Discard, s.in, h.bytes); err != nil {
			return s.failed(err)
		}
		return nil
	}
	s.buffer = slices.Grow(s.buffer[:0], int(h.bytes))[:h.bytes]
	if _, err := io.ReadFull(s.in, s.buffer); err != nil {
		return s.failed(err)
	}
	a, err := checkpoint.NewArray(t.Name, t.Dtype, t.Shape, s.buffer)
	if err != nil {
		return s.failed(err)
	}
	x, err := runs.ToArray(a)
	if err != nil {
		return s.failed(err)
	}
	mlx.Keep(x)
	s.run.arrays[t.Name], s.run.dtypes[t.Name] = x, x.Dtype().String()
	s.held, s.byName[t.Name] = append(s.held, h), h
	s.size += h.bytes
	return nil
}

// uses returns how often this program will compare a tensor.
func (s *stream) uses(name string) int {
	n, err := hooks.ParseName(name)
	switch {
	case err != nil, s.untapped != nil && s.untapped(name) != "":
		return 0
	case s.twice != nil && s.twice(n.Module):
		return 2
	}
	return 1
}

// needed reports whether a tensor is still to be compared.
func (s *stream) needed(h *holding) bool {
	return report.IsImage(h.name) || h.uses > 0 && h.phase >= s.reached
}

// makeRoom frees tensors that are no longer needed, the oldest first, until there is room.
func (s *stream) makeRoom(bytes int64) bool {
	if bytes > s.limit {
		return false
	}
	if s.size+bytes <= s.limit {
		return true
	}
	s.held = slices.DeleteFunc(s.held, func(h *holding) bool {
		if s.size+bytes <= s.limit || s.needed(h) {
			return false
		}
		s.run.arrays[h.name].Free()
		delete(s.run.arrays, h.name)
		delete(s.run.dtypes, h.name)
		delete(s.byName, h.name)
		s.size -= h.bytes
		return true
	})
	return s.size+bytes <= s.limit
}

// free frees all tensors.
func (s *stream) free() {
	for _, x := range s.run.arrays {
		x.Free()
	}
}

// full describes a tensor that does not fit.
func (s *stream) full(waiting, next string) error {
	e := &MemoryError{Waiting: waiting, Next: next, Limit: s.limit}
	for _, h := range s.held {
		if !s.needed(h) {
			continue
		}
		if e.Held == 0 {
			e.Oldest = h.name
		}
		e.Held++
		e.Bytes += h.bytes
	}
	return e
}

// await reads until a tensor has come, or cannot come any more.
func (s *stream) await(name string) error {
	n, err := hooks.ParseName(name)
	if err != nil || n.Point.OnRequest() {
		return nil // it is never sent
	}
	s.reached = max(s.reached, phaseOf(name))
	for !s.ended && !s.names[name] && !s.past(n) {
		if err := s.next(name); err != nil {
			return err
		}
	}
	if s.names[name] && s.byName[name] == nil && s.uses(name) > 0 {
		return fmt.Errorf("%w: %s was freed before it was compared, which is a bug of gomflux", ErrStream, name)
	}
	return nil
}

// past reports whether the reference is past the place where a tensor would have come.
func (s *stream) past(n hooks.Name) bool {
	if s.phase > phaseOf(n.String()) {
		return true
	}
	if !report.IsModule(n.Module) {
		return false
	}
	last, called := s.finished[n.Module]
	return !s.modules[n.Module] || called && last.Step == n.Step && last.Call >= n.Call
}

// The phases of a run are its steps, and what comes before and after them.
const before, after = -1, math.MaxInt

// phaseOf returns the phase in which a tensor is computed.
func phaseOf(name string) int {
	switch n := hooks.NameOf(name); {
	case n.Step >= 0:
		return n.Step
	case report.IsImage(n.Module), strings.HasPrefix(n.Module, "vae.decode"), strings.HasPrefix(n.Module, "vae.post_quant_conv"):
		return after
	}
	return before
}

// await waits for a tensor of a run that goes on.
func (r *Run) await(name string) {
	if r.live == nil {
		return
	}
	if err := r.live.await(name); err != nil {
		mlx.Throw(err)
	}
}

// used notes that a tensor was compared.
func (r *Run) used(name string) {
	if r.live != nil && r.live.byName[name] != nil {
		r.live.byName[name].uses--
	}
}

// end waits for the end of a run that goes on, if this program's run has reached its own.
func (r *Run) end(reached bool) error {
	for reached && r.live != nil && !r.live.ended {
		if err := r.live.next(""); err != nil {
			return err
		}
	}
	return nil
}

// moduleNames lists names of tensors, of which each module has one at least.
func (r *Run) moduleNames() []string {
	if r.live != nil {
		return slices.Collect(maps.Keys(r.live.modules))
	}
	return r.Names()
}

// heldNames lists the tensors whose values are in memory.
func (r *Run) heldNames() []string {
	if r.live != nil {
		return slices.Sorted(maps.Keys(r.arrays))
	}
	return r.Names()
}
