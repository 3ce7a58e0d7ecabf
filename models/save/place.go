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
)

// mfluxTable returns mflux's layout of a pipeline's component.
func mfluxTable(pipeline *family.Class, c component.Component) (*layout.Table, error) {
	if m, ok := pipeline.Member(c.Dir); ok && m.Class == c.Class && m.MFlux != nil {
		return m.MFlux, nil
	}
	if len(c.Class.MFlux) == 0 {
		return nil, fmt.Errorf("%w: mflux has no layout for a %s", errs.ErrUnsupported, c.Class.Name)
	}
	return c.Class.MFlux[0], nil
}

// A placer decides under which names and in which form a component's tensors are
// written.
type placer struct {
	*plan
	part  *savedComponent
	table *layout.Table // nil for the layout of diffusers

	bake   func(nn.Parameter, *mlx.Array) *mlx.Array
	byName map[string]*entry // by name in the layout
	names  []string          // of byName
}

// placeAll lays out all entries of the component and sorts them by name.
func (p *placer) placeAll() error {
	if p.loras != nil {
		p.bake = p.loras.Bake(p.part.Dir, false)
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
				p.byName[again] = p.byName[name].renamed(again)
				p.names = append(p.names, again)
			}
		}
	}
	slices.SortFunc(p.names, checkpoint.CompareNames)
	p.part.entries = nil
	for _, name := range p.names {
		p.part.entries = append(p.part.entries, p.byName[name])
		p.total += p.byName[name].bytes()
	}
	return nil
}

func (p *placer) add(e *entry) error {
	name := e.key
	var rule layout.Rule
	if p.table != nil {
		if p.table.Without(e.key) {
			p.left = append(p.left, p.part.Dir+"/"+e.key)
			return nil
		}
		if name, rule, _ = p.table.Other(e.key); p.table.Prefixed {
			name = p.table.Prefixes[0] + name
		}
		if p.byName[name] != nil { // a tensor with two names in diffusers' layout
			if e.param == nil {
				return nil
			}
			p.names = slices.DeleteFunc(p.names, func(n string) bool { return n == name })
		}
	}
	changed := e.param != nil && p.loras != nil && p.loras.Changes(p.part.Dir, e.param.Name)
	if changed {
		e.applyLoRAs = func(a *mlx.Array) *mlx.Array { return p.bake(*e.param, a.AsType(mlx.Float32)) }
	}
	e.quantize = p.quantizationOf(e, changed)
	if err := e.layOut(name, p.o, p.table, rule); err != nil {
		return err
	}
	p.byName[name] = e
	p.names = append(p.names, name)
	return nil
}

// quantizationOf returns the quantization of a tensor, nil if it is not quantized.
// changed reports whether LoRAs change it.
func (p *placer) quantizationOf(e *entry, changed bool) *mlx.Quantization {
	stored := e.found.Quantized
	switch {
	case p.table == nil, p.table.Unquantized: // diffusers' layout has no quantized weights
		return nil
	case stored != nil && changed: // fewer bits would round away the change
		return &mlx.Quantization{Mode: "affine", Bits: 8, Group: max(stored.Group, 32)}
	case stored != nil:
		return stored
	case p.o.Quantize == nil:
		return nil
	case e.param != nil:
		return p.part.LayerQuantizer(p.o.Quantize)(*e.param)
	case e.similar != nil:
		return p.part.LayerQuantization(*p.o.Quantize, component.Module(p.part.Bare(e.key)), e.found.Shape[1])
	}
	return nil
}
