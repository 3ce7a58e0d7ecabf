package runs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/hints"
)

// A Session applies [Options] to one run: with its Hook, and as the pipeline's
// [models.Overrides].
type Session struct {
	options  Options
	tree     *Tree
	run      *Run // nil if nothing is recorded
	loads    []*load
	override map[hooks.Name]bool // values that Array returned
	exit     *hooks.Name

	seen  []string // full names, once each
	known map[string]bool
	last  string

	save, stats *globs
	recent      summaries
	failed      error // why nothing more is recorded
}

// A load is a replacement whose tensor was found.
type load struct {
	Replacement
	read   func() (*checkpoint.Array, error)
	used   bool
	packed bool // had the shape of diffusers' argument
}

// NewSession begins a session, with a new run in the tree if the options record anything. Close or
// Interrupt ends both. If no tensors are to be saved, a folder that cannot be written is no error:
// the session warns, and records nothing.
func NewSession(t *Tree, o Options) (*Session, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	s := &Session{
		options: o, tree: t, override: map[hooks.Name]bool{}, known: map[string]bool{},
		save: newGlobs("save", o.Save), stats: newGlobs("stats", o.Stats),
	}
	if o.ExitAfter != "" {
		n, _ := hooks.ParseName(o.ExitAfter) // which Check has accepted
		s.exit = &n
	}
	for _, r := range o.Load {
		l, err := t.newLoad(r)
		if err != nil {
			return nil, err
		}
		s.loads = append(s.loads, l)
	}
	if !o.Records() {
		if o.UsesTree() {
			t.MakeCurrent()
		}
		return s, nil
	}
	run, err := t.Start(Gomflux)
	if err = s.Tolerate(err); err != nil {
		return nil, err
	}
	if s.run = run; run != nil {
		run.makeCurrent()
	}
	return s, nil
}

// Replacement reads the tensor of a replacement for an output, whose shape and dtype it must have, and
// returns where it was read from. It must run on the MLX thread.
func (t *Tree) Replacement(r Replacement, out *mlx.Array) (x *mlx.Array, from string, err error) {
	l, err := t.newLoad(r)
	if err != nil {
		return nil, "", err
	}
	if x, err = l.array(); err == nil {
		err = fits(l, x, out)
	}
	return x, l.source(), err
}

// newLoad finds the tensor of a replacement.
func (t *Tree) newLoad(r Replacement) (*load, error) {
	l := &load{Replacement: r}
	if r.From.File != "" {
		l.read = func() (*checkpoint.Array, error) { return r.From.Read(r.Name.String()) }
		return l, nil
	}
	e, err := t.Find(r.Saved)
	if err != nil && r.Saved != r.Name.String() {
		err = fmt.Errorf("%w, and no file has that name", err)
	}
	if err != nil {
		return nil, err
	}
	x, err := e.Read() // before a new run moves the latest one to the archive
	if err == nil && r.From.Cast != "" {
		x, err = x.Cast(r.From.Cast)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Saved, err)
	}
	l.From.File, l.From.Key = e.Path, e.Key
	t.warnOfOthers(e)
	l.read = func() (*checkpoint.Array, error) { return x, nil }
	return l, nil
}

// Run returns the session's run; nil if nothing is recorded.
func (s *Session) Run() *Run { return s.run }

// Last returns the name of the last tensor that passed, or "".
func (s *Session) Last() string { return s.last }

// Seen lists the names of all tensors that passed.
func (s *Session) Seen() []string { return s.seen }

// Has reports whether a value of the pipeline is replaced; see [models.Overrides].
func (s *Session) Has(name string, step int) bool {
	return s.find(hooks.Name{Module: name, Step: step}) != nil
}

// Array reads the tensor that replaces a value. The hook does not replace it again: the pipeline
// has checked it, and may have unpacked it.
func (s *Session) Array(name string, step int) (*mlx.Array, error) {
	n := hooks.Name{Module: name, Step: step}
	l := s.find(n)
	if l == nil {
		return nil, fmt.Errorf("%w %s", ErrNotFound, n)
	}
	x, err := l.array()
	s.override[n] = err == nil
	return x, err
}

// Unpacked records that a tensor had the shape of diffusers' argument; see
// [models.UnpackObserver].
func (s *Session) Unpacked(name string, step int) {
	if l := s.find(hooks.Name{Module: name, Step: step}); l != nil {
		l.packed = true
	}
}

// find returns the replacement of a tensor, or nil. A name with a step precedes one without.
func (s *Session) find(name hooks.Name) *load {
	for _, exact := range []bool{true, false} {
		for _, l := range s.loads {
			if l.Name == name || !exact && matches(l.Name, name) {
				return l
			}
		}
	}
	return nil
}

