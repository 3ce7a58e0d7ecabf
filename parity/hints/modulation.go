package hints

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx/hooks"
)

// modulation looks for chunks of a modulation (scale, shift or gate of a norm or a residual) that are used
// for each other, where a norm is scaled and shifted, or what is added to a residual is gated.
func (s *search) modulation() {
	if len(s.want.shape) != 3 {
		return
	}
	const most, few = 1 << 18, 1 << 16 // there are many combinations to try
	if s.part == nil && len(s.want.v) > most && s.want.shape[1] > minIndices {
		if other := newSearch(s.whole.cut(s.whole.partOf(1, few))); other.off > 0 {
			other.modulation()
			s.hints = other.hints
		}
		return
	}
	scope := s.Name.Module
	if s.isInput() {
		scope = hooks.Parent(scope)
	}
	for ; scope != "" && len(s.hints) == 0; scope = hooks.Parent(scope) { // an input may be seen first at a module further inside
		if strings.Count(s.Name.Module, ".")-strings.Count(scope, ".") > 4 {
			return
		}
		bases := s.around(scope, func(n hooks.Name, t tensor) bool { return of(n, scope) && slices.Equal(t.shape, s.want.shape) })
		chunks := s.chunks(scope)
		if len(chunks) > 18 {
			chunks = nil
		}
		if !s.scaleAndShift(bases, chunks) && !s.gate(bases, chunks) {
			s.fitted(bases)
		}
	}
}

// fitted looks for mistakes in x·(1+scale)+shift and base + x·gate where the run lacks these: it
// reads them back from the reference's result, for each feature.
func (s *search) fitted(bases []tensor) {
	axis := len(s.want.shape) - 1
	if len(s.want.v) < minIndices*s.want.last() {
		return
	}
	for _, x := range bases {
		y, slopes, shift := affine(x, s.want, axis, true)
		scale := tensor{name: "its scale", v: slopes}.apply(func(v float64) float64 { return v - 1 })
		if s.isReference(y) && s.scaleAndShift([]tensor{x}, []tensor{scale, {name: "its shift", v: shift}}) {
			return
		}
	}
	for _, base := range bases {
		for _, x := range bases {
			y, gate, _ := affine(x, s.want.with(base, minus), axis, false)
			const one = 1e-3 // such as 1, for a sum without a gate
			if base.name == x.name || slices.Max(gate)-slices.Min(gate) < one || !s.isReference(base.with(y, plus)) {
				continue
			}
			ours, _, _ := affine(x, s.got.with(base, minus), axis, false)
			if s.try(
				variant{"gate missing", x.name + " is added without its gate", func() tensor { return base.with(x, plus) }},
				variant{"gate", x.name + " is added with another gate than the reference's",
					func() tensor { return base.with(ours, plus) }},
			) {
				return
			}
		}
	}
}

// of reports whether a tensor is a module's own, or of one right inside it.
func of(n hooks.Name, module string) bool {
	return n.Module == module || hooks.Parent(n.Module) == module
}

// chunks returns the parts of the modulations of a module, each as long as a row of the wrong
// tensor. Where tokens have unlike modulations (modulate_index chooses a row for each token)
// they are as large as all of it.
func (s *search) chunks(scope string) (out []tensor) {
	d := s.want.last()
	index, indexed := s.input(scope, "modulate_index")
	indexed = indexed && len(index.v)*d == len(s.want.v)
	for _, t := range s.around(scope, func(n hooks.Name, t tensor) bool {
		vector := n.Point.Kind == hooks.Output || strings.HasPrefix(n.Point.Key, "temb_mod")
		rows := len(t.v) / t.last()
		return of(n, scope) && vector && t.last()%d == 0 && t.last() <= 9*d && (rows == 1 || rows == 2 && indexed)
	}) {
		for i := range t.last() / d {
			part := t.columns(i*d, (i+1)*d)
			part.name = fmt.Sprintf("chunk %d of %s", i, t.name)
			if len(t.v) > t.last() {
				byToken := tensor{name: part.name, v: make([]float64, 0, len(s.want.v))}
				for _, row := range index.v {
					byToken.v = append(byToken.v, part.row(int(row)).v...)
				}
				out = append(out, byToken)
				part = part.row(0)
				part.name += " at the step's time, for references too"
			}
			out = append(out, part)
		}
	}
	return out
}

