package parity

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// This file has the hints that compute a module's maths from the reference's
// tensors, right and in the ways in which it goes wrong.

// A variant is one way to compute something.
type variant struct {
	name string
	f    func(x float64) float64
}

var activations = []variant{
	{"SiLU", func(x float64) float64 { return x / (1 + math.Exp(-x)) }},
	{"GELU (erf)", func(x float64) float64 { return x * 0.5 * (1 + math.Erf(x/math.Sqrt2)) }},
	{"GELU (tanh)", func(x float64) float64 {
		return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}},
	{"GELU (quick)", func(x float64) float64 { return x / (1 + math.Exp(-1.702*x)) }},
	{"ReLU", func(x float64) float64 { return max(0, x) }},
	{"a sigmoid", func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }},
	{"tanh", math.Tanh},
	{"nothing", func(x float64) float64 { return x }},
}

// activation compares what a function of its input makes.
func (s *search) activation() {
	if s.name.Point.Kind != hooks.Output {
		return
	}
	x, ok := s.input(s.name.Module, "0")
	if !ok || !slices.Equal(x.shape, s.want.shape) {
		// diffusers' GELU has its projection inside
		if x, ok = s.tensor(s.name.Module+".proj", hooks.Point{}); !ok || !slices.Equal(x.shape, s.want.shape) {
			s.gatedHalves()
			return
		}
	}
	for _, ref := range activations {
		if ref.name == "nothing" || !s.isReference(x.apply(ref.f)) {
			continue
		}
		if ours := s.closest(func(f func(float64) float64) tensor { return x.apply(f) }); ours != "" && ours != ref.name {
			s.say("activation", "ours computes %s where the reference has %s", ours, ref.name)
		}
		return
	}
}

// gatedHalves looks at a product of the halves of its input, of which one goes
// through an activation.
func (s *search) gatedHalves() {
	x, ok := s.input(s.name.Module, "0")
	d := s.want.last()
	if !ok || x.last() != 2*d || len(x.v) != 2*len(s.want.v) {
		return
	}
	half := func(at int) tensor {
		out := tensor{"", s.want.shape, make([]float64, 0, len(s.want.v))}
		for i := at * d; i < len(x.v); i += 2 * d {
			out.v = append(out.v, x.v[i:i+d]...)
		}
		return out
	}
	halves := []tensor{half(0), half(1)}
	for gate, a := range halves {
		b := halves[1-gate]
		for _, ref := range activations {
			if !s.isReference(a.apply(ref.f).with(b, times)) {
				continue
			}
			if ours := s.closest(func(f func(float64) float64) tensor { return a.apply(f).with(b, times) }); ours != "" {
				s.say("activation", "the gate goes through %s, in the reference through %s", ours, ref.name)
			} else if s.closest(func(f func(float64) float64) tensor { return b.apply(f).with(a, times) }) != "" {
				s.say("gate and up swapped", "the gate is half %d of the input and should be half %d: gate and up are swapped", 1-gate, gate)
			}
			return
		}
	}
}

// closest is the activation with which a pattern comes closest to ours, "" if
// with none it fits.
func (s *search) closest(pattern func(f func(float64) float64) tensor) string {
	name, least := "", math.Inf(1)
	for _, a := range activations {
		if made := pattern(a.f); s.fits(made) {
			if d := distance(made, s.got); d < least {
				name, least = a.name, d
			}
		}
	}
	return name
}

// linearUnits looks at the product of two linear layers, of which one goes
// through an activation.
func (s *search) linearUnits() {
	if s.name.Point.Kind != hooks.Input {
		return
	}
	parent := parentOf(s.name.Module)
	pairs := s.around(parent, func(t tensor) bool {
		n, _ := hooks.ParseName(t.name)
		return n.Point == (hooks.Point{}) && parentOf(n.Module) == parent && slices.Equal(t.shape, s.want.shape)
	})
	for _, a := range pairs {
		for _, b := range pairs {
			if a.name == b.name {
				continue
			}
			for _, ref := range activations {
				if !s.isReference(a.apply(ref.f).with(b, times)) {
					continue
				}
				gated := s.closest(func(f func(float64) float64) tensor { return a.apply(f).with(b, times) })
				swapped := s.closest(func(f func(float64) float64) tensor { return b.apply(f).with(a, times) })
				plain := s.closest(func(f func(float64) float64) tensor { return a.apply(f) }) + s.closest(func(f func(float64) float64) tensor { return b.apply(f) })
				switch {
				case gated != "":
					s.say("activation", "the gate goes through %s, in the reference through %s", gated, ref.name)
				case swapped != "":
					s.say("gate and up swapped", "the gate is %s and should be %s: gate and up are swapped", b.name, a.name)
				case plain != "":
					s.say("plain MLP", "ours is a plain MLP, the reference a gated one: the product with the other half is missing")
				default:
					continue
				}
				return
			}
		}
	}
}

