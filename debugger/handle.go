package debugger

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gomflux/gomflux/debugger/expr"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/runs"
)

// An invalidError is about invalid input of a command.
type invalidError struct{ error }

func (e invalidError) Unwrap() error { return e.error }

func invalidf(format string, args ...any) error { return invalidError{fmt.Errorf(format, args...)} }

// A handler answers a command. The arguments are checked JSON or nil.
type handler func(s *Session, ctx context.Context, arguments json.RawMessage) (any, error)

// with returns the handler of a command with arguments of a type.
func with[A any](f func(*Session, context.Context, A) (any, error)) handler {
	return func(s *Session, ctx context.Context, text json.RawMessage) (any, error) {
		var a A
		if len(text) > 0 {
			d := json.NewDecoder(bytes.NewReader(text))
			d.DisallowUnknownFields()
			if err := d.Decode(&a); err != nil {
				return nil, invalidf("arguments: %w", err)
			}
		}
		return f(s, ctx, a)
	}
}

var handlers = map[string]handler{
	protocol.Break:     with((*Session).addBreakpoint),
	protocol.Breaks:    with((*Session).breakpoints),
	protocol.Remove:    with((*Session).remove),
	protocol.Clear:     with((*Session).clear),
	protocol.Continue:  with((*Session).proceed),
	protocol.Next:      resuming(protocol.Next),
	protocol.Out:       resuming(protocol.Out),
	protocol.Step:      resuming(protocol.Step),
	protocol.Accept:    resuming(protocol.Accept),
	protocol.Location:  atStop((*Session).locate),
	protocol.Vars:      atStop((*Session).describe),
	protocol.Eval:      atStop((*Session).evaluate),
	protocol.Save:      atStop((*Session).save),
	protocol.Set:       atStop((*Session).replaceOutput),
	protocol.GetStatus: with((*Session).report),
	protocol.Terminate: with((*Session).terminate),
}

// atStop is with, for commands that need a stop.
func atStop[A any](f func(*Session, context.Context, *stop, A) (any, error)) handler {
	return with(func(s *Session, ctx context.Context, a A) (any, error) {
		s.mu.Lock()
		at := s.at
		var err error
		if at == nil {
			err = s.runs()
		}
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
		return f(s, ctx, at, a)
	})
}

// noArguments are those of a command without any.
type noArguments struct{}

// Handle answers a request.
func (s *Session) Handle(ctx context.Context, r protocol.Request) protocol.Answer {
	began := time.Now()
	h := handlers[r.Command]
	if h == nil {
		return refuse(invalidf("unknown command %q", r.Command))
	}
	result, err := h(s, ctx, r.Arguments)
	if err != nil {
		result = nil
	}
	if r.Command != protocol.GetStatus && r.Command != protocol.Breaks {
		var arguments any
		if len(r.Arguments) > 0 {
			arguments = r.Arguments
		}
		s.trace.write(r.Command, arguments, result, err, began)
	}
	if err != nil {
		return refuse(err)
	}
	return protocol.Accepted(result)
}

func refuse(err error) protocol.Answer {
	code := 1
	if _, ok := errors.AsType[invalidError](err); ok {
		code = 2
	}
	return protocol.Answer{Error: strings.ReplaceAll(err.Error(), "\n", "; "), Code: code}
}

func (s *Session) addBreakpoint(_ context.Context, a protocol.BreakArguments) (any, error) {
	var condition *expr.Condition
	if a.If != "" { // before the lock: it waits for an expression in progress
		var err error
		if condition, err = s.interpreter.Compile(a.If); err != nil {
			return nil, invalidf("if: %w", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.newBreakpoint(a)
	if err != nil {
		return nil, err
	}
	b.condition = condition
	s.numbers++
	b.Number = s.numbers
	s.points = append(s.points, b)
	return b.Breakpoint, nil
}

func (s *Session) breakpoints(context.Context, noArguments) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := protocol.Breakpoints{Breakpoints: []protocol.Breakpoint{}}
	for _, b := range s.points {
		all.Breakpoints = append(all.Breakpoints, b.Breakpoint)
	}
	return all, nil
}

func (s *Session) remove(_ context.Context, a protocol.RemoveArguments) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.points, func(b *breakpoint) bool { return b.Number == a.Number })
	if i < 0 {
		return nil, invalidf("there is no breakpoint %d (gomflux debug breaks lists them)", a.Number)
	}
	s.points = slices.Delete(s.points, i, i+1)
	return protocol.Removed{Removed: []int{a.Number}}, nil
}

func (s *Session) clear(context.Context, noArguments) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := protocol.Removed{Removed: []int{}}
	for _, b := range s.points {
		all.Removed = append(all.Removed, b.Number)
	}
	s.points = nil
	return all, nil
}

