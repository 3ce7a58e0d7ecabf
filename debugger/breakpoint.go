package debugger

import (
	"cmp"
	"fmt"
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

// A breakpoint is one that is set, or a watch.
type breakpoint struct {
	protocol.Breakpoint
	condition *expr.Condition // nil without
}

// values are what the names of a pipeline's values begin with.
var values = []string{
	"prompt.", "negative.", "vision.", "sigmas", "timesteps", "latents", "noise_pred", "image", "vae.encode.", "vae.decode.",
}

// newBreakpoint checks the arguments of a breakpoint. The caller holds the lock.
func (s *Session) newBreakpoint(a protocol.BreakArguments) (*breakpoint, error) {
	b := &breakpoint{Breakpoint: protocol.Breakpoint{BreakArguments: a}}
	switch {
	case a.File != "" || a.Line != 0:
		return nil, invalidf("%s:%d: only the reference's sessions stop at lines of Python", a.File, a.Line)
	case a.Differs && !s.Replay:
		return nil, invalidf("differs: only a replay has the reference's tensors (start parity run instead)")
	case a.Watch && (a.Differs || a.Once):
		return nil, invalidf("watch: nothing stops, so it goes with neither differs nor once")
	case a.Glob == "" && !a.Differs:
		return nil, invalidf("the pattern of a tensor's name is missing (such as 'transformer.layers.0')")
	case a.Hit < 0:
		return nil, invalidf("hit %d: must be a whole number, 1 or more", a.Hit)
	case a.Call != nil && *a.Call < 0:
		return nil, invalidf("call %d: must be a whole number, 0 or more", *a.Call)
	case a.Step != nil && *a.Step < -1:
		return nil, invalidf("step %d: must be 0 or more, or -1 outside the denoising loop", *a.Step)
	}
	if a.Step != nil {
		if err := s.checkStep(*a.Step); err != nil {
			return nil, err
		}
	}
	if a.Glob != "" {
		if err := s.checkGlob(a.Glob); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// checkGlob refuses a pattern that is malformed or that, as far as is known, matches no name.
func (s *Session) checkGlob(glob string) error {
	if strings.HasPrefix(glob, "!") {
		return invalidf("%s: a breakpoint names tensors, it does not leave them out", glob)
	}
	if err := runs.CheckGlob(glob); err != nil {
		return invalidf("%w", err)
	}
	if s.modules == nil || s.possible(glob) {
		if n, err := hooks.ParseName(glob); err == nil {
			return s.checkStep(n.Step)
		}
		return nil
	}
	return invalidf("%s: no module or value has such a name (%s)", glob, checkpoint.Hint(literal(glob), s.names()))
}

// checkStep refuses a step that the run, as far as is known, does not have.
func (s *Session) checkStep(step int) error {
	if s.steps > 0 && step >= s.steps {
		return invalidf("step %d: the run has %d evaluations of the model, 0 to %d", step, s.steps, s.steps-1)
	}
	return nil
}

// literal is the part of a pattern that names begin with.
func literal(glob string) string {
	if i := strings.IndexAny(glob, `*?[\@#:`); i >= 0 {
		return glob[:i]
	}
	return glob
}

// possible reports whether a tensor of the loaded model may match a pattern.
func (s *Session) possible(glob string) bool {
	begin := literal(glob)
	exact := begin == glob || strings.IndexByte("@#:", glob[len(begin)]) >= 0
	for _, v := range values {
		if strings.HasPrefix(begin, v) || !exact && strings.HasPrefix(v, begin) {
			return true
		}
	}
	for name := range s.modules {
		if name == begin || !exact && strings.HasPrefix(name, begin) {
			return true
		}
	}
	return slices.ContainsFunc(s.seen, func(name string) bool { return strings.HasPrefix(name, begin) })
}

// names lists modules and values.
func (s *Session) names() []string {
	all := slices.Clone(values)
	for name := range s.modules {
		all = append(all, name)
	}
	return all
}

// mayStop reports whether the run may stop when the call of a tap's module is done.
func (s *Session) mayStop(tap hooks.Tap) bool {
	switch s.mode.command {
	case protocol.Next, protocol.Step:
		return true
	case protocol.Out:
		return s.isOut(tap)
	}
	for _, b := range s.points {
		if b.Differs || b.selects(tap) && (b.matches(tap) || b.matchesOutput(tap)) {
			return true
		}
	}
	return s.mode.until != "" && runs.Matches(s.mode.until, output(tap))
}

// output is the tap of a module's first output.
func output(tap hooks.Tap) hooks.Tap {
	tap.Point = hooks.Point{}
	return tap
}

// selects reports whether a breakpoint is for the step and the call of a tap.
func (b *breakpoint) selects(tap hooks.Tap) bool {
	return (b.Step == nil || *b.Step == tap.Step) && (b.Call == nil || *b.Call == tap.Call) && (!b.Negative || tap.Negative)
}

func (b *breakpoint) matches(tap hooks.Tap) bool { return b.Glob != "" && runs.Matches(b.Glob, tap) }

func (b *breakpoint) matchesOutput(tap hooks.Tap) bool { return b.matches(output(tap)) }

// matchesCall reports whether a pattern names the output of a call that is done, or an input, an
// inner value or a further output.
func (b *breakpoint) matchesCall(tap hooks.Tap, call *held) bool {
	if b.Glob == "" {
		return true
	}
	if b.matches(tap) {
		return true
	}
	if !strings.Contains(b.Glob, ":") {
		return false
	}
	other := func(kind hooks.Kind, args []hooks.Arg) bool {
		return slices.ContainsFunc(args, func(a hooks.Arg) bool {
			t := tap
			t.Point = hooks.Point{Kind: kind, Key: a.Key}
			return b.matches(t)
		})
	}
	return other(hooks.Input, tap.Inputs) || other(hooks.Inner, call.inner) || other(hooks.Output, call.outs)
}

// isOut reports whether a tap's module is around the one that the command out was given at.
func (s *Session) isOut(tap hooks.Tap) bool {
	return s.mode.begun && strings.HasPrefix(s.mode.from.Name, tap.Name+".")
}

// check returns the stop at a call that is done, or nil.
func (s *Session) check(tap hooks.Tap, call *held) (*stop, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == protocol.Loading {
		s.state, s.progress = protocol.Running, ""
	}
	full := tap.FullName()
	defer s.pass(full)
	if len(s.points) == 0 && s.mode.command == "" && s.mode.until == "" { // most taps of most runs
		return nil, nil
	}
	st := &stop{tap: tap, held: call, Stop: protocol.Stop{
		Name: full, Module: tap.Name, Class: shortClass(tap.Class), Step: tap.Step, Call: tap.Call, Negative: tap.Negative,
		Sigma: at(s.sigmas, tap.Step), Timestep: at(s.timesteps, tap.Step), Shape: tap.Output.Shape(), Dtype: tap.Output.Dtype().String(),
	}}
	var found *stop
	for _, b := range slices.Clone(s.points) {
		hit, err := s.hits(b, st)
		if err != nil {
			return nil, err
		}
		if hit && found == nil {
			st.Breakpoint, st.Hit, found = b.Number, b.Hits, st
			st.Reason = fmt.Sprintf("breakpoint %d", b.Number)
			if b.Once {
				s.points = slices.DeleteFunc(s.points, func(other *breakpoint) bool { return other == b })
			}
		}
	}
	if reason := s.modeReason(tap); found == nil && reason != "" {
		st.Reason, found = reason, st
	}
	if j := call.judgement; found != nil && j != nil && !j.OK {
		st.Differs = j.Text
	}
	return found, nil
}

// modeReason returns why the run stops at a tap without a breakpoint, or "".
func (s *Session) modeReason(tap hooks.Tap) string {
	m := s.mode
	switch {
	case m.command == protocol.Next,
		m.command == protocol.Step && tap.Step != m.from.Step && (m.begun || tap.Step >= 0),
		m.command == protocol.Out && s.isOut(tap):
		return m.command
	case m.until != "" && runs.Matches(m.until, tap):
		return "until"
	}
	return ""
}

// hits reports whether a breakpoint stops the run. It counts its matches. A watch never does, but
// its statistics are recorded.
func (s *Session) hits(b *breakpoint, st *stop) (bool, error) {
	call := st.held
	if !b.selects(st.tap) || !b.matchesCall(st.tap, call) {
		return false, nil
	}
	if b.Differs && (call.judgement == nil || call.judgement.OK) {
		return false, nil
	}
	b.Hits++
	if b.Hit > 0 && b.Hits != b.Hit {
		return false, nil
	}
	if b.condition != nil {
		var holds bool
		var err error
		mlx.WithScope(func() {
			holds, err = b.condition.Holds(s.Context, s.env(st, b.Hits))
		})
		if err != nil {
			st.Problem = err.Error()
		} else if !holds {
			return false, nil
		}
	}
	if b.Watch {
		return false, s.observe(b, st)
	}
	return true, nil
}

// mostWatched limits how many statistics wait for the next answer.
const mostWatched = 1000

// observe records the statistics of a watched tensor.
func (s *Session) observe(b *breakpoint, st *stop) error {
	v, err := variable(st.Name, hooks.Output, st.tap.Output)
	if err != nil {
		return err
	}
	w := protocol.Watched{Number: b.Number, Variable: v}
	s.trace.write(protocol.EventWatch, nil, w, nil, time.Now())
	if len(s.watched) == mostWatched {
		s.watched = s.watched[1:]
	}
	s.watched = append(s.watched, w)
	return nil
}

// pass remembers the name of a tensor that has passed.
func (s *Session) pass(name string) {
	if len(s.recent) == shown {
		s.recent = s.recent[1:]
	}
	s.recent = append(s.recent, name)
	if !s.known[name] {
		s.known[name] = true
		s.seen = append(s.seen, name)
	}
}

// neverHit lists the breakpoints without a match, with near names.
func (s *Session) neverHit() (all []protocol.Breakpoint) {
	for _, b := range s.points {
		if b.Hits > 0 || b.Differs {
			continue
		}
		p := b.Breakpoint
		p.Near = checkpoint.Similar(b.Glob, s.seen, 3)
		if len(p.Near) == 0 {
			p.Near = checkpoint.Similar(cmp.Or(literal(b.Glob), b.Glob), s.seen, 3)
		}
		all = append(all, p)
	}
	return all
}
