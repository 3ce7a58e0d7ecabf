package models

import (
	"maps"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
)

// A loadable is a component whose weights can be freed and loaded again.
type loadable struct {
	component.Component
	found  []nn.Found                         // tensor of each parameter
	sizes  map[mlx.Quantization]weightsMemory // cache of Pipeline.weightsMemory
	loaded bool
	table  *family.TimeTable // replaces some layers, which are not in memory; nil if all are
}

// usable reports whether the component is loaded and has the layers that a run with a table, which
// may be nil, needs.
func (l *loadable) usable(table *family.TimeTable) bool {
	return l.loaded && (l.table == nil || l.table == table)
}

// newLoadable matches a component with the headers of its checkpoint. Tensors that are missing or
// do not belong to it are an error.
func newLoadable(c component.Component, ck *checkpoint.Checkpoint) (*loadable, error) {
	found, mismatch := c.Match(ck)
	if mismatch != nil {
		return nil, mismatch
	}
	return &loadable{Component: c, found: found, sizes: map[mlx.Quantization]weightsMemory{}}, nil
}

// FileBytes returns the size of all tensors in the model's files that are loaded now, 0 for random
// weights.
func (p *Pipeline) FileBytes() (n int64) {
	for _, l := range p.loadables {
		if !l.loaded || p.random != nil {
			continue
		}
		for _, f := range l.found {
			n += f.Bytes()
		}
	}
	return n
}

// quantizations returns how each parameter is quantized in memory if plain weights are quantized
// to q; nil for parameters that stay plain.
func (l *loadable) quantizations(q *mlx.Quantization) []*mlx.Quantization {
	quantize := l.LayerQuantizer(q)
	list := make([]*mlx.Quantization, len(l.found))
	for i, parameter := range nn.Parameters(l.Model) {
		if list[i] = l.found[i].Quantized; list[i] == nil && quantize != nil {
			list[i] = quantize(parameter)
		}
	}
	return list
}

// A weightsMemory describes the memory of a component's weights.
type weightsMemory struct {
	bytes  int64
	linear int64 // number of weights in linear layers
	table  int64 // bytes of the layers that a time table replaces
	cast   int64 // number of weights in linear layers that are cast or dequantized for every product
}

// weightsMemory returns the memory of a component's weights if the plain ones are quantized to q.
func (p *Pipeline) weightsMemory(l *loadable, q *mlx.Quantization) (m weightsMemory) {
	key := mlx.Quantization{}
	if q != nil {
		key = *q
	}
	if known, ok := l.sizes[key]; ok {
		return known
	}
	defer func() { l.sizes[key] = m }()
	quantized, replaced := l.quantizations(q), p.replacedByTable(l)
	for i, parameter := range nn.Parameters(l.Model) {
		bytes, cast := parameter.Memory(l.found[i], p.dtype, quantized[i])
		m.bytes += bytes
		if replaced[parameter.Param] {
			m.table += bytes
		}
		if parameter.Kind() != nn.LinearWeight {
			continue
		}
		shape := parameter.Stored()
		n := int64(shape[0]) * int64(shape[1])
		m.linear += n
		if cast && !(quantized[i] != nil && p.device.Backend() == mlx.BackendMetal) {
			m.cast += n
		}
	}
	return m
}

// replacedByTable returns the parameters of a component that a time table replaces.
func (p *Pipeline) replacedByTable(l *loadable) map[*nn.Param]bool {
	if f, ok := p.family.(family.TimeTabled); ok && l.Dir == component.Transformers {
		return component.Parameters(f.TimeLayers().Modules())
	}
	return nil
}

// sorted returns the keys of a map.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