// norms fits norms with a weight for each channel, and their epsilon.
func (s *search) norms() {
	if s.name.Point.Kind != hooks.Output {
		return
	}
	x, ok := s.input(s.name.Module, "0")
	if !ok || len(x.shape) < 2 || !slices.Equal(x.shape, s.want.shape) || !strings.Contains(s.name.Module, "norm") && !strings.HasSuffix(parentOf(s.name.Module), "embedder") {
		return
	}
	if len(x.v)/x.last() >= 3 { // rows
		rms, layer := x.normalised(1, false), x.normalised(1, true)
		switch {
		case s.isReference(affine(rms, s.want)) && !s.isReference(affine(layer, s.want)) && s.fits(affine(layer, s.got)):
			s.say("norm kind", "ours is a LayerNorm, the reference an RMSNorm: the mean must not be taken off")
			return
		case s.isReference(affine(layer, s.want)) && !s.isReference(affine(rms, s.want)) && s.fits(affine(rms, s.got)):
			s.say("norm kind", "ours is an RMSNorm, the reference a LayerNorm: the mean must be taken off")
			return
		}
	}
	if s.eps(x, 1, false, "RMSNorm") || s.eps(x, 1, true, "LayerNorm") {
		return
	}
	if s.affineEps(x) {
		return
	}
	for groups := 2; groups <= 32 && len(x.shape) > 2; groups++ {
		if x.shape[1]%groups == 0 && s.eps(x, groups, true, fmt.Sprintf("GroupNorm of %d groups", groups)) {
			return
		}
	}
}

// affineEps explains an error of a norm with weight and bias by two epsilons. The
// weight and bias are those with which the reference's output comes closest.
func (s *search) affineEps(x tensor) bool {
	if len(x.v)/x.last() < 3 {
		return false
	}
	epsilons := []float64{1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8}
	n := x.last()
	for _, centred := range []bool{true, false} {
		normal := func(eps float64) tensor {
			out := tensor{x.name, x.shape, make([]float64, 0, len(x.v))}
			for _, row := range x.rows(1) {
				mean, square := moments(row, centred)
				for _, v := range row {
					out.v = append(out.v, (v-mean)/math.Sqrt(square+eps))
				}
			}
			return out
		}
		ref, least := 0.0, math.Inf(1)
		for _, eps := range epsilons {
			if d := distance(affine(normal(eps), s.want), s.want); d < 0.99*least {
				ref, least = eps, d
			}
		}
		base := normal(ref)
		right := affine(base, s.want)
		if !s.isReference(right) {
			continue
		}
		slope, offset := make([]float64, n), make([]float64, n)
		for c := range n { // a line goes through two of its points
			low, high := c, c
			for i := c; i < len(base.v); i += n {
				if base.v[i] < base.v[low] {
					low = i
				}
				if base.v[i] > base.v[high] {
					high = i
				}
			}
			if high != low {
				slope[c] = (right.v[high] - right.v[low]) / (base.v[high] - base.v[low])
			}
			offset[c] = right.v[low] - slope[c]*base.v[low]
		}
		for _, eps := range epsilons {
			made := normal(eps)
			for i := range made.v {
				made.v[i] = slope[i%n]*made.v[i] + offset[i%n]
			}
			if eps != ref && s.fits(made) {
				s.say("norm eps", "the eps of the norm seems to be %.0e, the reference's %.0e", eps, ref)
				return true
			}
		}
	}
	return false
}

