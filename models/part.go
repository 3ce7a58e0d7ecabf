package models

import (
	"maps"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
)

// A part is a component whose weights can be freed and loaded again.
type part struct {
	component.Component
	found  []nn.Found // for each of its parameters
	sizes  map[mlx.Quantization]footprint
	loaded bool
}

// newPart declares a part by the headers of its checkpoint, and refuses tensors
// that are not the component's.
func newPart(c component.Component, ck *checkpoint.Checkpoint) (*part, error) {
	found, mismatch := c.Match(ck)
	if mismatch != nil {
		return nil, mismatch
	}
	return &part{Component: c, found: found, sizes: map[mlx.Quantization]footprint{}}, nil
}

// packing is how each of the part's parameters is quantized in memory if its plain
// weights are to q; nil for one that is not.
func (p *part) packing(q *mlx.Quantization) []*mlx.Quantization {
	quantize := p.LayerQuantizer(q)
	list := make([]*mlx.Quantization, len(p.found))
	for i, parameter := range nn.Parameters(p.Model) {
		if list[i] = p.found[i].Quantized; list[i] == nil && quantize != nil {
			list[i] = quantize(parameter)
		}
	}
	return list
}

// A footprint is what a component's weights take in memory.
type footprint struct {
	bytes int64
	// linear is how many there are in linear layers, and unpacked how many of these
	// are cast or unpacked for every product.
	linear, unpacked int64
}

// sorted are the keys of a map.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
