package lora

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/mlx/nn"
)

// formats lists the formats for the change of a weight, with the tensors that only they
// have.
var formats = []struct {
	name  string
	parts []part
}{
	{"LoRA", []part{partDown, partUp}},
	{"LoKr", []part{partKronW1, partKronW1A, partKronW1B, partKronW2, partKronW2A, partKronW2B}},
	{"LoHa", []part{partHadaW1A, partHadaW1B, partHadaW2A, partHadaW2B}},
	{"difference", []part{partDiff}},
}

// A module is a module of a model with the tensors that a file has for it.
type module struct {
	file       *file
	raw        string // its name in the file
	name       string // its name with dots, without a prefix
	component  *component
	parts      map[part]*tensor
	pieces     []piece // the parameters of its weight
	rows, cols int     // the shape of its weight in the file's layout
}

// rank orders the modules of a file that are for the same layer, as diffusers does: its own names count
// before those of other layouts, which fuse layers, and names with the prefixes of transformers before
// others.
func (m *module) rank() (n int) {
	if m.component.params[m.name+".weight"].Param == nil {
		n = 2
	}
	if !strings.HasPrefix(m.raw, "transformer.") && !strings.HasPrefix(m.raw, "lora_transformer_") {
		n++
	}
	return n
}

// updates returns the updates of the module's parameters.
func (m *module) updates() ([]*update, error) {
	m.pieces = m.component.pieces(m.name, ".weight")
	m.rows, m.cols = m.pieces[len(m.pieces)-1].to, checkpoint.Len(m.pieces[0].Stored()[1:])
	for _, p := range slices.Sorted(maps.Keys(m.parts)) {
		if p != partAlpha {
			if err := m.parts[p].check(); err != nil {
				return nil, err
			}
		}
	}
	weight, scale, err := m.weightChange()
	if err != nil {
		return nil, err
	}
	updates, err := m.dora(weight, scale)
	if err != nil {
		return nil, err
	}
	biases, err := m.biases(scale)
	if err != nil {
		return nil, err
	}
	if updates = append(updates, biases...); len(updates) == 0 {
		return nil, m.errorf("expected a change of a weight, found only %s", m.partList())
	}
	return updates, nil
}

func (m *module) errorf(format string, args ...any) error {
	return fmt.Errorf("LoRA %s: %s: %w", m.file.Name, quote.Name(m.raw), fmt.Errorf(format, args...))
}

// partList lists the tensors that the file has for the module.
func (m *module) partList() string {
	return joined(slices.Sorted(maps.Keys(m.parts)), func(p part) string { return string(p) })
}

// weightChange returns the change of the weight and its scale. The change is nil if the
// file has no tensors for it.
func (m *module) weightChange() (delta, float64, error) {
	var found []string
	for _, format := range formats {
		if slices.ContainsFunc(format.parts, func(p part) bool { return m.parts[p] != nil }) {
			found = append(found, format.name)
		}
	}
	if len(found) == 0 {
		return nil, 1, nil
	}
	if len(found) > 1 {
		return nil, 0, m.errorf("expected tensors of one format, found those of %s", strings.Join(found, " and "))
	}
	for _, p := range m.pieces {
		if p.Transform() != "" || len(p.Stored()) > 2 {
			return nil, 0, m.errorf("%s: expected the weight of a linear layer, found that of a convolution, %v", p.Name, p.Stored())
		}
		if found[0] != "difference" && len(p.Stored()) < 2 {
			return nil, 0, m.errorf("%s: expected the weight of a linear layer for a %s, found that of another module", p.Name, found[0])
		}
	}
	switch found[0] {
	case "LoRA":
		return m.lowRank()
	case "LoKr":
		return m.kron()
	case "LoHa":
		return m.hadamard()
	}
	diff := m.parts[partDiff]
	if err := m.checkShape(diff, m.pieces); err != nil {
		return nil, 0, err
	}
	return difference{diff}, m.file.strength, nil
}

// checkShape returns an error if a plain difference does not have the shape of its
// parameters.
func (m *module) checkShape(t *tensor, pieces []piece) error {
	want := slices.Clone(pieces[0].Stored())
	want[0] = pieces[len(pieces)-1].to
	if !slices.Equal(t.Shape, want) && !(len(want) == 1 && t.Len() == want[0]) {
		return &sizeError{t.errorf("expected shape %v, that of %s, found %v", want, parameters(pieces), t.Shape)}
	}
	return nil
}

// parameters lists the names of the parameters that an update changes.
func parameters(pieces []piece) string {
	return joined(pieces, func(p piece) string { return p.Name })
}