// rows takes a tensor apart into what is normalised together: rows of the last
// axis, or with groups the parts of axis 1.
func (t tensor) rows(groups int) (rows [][]float64) {
	n := t.last()
	if groups > 1 {
		n = len(t.v) / t.shape[0] / groups
	}
	for i := 0; i < len(t.v); i += n {
		rows = append(rows, t.v[i:i+n])
	}
	return rows
}

// normalised divides rows by their root mean square, of what is left without
// the mean if that is centred.
func (t tensor) normalised(groups int, centred bool) tensor {
	out := tensor{t.name, t.shape, make([]float64, 0, len(t.v))}
	for _, row := range t.rows(groups) {
		mean, square := moments(row, centred)
		for _, x := range row {
			out.v = append(out.v, (x-mean)/math.Sqrt(square+1e-12))
		}
	}
	return out
}

func moments(row []float64, centred bool) (mean, square float64) {
	if centred {
		for _, x := range row {
			mean += x / float64(len(row))
		}
	}
	for _, x := range row {
		square += (x - mean) * (x - mean) / float64(len(row))
	}
	return mean, square
}

// affine is x times a factor and plus an offset for each index of the last
// axis, as close to y as they can be.
func affine(x, y tensor) tensor {
	n := x.last()
	rows := float64(len(x.v) / n)
	sx, sy, sxx, sxy := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
	for i, v := range x.v {
		c := i % n
		sx[c] += v
		sy[c] += y.v[i]
		sxx[c] += v * v
		sxy[c] += v * y.v[i]
	}
	out := tensor{x.name, x.shape, make([]float64, len(x.v))}
	for i, v := range x.v {
		c := i % n
		slope := 0.0
		if d := rows*sxx[c] - sx[c]*sx[c]; d > 0 {
			slope = (rows*sxy[c] - sx[c]*sy[c]) / d
		}
		out.v[i] = slope*v + (sy[c]-slope*sx[c])/rows
	}
	return out
}

// eps explains an error by two epsilons: of rows with a mean square m, ours is
// the reference's times √((m+e)/(m+e')). GroupNorms may have an offset, so
// differences inside a channel are compared.
func (s *search) eps(x tensor, groups int, centred bool, kind string) bool {
	xs, gs, ws := x.rows(groups), s.got.rows(groups), s.want.rows(groups)
	factor := func(g, w []float64, channel int) float64 {
		dot, square := 0.0, 0.0
		for i := 0; i < len(w); i += channel {
			a, b := 0.0, 0.0
			if groups > 1 {
				for k := i; k < i+channel; k++ {
					a += g[k] / float64(channel)
					b += w[k] / float64(channel)
				}
			}
			for k := i; k < min(i+channel, len(w)); k++ {
				dot += (g[k] - a) * (w[k] - b)
				square += (w[k] - b) * (w[k] - b)
			}
		}
		return dot / square
	}
	channel := x.last()
	if groups > 1 {
		channel = len(x.v) / x.shape[0] / x.shape[1]
	}
	// r²(m + e') = m + e, so r²·e' - e = m(1 - r²): two unknowns, by least squares
	var a11, a12, a22, b1, b2 float64
	fitted := tensor{v: make([]float64, 0, len(s.want.v))}
	for i := range ws {
		_, m := moments(xs[i], centred)
		r := factor(gs[i], ws[i], channel)
		if math.IsNaN(r) || m == 0 {
			return false
		}
		// in units of m, so that small rows count
		p, q, rhs := r*r/m, -1/m, 1-r*r
		a11, a12, a22 = a11+p*p, a12+p*q, a22+q*q
		b1, b2 = b1+p*rhs, b2+q*rhs
		for k, w := range ws[i] {
			offset := 0.0
			if groups > 1 { // the channel's offset is in both
				at := k / channel * channel
				for j := at; j < at+channel; j++ {
					offset += (gs[i][j] - r*ws[i][j]) / float64(channel)
				}
			}
			fitted.v = append(fitted.v, r*w+offset)
		}
	}
	if !s.fits(fitted) {
		return false
	}
	det := a11*a22 - a12*a12
	ours, ref := (b1*a22-b2*a12)/det, (a11*b2-a12*b1)/det
	if !(det > 0) || ours < -1e-12 || ref < -1e-12 || ours > 1 || ref > 1 {
		return false
	}
	// it must be these two that explain the factors
	worst := 0.0
	for i := range ws {
		_, m := moments(xs[i], centred)
		r := factor(gs[i], ws[i], channel)
		worst = max(worst, math.Abs(r-math.Sqrt((m+ref)/(m+ours)))/max(math.Abs(1-r), 1e-9))
	}
	if worst > 0.2 {
		return false
	}
	switch { // of the smaller one little can be seen
	case ours > 8*ref:
		s.say("norm eps", "the eps of the %s seems to be %.1g, the reference's far smaller", kind, ours)
	case ref > 8*ours:
		s.say("norm eps", "the eps of the reference's %s seems to be %.1g, ours far smaller", kind, ref)
	default:
		s.say("norm eps", "the eps of the %s seems to be %.1g, the reference's %.1g", kind, ours, ref)
	}
	return true
}

