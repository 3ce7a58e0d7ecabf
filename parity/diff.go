package parity

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/hints"
)

// DiffRuns compares the tensors that two runs both have, under their names; b is the reference.
// The verdict names the first that differs: in the order in which they were computed, if one of
// the runs has a trace.
func DiffRuns(ctx context.Context, a, b string, table *Table) (*Report, error) {
	if table == nil {
		table = DefaultTable()
	}
	rep := &Report{Run: b, Model: a, Readings: []string{Free}}
	ourFiles, refFiles := folder(a), folder(b)
	err := mlx.Do(ctx, func() error {
		ours, err := OpenRun(ourFiles)
		if err != nil {
			return err
		}
		ref, err := OpenRun(refFiles)
		if err != nil {
			return err
		}
		rep.diff(ours, ref, table)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := rep.order(ourFiles, refFiles); err != nil {
		return nil, err
	}
	rep.judge()
	if !rep.Verdict.OK && len(rep.Tensors) > 0 {
		rep.Verdict.Text += fmt.Sprintf(" (of %d tensors in both)", len(rep.Tensors))
	}
	return rep, nil
}

// diff compares the tensors of two runs.
func (r *Report) diff(ours, ref *Run, table *Table) {
	r.RefDtype = ref.Compute
	names := passNames{ref, ref.batched() && !ours.batched()}
	calls := ours.calls()
	compared := map[string]bool{}
	for _, name := range ours.Names() {
		n, err := hooks.ParseName(name)
		if err != nil {
			continue
		}
		positive := max(1, calls[fmt.Sprint(n.Module, "@", n.Step)]/2)
		negative := n.Call >= positive && names.inBatch(n.Module)
		refName := names.name(n, negative, positive)
		got, want := ours.Array(name), ref.Array(refName)
		if want == nil {
			continue
		}
		compared[refName] = true
		want = names.onePass(want, n, negative, got.Shape())
		t := &Tensor{
			Name: name, Module: moduleOf(name), Kind: n.Point.Kind.String(), Stage: stageOf(name),
			Shape: got.Shape(), RefShape: want.Shape(),
			Dtype: ours.dtypes[ours.stored(name)], RefDtype: ref.dtypes[ref.stored(refName)],
		}
		if refName != name {
			t.Reference = refName
		}
		r.Tensors = append(r.Tensors, t)
		g, w := got.Floats(), want.Floats()
		t.Got, t.Ref = first(g), first(w)
		if !t.sameShape() {
			t.Guess = hints.Shapes(t.Shape, t.RefShape)
			continue
		}
		tolerance := table.For(mlx.BackendCPU, cmp.Or(ours.Compute, "float32"), stageKey(t.Stage), Free, t.Name)
		t.Free, t.Histogram = newReading(name, g, w, t.Shape, tolerance), histogram(g, w)
	}
	for _, name := range ref.Names() {
		switch reason := untappedAnywhere(name); {
		case compared[name]:
		case reason != "":
			r.leaveOut(name, reason)
		default:
			r.Missing = append(r.Missing, name)
		}
	}
	r.setImages(ours, ref)
}

// calls counts the calls of each module (with @STEP).
func (r *Run) calls() map[string]int {
	calls := map[string]int{}
	for _, name := range r.Names() {
		if n, err := hooks.ParseName(name); err == nil {
			at := fmt.Sprint(n.Module, "@", n.Step)
			calls[at] = max(calls[at], n.Call+1)
		}
	}
	return calls
}

// setImages adds both sides' images, if they have one size.
func (r *Report) setImages(ours, ref *Run) {
	a, b := ours.Array("image"), ref.Array("image")
	if a == nil || b == nil || a.Ndim() != 3 || !slices.Equal(a.Shape(), b.Shape()) {
		return
	}
	r.ours, r.reference = a.Uint8s(), b.Uint8s()
	r.Height, r.Width = a.Dim(0), a.Dim(1)
}