// require returns tensors, which must all exist and be matrices.
func (m *module) require(parts ...part) ([]*tensor, error) {
	var out []*tensor
	for _, p := range parts {
		t := m.parts[p]
		if t == nil {
			return nil, m.errorf("expected %s, found only %s", p, m.partList())
		}
		if len(t.Shape) != 2 {
			return nil, t.errorf("expected a matrix, found shape %v", t.Shape)
		}
		out = append(out, t)
	}
	return out, nil
}

// lowRankPair returns the product of two matrices: [n, rank] and [rank, m].
func (m *module) lowRankPair(a, b part) (f factor, err error) {
	both, err := m.require(a, b)
	if err != nil {
		return f, err
	}
	f = factor{a: both[0], b: both[1]}
	switch rank := f.rank(); {
	case rank == 0:
		return f, f.b.errorf("has rank 0")
	case f.a.Shape[1] != rank:
		return f, f.a.errorf("expected rank %d, that of %s, found shape %v", rank, quote.Name(f.b.Name), f.a.Shape)
	}
	return f, nil
}

// A sizeError reports a change with another shape than its weight.
type sizeError struct{ error }

// sizeErrors reports that no change of a file has the size of its weight.
type sizeErrors struct {
	error
	model string // what the file seems to be for
}

func (e *sizeErrors) Error() string {
	return fmt.Sprintf("%v\n\tno change has the size of its weight: the LoRA seems to be for %s", e.error, e.model)
}

// checkSize returns a [*sizeError] if the shape of a change is not that of the weight.
func (m *module) checkSize(rows, cols int, how string, tensors []*tensor) error {
	if rows == m.rows && cols == m.cols {
		return nil
	}
	found := joined(tensors, func(t *tensor) string { return fmt.Sprintf("%s %v", quote.Name(t.Name), t.Shape) })
	return &sizeError{m.errorf("expected a change of shape %v, that of %s, found %v, %s %s",
		[]int{m.rows, m.cols}, parameters(m.pieces), []int{rows, cols}, how, found)}
}

func (m *module) lowRank() (delta, float64, error) {
	f, err := m.lowRankPair(partUp, partDown)
	if err != nil {
		return nil, 0, err
	}
	down, padding := f.b, 0
	if slices.Contains(m.component.Padded, strings.TrimSuffix(m.pieces[0].Name, ".weight")) {
		padding = max(0, m.cols-down.Shape[1])
		if down.Shape[1] == 2*m.cols {
			return nil, 0, down.errorf("shape %v: not supported: it is that of %s", down.Shape, controlLoRA)
		}
	}
	if err := m.checkSize(f.a.Shape[0], down.Shape[1]+padding, "the product of", f.tensors()); err != nil {
		return nil, 0, err
	}
	scale, err := m.scale(f.rank(), true)
	return lowRank{f, padding}, scale, err
}

// factor returns one of LoKr's factors.
func (m *module) factor(whole, a, b part) (factor, error) {
	if m.parts[whole] == nil {
		return m.lowRankPair(a, b)
	}
	if m.parts[a] != nil || m.parts[b] != nil {
		return factor{}, m.errorf("expected either %s or %s and %s, found %s", whole, a, b, m.partList())
	}
	one, err := m.require(whole)
	if err != nil {
		return factor{}, err
	}
	return factor{whole: one[0]}, nil
}

func (m *module) kron() (delta, float64, error) {
	w1, err := m.factor(partKronW1, partKronW1A, partKronW1B)
	if err != nil {
		return nil, 0, err
	}
	w2, err := m.factor(partKronW2, partKronW2A, partKronW2B)
	if err != nil {
		return nil, 0, err
	}
	s1, s2, tensors := w1.shape(), w2.shape(), append(w1.tensors(), w2.tensors()...)
	for i, d := range append(slices.Clone(s1), s2...) {
		if d == 0 {
			return nil, 0, tensors[0].errorf("factors of shapes %v and %v: axis %d is empty", s1, s2, i)
		}
	}
	if err := m.checkSize(s1[0]*s2[0], s1[1]*s2[1], "the Kronecker product of", tensors); err != nil {
		return nil, 0, err
	}
	rank := cmp.Or(w2.rank(), w1.rank())
	if _, ok := m.file.weights.Tensors[musubiFactor]; ok && rank == 0 { // musubi-tuner also scales whole factors
		rank = max(s2[0], s2[1])
	}
	scale, err := m.scale(rank, rank > 0)
	return kron{w1, w2}, scale, err
}

func (m *module) hadamard() (delta, float64, error) {
	w1, err := m.lowRankPair(partHadaW1A, partHadaW1B)
	if err != nil {
		return nil, 0, err
	}
	w2, err := m.lowRankPair(partHadaW2A, partHadaW2B)
	if err != nil {
		return nil, 0, err
	}
	for _, w := range []factor{w1, w2} {
		if err := m.checkSize(w.shape()[0], w.shape()[1], "the product of", w.tensors()); err != nil {
			return nil, 0, err
		}
	}
	scale, err := m.scale(w1.rank(), true)
	return hadamard{w1, w2}, scale, err
}