// modulation looks for chunks of a modulation vector that are used for each
// other, where a norm is scaled and shifted, or gated and added.
func (s *search) modulation() {
	if len(s.want.shape) != 3 {
		return
	}
	scope := s.name.Module
	if s.name.Point.Kind == hooks.Input {
		scope = parentOf(scope)
	}
	for range 3 { // an input may be seen first at a module further inside
		if len(s.hints) == 0 && scope != "" {
			s.modulationIn(scope)
		}
		scope = parentOf(scope)
	}
}

func (s *search) modulationIn(scope string) {
	d := s.want.last()
	inScope := func(t tensor) (hooks.Name, bool) {
		n, _ := hooks.ParseName(t.name)
		return n, n.Module == scope || parentOf(n.Module) == scope
	}
	var chunks []tensor // [D], or [L·D] where tokens have unlike ones
	var names []string
	// which tokens are of references, where these are modulated by another row
	index, indexed := s.input(scope, "modulate_index")
	indexed = indexed && len(index.v)*d == len(s.want.v)
	for _, t := range s.around(scope, func(t tensor) bool {
		n, ok := inScope(t)
		vector := n.Point.Kind == hooks.Output || strings.HasPrefix(n.Point.Key, "temb_mod")
		rows := len(t.v) / t.last()
		return ok && vector && t.last()%d == 0 && (rows == 1 || rows == 2 && indexed) && t.last() <= 9*d
	}) {
		for i := range t.last() / d {
			name := fmt.Sprintf("chunk %d of %s", i, t.name)
			if len(t.v) == t.last() {
				chunks, names = append(chunks, tensor{t.name, []int{d}, t.v[i*d : (i+1)*d]}), append(names, name)
				continue
			}
			c := t.columns(i*d, (i+1)*d)
			of := tensor{t.name, s.want.shape, make([]float64, 0, len(s.want.v))}
			for _, row := range index.v {
				of.v = append(of.v, c.row(int(row)).v...)
			}
			chunks, names = append(chunks, of, c.row(0)), append(names, name, name+" at the step's time, for references too")
		}
	}
	if len(chunks) == 0 || len(chunks) > 18 || len(s.want.v) > 1<<18 {
		return
	}
	bases := s.around(scope, func(t tensor) bool { _, ok := inScope(t); return ok && slices.Equal(t.shape, s.want.shape) })
	along := func(x tensor, c tensor, f func(x, c float64) float64) tensor {
		out := tensor{x.name, x.shape, make([]float64, len(x.v))}
		for i, v := range x.v {
			out.v[i] = f(v, c.v[i%len(c.v)])
		}
		return out
	}
	scale := func(x, c float64) float64 { return x * (1 + c) }
	for _, x := range bases {
		// x·(1+scale), and x·(1+scale) + shift
		for i := range chunks {
			scaled := along(x, chunks[i], scale)
			if s.isReference(scaled) {
				for k := range chunks {
					if k != i && s.fits(along(x, chunks[k], scale)) {
						s.say("modulation swapped", "%s is scaled with %s, in the reference with %s: scale and shift, or attention's and the MLP's, are swapped", x.name, names[k], names[i])
						return
					}
				}
				for k := range chunks {
					switch {
					case s.fits(along(x, chunks[k], times)):
						s.say("modulation without 1", "%s is scaled by %s and should be by 1 plus %s", x.name, names[k], names[i])
					case s.fits(along(x, chunks[k], plus)):
						s.say("scale and shift swapped", "%s is shifted by %s and should be scaled by 1 plus %s", x.name, names[k], names[i])
					case s.fits(x):
						s.say("modulation missing", "%s goes on without the scale of %s", x.name, names[i])
					default:
						continue
					}
					return
				}
			}
			for j := range chunks {
				if j == i || !s.isReference(along(scaled, chunks[j], plus)) {
					continue
				}
				switch {
				case s.fits(along(along(x, chunks[j], scale), chunks[i], plus)):
					s.say("scale and shift swapped", "%s is scaled with %s and shifted with %s, in the reference the other way round", x.name, names[j], names[i])
					return
				case s.fits(along(along(x, chunks[i], times), chunks[j], plus)):
					s.say("modulation without 1", "%s is scaled by %s and should be by 1 plus that", x.name, names[i])
					return
				case s.fits(x):
					s.say("modulation missing", "%s goes on without the scale of %s and the shift of %s", x.name, names[i], names[j])
					return
				}
				for k := range chunks {
					for l := range chunks {
						if k != l && s.fits(along(along(x, chunks[k], scale), chunks[l], plus)) {
							s.say("modulation swapped", "%s is scaled with %s and shifted with %s, in the reference with %s and %s", x.name, names[k], names[l], names[i], names[j])
							return
						}
					}
				}
			}
		}
	}
	gates := []variant{{"tanh of ", math.Tanh}, {"", func(x float64) float64 { return x }}}
	for _, base := range bases {
		for _, x := range bases {
			if base.name == x.name || distance(base, x) == 0 {
				continue
			}
			for _, f := range gates {
				for i := range chunks {
					if !s.isReference(base.with(along(x, chunks[i].apply(f.f), times), plus)) {
						continue
					}
					if s.fits(base.with(x, plus)) {
						s.say("gate missing", "%s is added without its gate, %s%s", x.name, f.name, names[i])
						return
					}
					for _, g := range []variant{f, gates[0], gates[1]} {
						for k := range chunks {
							if (k != i || g.name != f.name) && s.fits(base.with(along(x, chunks[k].apply(g.f), times), plus)) {
								s.say("gate", "%s is gated with %s%s, in the reference with %s%s", x.name, g.name, names[k], f.name, names[i])
								return
							}
						}
					}
				}
			}
		}
	}
}

