package debugger

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gomflux/gomflux/debugger/expr"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/runs"
)

// A stop is where the run is stopped.
type stop struct {
	protocol.Stop
	tap      hooks.Tap // without an output at a checkpoint
	held     *held
	location runs.Location
	before   []string
	others   map[string]any // variables of a checkpoint that are not tensors

	device mlx.Device    // of the run
	work   chan func()   // for the goroutine of the run
	resume chan struct{} // closed when the run goes on

	set      *mlx.Array // replaces the output
	accepted bool       // the reference's tensor replaces it
	vars     *protocol.Variables
}

// stop stops the run until a command lets it go on. It is called on the MLX thread.
func (s *Session) stop(at *stop) error {
	if at.location.File == "" {
		at.location = runs.ModelCode()
	}
	at.device, at.work, at.resume = mlx.CurrentDevice(), make(chan func()), make(chan struct{})
	s.mu.Lock()
	at.before = slices.Clone(s.recent)
	if n := len(at.before); n > 0 && at.before[n-1] == at.Name { // it has passed
		at.before = at.before[:n-1]
	}
	s.mu.Unlock()
	var err error
	mlx.WithScope(func() { at.vars, err = s.variables(at) })
	if err != nil {
		return err
	}
	s.trace.write(protocol.EventStop, nil, protocol.TracedStop{Place: s.place(at), Variables: at.vars}, nil, time.Now())
	s.mu.Lock()
	s.at, s.state, s.mode = at, protocol.Stopped, mode{}
	s.stops++
	s.wake()
	s.mu.Unlock()
	mlx.Call(func() { err = s.serve(at) })
	return err
}

// serve runs what commands hand to the stopped run, on its goroutine, until it goes on.
func (s *Session) serve(at *stop) error {
	for {
		select {
		case f := <-at.work:
			f()
		case <-at.resume:
			return nil
		case <-s.Context.Done():
			s.mu.Lock()
			s.at, s.state = nil, protocol.Running
			s.mu.Unlock()
			return context.Cause(s.Context)
		}
	}
}

