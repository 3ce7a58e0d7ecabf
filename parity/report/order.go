package report

import (
	"cmp"
	"io/fs"
	"math"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/runs"
)

// SortByTrace sorts tensors by the trace of one of the runs. Tensors that are in neither trace come
// last, by stage, depth and name.
func (r *Report) SortByTrace(ours, reference fs.FS) error {
	made, err := runs.ReadTrace(ours)
	if err != nil {
		return err
	}
	names := func(t *Tensor) string { return t.Name }
	if len(made) == 0 {
		if made, err = runs.ReadTrace(reference); err != nil {
			return err
		}
		names = func(t *Tensor) string { return cmp.Or(t.Reference, t.Name) }
	}
	for _, t := range r.Tensors {
		t.made = made[names(t)]
	}
	slices.SortStableFunc(r.Tensors, compareTensors)
	for i, t := range r.Tensors {
		t.Order = i + 1
	}
	return nil
}

func compareTensors(a, b *Tensor) int {
	place := func(t *Tensor) int {
		if t.made == 0 {
			return math.MaxInt
		}
		return t.made
	}
	return cmp.Or(
		cmp.Compare(place(a), place(b)),
		cmp.Compare(stageOrder(b.Stage), stageOrder(a.Stage)),
		cmp.Compare(Depth(b.ModuleName()), Depth(a.ModuleName())),
		CompareNames(a.Name, b.Name),
	)
}

// CompareByStage orders the names of tensors of a run without a trace: by stage, depth and name.
func CompareByStage(a, b string) int {
	return compareTensors(&Tensor{Name: a, Stage: StageOf(a)}, &Tensor{Name: b, Stage: StageOf(b)})
}

// CompareNames sorts numbers in names by value. Of one call inputs come first and outputs last.
func CompareNames(a, b string) int {
	kinds := []hooks.Kind{hooks.Input, hooks.Inner, hooks.Output}
	kind := func(n hooks.Name) int { return slices.Index(kinds, n.Point.Kind) }
	x, y := hooks.NameOf(a), hooks.NameOf(b)
	return cmp.Or(
		checkpoint.CompareNames(x.Module, y.Module),
		cmp.Compare(x.Step, y.Step),
		cmp.Compare(x.Call, y.Call),
		cmp.Compare(kind(x), kind(y)),
		checkpoint.CompareNames(x.Point.Key, y.Point.Key),
	)
}