// rotation finds out from q or k before their rotation which of their features
// are turned together: the length of each pair stays.
func (s *search) rotation(x tensor) {
	d := x.last()
	lengths := func(t tensor, apart int) tensor {
		out := tensor{v: make([]float64, 0, len(t.v)/2)}
		for i := 0; i < len(t.v); i += d {
			for k := range d / 2 {
				a, b := t.v[i+2*k], t.v[i+2*k+1]
				if apart > 1 {
					a, b = t.v[i+k], t.v[i+k+d/2]
				}
				out.v = append(out.v, math.Hypot(a, b))
			}
		}
		return out
	}
	same := func(t tensor, apart int) bool { return distance(lengths(t, apart), lengths(x, apart)) <= 1e-3*norm(x) }
	name := func(t tensor) string {
		switch interleaved, half := same(t, 1), same(t, d/2); {
		case distance(t, x) <= 1e-3*norm(x):
			return "no rotation"
		case interleaved && !half:
			return "interleaved pairs"
		case half && !interleaved:
			return "half-split pairs"
		}
		return ""
	}
	ours, ref := name(s.got), name(s.want)
	switch {
	case ours == "" || ref == "":
	case ours != ref:
		s.say("rope layout", "RoPE: ours has %s, the reference %s", ours, ref)
	default:
		s.say("rope angles", "RoPE: both have %s, the angles differ: other positions, theta, or direction", ours)
	}
}

