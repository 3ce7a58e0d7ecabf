package stepcache

import (
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/transformer"
)

// A Cache has the state of a rule for the predictions of one prompt during a run. The zero value
// with a rule is ready for the first prediction. Free it after the last one.
type Cache struct {
	Rule Rule
	// Compiled means that the functions of [Forward] are compiled.
	Compiled bool
	// Part is the part of the run's evaluations before the next prediction, from 0 to 1. Easy
	// needs it.
	Part float64
	// Group is the group over which the tokens are split, nil for one process. Its members decide alike.
	Group *mlx.Group
	// Reused reports whether the last prediction used the cache.
	Reused bool

	first *mlx.Array // output of the first block minus its input at the last complete evaluation
	rest  *mlx.Array // what the other blocks added then
	easy  easy
}

// Free frees the arrays of the cache.
func (c *Cache) Free() {
	free(c.first, c.rest, c.easy.input, c.easy.output, c.easy.before)
	c.first, c.rest, c.easy = nil, nil, easy{}
}

// A begun is the beginning of an evaluation: the hidden states after the first block, and the
// change of the image by that block.
type begun struct {
	Hidden transformer.Hidden
	Change *mlx.Array
}

// A continuation are the inputs of an evaluation after its first block.
type continuation[In any] struct {
	In     In
	Hidden transformer.Hidden
	Rest   *mlx.Array // what the other blocks add, nil if they run
}

// A result is the output of a complete evaluation, and what its other blocks added to the image.
type result struct{ Output, Rest *mlx.Array }

// Forward returns the function that runs the pass of its inputs, compiled by compile. With a cache,
// which may be nil, and the rule FirstBlock, the first block, the other blocks, and the end without the other blocks are
// functions of their own, since the rule reads an array between them.
func Forward[In any](c *Cache, compile func(func([]*mlx.Array) []*mlx.Array) func([]*mlx.Array) []*mlx.Array,
	pass func(In) transformer.Pass,
) func(In) *mlx.Array {
	if c == nil || c.Rule.Name != FirstBlock {
		return mlx.Named(compile, func(in In) *mlx.Array { return transformer.Run(pass(in)) })
	}
	var current transformer.Pass // of an evaluation that is not compiled, whose parts share arrays
	begin := func(in In) transformer.Pass {
		if c.Compiled || current == nil {
			current = pass(in)
		}
		return current
	}
	head := mlx.Named(compile, func(in In) begun {
		p := begin(in)
		before := p.Embed()
		after := p.Blocks(before, 0, 1)
		return begun{after, after.Image.Sub(before.Image)}
	})
	body := mlx.Named(compile, func(in continuation[In]) result {
		p := begin(in.In)
		after := p.Blocks(in.Hidden, 1, p.Len())
		return result{p.Output(after.Image), after.Image.Sub(in.Hidden.Image)}
	})
	end := mlx.Named(compile, func(in continuation[In]) *mlx.Array {
		return begin(in.In).Output(in.Hidden.Image.Add(in.Rest))
	})
	return func(in In) *mlx.Array {
		current = nil
		h := head(in)
		if c.reuses(h.Change) {
			return end(continuation[In]{in, transformer.Hidden{Image: h.Hidden.Image}, c.rest})
		}
		out := body(continuation[In]{In: in, Hidden: h.Hidden})
		c.store(h.Change, out.Rest)
		return out.Output
	}
}

// reuses reports whether the blocks after the first one are left out, given the change by the first
// block.
func (c *Cache) reuses(change *mlx.Array) bool {
	c.Reused = false
	if c.first != nil {
		mlx.WithScope(func() {
			first := c.first.AsType(mlx.Float32)
			mean := meanAbs(c.Group, change.AsType(mlx.Float32).Sub(first), first)
			c.Reused = mean[1] > 0 && float64(mean[0]/mean[1]) <= c.Rule.Threshold
		})
	}
	return c.Reused
}

// meanAbs returns the mean absolute values of arrays [B, L, D], or with a group, whose members have parts of the
// arrays, numbers in proportion to them. Members whose machines round differently get the same.
func meanAbs(g *mlx.Group, arrays ...*mlx.Array) []float32 {
	return mlx.Scope(func() *mlx.Array {
		var means []*mlx.Array
		for _, x := range arrays {
			mean := x.AsType(mlx.Float32).Abs().Mean(-1).Reshape(-1).Mean(0)
			if g != nil { // sums instead of means
				mean = mean.Times(float64(x.Dim(1)))
			}
			means = append(means, mean)
		}
		all := mlx.Concat(0, means...)
		if g != nil {
			all = g.AllSum(all)
		}
		return all
	}).Floats()
}

// store keeps the arrays of a complete evaluation.
func (c *Cache) store(first, rest *mlx.Array) {
	free(c.first, c.rest)
	mlx.Eval(first, rest) // without the arrays that they are computed from
	mlx.Keep(first, rest)
	c.first, c.rest = first, rest
}
