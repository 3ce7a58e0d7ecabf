package family

import (
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/transformer"
)

// A TimeTabled is a Pipeline whose transformer has large layers that see nothing but the timestep.
// Its predictors take their outputs from [Conditioning].Times.
type TimeTabled interface {
	// TableRows returns the outputs for n timesteps [n, m] or, with k rows that belong to every step,
	// [n+k, m]. Of the conditioning they may depend on what is the same for all prompts or, with
	// TableOfPrompt, on the prompt.
	TableRows(c Conditioning, timesteps []float32) *mlx.Array
	// TableOfPrompt reports whether the rows depend on the prompt.
	TableOfPrompt() bool
	// TimeLayers returns the layers that compute the rows. With a row, predictors do not need them.
	TimeLayers() *transformer.TimeLayers
}

// TableSteps is the largest number of steps in a [TimeTable] at a time, so that long schedules take
// no more memory.
const TableSteps = 32

// A TimeTable has the outputs of the layers of a [TimeTabled] in a row for each of many steps.
// Computing them together reads the weights once, instead of at every step.
type TimeTable struct {
	// Timesteps returns those of the run's evaluations.
	Timesteps func() []float32
	// Compute returns what TableRows returns.
	Compute func(timesteps []float32) *mlx.Array
	// Negative is the table of the negative prompt, which is filled and freed with this one; nil if this
	// is the table of all prompts.
	Negative *TimeTable

	timesteps []float32  // in the table
	rows      *mlx.Array // one for each timestep, then those that belong to every step
}

// Row returns the rows of a timestep: its own, and those that belong to every step. It returns nil
// if the table is nil.
func (t *TimeTable) Row(timestep float32) *mlx.Array {
	if t == nil {
		return nil
	}
	i := slices.Index(t.timesteps, timestep)
	if i < 0 {
		t.fill(timestep)
		i = 0
	}
	row, n := t.rows.Slice(0, i, i+1), len(t.timesteps)
	if t.rows.Dim(0) == n {
		return row
	}
	return mlx.Concat(0, row, t.rows.Slice(0, n, t.rows.Dim(0)))
}

// TableFits reports whether a [TimeTable] has the rows of all timesteps at a time.
func TableFits(timesteps []float32) bool {
	return len(slices.Compact(slices.Sorted(slices.Values(timesteps)))) <= TableSteps
}

// Fill computes the rows from the first timestep on.
func (t *TimeTable) Fill() {
	for ; t != nil; t = t.Negative {
		t.fill(t.Timesteps()[0])
	}
}

// fill replaces the rows by those of a timestep and of the ones that follow it.
func (t *TimeTable) fill(timestep float32) {
	t.freeRows()
	t.timesteps = []float32{timestep}
	all := t.Timesteps()
	for _, next := range all[slices.Index(all, timestep)+1:] {
		if len(t.timesteps) == TableSteps {
			break
		}
		if !slices.Contains(t.timesteps, next) { // some schedulers evaluate the model twice at a timestep
			t.timesteps = append(t.timesteps, next)
		}
	}
	t.rows = mlx.Scope(func() *mlx.Array { return t.Compute(t.timesteps) })
	mlx.Eval(t.rows)
	mlx.Keep(t.rows)
}

// Free frees the rows.
func (t *TimeTable) Free() {
	for ; t != nil; t = t.Negative {
		t.freeRows()
	}
}

func (t *TimeTable) freeRows() {
	if t.rows != nil {
		t.rows.Free()
		t.rows, t.timesteps = nil, nil
	}
}

// times returns timesteps from 0 to 1000 as times from 0 to 1.
func times(timesteps []float32) []float32 {
	times := make([]float32, len(timesteps))
	for i, t := range timesteps {
		times[i] = t / 1000
	}
	return times
}
