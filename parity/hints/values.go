package hints

import (
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// constant looks for one factor, or one offset, for all values.
func (s *search) constant() {
	c := dot(s.want, s.got) / dot(s.want, s.want)
	if s.fits(s.want.apply(func(x float64) float64 { return c * x })) {
		switch {
		case c == 0:
			s.say("zero", "ours is 0 everywhere")
		case math.Abs(c+1) < 1e-3:
			s.say("sign", "ours is the reference with the other sign")
		default:
			s.say("ratio", "ours is %.6g times the reference everywhere", c)
		}
		return
	}
	offset, _ := moments(s.got.with(s.want, minus).v)
	if s.fits(s.want.apply(func(x float64) float64 { return x + offset })) {
		s.say("offset", "ours is the reference plus %.6g everywhere", offset)
	}
}

// siblings looks for ours among the reference's other tensors, and for one that makes the
// difference.
func (s *search) siblings() {
	module := s.Name.Module
	for _, scope := range []string{module, hooks.Parent(module), hooks.Parent(hooks.Parent(module))} {
		if scope == "" {
			continue
		}
		found := s.around(scope, func(_ hooks.Name, t tensor) bool { return slices.Equal(t.shape, s.want.shape) })
		// A module's tensors come before those of modules in it.
		slices.SortStableFunc(found, func(a, b tensor) int { return strings.Count(a.name, ".") - strings.Count(b.name, ".") })
		for _, t := range found {
			if s.fits(t) {
				s.otherTensor(t, found)
				return
			}
		}
		for _, t := range found {
			if s.try(
				variant{"missing term", "ours is the reference's without " + t.name + ": a term of a sum is missing, such as a residual",
					func() tensor { return s.want.with(t, minus) }},
				variant{"term twice", "ours is the reference's with " + t.name + " added: a term of a sum is there twice",
					func() tensor { return s.want.with(t, plus) }},
			) {
				return
			}
		}
	}
}

// otherTensor is the hint where ours equals another tensor of the reference; found are those next to it.
func (s *search) otherTensor(t tensor, found []tensor) {
	n, _ := hooks.ParseName(t.name)
	same := slices.IndexFunc(found, func(t tensor) bool { // the module whose output the wrong input should be
		other, _ := hooks.ParseName(t.name)
		return s.isInput() && other.Point.Kind == hooks.Output && hooks.Parent(other.Module) == hooks.Parent(n.Module) && s.isReference(t)
	})
	switch {
	case same >= 0 && n.Point.Kind == hooks.Output:
		s.say("swapped", "ours is the reference's %s and should be %s: the two are swapped (gate and up, or q, k and v), or it is used "+
			"for both", t.name, found[same].name)
	case n.Module == s.Name.Module && n.Point.Kind == hooks.Input && s.isOutput():
		s.say("does nothing", "ours is the reference's %s: the module passes its input on unchanged", t.name)
	case n.Point.Kind == hooks.Output && s.isOutput() && hooks.Parent(n.Module) == hooks.Parent(s.Name.Module):
		s.say("swapped", "ours is the reference's %s: the two are swapped (gate and up, or q, k and v), or it is used for both", t.name)
	default:
		s.say("another tensor", "ours is the reference's %s: a step between them is missing, such as a norm, "+
			"or the wrong tensor is taken", t.name)
	}
}

// rounding looks for values that have been through a smaller float.
func (s *search) rounding() {
	if s.Ours.Dtype() != mlx.Float32 {
		return
	}
	share := func(t tensor, bits int) float64 {
		n := 0
		for _, x := range t.v {
			if math.Float32bits(float32(x))&(1<<bits-1) == 0 {
				n++
			}
		}
		return float64(n) / float64(len(t.v))
	}
	for _, f := range []struct {
		name string
		bits int // of the mantissa that are lost
	}{{"bfloat16", 16}, {"float16", 13}} {
		if share(s.got, f.bits) > 0.98 && share(s.want, f.bits) < 0.5 {
			s.say("lost upcast", "all of our values are exact in %s, the reference's are finer: something is computed in %[1]s "+
				"that should be in float32", f.name)
			return
		}
	}
}

// alongAxes describes errors that lie along an axis. More than one hint may hold.
func (s *search) alongAxes() {
	total := s.off * s.off
	for axis, d := range s.want.shape {
		if d < 2 || d == len(s.want.v) {
			continue
		}
		_, inner := s.want.around(axis)
		offset, wrong, count := make([]float64, d), make([]float64, d), float64(len(s.want.v)/d)
		ones := make([]float64, d)
		for i, w := range s.want.v {
			k, e := i/inner%d, s.got.v[i]-w
			offset[k] += e / count
			wrong[k] += e * e
			ones[k] = 1
		}
		scaled, _, _ := affine(s.want, s.got, axis, false)
		switch {
		case s.fits(s.want.affine(axis, ones, offset)):
			s.say("bias", "ours is the reference plus one value for each index of axis %d: a bias or a shift is missing, "+
				"added twice, or applied along the wrong axis", axis)
		case s.fits(scaled):
			s.say("scale", "ours is the reference times one factor for each index of axis %d: a scale is missing, "+
				"applied twice, or applied along the wrong axis", axis)
		}
		if s.part != nil { // which indices are wrong is known of the whole tensor
			wrong = s.whole.wrongAlong(axis)
			d, total = len(wrong), 0
			for _, e := range wrong {
				total += e
			}
		}
		from, to, hit := d, 0, 0 // the indices that have nearly all of the error
		for k, e := range wrong {
			if e > 1e-6*total {
				from, to, hit = min(from, k), max(to, k+1), hit+1
			}
		}
		if hit <= (d+1)/2 && to-from == hit {
			s.share = 0
			s.say("one axis", "only indices %d to %d of the %d along axis %d differ (padding, a position, or one of several parts)",
				from, to-1, d, axis)
		}
	}
}

// overall describes an error that nothing else explains: no similarity.
func (s *search) overall() {
	if cosine := dot(s.want, s.got) / (norm(s.want) * norm(s.got)); math.Abs(cosine) < 0.3 {
		s.share = 0
		s.say("all differ", "all values differ, with a cosine of %.2f: other weights, another input, another order "+
			"than any tried, or several mistakes", cosine)
	}
}
