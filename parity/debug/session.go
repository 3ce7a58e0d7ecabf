package debug

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Options say what a [Session] does with a run's tensors.
type Options struct {
	// Save are globs of names, in which * stands for anything. One that begins
	// with ! takes names out again. A glob without a step takes every step's.
	Save []string
	// Load are tensors that take the place of the run's.
	Load []Replacement
	// ExitAfter is the name of the tensor after which the run ends, with
	// [ErrExit]; "" is none. Without a step it is the first.
	ExitAfter string
	// CheckFinite ends the run at the first tensor with NaN or infinite values.
	CheckFinite bool
	// BoundsCheck computes every tensor as soon as it passes, so that what MLX
	// refuses, an index that is out of bounds first of all, is said of the module
	// that did it.
	BoundsCheck bool
}

// Records reports whether the options write a run. Loading alone does not.
func (o *Options) Records() bool { return len(o.Save) > 0 }

// UsesTree reports whether the options need a tree, to read from or to write to.
func (o *Options) UsesTree() bool { return len(o.Save)+len(o.Load) > 0 }

// Any says whether there is anything to do.
func (o *Options) Any() bool {
	return o.UsesTree() || o.ExitAfter != "" || o.CheckFinite || o.BoundsCheck
}

// A Replacement is a tensor that takes the place of one of the run's. A name
// without a step is that of every step. It is in a file or, where From names
// none, in the tree, by its name there.
type Replacement struct {
	Name  hooks.Name
	From  checkpoint.Reference
	Saved string
}

// ParseReplacement reads NAME=FILE[:KEY][@CAST], NAME=SAVED[@CAST] with the name
// of a tensor that either side has saved, or NAME[@CAST] for the one that is
// saved under the same name. What is no file is such a name, unless it has a
// folder in it or ends as files of tensors do.
func ParseReplacement(s string) (Replacement, error) {
	name, from, given := strings.Cut(s, "=")
	r := Replacement{}
	if at := strings.LastIndexByte(name, '@'); !given && at >= 0 {
		if cast, err := checkpoint.ParseDtype(name[at+1:]); err == nil {
			r.From.Cast, name = cast, name[:at]
		}
	}
	var err error
	if r.Name, err = hooks.ParseName(name); err != nil {
		return Replacement{}, err
	}
	switch {
	case r.Name.Point.Kind == hooks.Input:
		return Replacement{}, fmt.Errorf("%s: an input cannot be replaced (replace the output that it comes from)", name)
	case r.Name.Point.OnRequest():
		return Replacement{}, fmt.Errorf("%s: nothing is computed from it, so it cannot be replaced (q, k and v can)", name)
	case !given:
		r.Saved = name
		return r, nil
	}
	if r.From, err = checkpoint.ParseReference(from); err == nil && r.From.Key == "" && isName(r.From.File) {
		r.From.File, r.Saved = "", r.From.File
	}
	return r, err
}

