package parity

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/debug"
)

// traceFile has the names of all tensors of a run, in the order in which they were computed.
const traceFile = "traces/taps.jsonl"

// readTrace numbers the tensors of a run from 1, in the order in which they were computed, which
// their statistics have too. The result is empty without a trace, and lacks an incomplete last line
// of a run that was killed.
func readTrace(fsys fs.FS) (map[string]int, error) {
	f, err := fsys.Open(traceFile)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = fsys.Open(debug.StatsFile)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("trace of the run: %w", err)
	}
	defer f.Close()
	made := map[string]int{}
	for d := json.NewDecoder(f); ; {
		var tap struct {
			Name string `json:"name"`
		}
		if d.Decode(&tap) != nil {
			return made, nil
		}
		if made[tap.Name] == 0 {
			made[tap.Name] = len(made) + 1
		}
	}
}

// order sorts tensors by the trace of one of the runs. Tensors that are in neither trace come
// last, by stage, depth and name.
func (r *Report) order(ours, reference fs.FS) error {
	made, err := readTrace(ours)
	if err != nil {
		return err
	}
	names := func(t *Tensor) string { return t.Name }
	if len(made) == 0 {
		if made, err = readTrace(reference); err != nil {
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
		cmp.Compare(depth(b.moduleName()), depth(a.moduleName())),
		compareNames(a.Name, b.Name),
	)
}

// compareNames sorts numbers in names by value. Of one call inputs come first and outputs last.
func compareNames(a, b string) int {
	parse := func(s string) hooks.Name {
		n, err := hooks.ParseName(s)
		if err != nil {
			return hooks.Name{Module: s}
		}
		return n
	}
	kinds := []hooks.Kind{hooks.Input, hooks.Inner, hooks.Output}
	kind := func(n hooks.Name) int { return slices.Index(kinds, n.Point.Kind) }
	x, y := parse(a), parse(b)
	return cmp.Or(
		checkpoint.CompareNames(x.Module, y.Module),
		cmp.Compare(x.Step, y.Step),
		cmp.Compare(x.Call, y.Call),
		cmp.Compare(kind(x), kind(y)),
		checkpoint.CompareNames(x.Point.Key, y.Point.Key),
	)
}