// scaleAndShift looks for mistakes in x·(1+scale) and x·(1+scale)+shift.
func (s *search) scaleAndShift(bases, chunks []tensor) bool {
	noShift := tensor{name: "no shift", v: []float64{0}}
	shifts := append([]tensor{noShift}, chunks...)
	scaled := func(x, scale, shift tensor) tensor {
		return x.with(scale, func(x, c float64) float64 { return x * (1 + c) }).with(shift, plus)
	}
	for _, x := range bases {
		for _, scale := range chunks {
			for _, shift := range shifts {
				if scale.name == shift.name || !s.isReference(scaled(x, scale, shift)) {
					continue
				}
				if s.try(
					variant{"scale and shift swapped", fmt.Sprintf("%s is scaled with %s and shifted with %s, in the reference the "+
						"other way round", x.name, shift.name, scale.name), func() tensor { return scaled(x, shift, scale) }},
					variant{"modulation without 1", fmt.Sprintf("%s is scaled by %s and should be by 1 plus that", x.name, scale.name),
						func() tensor { return x.with(scale, times).with(shift, plus) }},
					variant{"modulation missing", fmt.Sprintf("%s goes on unscaled and unshifted, without %s and %s", x.name,
						scale.name, shift.name), func() tensor { return x }},
				) {
					return true
				}
				for _, a := range chunks {
					for _, b := range shifts {
						if a.name != b.name && (b.name == noShift.name) == (shift.name == noShift.name) &&
							s.try(variant{"modulation swapped",
								fmt.Sprintf("%s is scaled with %s and shifted with %s, in the reference with %s and %s: scale and shift, "+
									"or those of attention and the MLP, are swapped", x.name, a.name, b.name, scale.name, shift.name),
								func() tensor { return scaled(x, a, b) }}) {
							return true
						}
					}
				}
			}
		}
	}
	return false
}

// gate looks for mistakes in base + x·gate and base + x·tanh(gate).
func (s *search) gate(bases, chunks []tensor) bool {
	gated := func(x, c tensor, f function) tensor { return x.with(c.apply(f.f), times) }
	added := func(base, x, c tensor, f function) tensor { return base.with(gated(x, c, f), plus) }
	functions := []function{{"tanh of ", math.Tanh}, {"", identity}}
	for _, base := range bases {
		for _, x := range bases {
			if base.name == x.name || distance(base, x) == 0 {
				continue
			}
			for _, c := range chunks {
				for _, f := range functions {
					if !s.isReference(added(base, x, c, f)) {
						continue
					}
					if s.try(variant{"gate missing", fmt.Sprintf("%s is added without its gate, %s%s", x.name, f.name, c.name),
						func() tensor { return base.with(x, plus) }}) {
						return true
					}
					for _, other := range chunks {
						for _, g := range functions {
							if (other.name != c.name || g.name != f.name) && s.try(variant{"gate", fmt.Sprintf("%s is gated with %s%s, "+
								"in the reference with %s%s", x.name, g.name, other.name, f.name, c.name),
								func() tensor { return added(base, x, other, g) }}) {
								return true
							}
						}
					}
					if s.fits(gated(x, c, f)) { // which is a missing term
						continue
					}
					for _, other := range chunks {
						if other.name != c.name && s.try(variant{"gate", fmt.Sprintf("%s is gated with %s%s, in the reference with "+
							"%[2]s%[4]s, and %s is not added", x.name, f.name, other.name, c.name, base.name),
							func() tensor { return gated(x, other, f) }}) {
							return true
						}
					}
				}
			}
		}
	}
	return false
}
