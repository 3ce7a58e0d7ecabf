package stepcache

import "github.com/gomflux/gomflux/mlx"

// The evaluations in the first and the last part of a run are complete.
const (
	easyStart = 0.15
	easyStop  = 0.95
)

// easy is the state of [Easy].
type easy struct {
	input, output *mlx.Array // of the last complete evaluation
	rate          float64    // change of the output relative to that of the input, 0 while unknown
	sum           float64    // of the relative changes since the last complete evaluation
	before        *mlx.Array // input of the previous evaluation
	size          float64    // mean absolute value of its output
	group         *mlx.Group // Cache.Group
}

// Predictions returns the function predict from latents to a velocity, with the rule Easy: its
// results are replaced while the cache expects that they change little.
func Predictions[At any](c *Cache, predict func(latents *mlx.Array, at At) *mlx.Array) func(*mlx.Array, At) *mlx.Array {
	return func(latents *mlx.Array, at At) *mlx.Array {
		e := &c.easy
		e.group = c.Group
		output := e.reused(latents, c.Part, c.Rule.Threshold)
		if c.Reused = output != nil; !c.Reused {
			output = predict(latents, at)
			e.complete(latents, output)
		}
		keep(&e.before, latents)
		e.size = e.meanAbs(output)
		return output
	}
}

// reused returns the output for an input at a part of the run, from 0 to 1, nil if it has to be
// computed.
func (e *easy) reused(input *mlx.Array, part, threshold float64) *mlx.Array {
	if e.rate == 0 || part < easyStart || part >= easyStop {
		return nil
	}
	e.sum += e.rate * e.meanAbs(input.Sub(e.before)) / e.size
	if !(e.sum < threshold) {
		return nil
	}
	return input.Add(e.output.Sub(e.input))
}

// complete keeps the arrays of a complete evaluation.
func (e *easy) complete(input, output *mlx.Array) {
	if e.input != nil {
		e.rate = 0
		if moved := e.meanAbs(input.Sub(e.input)); moved > 0 {
			e.rate = e.meanAbs(output.Sub(e.output)) / moved
		}
	}
	e.sum = 0
	keep(&e.input, input)
	keep(&e.output, output)
}

// keep replaces an array of the state by a copy of x, which does not hold the arrays that x is
// computed from.
func keep(state **mlx.Array, x *mlx.Array) {
	x = x.Reshape(x.Shape()...)
	mlx.Eval(x)
	mlx.Keep(x)
	free(*state)
	*state = x
}

func (e *easy) meanAbs(x *mlx.Array) float64 { return float64(meanAbs(e.group, x)[0]) }

func free(arrays ...*mlx.Array) {
	for _, a := range arrays {
		if a != nil {
			a.Free()
		}
	}
}
