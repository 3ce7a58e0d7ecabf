// Package hints turns the difference between two tensors into a known mistake: it computes
// what a mistake would have made of the reference's tensors, and compares that with ours.
//
// values.go looks for factors, offsets and rounding, order.go for other orders of axes and of
// parts of axes, modules.go for norms and activations, and pipeline.go for what is around the
// modules: schedule, timesteps, positions, guidance, embeddings, latents and pixels. Hints hold
// for any model: where models differ in the names or layouts of their tensors, as for rotary
// tables, a function tries each.
package hints

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// A Hint is a known mistake that explains a difference.
type Hint struct {
	Key  string `json:"key"`
	Text string `json:"text"`
	// Explains is how much of the difference the mistake makes, from 0 to 1. It is 0 if the hint only
	// describes the difference.
	Explains float64 `json:"explains"`
}

// Exact is the least that a hint explains which is true but for rounding.
const Exact = 0.99

// general are the keys of hints about a difference that a mistake elsewhere may make too.
var general = []string{"zero", "sign", "ratio", "offset", "bias", "scale"}

// Mistake reports whether the hint is true but for rounding, and about no difference that a mistake
// elsewhere may make too.
func (h Hint) Mistake() bool { return h.Explains >= Exact && !slices.Contains(general, h.Key) }

// Share is the most that one of several hints explains, and -1 without any.
func Share(found []Hint) float64 {
	share := -1.0
	for _, h := range found {
		share = max(share, h.Explains)
	}
	return share
}

// A Question is a tensor that differs from the reference's, with all that an answer may be
// computed from. The functions of this package that take one must run on the MLX thread.
type Question struct {
	Name      hooks.Name // in the reference's run
	Ours      *mlx.Array
	Reference *mlx.Array
	Guidance  float64  // the run's guidance scale
	Names     []string // of all tensors in the reference's run
	// Tensor returns a tensor of the reference's run, cut to the pass (prompt or negative
	// prompt) that Ours belongs to; nil if the run does not have it.
	Tensor func(hooks.Name) *mlx.Array
	// Input is our first input of the module whose output this is, or nil.
	Input *mlx.Array
}

// Explain returns what is known about the difference of two tensors of one shape. Of a tensor of
// more than four million values it looks at a part; limits describes the part, or why no part was
// possible, and what else was too large. Of the mistakes that are found it returns those that explain
// most, under all names that the tensor has.
func Explain(q Question) (found []Hint, limits string) {
	for i, name := range q.names() {
		q.Name = name
		if h, l := explain(q); i == 0 || Share(h) > Share(found) {
			found, limits = h, l
		}
		if Share(found) >= Exact {
			break
		}
	}
	return found, limits
}

// names returns all names of a wrong input, which a module may pass on to those inside it, the
// outermost module's first.
func (q Question) names() []hooks.Name {
	names := []hooks.Name{q.Name}
	for _, text := range q.Names {
		n, err := hooks.ParseName(text)
		if err != nil || n.Point.Kind != hooks.Input || q.Name.Point.Kind != hooks.Input || n.Step != q.Name.Step ||
			n.Call != q.Name.Call || !strings.HasPrefix(q.Name.Module, n.Module+".") {
			continue
		}
		a := q.Tensor(n)
		if a != nil && slices.Equal(a.Shape(), q.Reference.Shape()) && distance(hostTensor("", a), hostTensor("", q.Reference)) == 0 {
			names = append(names, n)
		}
	}
	slices.SortStableFunc(names, func(a, b hooks.Name) int { return len(a.Module) - len(b.Module) })
	return names
}

func explain(q Question) (found []Hint, limits string) {
	size := q.Ours.Size()
	if size < 2 {
		return nil, ""
	}
	if h := q.finite(); h != nil {
		return h, ""
	}
	s := newSearch(q)
	if s.part == nil && size > maxValues {
		return nil, fmt.Sprintf("not looked for, no part of shape %v is small enough", q.Ours.Shape())
	}
	if s.part != nil {
		s.limits = []string{fmt.Sprintf("looked for in a part, %v", *s.part)}
	}
	if s.off == 0 {
		return nil, strings.Join(s.limits, "; ")
	}
	// Special hints come before those that fit anything.
	for _, look := range []func(*search){
		(*search).outOfBounds, (*search).windowOrder, (*search).timestep, (*search).schedule, (*search).positions, (*search).angles,
		(*search).embeddings, (*search).guidance, (*search).mask, (*search).blend, (*search).schedulerStep,
		(*search).pixels, (*search).attention, (*search).activation,
		(*search).modulation, (*search).norm, (*search).constant, (*search).latents, (*search).siblings, (*search).order,
		(*search).rounding, (*search).alongAxes, (*search).overall,
	} {
		s.hints, s.share = nil, 1
		if look(s); Share(s.hints) > Share(found) {
			found = s.hints
		}
		if Share(found) >= Exact {
			break
		}
	}
	return found, strings.Join(s.limits, "; ")
}

// ExplainShapes returns what is known about tensors of different shapes: prompt embeddings that
// end with the same rows.
func ExplainShapes(q Question) []Hint {
	g, w := q.Ours.Shape(), q.Reference.Shape()
	if !strings.HasSuffix(q.Name.Module, ".embeds") || len(g) != 2 || len(w) != 2 || g[1] != w[1] {
		return nil
	}
	n := min(g[0], w[0])
	x, y := hostTensor("", q.Ours.Slice(0, g[0]-n, g[0])), hostTensor("", q.Reference.Slice(0, w[0]-n, w[0]))
	if distance(x, y) > 1e-3*norm(y) {
		return nil
	}
	return []Hint{{"dropped prefix", fmt.Sprintf("both end with the same rows, but ours has %d, "+
		"the reference %d: another number of the template's tokens is dropped", g[0], w[0]), 1}}
}