// compute runs f in a job of the stopped run, and waits for it.
func (s *Session) compute(ctx context.Context, at *stop, f func() error) error {
	var err error
	done := make(chan struct{})
	work := func() {
		defer close(done)
		err = mlx.Do(ctx, func() error {
			if err := mlx.Use(at.device); err != nil { // a job begins on the default device
				return err
			}
			return f()
		})
	}
	select {
	case at.work <- work:
		<-done
		return err
	case <-at.resume:
		return invalidf("the run has gone on in the meantime")
	case <-s.Context.Done():
		return context.Cause(s.Context)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Checkpoint stops the run at a checkpoint in edited code, see [runs.Checkpoint]. It is called on
// the MLX thread.
func (s *Session) Checkpoint(name string, variables map[string]any, at runs.Location) error {
	st := &stop{held: &held{}, others: map[string]any{}, location: at, Stop: protocol.Stop{
		Name: name, Reason: "checkpoint " + name, Step: -1, Shape: []int{},
	}}
	for _, key := range slices.Sorted(maps.Keys(variables)) {
		if a, ok := variables[key].(*mlx.Array); ok {
			st.held.inner = append(st.held.inner, hooks.Arg{Key: key, Array: a})
		} else {
			st.others[key] = variables[key]
		}
	}
	return s.stop(st)
}

// place describes where the run is stopped.
func (s *Session) place(at *stop) protocol.Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := protocol.Place{Stop: at.Stop, Around: []protocol.AroundItem{}, Before: at.before}
	if at.location.File != "" {
		where := at.location
		p.Context = where.Context()
		where.File = runs.ShortFile(where.File)
		p.Location = &where
	}
	for i := range len(at.Module) {
		if at.Module[i] != '.' {
			continue
		}
		name := at.Module[:i]
		if class, ok := s.modules[name]; ok {
			p.Around = append(p.Around, protocol.AroundItem{Name: name, Class: shortClass(class)})
		}
	}
	return p
}

// class is the name of a Go type without its package.
func shortClass(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

// variables describes the tensors of a stop and the module's parameters.
func (s *Session) variables(at *stop) (*protocol.Variables, error) {
	v := &protocol.Variables{Name: at.Name, Variables: []protocol.Variable{}, Parameters: []protocol.Parameter{}}
	add := func(name string, kind hooks.Kind, x *mlx.Array) error {
		one, err := variable(name, kind, x)
		v.Variables = append(v.Variables, one)
		return err
	}
	if at.tap.Output != nil {
		if err := add("out", hooks.Output, at.tap.Output); err != nil {
			return nil, err
		}
	}
	if j := at.held.judgement; j != nil && j.Want != nil {
		if err := add("want", hooks.Output, j.Want); err != nil {
			return nil, err
		}
	}
	for _, part := range []struct {
		name string
		kind hooks.Kind
		args []hooks.Arg
	}{{"outs", hooks.Output, at.held.outs}, {"inp", hooks.Input, at.tap.Inputs}, {"inner", hooks.Inner, at.held.inner}} {
		for _, a := range part.args {
			if err := add(fmt.Sprintf("%s[%q]", part.name, a.Key), part.kind, a.Array); err != nil {
				return nil, err
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(at.others)) {
		one := protocol.Variable{Name: key, Point: hooks.Inner.String(), Shape: []int{}, Preview: []checkpoint.Float{}}
		one.Value = fmt.Sprint(at.others[key])
		v.Variables = append(v.Variables, one)
	}
	if at.tap.Parameters != nil {
		for _, p := range at.tap.Parameters() {
			v.Parameters = append(v.Parameters, parameter(p))
		}
	}
	return v, nil
}

// variable describes a tensor. One that costs much is described without its values.
func variable(name string, kind hooks.Kind, x *mlx.Array) (protocol.Variable, error) {
	v := protocol.Variable{Name: name, Point: kind.String(), Shape: x.Shape(), Dtype: x.Dtype().String(), Preview: []checkpoint.Float{}}
	if v.Shape == nil {
		v.Shape = []int{}
	}
	if name == fmt.Sprintf("inner[%q]", hooks.Weights) {
		v.Value = "is computed when an expression uses it"
		return v, nil
	}
	stats, first, err := runs.Summarize(x, runs.Previewed)
	if err != nil {
		return v, fmt.Errorf("%s: %w", name, err)
	}
	v.Stats, v.Preview = stats, checkpoint.Floats(first)
	return v, nil
}

func parameter(p hooks.Parameter) protocol.Parameter {
	out := protocol.Parameter{Path: p.Path, Shape: p.Shape, Dtype: "not loaded"}
	if p.Array != nil {
		out.Dtype = p.Dtype.String()
	}
	if q := p.Quantization; q != nil {
		out.Quantized = fmt.Sprintf("%d bits, groups of %d", q.Bits, q.Group)
	}
	return out
}

// weigh adds statistics to the parameters of a stop.
func (s *Session) weigh(at *stop, v protocol.Variables) (protocol.Variables, error) {
	v.Parameters = slices.Clone(v.Parameters)
	if at.tap.Parameters == nil {
		return v, nil
	}
	for i, p := range at.tap.Parameters() {
		if p.Array == nil || i >= len(v.Parameters) {
			continue
		}
		var stats checkpoint.Stats
		var err error
		mlx.WithScope(func() { stats, _, err = runs.Summarize(p.Array(), 0) })
		if err != nil {
			return v, fmt.Errorf("%s: %w", p.Path, err)
		}
		v.Parameters[i].Stats = &stats
	}
	return v, nil
}

// env has what the names of expressions stand for.
func (s *Session) env(at *stop, hit int) expr.Env {
	e := expr.Env{
		Out: at.tap.Output, Inputs: at.tap.Inputs, Inner: at.held.inner, Outputs: at.held.outs, Parameters: at.tap.Parameters,
		Step: at.Step, Call: at.Call, Negative: at.Negative, Sigma: at.Sigma, Timestep: at.Timestep, Hit: hit, Load: at.load(s.Tree),
	}
	if j := at.held.judgement; j != nil {
		e.Want = j.Want
	}
	return e
}

// load returns a function that reads a tensor of the run that is replayed, or else one that either side has
// saved, by its name.
func (at *stop) load(tree *runs.Tree) func(string) (*mlx.Array, error) {
	return func(name string) (*mlx.Array, error) {
		if j := at.held.judgement; j != nil && j.Load != nil {
			if x := j.Load(name); x != nil {
				return x.Reshape(x.Shape()...), nil
			}
		}
		t, err := tree.Load(name)
		if err != nil {
			return nil, err
		}
		return runs.ToArray(t)
	}
}

// replace reads the tensor that takes the place of the output.
func (s *Session) replace(at *stop, source string) (string, error) {
	if at.tap.Output == nil {
		return "", invalidf("a checkpoint has no output to set (stop at a module's output)")
	}
	r, err := runs.ParseReplacement(at.Name + "=" + source)
	if err != nil {
		return "", invalidf("%w", err)
	}
	x, from, err := s.Tree.Replacement(r, at.tap.Output)
	if err != nil {
		return "", invalidf("%w", err)
	}
	if at.set != nil {
		at.set.Free()
	}
	mlx.Keep(x)
	at.set, at.accepted = x, false
	return from, nil
}

// wait waits until the run has stopped more often than before, or has ended.
func (s *Session) wait(ctx context.Context, before int, seconds float64) protocol.Status {
	timer := time.NewTimer(time.Duration(seconds * float64(time.Second)))
	defer timer.Stop()
	for {
		s.mu.Lock()
		status, changed := s.status(), s.changed
		arrived := (s.at != nil || s.impossible != nil) && s.stops > before || status.Ended()
		if arrived {
			status.Watched, s.watched = s.watched, nil
		}
		s.mu.Unlock()
		if arrived {
			return status
		}
		select {
		case <-changed:
		case <-timer.C:
			status = s.Status()
			status.TimedOut = status.State != protocol.Stopped
			return status
		case <-ctx.Done():
			return status
		}
	}
}