func (l *load) array() (*mlx.Array, error) {
	l.used = true
	t, err := l.read()
	if err != nil {
		return nil, err
	}
	return ToArray(t)
}

// Hook saves, replaces and checks a tensor that passes.
func (s *Session) Hook(tap hooks.Tap) (*mlx.Array, error) {
	name := hooks.Name{Module: tap.Name, Step: tap.Step, Call: tap.Call, Point: tap.Point}
	full := name.String()
	var replacement *mlx.Array
	if l := s.find(name); l != nil && !s.override[name] {
		x, err := l.array()
		if err == nil {
			err = fits(l, x, tap.Output)
		}
		if err != nil {
			return nil, err
		}
		replacement, tap.Output = x, x
	}
	for t := range tap.All() {
		s.visit(t)
	}
	if tap.Point.Key == hooks.Weights && s.records() {
		entropy := tap // not computed yet
		entropy.Point.Key = hooks.Entropy
		if s.save.match(entropy) || s.stats.match(entropy) {
			s.visit(tap.Entropy())
		}
	}
	if !tap.Point.OnRequest() {
		s.last = full
		switch {
		case s.options.CheckFinite:
			if err := s.finite(tap); err != nil {
				return nil, err
			}
		case s.options.BoundsCheck:
			mlx.Eval(tap.Output)
		}
	}
	if s.exit != nil && matches(*s.exit, name) {
		return nil, ErrExit
	}
	return replacement, nil
}

// ErrMismatch is wrapped by errors about replacements with another shape or dtype than the tensor
// that they replace.
var ErrMismatch = errors.New("the replacement does not fit")

// fits checks that a replacement has the shape and dtype of the tensor that it replaces.
func fits(l *load, x, out *mlx.Array) error {
	if !slices.Equal(x.Shape(), out.Shape()) {
		guess := hints.Shapes(x.Shape(), out.Shape())
		if guess != "" {
			guess = fmt.Sprintf(" (%s)", guess)
		}
		return fmt.Errorf("%w: %s has the shape %v, expected %v%s",
			ErrMismatch, l.source(), x.Shape(), out.Shape(), guess)
	}
	if x.Dtype() != out.Dtype() {
		return fmt.Errorf("%w: %s has the dtype %v, expected %v (append @%[4]v to cast it)",
			ErrMismatch, l.source(), x.Dtype(), out.Dtype())
	}
	return nil
}

// source returns where the replacement is read from.
func (l *load) source() string {
	if l.From.File == "" {
		return l.Name.String()
	}
	return l.From.String()
}

// Explain adds the last tensor that passed to an error of MLX.
func (s *Session) Explain(err error) error {
	var e *mlx.Error
	if s.last == "" || !errors.As(err, &e) {
		return err
	}
	return fmt.Errorf("%w (the last tensor before it was %s)", err, s.last)
}

// Unmatched returns an error about replacements and an end whose tensors did not pass in the run,
// or nil.
func (s *Session) Unmatched() error {
	var errs []error
	for _, l := range s.loads {
		if !l.used {
			errs = append(errs, fmt.Errorf("the run had no tensor %s to be replaced by %s (%s)",
				l.Name, l.source(), checkpoint.Hint(l.Name.String(), s.seen)))
		}
	}
	if s.exit != nil && !slices.ContainsFunc(s.seen, func(full string) bool {
		n, err := hooks.ParseName(full)
		return err == nil && matches(*s.exit, n)
	}) {
		errs = append(errs, fmt.Errorf("the run had no tensor %s to end after (%s)", s.exit, checkpoint.Hint(s.exit.String(), s.seen)))
	}
	return errors.Join(errs...)
}

// Close ends the session's run, or else the one that [Save] or [Checkpoint] began in the session's
// tree.
func (s *Session) Close() error { return s.end((*Run).Close) }

// Interrupt is Close for a run that a signal or an error has ended.
func (s *Session) Interrupt() error { return s.end((*Run).Interrupt) }

func (s *Session) end(end func(*Run) error) error {
	run := cmp.Or(s.run, s.tree.TakeCurrent())
	if run == nil {
		return nil
	}
	replaced := map[string]string{}
	var packed []string // names of those with the shape of diffusers' argument
	for _, l := range s.loads {
		if l.used {
			replaced[l.Name.String()] = l.source()
		}
		if l.packed {
			packed = append(packed, l.Name.String())
		}
	}
	settings := map[string]any{"replaced": replaced, "taps": s.options.Save}
	for name, globs := range map[string][]string{
		"packed": packed, "stats_taps": s.options.Stats,
	} {
		if len(globs) > 0 {
			settings[name] = globs
		}
	}
	err := run.Describe(settings)
	return s.Tolerate(cmp.Or(err, end(run)))
}