// attention computes what comes out of attention, from q and k before their
// rotation and the reference's rotary table.
func (s *search) attention() {
	n := s.name
	inner := n.Point.Kind == hooks.Inner
	module := n.Module
	switch {
	case inner:
	case len(s.want.shape) != 3:
		return
	case n.Point.Kind == hooks.Input:
		module = strings.TrimSuffix(parentOf(module), ".to_out")
		if word := strings.ToLower(module); !strings.Contains(word, "attn") && !strings.Contains(word, "attention") {
			return
		}
	case !strings.HasSuffix(module, ".attn"): // FLUX's without a projection of their output
		return
	}
	get := func(point hooks.Point, paths ...string) *mlx.Array {
		for _, path := range paths {
			if a := s.array(hooks.Name{Module: strings.TrimSuffix(module+"."+path, "."), Step: n.Step, Call: n.Call, Point: point}); a != nil {
				return a
			}
		}
		return nil
	}
	innerPoint := func(key string) hooks.Point { return hooks.Point{Kind: hooks.Inner, Key: key} }
	in := func(key string) hooks.Point { return hooks.Point{Kind: hooks.Input, Key: key} }
	if key := n.Point.Key; inner && (key == hooks.Q || key == hooks.K) {
		if x := get(innerPoint(key+".unrotated"), ""); x != nil && slices.Equal(x.Shape(), s.want.shape) {
			s.rotation(hostTensor("", x))
			return
		}
	}
	if s.joint(module) {
		return
	}
	if s.textAttention(module); len(s.hints) > 0 {
		return
	}
	lengthFirst := !strings.HasPrefix(module, "text_encoder") && !strings.HasPrefix(module, "vae")
	headsFirst := func(x *mlx.Array) *mlx.Array { return x.Transpose(0, 2, 1, 3) }
	qu, ku := get(hooks.Point{}, "norm_q", "q_norm"), get(hooks.Point{}, "norm_k", "k_norm")
	if qu == nil || ku == nil || qu.Ndim() != 4 {
		return
	}
	if qu.Size() > maxHinted || qu.Dim(1) > 2048 {
		return // the scores would be too many
	}
	qu, ku = headsFirst(qu), headsFirst(ku) // they are [B, L, H, D]
	var rope nn.Rope
	switch table := get(in("freqs_cis"), ""); {
	case table != nil && table.Ndim() == 4: // [B, L, D/2, 2]
		l, half := table.Dim(1), table.Dim(2)
		parts := table.Slice(0, 0, 1).Reshape(l, half, 2).Split(2, -1)
		rope = nn.Rope{Cos: parts[0].Squeeze(-1), Sin: parts[1].Squeeze(-1)}
	default:
		cos, sin := get(in("position_embeddings.0"), ""), get(in("position_embeddings.1"), "")
		if cos == nil || sin == nil || cos.Ndim() != 3 {
			return
		}
		l, half := cos.Dim(1), cos.Dim(2)/2
		rope = nn.Rope{Cos: cos.Slice(0, 0, 1).Reshape(l, 2*half).Slice(1, 0, half), Sin: sin.Slice(0, 0, 1).Reshape(l, 2*half).Slice(1, 0, half)}
	}
	if rope.Cos.Dim(0) != qu.Dim(2) || rope.Cos.Dim(1)*2 != qu.Dim(3) {
		return
	}
	back := nn.Rope{Cos: rope.Cos, Sin: rope.Sin.Neg()}
	rotations := []struct {
		name string
		f    func(*mlx.Array) *mlx.Array
	}{
		{"interleaved pairs", rope.Interleaved}, {"half-split pairs", rope.HalfSplit},
		{"interleaved pairs turned backwards", back.Interleaved}, {"half-split pairs turned backwards", back.HalfSplit},
		{"no rotation", func(x *mlx.Array) *mlx.Array { return x }},
	}
	if inner {
		x := map[string]*mlx.Array{hooks.Q: qu, hooks.K: ku}[n.Point.Key]
		if x == nil {
			return
		}
		made := func(f func(*mlx.Array) *mlx.Array) tensor {
			y := f(x)
			if lengthFirst {
				y = headsFirst(y)
			}
			return hostTensor("", y)
		}
		for _, ref := range rotations {
			if !s.isReference(made(ref.f)) {
				continue
			}
			for _, ours := range rotations {
				if ours.name != ref.name && s.fits(made(ours.f)) {
					s.say("rope layout", "RoPE: ours has %s, the reference %s", ours.name, ref.name)
					return
				}
			}
			// the same rotation, and something around it
			if y := made(ref.f); len(y.v) == len(s.got.v) {
				t := *s
				t.want = y
				if t.constant(); len(t.hints) > 0 && strings.Contains(t.hints[0].Key, "ratio") {
					s.say("attention scale", "%s is right but for a factor (%s): a scale of attention is missing, or there twice", n.Point.Key, t.hints[0].Text)
				}
			}
			return
		}
		return
	}
	v := get(innerPoint(hooks.V), "")
	heads := ku.Dim(1)
	if v != nil && lengthFirst {
		v = headsFirst(v)
	}
	if v == nil {
		if v = get(hooks.Point{}, "to_v", "v_proj"); v == nil || v.Ndim() != 3 {
			return
		}
		v = nn.Heads(v, heads)
	}
	scaleOf := 1 / math.Sqrt(float64(qu.Dim(3)))
	// cast is the dtype that q, k and v pass through
	compute := func(rotate func(*mlx.Array) *mlx.Array, scale float64, causal bool, cast, in mlx.Dtype) tensor {
		q, k, v := rotate(qu).AsType(cast).AsType(in), rotate(ku).AsType(cast).AsType(in), v.AsType(cast).AsType(in)
		if causal {
			return hostTensor("", nn.MergeHeads(mlx.CausalAttention(q, k, v, float32(scale))))
		}
		return hostTensor("", nn.MergeHeads(mlx.Attention(q, k, v, float32(scale), nil)))
	}
	type way struct {
		text, key string
		value     tensor
	}
	for _, causal := range []bool{false, true} {
		for _, ref := range rotations[:2] {
			if !s.isReference(compute(ref.f, scaleOf, causal, mlx.Float32, mlx.Float32)) {
				continue
			}
			ways := []way{
				{"the scale 1/√D is missing", "attention scale", compute(ref.f, 1, causal, mlx.Float32, mlx.Float32)},
				{"the scale 1/√D is there twice", "attention scale", compute(ref.f, scaleOf*scaleOf, causal, mlx.Float32, mlx.Float32)},
				{"the scale is √D, not 1/√D", "attention scale", compute(ref.f, 1/scaleOf, causal, mlx.Float32, mlx.Float32)},
				{map[bool]string{true: "the causal mask is missing", false: "there is a causal mask, and should be none"}[causal], "attention mask", compute(ref.f, scaleOf, !causal, mlx.Float32, mlx.Float32)},
				{"it is computed in bfloat16", "lost upcast", compute(ref.f, scaleOf, causal, mlx.BFloat16, mlx.BFloat16)},
				{"it is computed in float16", "lost upcast", compute(ref.f, scaleOf, causal, mlx.Float16, mlx.Float16)},
				{"q, k and v have been in bfloat16", "lost upcast", compute(ref.f, scaleOf, causal, mlx.BFloat16, mlx.Float32)},
				{"q, k and v have been in float16", "lost upcast", compute(ref.f, scaleOf, causal, mlx.Float16, mlx.Float32)},
			}
			for _, ours := range rotations {
				if ours.name != ref.name {
					ways = append(ways, way{fmt.Sprintf("RoPE: ours has %s, the reference %s", ours.name, ref.name), "rope layout", compute(ours.f, scaleOf, causal, mlx.Float32, mlx.Float32)})
				}
			}
			if causal { // a language model's positions are known
				var positions [][]int
				for i := range qu.Dim(2) {
					positions = append(positions, []int{i})
				}
				for _, theta := range []float64{1e4, 1e5, 5e5, 1e6, 1e7} {
					other := nn.NewRope(positions, []int{qu.Dim(3)}, theta)
					ways = append(ways, way{fmt.Sprintf("RoPE: ours has theta %g", theta), "rope theta", compute(other.HalfSplit, scaleOf, true, mlx.Float32, mlx.Float32)})
				}
			}
			for _, w := range ways {
				if s.fits(w.value) {
					s.say(w.key, "attention: %s", w.text)
					return
				}
			}
			return
		}
	}
}
