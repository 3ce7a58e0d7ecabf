// Package debugger runs a generation or a replay under the control of commands, which stop it
// after a module's call, look at its tensors, change them and let the run go on. Package protocol
// has the commands.
//
// A stop is always after a call, since hooks see a module when it is done: its output, its inputs
// and its inner values. The modules inside a module come before it.
//
// A stopped run blocks the MLX thread. Commands that compute are handed to the goroutine of the
// run, which waits in [mlx.Call] and evaluates them in nested jobs.
package debugger

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gomflux/gomflux/debugger/expr"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/runs"
)

// ErrTerminated is the cause of a run that the command terminate has ended.
var ErrTerminated = errors.New("terminated")

// Options configure a session.
type Options struct {
	Name    string
	Command []string // of the run, without the program
	PID     int
	Folder  string // in which it was started
	Output  string // file with what the run prints
	Tree    *runs.Tree
	// Replay reports that the run is a replay, which has the reference's tensors.
	Replay bool
	// Context is that of the run, and Terminate ends it.
	Context   context.Context
	Terminate context.CancelCauseFunc
	// Kill ends the process, if the run does not end in time.
	Kill func()
}

// A Session is a run under the control of commands. Handle may be called by several goroutines.
type Session struct {
	Options
	began       time.Time
	trace       *trace
	interpreter *expr.Interpreter

	mu       sync.Mutex
	state    string
	progress string
	changed  chan struct{} // closed when the run has stopped, goes on or has ended
	stops    int           // how often it has stopped
	begin    chan struct{} // closed when the model may be loaded
	at       *stop         // nil if it is not stopped
	mode     mode
	points   []*breakpoint
	numbers  int // of breakpoints so far
	watched  []protocol.Watched
	run      string // folder
	// impossible are breakpoints that no tensor of the loaded model can match, while the run waits for that.
	impossible []protocol.Breakpoint
	exitCode   *int
	err        string

	modules map[string]string // classes by name; nil before the model is loaded
	steps   int               // evaluations of the denoising model, 0 if it is not known
	seen    []string          // names of tensors that passed, once each
	known   map[string]bool
	recent  []string // the last names that passed

	// The fields below are used by the run only.
	sigmas, timesteps []float32
	held              map[string]*held // tensors of unfinished calls, by module
}

// A mode is what a run does until its next stop.
type mode struct {
	command string // next, out, step, or "" for continue
	from    hooks.Tap
	begun   bool // from is set
	until   string
}

// New begins a session, and its trace.
//
// The trace is the file with the name of the output and the extension .jsonl.
func New(o Options) (*Session, error) {
	s := &Session{
		Options: o, began: time.Now(), state: protocol.Starting, changed: make(chan struct{}), begin: make(chan struct{}),
		known: map[string]bool{}, held: map[string]*held{}, interpreter: expr.New(),
	}
	var err error
	if s.trace, err = newTrace(strings.TrimSuffix(o.Output, protocol.OutputSuffix) + protocol.TraceSuffix); err != nil {
		return nil, err
	}
	s.trace.write(protocol.EventStart, o.Command, nil, nil, s.began)
	o.Tree.MakeCurrent()
	return s, nil
}

