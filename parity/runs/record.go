package runs

import (
	"fmt"
	"path"
	"strings"
	"weak"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// globs are the patterns of one of the lists of [Options].
type globs struct {
	option   string
	patterns []string
	hits     []bool // whether each pattern has matched
}

func newGlobs(option string, patterns []string) *globs {
	return &globs{option, patterns, make([]bool, len(patterns))}
}

// match reports whether the patterns match a tensor.
func (g *globs) match(t hooks.Tap) bool {
	if len(g.patterns) == 0 {
		return false
	}
	asked := func(glob string) bool { return !t.Point.OnRequest() || strings.Contains(glob, t.Point.Key) }
	found := false
	for i, glob := range g.patterns {
		if glob[0] != '!' && asked(glob) && Matches(glob, t) {
			found, g.hits[i] = true, true
		}
	}
	for i, glob := range g.patterns {
		if found && glob[0] == '!' && Matches(glob[1:], t) {
			found, g.hits[i] = false, true
		}
	}
	return found
}

// Matches reports whether a pattern, as in [Options.Save], matches a tensor. One without a step or a call
// matches all of them.
func Matches(glob string, t hooks.Tap) bool {
	anyStep := hooks.Name{Module: t.Name, Step: -1, Point: t.Point}.String()
	return MatchName(glob, t.FullName()) || !strings.ContainsAny(glob, "@#") && MatchName(glob, anyStep)
}

// MatchName reports whether a pattern matches a name, in which * also matches slashes.
func MatchName(glob, name string) bool {
	ok, err := path.Match(glob, strings.ReplaceAll(name, "/", "\\"))
	return err == nil && ok
}

// CheckGlob returns an error about a pattern that is malformed.
func CheckGlob(glob string) error {
	name := strings.TrimPrefix(glob, "!")
	if _, err := path.Match(name, ""); err != nil || name == "" {
		return fmt.Errorf("%q is not a pattern of names (such as 'transformer.layers.*')", glob)
	}
	return nil
}

// A Glob is a pattern of one of the lists of [Options].
type Glob struct {
	Option  string // save, stats or checkpoint
	Pattern string
}

// UnmatchedGlobs lists the patterns that no tensor of the run matched.
func (s *Session) UnmatchedGlobs() (out []Glob) {
	for _, g := range []*globs{s.save, s.stats} {
		for i, glob := range g.patterns {
			if !g.hits[i] {
				out = append(out, Glob{g.option, glob})
			}
		}
	}
	return out
}

// records reports whether the session records tensors.
func (s *Session) records() bool { return s.run != nil && s.failed == nil }

// visit remembers a tensor's name, and records the tensor if it is wanted. A failure to record it
// does not end the run, since the image matters more.
func (s *Session) visit(t hooks.Tap) {
	full := t.FullName()
	if !s.known[full] {
		s.known[full] = true
		s.seen = append(s.seen, full)
	}
	if !s.records() {
		return
	}
	d, _ := nn.FileDtype(t.Output.Dtype())
	tensor := checkpoint.Tensor{Name: full, Dtype: d, Shape: t.Output.Shape()}
	err := s.run.Trace(full, t.Point.Kind.String(), tensor.Shape, d.Long())
	if err == nil {
		err = s.record(t, tensor)
	}
	if err != nil {
		s.stop(err)
	}
}

// record saves a tensor, and records its statistics, if each is wanted.
func (s *Session) record(t hooks.Tap, tensor checkpoint.Tensor) error {
	save, stats := s.save.match(t), s.stats.match(t)
	if !save && !stats {
		return nil
	}
	at := ModelCode()
	if save {
		x, err := FromArray(tensor.Name, t.Output)
		if err == nil {
			_, err = s.run.saveOf(x, t.Class, at)
		}
		if err != nil {
			return err
		}
	}
	if !stats {
		return nil
	}
	sums, first, err := s.recent.summarize(t.Output)
	if err != nil {
		return err
	}
	rec := newRecord(tensor, sums, first, at)
	rec.Class = t.Class
	return s.run.Stat(rec)
}

// summaries are the statistics of the last arrays: the output of a module is often the input of
// the next ones.
type summaries struct {
	kept [16]struct {
		of    weak.Pointer[mlx.Array]
		stats checkpoint.Stats
		first []float64
	}
	next int
}

func (s *summaries) summarize(x *mlx.Array) (checkpoint.Stats, []float64, error) {
	of := weak.Make(x)
	for _, k := range s.kept {
		if k.of == of {
			return k.stats, k.first, nil
		}
	}
	stats, first, err := Summarize(x, Previewed)
	if err == nil {
		k := &s.kept[s.next%len(s.kept)]
		k.of, k.stats, k.first = of, stats, first
		s.next++
	}
	return stats, first, err
}

// stop ends the recording, but not the run. If tensors were to be saved, [Session.Lost] returns
// the error.
func (s *Session) stop(err error) {
	s.failed = err
	if len(s.options.Save) == 0 {
		s.tree.warn("nothing more is recorded of the run: %v", err)
	}
}

// Tolerate returns an error of a recording if tensors are to be saved. Otherwise it warns of the
// first one.
func (s *Session) Tolerate(err error) error {
	if err == nil || len(s.options.Save) > 0 {
		return err
	}
	if s.failed == nil {
		s.stop(err)
	}
	return nil
}

// Describe adds to the settings of the session's run, if there is one; see [Run.Describe].
func (s *Session) Describe(settings map[string]any) error {
	if !s.records() {
		return nil
	}
	return s.Tolerate(s.run.Describe(settings))
}

// Lost returns the error because of which tensors that were to be saved are missing, or nil.
func (s *Session) Lost() error {
	if len(s.options.Save) == 0 {
		return nil
	}
	return s.failed
}
