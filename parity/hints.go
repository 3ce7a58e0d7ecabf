package parity

import (
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

func (r *replay) hints(name string, tap hooks.Tap, got, want *mlx.Array) []Hint {
	n, err := hooks.ParseName(name)
	if err != nil || got.Size() > maxHinted || got.Size() < 2 {
		return nil
	}
	s := &search{r: r, name: n, tap: tap, got: hostTensor(name, got), want: hostTensor(name, want)}
	if !s.finite() {
		return s.hints
	}
	if s.off = distance(s.got, s.want); s.off == 0 {
		return nil
	}
	// the special ones go before those that hold for anything
	for _, look := range []func(){
		s.time, s.sigmas, s.positions, s.qwen, s.hiddenLayers, s.pooledRow, s.guidance, s.attention, s.linearUnits, s.activation, s.modulation, s.norms,
		s.constant, s.packing, s.siblings, s.order, s.half,
	} {
		if look(); len(s.hints) > 0 {
			return s.hints
		}
	}
	s.axes()
	return s.hints
}

// time reads the time back from a sinusoidal embedding.
func (s *search) time() {
	sinusoids := s.name.Point.Kind == hooks.Input && strings.Contains(s.name.Module, "embedder") || strings.HasSuffix(s.name.Module, ".time_proj")
	if !sinusoids || s.want.last() != 256 || len(s.want.v) != 256 && len(s.want.v) != 512 {
		return
	}
	if len(s.want.v) == 512 { // the step's time, and that of references
		now, then := *s, *s
		now.got, now.want, then.got, then.want = s.got.row(0), s.want.row(0), s.got.row(1), s.want.row(1)
		now.off, then.off = distance(now.got, now.want), distance(then.got, then.want)
		if now.off > then.off {
			now.time()
			s.hints = now.hints
		} else {
			s.say("time of references", "the time of references is embedded as another than 0")
		}
		return
	}
	decode := func(t tensor) float64 { // the slowest frequency turns less than once
		f := math.Exp(-math.Log(10000) * 127 / 128)
		return math.Atan2(t.v[255], t.v[127]) / f
	}
	got, want := decode(s.got), decode(s.want)
	about := func(a, b float64) bool { return math.Abs(a-b) <= 1e-3*max(1, math.Abs(b)) }
	swapped := tensor{"", s.got.shape, slices.Concat(s.want.v[128:], s.want.v[:128])}
	switch {
	case want == 0 && s.name.Call > 0 && strings.Contains(s.name.Module, "time_guidance_embed"):
		s.say("time of references", "the embedded time is %.4g, the reference's 0, which is that of pictures whose keys and values are kept", got)
	case s.fits(swapped):
		s.say("sinusoid order", "sine and cosine are swapped in the timestep embedding")
	case s.isGuidance() && about(got*1000, want):
		s.say("guidance scale", "the embedded guidance is %.4g, the reference's %.4g: it is not multiplied by 1000 as timesteps are", got, want)
	case s.isGuidance():
		s.say("guidance", "the embedded guidance is %.4g, the reference's %.4g", got, want)
	case about(got*1000, want):
		s.say("sigma for timestep", "the embedded time is %.4g, the reference's %.4g: a sigma (0 to 1) where the timestep's value (0 to 1000) belongs", got, want)
	case about(got, want*1000):
		s.say("timestep for sigma", "the embedded time is %.4g, the reference's %.4g: it is scaled by 1000 once too often", got, want)
	case about(got, float64(s.name.Step)):
		s.say("index for timestep", "the embedded time is %.4g, the reference's %.4g: the step's index where the timestep's value belongs", got, want)
	case about(got, 1000-want):
		s.say("time reversed", "the embedded time is %.4g, the reference's %.4g: time runs the other way, from 1000 to 0", got, want)
	default:
		if ts := s.r.ref.Array("timesteps"); ts != nil {
			for i, t := range ts.Floats() {
				if i != s.name.Step && (about(got, float64(t)) || about(got, 1000-float64(t))) {
					s.say("timestep of another step", "the embedded time is %.4g, the reference's %.4g: that of step %d at step %d", got, want, i, s.name.Step)
					return
				}
			}
		}
		s.say("timestep", "the embedded time is %.4g, the reference's %.4g", got, want)
	}
}

// isGuidance says whether sinusoids are those of the guidance, which a model that
// takes it embeds after the time.
func (s *search) isGuidance() bool {
	second := s.name.Call == 1 && !strings.HasPrefix(s.r.pipeline.Class, "QwenImage") // where it is the negative prompt's
	return strings.Contains(s.name.Module, "guidance_embedder") || strings.Contains(s.name.Module, "time_text_embed") && second
}

// sigmas compares schedules.
func (s *search) sigmas() {
	if s.name.Module != "sigmas" && s.name.Module != "timesteps" {
		return
	}
	n := len(s.want.v)
	for _, by := range []int{1, -1} {
		same := 0
		for i := range n {
			if j := i + by; j >= 0 && j < n && math.Abs(s.got.v[i]-s.want.v[j]) <= 1e-5*math.Abs(s.want.v[j])+1e-7 {
				same++
			}
		}
		if n > 2 && same == n-1 {
			s.say("off by one step", "%s is the reference's, %d step off: an index is off by one", s.name.Module, by)
			return
		}
	}
	scale := 1.0
	if s.name.Module == "timesteps" {
		scale = 1000
	}
	// shift·s / (1 + (shift-1)·s) of one schedule is that of another with the ratio of both shifts
	var shifts []float64
	for i, w := range s.want.v {
		w, g := w/scale, s.got.v[i]/scale
		if w > 1e-6 && w < 1-1e-6 && g > 1e-6 && g < 1-1e-6 {
			shifts = append(shifts, g*(1-w)/(w*(1-g)))
		}
	}
	if len(shifts) > 0 && slices.Max(shifts)-slices.Min(shifts) <= 1e-3*slices.Max(shifts) {
		or := ""
		if len(shifts) == 1 {
			or = ", or it is stretched to another end (shift_terminal)"
		}
		s.say("schedule shift", "the schedule is shifted %.4g times as much as the reference's (shift, or the mu of dynamic shifting)%s", shifts[0], or)
		return
	}
	// 1 - (1-s)·k of one schedule is that of another with another last sigma
	var stretches []float64
	for i, w := range s.want.v {
		if w, g := w/scale, s.got.v[i]/scale; w > 1e-6 && w < 1-1e-6 {
			stretches = append(stretches, (1-g)/(1-w))
		}
	}
	if len(stretches) > 1 && slices.Max(stretches)-slices.Min(stretches) <= 1e-3*slices.Max(stretches) {
		s.say("schedule end", "the schedule ends at another sigma than the reference's (shift_terminal): distances from 1 are %.4g times as large", stretches[0])
	}
}

// siblings looks for ours among the reference's other tensors.
func (s *search) siblings() {
	same := func(t tensor) bool { return slices.Equal(t.shape, s.want.shape) }
	scopes := []string{s.name.Module, parentOf(s.name.Module), parentOf(parentOf(s.name.Module))}
	if s.name.Module == "prompt.embeds" || s.name.Module == "negative.embeds" {
		scopes = []string{"text_encoder"}
		same = func(t tensor) bool { return len(t.v) >= len(s.want.v) && t.last() == s.want.last() }
	}
	for _, scope := range scopes {
		if scope == "" {
			continue
		}
		found := s.around(scope, same)
		for i, t := range found { // hidden states may begin with more tokens
			found[i].v = t.v[len(t.v)-len(s.want.v):]
		}
		slices.SortStableFunc(found, func(a, b tensor) int { return own(b, s.name.Module) - own(a, s.name.Module) })
		for _, t := range found {
			if !s.fits(t) {
				continue
			}
			switch own, _ := hooks.ParseName(t.name); {
			case own.Module == s.name.Module && own.Point.Kind == hooks.Input && s.name.Point.Kind == hooks.Output:
				s.say("does nothing", "ours is the reference's %s: the module passes its input on unchanged", t.name)
			case s.name.Module == "prompt.embeds" || s.name.Module == "negative.embeds":
				s.say("hidden layer", "ours is the reference's %s: another hidden layer is taken", t.name)
			case own.Point.Kind == hooks.Output && s.name.Point.Kind == hooks.Output && parentOf(own.Module) == parentOf(s.name.Module):
				s.say("swapped", "ours is the reference's %s: both are swapped (gate and up, or q, k and v)", t.name)
			default:
				s.say("another tensor", "ours is the reference's %s: something between is missing, such as a norm, or the wrong tensor is taken", t.name)
			}
			return
		}
		for _, t := range found {
			switch {
			case s.fits(s.want.with(t, minus)):
				s.say("missing term", "ours is the reference's without %s: a term of a sum is missing, such as a residual", t.name)
				return
			case s.fits(s.want.with(t, plus)):
				s.say("term twice", "ours is the reference's with %s added: a term of a sum is there twice", t.name)
				return
			case s.fits(s.want.with(t, times)):
				s.say("extra factor", "ours is the reference's times %s", t.name)
				return
			}
		}
	}
}

// order looks for the reference's values in another order.
func (s *search) order() {
	a, b := slices.Sorted(slices.Values(s.got.v)), slices.Sorted(slices.Values(s.want.v))
	if distance(tensor{v: a}, tensor{v: b}) > 0.1*s.off {
		return // not the same values
	}
	n := len(s.want.shape)
	if n <= 4 {
		for _, axes := range permutations(n) {
			if slices.IsSorted(axes) {
				continue
			}
			// the values of the other layout, in the shape of this one
			if s.fits(s.want.permute(axes)) {
				s.say("layout", "ours is the reference with its axes in the order %v: a layout is mistaken (channels first or last, a missing transpose)", axes)
				return
			}
		}
	}
	for axis, d := range s.want.shape {
		outer, inner := 1, 1
		for _, x := range s.want.shape[:axis] {
			outer *= x
		}
		for _, x := range s.want.shape[axis+1:] {
			inner *= x
		}
		view := s.want.reshape(outer, d, inner)
		reverse := tensor{"", view.shape, make([]float64, len(view.v))}
		for i := range view.v {
			o, k, in := i/(d*inner), i/inner%d, i%inner
			reverse.v[i] = view.v[(o*d+d-1-k)*inner+in]
		}
		if d > 1 && s.fits(reverse) {
			s.say("reversed", "ours is the reference with axis %d reversed", axis)
			return
		}
		for by := 1; by < d; by++ {
			at := func(i int) int { o, k, in := i/(d*inner), i/inner%d, i%inner; return (o*d+(k+by)%d)*inner + in }
			if !s.starts(view.v, at, inner) {
				continue
			}
			rolled := tensor{"", view.shape, make([]float64, len(view.v))}
			for i := range view.v {
				rolled.v[i] = view.v[at(i)]
			}
			switch {
			case d < 3 || !s.fits(rolled):
				continue
			case by == 1 || by == d-1:
				s.say("rolled", "ours is the reference, one place on along axis %d", axis)
			default:
				s.say("parts in another order", "ours is the reference with the first %d of %d along axis %d at the end: two parts are joined in another order (text and image, or image and references)", by, d, axis)
			}
			return
		}
		for k := 2; k <= 8; k++ {
			if d%k != 0 || d == k {
				continue
			}
			if split := s.want.reshape(outer, k, d/k, inner); s.fits(split.permute([]int{0, 2, 1, 3})) || s.fits(s.want.reshape(outer, d/k, k, inner).permute([]int{0, 2, 1, 3})) {
				s.say("interleaved", "ours is the reference with axis %d taken as %d interleaved parts where it has them one after the other, or the other way round (half-split against interleaved pairs)", axis, k)
				return
			}
			if k > 4 {
				continue
			}
			for _, p := range permutations(k) {
				if slices.IsSorted(p) {
					continue
				}
				parts := tensor{"", []int{outer, k, d / k * inner}, make([]float64, 0, len(s.want.v))}
				for o := range outer {
					for _, part := range p {
						at := (o*k + part) * (d / k * inner)
						parts.v = append(parts.v, s.want.v[at:at+d/k*inner]...)
					}
				}
				if s.fits(parts) {
					s.say("chunks swapped", "ours is the reference with axis %d in %d chunks in the order %v: chunks are swapped (scale and shift, gate and up, q, k and v)", axis, k, p)
					return
				}
			}
		}
	}
	s.say("permuted", "ours has the reference's values in another order")
}

// starts says whether the first values are those of another order, as far as
// that can be told.
func (s *search) starts(v []float64, at func(int) int, n int) bool {
	off, size := 0.0, 0.0
	for i := range min(n, 64) {
		d := v[at(i)] - s.got.v[i]
		off, size = off+d*d, size+s.got.v[i]*s.got.v[i]
	}
	return off <= 0.01*size
}

// constant looks for one factor, or one offset, for all values.
func (s *search) constant() {
	dot, square := 0.0, 0.0
	for i, w := range s.want.v {
		dot += w * s.got.v[i]
		square += w * w
	}
	c := dot / square
	if scaled := s.want.apply(func(x float64) float64 { return c * x }); s.fits(scaled) {
		switch d := float64(s.want.last()); {
		case c == 0:
			s.say("zero", "ours is 0 everywhere")
		case math.Abs(c+1) < 1e-3:
			s.say("sign", "ours is the reference with the other sign")
		case math.Abs(c*c*d-1) < 1e-2:
			s.say("ratio", "ours is %.6g times the reference everywhere, which is 1/√%g of the last axis", c, d)
		case math.Abs(c*c/d-1) < 1e-2:
			s.say("ratio", "ours is %.6g times the reference everywhere, which is √%g of the last axis", c, d)
		default:
			s.say("ratio", "ours is %.6g times the reference everywhere", c)
		}
		return
	}
	offset := 0.0
	for i, w := range s.want.v {
		offset += (s.got.v[i] - w) / float64(len(s.want.v))
	}
	if s.fits(s.want.apply(func(x float64) float64 { return x + offset })) {
		s.say("offset", "ours is the reference plus %.6g everywhere", offset)
	}
}

// half looks for values that have been through a smaller float.
func (s *search) half() {
	if s.tap.Output.Dtype() != mlx.Float32 {
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
			s.say("lost upcast", "ours has values that %s has, the reference's are finer: something is computed in %s that should be in float32", f.name, f.name)
			return
		}
	}
}

