package inspect

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/models/component"
)

// A Comparison describes how the tensors of two models, a and b, differ.
type Comparison struct {
	Components []*ComponentComparison
}

// A ComponentComparison compares one component.
type ComponentComparison struct {
	Name string
	// Only is the model that has the component if the other does not, "a" or "b".
	Only string
	// Tensors compares the tensors that both models have.
	Tensors []*TensorDifference
	// OnlyA and OnlyB are the names of tensors that only one model has.
	OnlyA, OnlyB []string
}

// Compare compares the tensors of two models by their names. Elements are read in
// parts and compared as float64, which represents the other dtypes exactly. Progress,
// if not nil, is called with the number of bytes of a component in a that were read.
func Compare(ctx context.Context, a, b *Weights, progress func(component string, done, total int64)) (*Comparison, error) {
	pairs, err := pairUp(a, b)
	if err != nil {
		return nil, err
	}
	out := &Comparison{}
	for _, pair := range pairs {
		c := &ComponentComparison{Name: pair.name}
		out.Components = append(out.Components, c)
		switch {
		case pair.a == nil:
			c.Only = "b"
		case pair.b == nil:
			c.Only = "a"
		default:
			if err := c.compare(ctx, pair.a, pair.b, progress); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// A componentPair has the components with a name in two models, nil in a model without
// the component.
type componentPair struct {
	name string
	a, b *ComponentWeights
}

// pairUp pairs components by name and sorts them. Two models with a single component
// each are paired whatever the names, which are those of folders or files.
func pairUp(a, b *Weights) (pairs []*componentPair, err error) {
	for _, c := range slices.Concat(a.Components, b.Components) {
		if c.Err != nil {
			return nil, c.Err
		}
	}
	for _, c := range a.Components {
		pairs = append(pairs, &componentPair{name: c.Name, a: c})
	}
	for _, c := range b.Components {
		i := slices.IndexFunc(pairs, func(p *componentPair) bool { return p.name == c.Name })
		if len(a.Components) == 1 && len(b.Components) == 1 {
			i = 0
		}
		if i >= 0 {
			pairs[i].b = c
		} else {
			pairs = append(pairs, &componentPair{name: c.Name, b: c})
		}
	}
	slices.SortFunc(pairs, func(x, y *componentPair) int { return strings.Compare(x.name, y.name) })
	return pairs, nil
}

// compare compares the tensors of a component.
func (c *ComponentComparison) compare(
	ctx context.Context, a, b *ComponentWeights, progress func(component string, done, total int64),
) error {
	shared := c.match(a, b)
	var read []*TensorWeights
	for _, p := range shared {
		read = append(read, p.a.TensorWeights)
	}
	done := progressCounter(c.Name, read, progress)
	return forEach(ctx, shared, func(ctx context.Context, p *pair) error { return p.compare(ctx, a.ck, b.ck, done) })
}

// match pairs the tensors of both models and returns the pairs whose elements can be
// compared. Files name the tensor of a parameter in several ways: transformers 4 has model.layers,
// transformers 5 model.language_model.layers.
func (c *ComponentComparison) match(a, b *ComponentWeights) (shared []*pair) {
	either := component.Component{Prefixes: slices.Concat(a.prefixes, b.prefixes)}
	key := func(c *ComponentWeights, name string) string { return cmp.Or(c.names[name], either.Bare(name)) }
	inB := map[string]*matrix{}
	listB := b.matrices()
	for _, m := range listB {
		inB[key(b, m.Name)] = m
	}
	for _, m := range a.matrices() {
		name := key(a, m.Name)
		other := inB[name]
		if other == nil {
			c.OnlyA = append(c.OnlyA, m.Name)
			continue
		}
		delete(inB, name)
		p := newPair(m, other, cmp.Or(a.columns[name], b.columns[name]))
		c.Tensors = append(c.Tensors, p.TensorDifference)
		if p.Mismatch == "" {
			shared = append(shared, p)
		}
	}
	for _, m := range listB {
		if inB[key(b, m.Name)] != nil {
			c.OnlyB = append(c.OnlyB, m.Name)
		}
	}
	return shared
}
