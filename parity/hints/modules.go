package hints

import (
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx/hooks"
)

// A function is an activation by its name.
type function struct {
	name string
	f    func(x float64) float64
}

func identity(x float64) float64 { return x }

var activations = []function{
	{"SiLU", func(x float64) float64 { return x / (1 + math.Exp(-x)) }},
	{"GELU (erf)", func(x float64) float64 { return x * 0.5 * (1 + math.Erf(x/math.Sqrt2)) }},
	{"GELU (tanh)", func(x float64) float64 {
		return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}},
	{"GELU (quick)", func(x float64) float64 { return x / (1 + math.Exp(-1.702*x)) }},
	{"ReLU", func(x float64) float64 { return max(0, x) }},
	{"no activation", identity},
}

// A gated is what an activation goes over: f(gate), times up unless that has no values.
type gated struct{ gate, up tensor }

func (g gated) value(f function) tensor {
	y := g.gate.apply(f.f)
	if g.up.v != nil {
		y = y.with(g.up, times)
	}
	return y
}

// activation compares f(x) and f(gate)·up with other functions and halves.
func (s *search) activation() {
	for _, g := range s.activated() {
		for _, ref := range activations {
			if g.up.v == nil && ref.name == "no activation" || !s.isReference(g.value(ref)) {
				continue
			}
			plain := s.closest(gated{gate: g.gate}) + s.closest(gated{gate: g.up})
			switch ours := s.closest(g); {
			case ours != "":
				s.say("activation", "ours computes %s where the reference has %s", ours, ref.name)
			case g.up.v != nil && s.closest(gated{g.up, g.gate}) != "":
				s.say("gate and up swapped", "the activation is of %s and should be of %s: gate and up are swapped", g.up.name, g.gate.name)
			case g.up.v != nil && plain != "":
				s.say("plain MLP", "ours is a plain MLP, the reference a gated one: the product with the other half is missing")
			default:
				continue
			}
			return
		}
	}
}

// closest returns the activation that explains ours best, or "".
func (s *search) closest(g gated) string {
	name, least := "", math.Inf(1)
	for _, a := range activations {
		made := g.value(a)
		if d := distance(made, s.got); s.fits(made) && d < least {
			name, least = a.name, d
		}
	}
	return name
}

// activated returns what the wrong tensor may be an activation of: the module's input, the
// two halves of that, or for an input the products of two outputs of the modules next to it.
func (s *search) activated() (out []gated) {
	module, d := s.Name.Module, s.want.last()
	if s.isOutput() {
		x, ok := s.input(module, "0")
		if proj, there := s.tensor(module+".proj", hooks.Point{}); there { // diffusers' GELU has its projection inside
			x, ok = proj, true
		}
		switch {
		case !ok:
		case slices.Equal(x.shape, s.want.shape):
			out = append(out, gated{gate: x})
		case x.last() == 2*d && len(x.v) == 2*len(s.want.v):
			a, b := x.columns(0, d), x.columns(d, 2*d)
			a.name, b.name = "the first half", "the second half"
			out = append(out, gated{a, b}, gated{b, a})
		}
		return out
	}
	if !s.isInput() {
		return nil
	}
	parent := hooks.Parent(module)
	found := s.around(parent, func(n hooks.Name, t tensor) bool {
		return n.Point == hooks.Point{} && hooks.Parent(n.Module) == parent && slices.Equal(t.shape, s.want.shape)
	})
	for _, a := range found {
		for _, b := range found {
			if a.name != b.name {
				out = append(out, gated{a, b})
			}
		}
	}
	return out
}

// epsilons are those that norms are tried with.
var epsilons = []float64{1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8}

// norm finds norms of the last axis of another kind (RMSNorm or LayerNorm), or with another
// epsilon.
func (s *search) norm() {
	x, ok := s.input(s.Name.Module, "0")
	module := s.Name.Module
	if !s.isOutput() || !ok || len(x.shape) < 2 || !slices.Equal(x.shape, s.want.shape) || len(x.v)/x.last() < 3 ||
		!strings.Contains(module, "norm") && !strings.HasSuffix(hooks.Parent(module), "embedder") {
		return
	}
	for _, centred := range []bool{false, true} {
		eps, slopes, offsets, ok := s.fitNorm(x, centred)
		if !ok {
			continue
		}
		name := map[bool]string{false: "RMSNorm", true: "LayerNorm"}
		if s.Input != nil && slices.Equal(s.Input.Shape(), x.shape) {
			x = hostTensor(x.name, s.Input) // which may be wrong, and is not what is looked for
			off := s.off
			defer func() { s.off = off }()
			if s.off = distance(x.normalised(eps, centred).affine(len(x.shape)-1, slopes, offsets), s.got); s.off < 1e-5*norm(s.got) {
				return
			}
		}
		if y, _, _ := affine(x.normalised(eps, !centred), s.got, len(x.shape)-1, true); s.fits(y) {
			s.say("norm kind", "ours is %s, the reference %s (only LayerNorm takes the mean off)", name[!centred], name[centred])
			return
		}
		for _, other := range epsilons {
			if other != eps && s.fits(x.normalised(other, centred).affine(len(x.shape)-1, slopes, offsets)) {
				s.say("norm eps", "the eps of the %s seems to be %.0e, the reference's %.0e", name[centred], other, eps)
				return
			}
		}
	}
}

// fitNorm finds the epsilon, weight and bias with which a norm gives the reference's output.
func (s *search) fitNorm(x tensor, centred bool) (eps float64, slopes, offsets []float64, ok bool) {
	least := math.Inf(1)
	for _, e := range epsilons {
		y, a, b := affine(x.normalised(e, centred), s.want, len(x.shape)-1, centred)
		if d := distance(y, s.want); d < 0.99*least {
			eps, slopes, offsets, least = e, a, b, d
			ok = s.isReference(y)
		}
	}
	return eps, slopes, offsets, ok
}

// normalised returns the rows as a norm without weight and bias makes them: LayerNorm, which
// takes the mean off, or RMSNorm.
func (t tensor) normalised(eps float64, centred bool) tensor {
	out := tensor{t.name, t.shape, make([]float64, 0, len(t.v))}
	for row := range slices.Chunk(t.v, t.last()) {
		mean, std := moments(row)
		square := std * std
		if !centred {
			mean, square = 0, square+mean*mean
		}
		for _, v := range row {
			out.v = append(out.v, (v-mean)/math.Sqrt(square+eps))
		}
	}
	return out
}