// A search looks for known mistakes in one wrong tensor.
type search struct {
	Question
	got, want tensor
	off       float64 // norm of the error
	share     float64 // of the error that the next hint explains
	hints     []Hint
	whole     Question // about the whole tensor
	part      *part    // what got and want are of it, nil for all
	sampled   bool     // got and want may be other values of the same tensor
	limits    []string // what was not looked for
}

// newSearch looks at all of a tensor, or at a part of a large one if there is a suitable part.
func newSearch(q Question) *search {
	s := &search{Question: q, whole: q, share: 1}
	if q.Ours.Size() > maxValues {
		axis := q.partAxis()
		if axis < 0 {
			return s
		}
		p := q.partOf(axis, partValues)
		s.part, s.sampled, s.Question = &p, true, q.cut(p)
	}
	name := q.Name.String()
	s.got, s.want = hostTensor(name, s.Ours), hostTensor(name, s.Reference)
	s.off = distance(s.got, s.want)
	return s
}

// say adds a hint, once for each key.
func (s *search) say(key, format string, args ...any) {
	if !slices.ContainsFunc(s.hints, func(h Hint) bool { return h.Key == key }) {
		s.hints = append(s.hints, Hint{key, fmt.Sprintf(format, args...), s.share})
	}
}

// fits reports whether a mistake explains ours: what it makes of the reference's tensors is at
// least ten times closer to ours than the reference's own tensor is.
func (s *search) fits(candidate tensor) bool {
	if len(candidate.v) != len(s.got.v) {
		return false
	}
	off := distance(candidate, s.got)
	if off > 0.1*s.off {
		return false
	}
	s.share = 1 - off/s.off
	return true
}

// isReference reports whether a formula is the one that the reference computes.
func (s *search) isReference(candidate tensor) bool {
	return len(candidate.v) == len(s.want.v) && distance(candidate, s.want) <= min(1e-3*norm(s.want), 0.1*s.off)
}

// A variant is one mistake, its hint, and what it would compute.
type variant struct {
	key, text string
	value     func() tensor
}

// try adds the hint of the variant that explains most of ours, and reports whether one does.
func (s *search) try(variants ...variant) bool {
	var best *variant
	share := 0.0
	for i := range variants {
		if share < Exact && s.fits(variants[i].value()) && s.share > share {
			best, share = &variants[i], s.share
		}
	}
	if best == nil {
		return false
	}
	s.share = share
	s.say(best.key, "%s", best.text)
	return true
}

// array returns the reference's tensor of a module, at this step and call, or nil.
func (s *search) array(module string, point hooks.Point) *mlx.Array {
	return s.Tensor(hooks.Name{Module: module, Step: s.Name.Step, Call: s.Name.Call, Point: point})
}

// tensor is array on the host, unless it is too large.
func (s *search) tensor(module string, point hooks.Point) (tensor, bool) {
	return s.at(hooks.Name{Module: module, Step: s.Name.Step, Call: s.Name.Call, Point: point})
}

// value is tensor for a value of the whole run.
func (s *search) value(name string) (tensor, bool) { return s.at(hooks.Name{Module: name, Step: -1}) }

// at is tensor at any step.
func (s *search) at(n hooks.Name) (tensor, bool) {
	a := s.Tensor(n)
	if a == nil || a.Size() > maxValues || a.Size() == 0 {
		return tensor{}, false
	}
	return hostTensor(n.String(), a), true
}

func (s *search) input(module, key string) (tensor, bool) { return s.tensor(module, input(key)) }

func input(key string) hooks.Point { return hooks.Point{Kind: hooks.Input, Key: key} }
func inner(key string) hooks.Point { return hooks.Point{Kind: hooks.Inner, Key: key} }

// around returns the reference's tensors of a module and of those in it, at the same step,
// that accept holds for: at most 300.
func (s *search) around(scope string, accept func(hooks.Name, tensor) bool) []tensor {
	var out []tensor
	for _, name := range s.Names {
		n, err := hooks.ParseName(name)
		if err != nil || n == s.Name || n.Step != s.Name.Step || n.Module != scope && !strings.HasPrefix(n.Module, scope+".") {
			continue
		}
		a := s.Tensor(n)
		if a == nil || a.Size() > maxValues || a.Size() < 2 || len(out) > 300 {
			continue
		}
		if t := hostTensor(name, a); accept(n, t) {
			out = append(out, t)
		}
	}
	return out
}

// isOutput reports whether the wrong tensor is a module's output.
func (s *search) isOutput() bool { return s.Name.Point.Kind == hooks.Output }

// isInput reports whether the wrong tensor is a module's input.
func (s *search) isInput() bool { return s.Name.Point.Kind == hooks.Input }

// finite returns no hints, but not nil, if the reference is not finite everywhere; one if only ours
// is not, and nil if both are finite.
func (q Question) finite() []Hint {
	switch {
	case !q.Reference.AllFinite():
		return []Hint{}
	case q.Ours.AllFinite():
		return nil
	}
	s := checkpoint.Summarize(q.Ours.Floats())
	return []Hint{{"not finite", fmt.Sprintf("%d of %d values are NaN or infinite: "+
		"an overflow, a division by zero, or a missing attention scale", s.NaN+s.Inf, q.Ours.Size()), 1}}
}
