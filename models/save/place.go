package save

import (
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/lora"
)

// mfluxTable is what mflux calls the tensors of a pipeline's component.
func mfluxTable(pipeline *family.Class, c component.Component) (*layout.Table, error) {
	if m, ok := pipeline.Member(c.Dir); ok && m.Class == c.Class && m.MFlux != nil {
		return m.MFlux, nil
	}
	if len(c.Class.MFlux) == 0 {
		return nil, fmt.Errorf("%w: mflux has no %s", errs.ErrUnsupported, c.Class.Name)
	}
	return c.Class.MFlux[0], nil
}

// A placer decides how a component's tensors are written and what they are called.
type placer struct {
	o     *Options
	part  *part
	table *layout.Table // nil for the layout of diffusers
	loras *lora.Set     // nil for none

	bake   func(nn.Parameter, *mlx.Array) *mlx.Array
	byName map[string]*entry
	names  []string
	left   []string // keys that the layout has no place for
}

// place gives all of the component's entries their places and puts them in the
// order of their names.
func (p *placer) place() error {
	if p.loras != nil {
		p.bake = p.loras.Bake(p.part.Dir)
	}
	p.byName = map[string]*entry{}
	for _, e := range p.part.entries {
		if err := p.add(e); err != nil {
			return err
		}
	}
	if p.table != nil {
		for name, copies := range p.table.Repeated(p.names) {
			for _, again := range copies {
				p.byName[again] = p.byName[name].under(again)
				p.names = append(p.names, again)
			}
		}
	}
	slices.SortFunc(p.names, checkpoint.CompareNames)
	p.part.entries = nil
	for _, name := range p.names {
		p.part.entries = append(p.part.entries, p.byName[name])
	}
	return nil
}

func (p *placer) add(e *entry) error {
	name := e.key
	var rule layout.Rule
	if p.table != nil {
		if p.table.Without(e.key) {
			p.left = append(p.left, e.key)
			return nil
		}
		name, rule, _ = p.table.Other(e.key)
		if p.byName[name] != nil { // under two names
			if e.param == nil {
				return nil
			}
			p.names = slices.DeleteFunc(p.names, func(n string) bool { return n == name })
		}
	}
	changed := e.param != nil && p.loras != nil && p.loras.Changes(p.part.Dir, e.param.Name)
	if changed {
		e.adapt = func(a *mlx.Array) *mlx.Array { return p.bake(*e.param, a.AsType(mlx.Float32)) }
	}
	e.pack = p.packing(e, changed)
	if err := e.layOut(name, p.o, p.table, rule); err != nil {
		return err
	}
	p.byName[name] = e
	p.names = append(p.names, name)
	return nil
}

// packing is how a tensor is written, nil for plain numbers; changed is one that
// LoRAs change.
func (p *placer) packing(e *entry, changed bool) *mlx.Quantization {
	stored := e.found.Quantized
	switch {
	case p.table == nil: // diffusers has none
		return nil
	case stored != nil && changed: // what is added would be rounded away in fewer bits
		return &mlx.Quantization{Mode: "affine", Bits: 8, Group: max(stored.Group, 32)}
	case stored != nil:
		return stored
	case p.o.Quantize == nil:
		return nil
	case e.param != nil:
		return p.part.LayerQuantizer(p.o.Quantize)(*e.param)
	case e.like != nil:
		return p.part.Class.LayerQuantization(*p.o.Quantize, component.Module(p.part.Bare(e.key)), e.found.Shape[1])
	}
	return nil
}