// scale returns the factor of a change. The rank is 0 for a LoKr whose factors are not
// products; LyCORIS writes an alpha for these, but does not use it.
func (m *module) scale(rank int, useAlpha bool) (float64, error) {
	if t := m.parts[partAlpha]; t != nil {
		if !useAlpha {
			return m.file.strength, nil
		}
		alpha, err := t.number()
		if err != nil {
			return 0, err
		}
		if err := checkAlpha(alpha); err != nil {
			return 0, t.errorf("%w", err)
		}
		scale := alpha / float64(rank)
		if err := checkScale(alpha, scale); err != nil {
			return 0, t.errorf("%w", err)
		}
		return m.file.strength * scale, nil
	}
	if c := m.file.config(m.component.Name); c != nil {
		scale := c.scale(m.names(), rank)
		if err := checkScale(scale*float64(max(rank, 1)), scale); err != nil {
			return 0, m.errorf("%s: %w", c.source, err)
		}
		return m.file.strength * scale, nil
	}
	return m.file.strength, nil
}

// names returns the names that a PEFT config may use for the module.
func (m *module) names() []string {
	names := []string{m.name}
	for _, p := range m.pieces {
		names = append(names, strings.TrimSuffix(p.Name, ".weight"))
	}
	return names
}

// dora returns the updates of the weight's parameters, with DoRA if the file has its
// norms.
func (m *module) dora(d delta, scale float64) ([]*update, error) {
	magnitude, lycoris := m.parts[partMagnitude], m.parts[partDoRAScale]
	if d == nil {
		if magnitude != nil || lycoris != nil {
			return nil, m.errorf("expected a change of the weight, found only %s", m.partList())
		}
		return nil, nil
	}
	if c := m.file.config(m.component.Name); c != nil && c.UseDoRA && magnitude == nil && lycoris == nil {
		return nil, m.errorf("expected %s, because %s sets use_dora, found only %s", partMagnitude, c.source, m.partList())
	}
	base := update{file: m.file, module: m.raw, delta: d, scale: scale, strength: 1}
	switch {
	case magnitude != nil && lycoris != nil:
		return nil, m.errorf("expected one of %s and %s, found both", partMagnitude, partDoRAScale)
	case magnitude != nil:
		s := magnitude.Shape // [1, out] in older files
		if !slices.Equal(s, []int{m.rows}) && !slices.Equal(s, []int{1, m.rows}) && !slices.Equal(s, []int{m.rows, 1}) {
			return nil, magnitude.errorf("expected shape [%d], found %v", m.rows, magnitude.Shape)
		}
		base.norms = magnitude
	case lycoris != nil:
		s := lycoris.Shape
		switch {
		case slices.Equal(s, []int{m.rows, 1}) || slices.Equal(s, []int{m.rows}):
		case slices.Equal(s, []int{1, m.cols}):
			base.alongInputs = true
			if len(m.pieces) > 1 || m.pieces[0].swap {
				return nil, lycoris.errorf("DoRA along the inputs is not supported for %s, which are one layer in the file",
					parameters(m.pieces))
			}
		default:
			return nil, lycoris.errorf("expected shape [%d 1] or [1 %d], found %v", m.rows, m.cols, s)
		}
		base.norms = lycoris
		if base.strength = m.file.strength; base.strength != 0 {
			base.scale /= base.strength
		}
	}
	return spread(base, m.pieces), nil
}

// spread returns a copy of an update for every piece.
func spread(base update, pieces []piece) (out []*update) {
	for _, p := range pieces {
		one := base
		one.piece = p
		out = append(out, &one)
	}
	return out
}

// biases returns the updates of the module's bias. The bias of lora_B is scaled like
// the change of the weight.
func (m *module) biases(scale float64) (out []*update, err error) {
	for _, p := range []part{partUpBias, partDiffBias} {
		t := m.parts[p]
		if t == nil {
			continue
		}
		pieces := m.component.pieces(m.name, ".bias")
		if pieces == nil {
			return nil, t.errorf("%s has no bias", quote.Name(m.name))
		}
		if err := m.checkShape(t, pieces); err != nil {
			return nil, err
		}
		base := update{file: m.file, module: m.raw, delta: difference{t}, scale: m.file.strength, strength: 1}
		if p == partUpBias {
			if m.parts[partUp] == nil {
				return nil, m.errorf("expected %s, found only %s", partUp, m.partList())
			}
			base.scale = scale
		}
		for _, u := range spread(base, pieces) {
			weight := m.component.params[strings.TrimSuffix(u.Name, ".bias")+".weight"]
			u.linearBias = weight.Param != nil && weight.Kind() == nn.LinearWeight
			out = append(out, u)
		}
	}
	return out, nil
}