// isName says whether something can only be a saved tensor's name.
func isName(s string) bool {
	if strings.ContainsAny(s, `/\`) || filepath.Ext(s) != "" && slices.Contains([]string{".safetensors", ".npy", ".npz", ".pt", ".pth", ".bin"}, filepath.Ext(s)) {
		return false
	}
	_, err := os.Stat(s)
	return err != nil
}

// matches says whether a tensor of a run is meant by a name, in which no step
// is any step.
func matches(want, name hooks.Name) bool {
	return want.Module == name.Module && want.Call == name.Call && want.Point == name.Point && (want.Step < 0 || want.Step == name.Step)
}

func parseExit(name string) (hooks.Name, error) {
	n, err := hooks.ParseName(name)
	switch {
	case err != nil:
	case n.Point.Kind == hooks.Input:
		err = fmt.Errorf("%s: an input is no place to end at (name the output that it comes from)", name)
	case n.Point.Key == hooks.Entropy:
		err = fmt.Errorf("%s: the entropy is no place to end at (name the weights)", name)
	}
	return n, err
}

// Check says what is wrong with the options, before anything runs: bad names,
// and files or tensors that are not there.
func (o *Options) Check() error {
	for _, glob := range o.Save {
		if _, err := path.Match(strings.TrimPrefix(glob, "!"), ""); err != nil || strings.TrimPrefix(glob, "!") == "" {
			return fmt.Errorf("%q is no pattern of names (such as 'transformer.layers.*')", glob)
		}
	}
	if o.ExitAfter != "" {
		if _, err := parseExit(o.ExitAfter); err != nil {
			return err
		}
	}
	seen := map[hooks.Name]bool{}
	for _, r := range o.Load {
		if seen[r.Name] {
			return fmt.Errorf("%s is given twice", r.Name)
		}
		seen[r.Name] = true
		if r.From.File == "" {
			continue
		}
		f, info, err := r.From.Open(r.Name.String())
		if err != nil {
			return err
		}
		f.Close()
		if !info.Dtype.IsNumeric() {
			return fmt.Errorf("%s: dtype %s cannot be read as numbers", r.From, info.Dtype)
		}
	}
	return nil
}

// A Session is what [Options] make of one run: its Hook and what the pipeline
// is [models.Given].
type Session struct {
	options Options
	tree    *Tree
	run     *Run // nil if nothing is recorded
	loads   []*load
	given   map[hooks.Name]bool // values that Array returned
	exit    *hooks.Name

	seen  []string // full names, once each
	known map[string]bool
	last  string
	hits  []bool // of Save
}

// A load is a replacement whose tensor was found.
type load struct {
	Replacement
	read   func() (*checkpoint.Array, error)
	used   bool
	packed bool // in the shape of diffusers' argument
}

// NewSession begins a session, with a new run in the tree if the options save
// anything. Close ends both.
func NewSession(t *Tree, o Options) (*Session, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	s := &Session{options: o, tree: t, given: map[hooks.Name]bool{}, known: map[string]bool{}, hits: make([]bool, len(o.Save))}
	if o.ExitAfter != "" {
		n, err := parseExit(o.ExitAfter)
		if err != nil {
			return nil, err
		}
		s.exit = &n
	}
	for _, r := range o.Load {
		l := &load{Replacement: r}
		l.read = func() (*checkpoint.Array, error) { return r.From.Read(r.Name.String()) }
		if r.From.File == "" {
			e, err := t.Find(r.Saved)
			if err != nil && r.Saved != r.Name.String() {
				err = fmt.Errorf("%w, and no file has that name", err)
			}
			if err != nil {
				return nil, err
			}
			x, err := e.Read() // now: a new run moves the latest one away
			if err == nil && r.From.Cast != "" {
				x, err = x.Cast(r.From.Cast)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.Saved, err)
			}
			l.From.File, l.From.Key = e.Path, e.Key
			l.read = func() (*checkpoint.Array, error) { return x, nil }
		}
		s.loads = append(s.loads, l)
	}
	if !o.Records() {
		if o.UsesTree() {
			t.makeCurrent()
		}
		return s, nil
	}
	var err error
	if s.run, err = t.Start(Gomflux); err != nil {
		return nil, err
	}
	s.run.makeCurrent()
	return s, nil
}

// Run is the session's, nil if nothing is recorded.
func (s *Session) Run() *Run { return s.run }

// Last is the name of the last tensor that passed, "" for none.
func (s *Session) Last() string { return s.last }

// Seen lists the names of all tensors that passed.
func (s *Session) Seen() []string { return s.seen }

// Has says whether a value of the pipeline is to be replaced; see
// [models.Given].
func (s *Session) Has(name string, step int) bool {
	return s.find(hooks.Name{Module: name, Step: step}) != nil
}

// Array reads the tensor that takes a value's place. The hook then leaves the value
// as it is: the pipeline has checked it, and may have unpacked it.
func (s *Session) Array(name string, step int) (*mlx.Array, error) {
	n := hooks.Name{Module: name, Step: step}
	l := s.find(n)
	if l == nil {
		return nil, fmt.Errorf("%w %s", ErrNotFound, n)
	}
	x, err := l.array()
	s.given[n] = err == nil
	return x, err
}

// Unpacked notes that a tensor had the shape of diffusers' argument; see
// [models.Unpacker].
func (s *Session) Unpacked(name string, step int) {
	if l := s.find(hooks.Name{Module: name, Step: step}); l != nil {
		l.packed = true
	}
}

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

// Hook is the session's hook.
func (s *Session) Hook(tap hooks.Tap) (*mlx.Array, error) {
	name := hooks.Name{Module: tap.Name, Step: tap.Step, Call: tap.Call, Point: tap.Point}
	full := name.String()
	var replacement *mlx.Array
	if l := s.find(name); l != nil && !s.given[name] {
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
		if err := s.visit(t); err != nil {
			return nil, err
		}
	}
	if tap.Point.Key == hooks.Weights && s.run != nil {
		entropy := tap // not computed yet
		entropy.Point.Key = hooks.Entropy
		if s.wanted(entropy, entropy.FullName()) {
			if err := s.visit(tap.Entropy()); err != nil {
				return nil, err
			}
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

// ErrMismatch is wrapped by errors about replacements of another shape or dtype
// than what they are to replace.
var ErrMismatch = errors.New("cannot take its place")

// fits makes sure that a replacement is what it replaces.
func fits(l *load, x, out *mlx.Array) error {
	if !slices.Equal(x.Shape(), out.Shape()) {
		return fmt.Errorf("%w: %s has the shape %v, expected %v%s", ErrMismatch, l.source(), x.Shape(), out.Shape(), guess(x.Shape(), out.Shape()))
	}
	if x.Dtype() != out.Dtype() {
		return fmt.Errorf("%w: %s has the dtype %v, expected %v (put @%v behind it to cast it)", ErrMismatch, l.source(), x.Dtype(), out.Dtype(), out.Dtype())
	}
	return nil
}

func (l *load) source() string {
	if l.From.File == "" {
		return l.Name.String()
	}
	return l.From.String()
}

// guess says what may be the matter with a shape.
func guess(got, want []int) string {
	ones := func(s []int) []int { return slices.DeleteFunc(slices.Clone(s), func(d int) bool { return d == 1 }) }
	sorted := func(s []int) []int { return slices.Sorted(slices.Values(s)) }
	switch {
	case len(got) != len(want) && slices.Equal(ones(got), ones(want)):
		return " (an axis of size 1 is missing or too many)"
	case slices.Equal(sorted(got), sorted(want)):
		return " (its axes are in another order; nothing is transposed here)"
	}
	return ""
}

// visit saves a tensor, if it is wanted, and remembers its name.
func (s *Session) visit(t hooks.Tap) error {
	full := t.FullName()
	if !s.known[full] {
		s.known[full] = true
		s.seen = append(s.seen, full)
	}
	if s.run == nil {
		return nil
	}
	d, _ := nn.FileDtype(t.Output.Dtype())
	if err := s.run.Trace(full, t.Point.Kind.String(), t.Output.Shape(), d.Long()); err != nil {
		return err
	}
	if !s.wanted(t, full) {
		return nil
	}
	x, err := FromArray(full, t.Output)
	if err != nil {
		return err
	}
	_, err = s.run.Save(x, modelCode())
	return err
}

// wanted says whether Save has a tensor in it.
func (s *Session) wanted(t hooks.Tap, full string) bool {
	anyStep := hooks.Name{Module: t.Name, Step: -1, Point: t.Point}.String()
	asked := func(glob string) bool { return !t.Point.OnRequest() || strings.Contains(glob, t.Point.Key) }
	hit := func(glob string) bool {
		match := func(name string) bool {
			ok, err := path.Match(glob, strings.ReplaceAll(name, "/", "\\"))
			return err == nil && ok
		}
		return match(full) || !strings.ContainsAny(glob, "@#") && match(anyStep)
	}
	found := false
	for i, glob := range s.options.Save {
		if glob[0] != '!' && asked(glob) && hit(glob) {
			found, s.hits[i] = true, true
		}
	}
	for i, glob := range s.options.Save {
		if found && glob[0] == '!' && hit(glob[1:]) {
			found, s.hits[i] = false, true
		}
	}
	return found
}

// finite ends the run at a tensor that is not finite everywhere.
func (s *Session) finite(tap hooks.Tap) error {
	if tap.Output.AllFinite() {
		return nil
	}
	out, err := FromArray(tap.FullName(), tap.Output)
	if err != nil {
		return err
	}
	e := &NotFiniteTensorError{Name: out.Name, Output: out.Tensor(), Stats: out.Stats()}
	for _, in := range tap.Inputs {
		x, err := FromArray(in.Key, in.Array)
		if err != nil {
			return err
		}
		e.Inputs = append(e.Inputs, InputStats{x.Tensor(), x.Stats()})
	}
	return e
}

// A NotFiniteTensorError is about the first tensor of a run with values that are
// NaN or infinite.
type NotFiniteTensorError struct {
	Name   string
	Output checkpoint.Tensor
	Stats  checkpoint.Stats
	Inputs []InputStats // of the module that made it
}

// InputStats sum up an input of a module. Its name is its position or keyword.
type InputStats struct {
	checkpoint.Tensor
	checkpoint.Stats
}

func (e *NotFiniteTensorError) Error() string {
	text := fmt.Sprintf("%d of %d values are not finite (%s, %s)", e.Stats.NaN+e.Stats.Inf, e.Output.Len(), e.Output.Type(), e.Stats.Range())
	made := "its inputs are finite, so that module made them"
	var inputs []string
	for _, in := range e.Inputs {
		inputs = append(inputs, fmt.Sprintf("in.%s %s from %s", in.Name, in.Type(), in.Range()))
		if in.NaN > 0 {
			made = fmt.Sprintf("in.%s has them already, so they come from what lies before", in.Name)
		}
	}
	if len(inputs) == 0 {
		return text
	}
	return text + "; " + made + ": " + strings.Join(inputs, ", ")
}

// Explain adds to an error of MLX after which tensor of the run it was.
func (s *Session) Explain(err error) error {
	var e *mlx.Error
	if s.last == "" || !errors.As(err, &e) {
		return err
	}
	return fmt.Errorf("%w (the last tensor before it was %s)", err, s.last)
}

// Unmatched is the error about replacements that the run had no place for, and
// an end that it did not reach. It is nil for a run that ended before.
func (s *Session) Unmatched() error {
	var errs []error
	for _, l := range s.loads {
		if !l.used {
			errs = append(errs, fmt.Errorf("the run had no tensor %s to be replaced by %s (%s)", l.Name, l.source(), checkpoint.Hint(l.Name.String(), s.seen)))
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

// Unsaved lists the globs that no tensor of the run matched.
func (s *Session) Unsaved() []string {
	var out []string
	for i, glob := range s.options.Save {
		if !s.hits[i] {
			out = append(out, glob)
		}
	}
	return out
}

// Close ends the session's run, or else the one that [Save] or [Checkpoint]
// began in the session's tree.
func (s *Session) Close() error {
	run := s.run
	if run == nil {
		run = s.tree.takeCurrent()
	} else {
		run.dropCurrent()
	}
	if run == nil {
		return nil
	}
	replaced := map[string]string{}
	var packed []string // of those
	for _, l := range s.loads {
		if l.used {
			replaced[l.Name.String()] = l.source()
		}
		if l.packed {
			packed = append(packed, l.Name.String())
		}
	}
	settings := map[string]any{"replaced": replaced, "taps": s.options.Save}
	if len(packed) > 0 {
		settings["packed"] = packed
	}
	err := run.Describe(settings)
	return errors.Join(err, run.Close())
}