// axes describes errors that lie along an axis. It says something about any.
func (s *search) axes() {
	for axis, d := range s.want.shape {
		if d < 2 || d == len(s.want.v) {
			continue
		}
		inner := 1
		for _, x := range s.want.shape[axis+1:] {
			inner *= x
		}
		at := func(i int) int { return i / inner % d }
		offset, count := make([]float64, d), float64(len(s.want.v)/d)
		dot, square, wrong := make([]float64, d), make([]float64, d), make([]float64, d)
		for i, w := range s.want.v {
			k, g := at(i), s.got.v[i]
			offset[k] += (g - w) / count
			dot[k] += w * g
			square[k] += w * w
			wrong[k] += (g - w) * (g - w)
		}
		shifted, scaled := tensor{v: make([]float64, len(s.want.v))}, tensor{v: make([]float64, len(s.want.v))}
		for i, w := range s.want.v {
			shifted.v[i] = w + offset[at(i)]
			if square[at(i)] > 0 {
				scaled.v[i] = w * dot[at(i)] / square[at(i)]
			}
		}
		switch {
		case s.fits(shifted):
			s.say("bias", "ours is the reference plus one value for each index of axis %d: a bias or a shift is missing, there twice, or laid along the wrong axis", axis)
		case s.fits(scaled):
			s.say("scale", "ours is the reference times one factor for each index of axis %d: a scale is missing, there twice, or laid along the wrong axis", axis)
		}
		// the indices that have nearly all of the error
		total, from, to, hit := 0.0, d, 0, 0
		for _, e := range wrong {
			total += e
		}
		for k, e := range wrong {
			if e > 1e-6*total {
				from, to, hit = min(from, k), max(to, k+1), hit+1
			}
		}
		if hit <= (d+1)/2 && to-from == hit {
			s.say("one axis", "only indices %d to %d of the %d along axis %d differ (padding, a position, or one of several parts)", from, to-1, d, axis)
		}
	}
	// by the reference, never by absolute size: 45 million is normal in some models
	if g, w := rangeOf(narrow(s.got.v)), rangeOf(narrow(s.want.v)); g.Std > 4*w.Std || 4*g.Std < w.Std {
		s.say("range", "ours reaches from %.4g to %.4g, the reference from %.4g to %.4g", g.Min, g.Max, w.Min, w.Max)
	}
	if len(s.hints) == 0 {
		dot := 0.0
		for i, w := range s.want.v {
			dot += w * s.got.v[i]
		}
		if cosine := dot / (norm(s.want) * norm(s.got)); math.Abs(cosine) < 0.3 {
			s.say("all differ", "all values differ, with a cosine of %.2f: other weights, another input, or another order than any tried", cosine)
		}
	}
}