// proceed lets the run go on, or waits for its next stop if it runs already.
func (s *Session) proceed(ctx context.Context, a protocol.ResumeArguments) (any, error) {
	if a.Until != "" {
		s.mu.Lock()
		err := s.checkGlob(a.Until)
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
	return s.resume(ctx, protocol.Continue, a)
}

func resuming(command string) handler {
	return with(func(s *Session, ctx context.Context, a protocol.ResumeArguments) (any, error) {
		if a.Until != "" {
			return nil, invalidf("until is an argument of continue")
		}
		return s.resume(ctx, command, a)
	})
}

func (s *Session) resume(ctx context.Context, command string, a protocol.ResumeArguments) (any, error) {
	if !(a.MaxWait >= 0 && a.MaxWait <= 1e6) {
		return nil, invalidf("max_wait %v: must be a number of seconds, 0 to 1000000", a.MaxWait)
	}
	s.mu.Lock()
	before, at := s.stops, s.at
	m := mode{command: command, until: a.Until}
	if command == protocol.Continue || command == protocol.Accept {
		m.command = ""
	}
	var err error
	switch {
	case ctx.Err() != nil: // the client has gone, and another may have let the run go on
		err = context.Cause(ctx)
	case at != nil:
		err = at.leave(command, &m)
	case s.state == protocol.Starting && (command == protocol.Out || command == protocol.Accept):
		err = notBegun
	case s.state == protocol.Starting:
	case command != protocol.Continue:
		err = s.runs()
	}
	if err == nil && (at != nil || s.state == protocol.Starting || a.Until != "") {
		s.mode = m
	}
	if err == nil && at != nil {
		s.at, s.state = nil, protocol.Running
		close(at.resume)
		s.wake()
	}
	if err == nil {
		s.release()
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return s.wait(ctx, before, a.MaxWait), nil
}

// leave prepares a stopped run for going on.
func (at *stop) leave(command string, m *mode) error {
	m.from, m.begun = output(at.tap), true
	switch command {
	case protocol.Out:
		if at.Class == "" || !strings.Contains(at.Module, ".") { // a value, or a whole component
			return invalidf("%s is not inside another module (next and continue go on)", at.Name)
		}
	case protocol.Accept:
		j := at.held.judgement
		if j == nil || j.Want == nil {
			return invalidf("%s: there is no tensor of a reference to accept (parity run has them)", at.Name)
		}
		at.accepted = true
	}
	return nil
}

var notBegun = invalidf("the run has not begun (gomflux debug continue begins it)")

// runs returns the error of a command that needs a stop. The caller holds the lock.
func (s *Session) runs() error {
	if s.state == protocol.Starting {
		return notBegun
	}
	if status := (protocol.Status{Session: s.Name, State: s.state, Error: s.err}); status.Ended() {
		return invalidError{&protocol.EndedError{Status: status}}
	}
	return invalidf("the run is running (gomflux debug continue waits until it stops)")
}

func (s *Session) locate(_ context.Context, at *stop, _ noArguments) (any, error) {
	return s.place(at), nil
}

func (s *Session) describe(ctx context.Context, at *stop, a protocol.VarsArguments) (any, error) {
	v := *at.vars
	var err error
	if a.Weights {
		err = s.compute(ctx, at, func() error {
			v, err = s.weigh(at, v)
			return err
		})
	}
	return v, err
}

func (s *Session) evaluate(ctx context.Context, at *stop, a protocol.EvalArguments) (any, error) {
	var out protocol.Evaluated
	err := s.compute(ctx, at, func() error {
		r, err := s.interpreter.Eval(ctx, s.env(at, at.Hit), a.Source)
		if err != nil {
			return invalidError{err}
		}
		out = protocol.Evaluated(r)
		return nil
	})
	return out, err
}

func (s *Session) save(ctx context.Context, at *stop, a protocol.SaveArguments) (any, error) {
	out := protocol.Saved{Name: cmp.Or(a.Name, at.Name)}
	err := s.compute(ctx, at, func() (err error) {
		x := at.tap.Output
		if x == nil {
			return invalidf("a checkpoint has no output to save (it has written its file)")
		}
		out.File, err = runs.SaveAs(out.Name, x, at.location)
		return err
	})
	return out, err
}

func (s *Session) replaceOutput(ctx context.Context, at *stop, a protocol.SetArguments) (any, error) {
	if name, input := inputOf(a.Source); input {
		return nil, invalidf("%s is an input, which cannot be set (stop at the module that computes it, and set its output)", name)
	}
	out := protocol.Replaced{Name: at.Name}
	err := s.compute(ctx, at, func() (err error) {
		out.Source, err = s.replace(at, a.Source)
		return err
	})
	return out, err
}

// inputOf returns the name that NAME=SOURCE sets, if it is an input's.
func inputOf(source string) (name string, ok bool) {
	name, _, _ = strings.Cut(source, "=")
	n, err := hooks.ParseName(name)
	return name, err == nil && (n.Point.Kind == hooks.Input || strings.HasPrefix(name, "inp["))
}

func (s *Session) report(context.Context, noArguments) (any, error) { return s.Status(), nil }

// mostLog limits how much of a log is read, in bytes.
const mostLog = 1 << 20

// ReadLines returns the last n lines of a file, or all if n is 0, of the file's last mebibyte.
func ReadLines(file string, n int) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := max(0, info.Size()-mostLog)
	text, err := io.ReadAll(io.NewSectionReader(f, from, mostLog))
	if err != nil {
		return nil, err
	}
	lines := []string{}
	for l := range strings.Lines(string(text)) {
		lines = append(lines, strings.TrimSuffix(l, "\n"))
	}
	if from > 0 {
		lines = lines[1:] // the first is not whole
	}
	if n > 0 {
		lines = lines[max(0, len(lines)-n):]
	}
	return lines, nil
}

// patience is how long terminate waits for the run to end by itself. MLX cannot abort what it
// computes.
const patience = 5 * time.Second

func (s *Session) terminate(ctx context.Context, _ noArguments) (any, error) {
	s.Options.Terminate(ErrTerminated)
	s.mu.Lock()
	before := s.stops
	s.mu.Unlock()
	status := s.wait(ctx, before, patience.Seconds())
	if !status.Ended() && s.Kill != nil {
		time.AfterFunc(100*time.Millisecond, s.Kill) // after the answer
	}
	return status, nil
}
