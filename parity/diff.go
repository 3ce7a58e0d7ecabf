package parity

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/report"
	"github.com/gomflux/gomflux/parity/runs"
)

// DiffRuns compares the tensors that two runs both have, under their names; b is the reference.
// The verdict names the first that differs: in the order in which they were computed, if one of
// the runs has a trace.
func DiffRuns(ctx context.Context, a, b string, table *report.Table) (*report.Report, error) {
	table = cmp.Or(table, report.DefaultTable())
	rep := &report.Report{Run: b, Model: a, Readings: []string{report.Free}}
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
		rep.Settings = differentSettings(ours, ref)
		diff(rep, ours, ref, table)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := rep.SortByTrace(ourFiles, refFiles); err != nil {
		return nil, err
	}
	rep.Judge()
	if !rep.Verdict.OK && len(rep.Tensors) > 0 {
		rep.Verdict.Text += fmt.Sprintf(" (of %d tensors in both)", len(rep.Tensors))
	}
	return rep, nil
}

// differentSettings lists the settings that both runs have and that decide what is computed, where they differ.
func differentSettings(ours, ref *Run) (list []string) {
	for _, key := range []string{"prompt", "negative_prompt", "seed", "steps", "guidance", "true_cfg_scale", "cfg_normalization",
		"cfg_truncation", "height", "width", "max_sequence_length", "scheduler", "picture", "image_strength", "step_cache"} {
		var a, b any
		x, okA := ours.given[key]
		y, okB := ref.given[key]
		if okA && okB && json.Unmarshal(x, &a) == nil && json.Unmarshal(y, &b) == nil && a != b &&
			!(a == nil && b == "" || a == "" && b == nil) {
			list = append(list, fmt.Sprintf("%s %s (the reference's %s)", key, x, y))
		}
	}
	return list
}

// diff adds the tensors of two runs to a report.
func diff(r *report.Report, ours, ref *Run, table *report.Table) {
	r.RefDtype = ref.Compute
	names := passNames{ref, ref.batched() && !ours.batched()}
	calls := ours.calls()
	compared := map[string]bool{}
	for _, name := range ours.recorded() {
		n, err := hooks.ParseName(name)
		if err != nil {
			continue
		}
		positive := max(1, calls[fmt.Sprint(n.Module, "@", n.Step)]/2)
		negative := n.Call >= positive && names.inBatch(n.Module)
		refName := names.name(n, negative, positive)
		got, want := ours.Array(name), ref.Array(refName)
		if got == nil || want == nil {
			cut := func(x *mlx.Array, shape []int) *mlx.Array { return names.onePass(x, n, negative, shape) }
			if diffStats(r, ours, ref, name, refName, cut, table) {
				compared[refName] = true
			}
			continue
		}
		compared[refName] = true
		want = names.onePass(want, n, negative, got.Shape())
		t := report.NewTensor(name, refName)
		t.Shape, t.RefShape = got.Shape(), want.Shape()
		t.Dtype, t.RefDtype = ours.dtypes[ours.stored(name)], ref.dtypes[ref.stored(refName)]
		r.Tensors = append(r.Tensors, t)
		g, w := got.Floats(), want.Floats()
		if !t.SameShape() {
			t.ShowShapes(g, w)
			continue
		}
		t.Free = t.Measure(g, w, t.Shape, table.For(mlx.BackendCPU, cmp.Or(ours.Compute, "float32"), t.Stage, report.Free, t.Name))
	}
	untapped := untappedOfAll()
	for _, name := range ref.recorded() {
		switch reason := untapped.reason(name); {
		case compared[name]:
		case reason != "":
			r.LeaveOut(name, reason)
		default:
			r.Missing = append(r.Missing, name)
		}
	}
	a, b := ours.Array("image"), ref.Array("image")
	if a != nil && b != nil && a.Ndim() == 3 && slices.Equal(a.Shape(), b.Shape()) {
		r.SetImages(a.Uint8s(), b.Uint8s(), a.Dim(1), a.Dim(0))
	}
}

// diffStats compares the statistics of a tensor of which one side has no values. It reports whether
// both sides have statistics. cut takes the part of the reference's tensor that is in ours; its
// statistics are unknown without values.
func diffStats(r *report.Report, ours, ref *Run, name, refName string, cut func(*mlx.Array, []int) *mlx.Array, table *report.Table) bool {
	got, ok := ours.record(name)
	want, there := ref.record(refName)
	if !ok || !there {
		return false
	}
	if x := ref.Array(refName); x != nil {
		want = recordOf(cut(x, got.Shape), want.Dtype)
	} else if part := cut(mlx.Full(0, mlx.Float32, want.Shape...), got.Shape); !slices.Equal(part.Shape(), want.Shape) {
		r.LeaveOut(refName, "statistics of more rows than here: of pads, or of prompt and negative prompt in one batch")
		return true
	}
	t := report.NewTensor(name, refName)
	t.Shape, t.RefShape, t.Dtype, t.RefDtype = got.Shape, want.Shape, got.Dtype, want.Dtype
	r.Tensors = append(r.Tensors, t)
	r.Statistics++
	t.MeasureStats(got, want, table.For(mlx.BackendCPU, cmp.Or(ours.Compute, "float32"), t.Stage, report.Free, t.Name))
	return true
}

// recorded lists the names of all tensors of the run and of those with statistics alone.
func (r *Run) recorded() []string {
	names := slices.AppendSeq(r.Names(), maps.Keys(r.stats))
	slices.Sort(names)
	return slices.Compact(names)
}

// calls counts the calls of each module (with @STEP).
func (r *Run) calls() map[string]int {
	calls := map[string]int{}
	for _, name := range r.recorded() {
		if n, err := hooks.ParseName(name); err == nil {
			at := fmt.Sprint(n.Module, "@", n.Step)
			calls[at] = max(calls[at], n.Call+1)
		}
	}
	return calls
}

// recordOf returns the statistics of a tensor.
func recordOf(a *mlx.Array, dtype string) runs.Record {
	v := a.Floats()
	rec := runs.Record{Shape: a.Shape(), Dtype: dtype, Stats: checkpoint.Summarize(v)}
	for _, x := range report.First(v) {
		rec.Preview = append(rec.Preview, checkpoint.Float(x))
	}
	return rec
}

// record returns the statistics of one of the run's tensors: the recorded ones, or those of its
// values.
func (r *Run) record(name string) (runs.Record, bool) {
	if a := r.Array(name); a != nil {
		return recordOf(a, r.dtypes[r.stored(name)]), true
	}
	rec, ok := r.stats[name]
	return rec, ok
}