// Begin waits until a command lets the run begin, and the model be loaded.
func (s *Session) Begin(ctx context.Context) error {
	select {
	case <-s.begin:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// release lets the run begin. The caller holds the lock.
func (s *Session) release() {
	if s.state == protocol.Starting {
		s.state, s.progress, s.impossible = protocol.Loading, "starting", nil
		close(s.begin)
		s.wake()
	}
}

// wake wakes those who wait for a change of the state.
func (s *Session) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Loading reports the progress of loading the model, such as "loading the transformer (41 %)".
func (s *Session) Loading(progress string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == protocol.Loading || s.state == protocol.Running {
		s.state, s.progress = protocol.Loading, progress
	}
}

// Loaded reports that the model is loaded, with its modules. If no tensor of the run can match one of the
// breakpoints, it waits until a command lets the run begin.
func (s *Session) Loaded(modules []hooks.Module) {
	s.mu.Lock()
	s.modules = map[string]string{}
	for _, m := range modules {
		s.modules[m.Name] = m.Class
	}
	s.impossible = nil
	for _, b := range s.points {
		if b.Glob != "" && !s.possible(b.Glob) {
			p := b.Breakpoint
			p.Near = checkpoint.Similar(literal(b.Glob), s.names(), 3)
			s.impossible = append(s.impossible, p)
		}
	}
	wait := len(s.impossible) > 0
	switch {
	case wait:
		s.state, s.progress, s.begin = protocol.Starting, "stopped before the run begins", make(chan struct{})
		s.stops++
		s.wake()
	case s.state == protocol.Loading:
		s.state, s.progress = protocol.Running, ""
	}
	s.mu.Unlock()
	if wait {
		s.Begin(s.Context) // the run ends itself if its context has
	}
}

// Recording sets the folder of the run that is being recorded.
func (s *Session) Recording(folder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run = folder
}

// End ends the session of a run that has ended with an error or, if it is nil, well.
func (s *Session) End(err error, code int) protocol.Status {
	s.mu.Lock()
	s.state, s.progress, s.exitCode, s.at = protocol.Finished, "", &code, nil
	if errors.Is(err, ErrTerminated) {
		s.state = protocol.Terminated
	} else if err != nil {
		s.state = protocol.Failed
		s.err, _, _ = strings.Cut(err.Error(), "\n")
	}
	status := s.status()
	s.wake()
	s.mu.Unlock()
	s.trace.write(protocol.EventEnd, nil, status, err, time.Now())
	if run := s.Tree.TakeCurrent(); run != nil {
		run.Close()
	}
	return status
}

// Close closes the trace, when no command is in progress any more.
func (s *Session) Close() { s.trace.close() }

// Status describes the session.
func (s *Session) Status() protocol.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status()
}

func (s *Session) status() protocol.Status {
	status := protocol.Status{
		Session: s.Name, Side: runs.Gomflux, State: s.state, Progress: s.progress, Error: s.err, ExitCode: s.exitCode,
		Command: s.Command, PID: s.PID, Folder: s.Folder, Began: s.began.Format(time.RFC3339),
		Run: s.run, Trace: s.trace.file, Output: s.Output, Last: slices.Clone(s.recent),
	}
	if s.at != nil {
		at := s.at.Stop
		status.Stop = &at
	}
	status.NeverHit = s.impossible
	if status.Ended() {
		status.NeverHit = s.neverHit()
	}
	return status
}

// shown is the number of names of tensors before a stop.
const shown = 5

// Hook is the hook of the run.
func (s *Session) Hook(tap hooks.Tap) (*mlx.Array, error) {
	out, _, err := s.Judged(tap, nil)
	return out, err
}

// A Judgement is what a replay finds about the tensors of a call.
type Judgement struct {
	OK   bool   // all are within tolerance
	Text string // about the first that is wrong, on one line or more
	Want *mlx.Array
	// Load returns a tensor of the reference's run by its name, or nil.
	Load func(name string) *mlx.Array
}

// A Decision is with which tensor a replay goes on.
type Decision int

// The decisions.
const (
	Pass   Decision = iota // the run has not stopped
	Own                    // it has stopped, and goes on with its own tensor
	Accept                 // it goes on with the reference's
)

// Judged is the hook of a replay.
func (s *Session) Judged(tap hooks.Tap, j *Judgement) (replacement *mlx.Array, next Decision, err error) {
	if tap.Point != (hooks.Point{}) {
		s.hold(tap)
		return nil, Pass, nil
	}
	s.schedule(tap)
	call := s.take(tap)
	defer call.free()
	call.judgement = j
	at, err := s.check(tap, call)
	if at == nil || err != nil {
		return nil, Pass, err
	}
	if err := s.stop(at); err != nil {
		return nil, Own, err
	}
	next = Own
	if at.accepted {
		next = Accept
	}
	if at.set != nil { // it was kept, since it was read in a job of its own
		replacement = at.set.Reshape(at.set.Shape()...)
		at.set.Free()
	}
	return replacement, next, nil
}

// schedule remembers the noise schedule.
func (s *Session) schedule(tap hooks.Tap) {
	switch {
	case tap.Class != "":
	case tap.Name == "sigmas":
		s.sigmas = tap.Output.Floats()
	case tap.Name == "timesteps":
		s.timesteps = tap.Output.Floats()
		s.mu.Lock()
		s.steps = len(s.timesteps)
		s.mu.Unlock()
	}
}

// at returns the value of an evaluation, or nil.
func at(values []float32, step int) *float64 {
	if step < 0 || step >= len(values) {
		return nil
	}
	return new(float64(values[step]))
}

// A held has tensors of a call that is not done.
type held struct {
	inner, outs []hooks.Arg
	judgement   *Judgement
}

// hold keeps an inner value or a further output until the module's call is done, if it may stop
// then.
func (s *Session) hold(tap hooks.Tap) {
	s.mu.Lock()
	wanted := s.mayStop(tap)
	s.mu.Unlock()
	if !wanted {
		return
	}
	h := s.held[tap.Name]
	if h == nil {
		h = &held{}
		s.held[tap.Name] = h
	}
	x := tap.Output.Reshape(tap.Output.Shape()...) // the module may free its own
	mlx.Keep(x)
	arg := hooks.Arg{Key: tap.Point.Key, Array: x}
	if tap.Point.Kind == hooks.Inner {
		h.inner = append(h.inner, arg)
	} else {
		h.outs = append(h.outs, arg)
	}
}

// take returns what was held of a call that is done.
func (s *Session) take(tap hooks.Tap) *held {
	h := s.held[tap.Name]
	delete(s.held, tap.Name)
	if h == nil {
		h = &held{}
	}
	return h
}

func (h *held) free() {
	for _, args := range [][]hooks.Arg{h.inner, h.outs} {
		for _, a := range args {
			a.Free()
		}
	}
}
