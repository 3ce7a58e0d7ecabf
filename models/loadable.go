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
	found  []nn.Found                 // tensor of each parameter
	sizes  map[sizesKey]weightsMemory // cache of Pipeline.weightsMemory
	loaded bool
	staged bool              // only this process's stage is loaded
	table  *family.TimeTable // replaces some layers, which are not in memory; nil if all are
}

// A sizesKey has what the memory of a component's weights depends on.
type sizesKey struct {
	quantization mlx.Quantization
	staged       bool
}

// usable reports whether the component is loaded, in stages or not, and has the layers that a run with a table,
// which may be nil, needs.
func (l *loadable) usable(table *family.TimeTable, staged bool) bool {
	return l.loaded && (l.table == nil || l.table == table) && (l.staged == staged || l.Staged() == nil)
}

// newLoadable matches a component with the headers of its checkpoint. Tensors that are missing or
// do not belong to it are an error.
func newLoadable(c component.Component, ck *checkpoint.Checkpoint) (*loadable, error) {
	found, mismatch := c.Match(ck)
	if mismatch != nil {
		return nil, mismatch
	}
	return &loadable{Component: c, found: found, sizes: map[sizesKey]weightsMemory{}}, nil
}

// FileBytes returns the size of all tensors in the model's files that are loaded now, 0 for random
// weights.
func (p *Pipeline) FileBytes() (n int64) {
	for _, l := range p.loadables {
		if !l.loaded || p.random != nil {
			continue
		}
		for i, parameter := range nn.Parameters(l.Model) {
			if !l.staged || parameter.Array != nil {
				n += l.found[i].Bytes()
			}
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

// stagesOf returns how the blocks of a component are divided over the group if its plain weights are quantized to
// q, and the parameters that other processes have. They are nil for a component that is not divided.
func (p *Pipeline) stagesOf(l *loadable, q *mlx.Quantization) (s *nn.Stages, others map[*nn.Param]bool) {
	staged := l.Staged()
	if staged == nil {
		return nil, nil
	}
	size, quantized := map[*nn.Param]int64{}, l.quantizations(q)
	for i, parameter := range nn.Parameters(l.Model) {
		size[parameter.Param], _ = parameter.Memory(l.found[i], p.dtype, quantized[i])
	}
	blocks := staged.StageBlocks()
	bytes := make([]int64, len(blocks))
	for i, modules := range blocks {
		for parameter := range component.Parameters(modules) {
			bytes[i] += size[parameter]
		}
	}
	s = nn.NewStages(p.group, bytes)
	first, end := s.Own()
	return s, component.Parameters(slices.Concat(slices.Delete(blocks, first, end)...))
}

// weightsMemory returns the memory of a component's weights, or of this process's stage, if the plain ones are
// quantized to q.
func (p *Pipeline) weightsMemory(l *loadable, q *mlx.Quantization, staged bool) (m weightsMemory) {
	key := sizesKey{staged: staged}
	if q != nil {
		key.quantization = *q
	}
	if known, ok := l.sizes[key]; ok {
		return known
	}
	defer func() { l.sizes[key] = m }()
	quantized, replaced := l.quantizations(q), p.replacedByTable(l)
	var others map[*nn.Param]bool
	if staged {
		_, others = p.stagesOf(l, q)
	}
	for i, parameter := range nn.Parameters(l.Model) {
		if others[parameter.Param] {
			continue
		}
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
