package transformer

import (
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// TimeLayers are the layers of a model that project the time embedding after SiLU, and see nothing
// else. They have a third of Qwen-Image's weights and a quarter of FLUX.1's, which one step reads
// for a single row: for many steps at once they are read once.
type TimeLayers struct {
	embedding any // the module that embeds the time
	layers    []*nn.Linear
	first     map[*nn.Linear]int // the first column of a layer's output in the projections
	columns   int
}

func (t *TimeLayers) add(layers ...*nn.Linear) {
	if t.first == nil {
		t.first = map[*nn.Linear]int{}
	}
	for _, l := range layers {
		t.layers = append(t.layers, l)
		t.first[l] = t.columns
		t.columns += l.Out()
	}
}

// Width returns the number of elements of the projections of one time.
func (t *TimeLayers) Width() int { return t.columns }

// Modules returns the layers and the module that embeds the time. A forward pass that gets
// projections does not run them.
func (t *TimeLayers) Modules() []any {
	all := []any{t.embedding}
	for _, l := range t.layers {
		all = append(all, l)
	}
	return all
}

// project returns the projections [n, columns] of time embeddings [n, dim].
func (t *TimeLayers) project(temb *mlx.Array) *mlx.Array {
	x := mlx.WideSiLU(temb)
	all := make([]*mlx.Array, len(t.layers))
	for i, l := range t.layers {
		if l.Weight.Array == nil { // of a block that this process does not run
			all[i] = mlx.Zeros(temb.Dtype(), temb.Dim(0), l.Out())
			continue
		}
		all[i] = mlx.Scope(func() *mlx.Array { return l.Forward(x) })
		mlx.StopPoint(all[i])
	}
	return mlx.Concat(1, all...)
}

// A stepTime is what blocks see of a step's time: its embedding, or the projections of it that were
// computed before.
type stepTime struct {
	temb        *mlx.Array // [n, dim], nil with projections
	projections *mlx.Array // [n, columns] from [TimeLayers.project], or nil
	layers      *TimeLayers
}

// project returns the projection [n, out] of the embedding by a layer after SiLU, which forward
// computes.
func (t stepTime) project(l *nn.Linear, forward func(temb *mlx.Array) *mlx.Array) *mlx.Array {
	if t.projections == nil {
		return forward(t.temb)
	}
	first := t.layers.first[l]
	return t.projections.Slice(1, first, first+l.Out())
}

// projectSiLU is project for a layer and its SiLU, nil for none.
func (t stepTime) projectSiLU(silu *nn.SiLU, l *nn.Linear) *mlx.Array {
	return t.project(l, func(temb *mlx.Array) *mlx.Array {
		if silu != nil {
			temb = silu.Forward(temb)
		}
		return l.Forward(temb)
	})
}

// firstRow returns the time of the first row.
func (t stepTime) firstRow() stepTime {
	for _, a := range []**mlx.Array{&t.temb, &t.projections} {
		if *a != nil && (*a).Dim(0) > 1 {
			*a = (*a).Slice(0, 0, 1)
		}
	}
	return t
}

// sinusoids returns the embeddings [n, 256] of times by a model's Timestep.
func sinusoids(times []float32, embed func(t float32) *mlx.Array) *mlx.Array {
	rows := make([]*mlx.Array, len(times))
	for i, t := range times {
		rows[i] = embed(t)
	}
	return mlx.Concat(0, rows...)
}
