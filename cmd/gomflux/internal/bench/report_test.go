package bench

import (
	"math"
	"slices"
	"testing"
	"time"
)

// TestBenchPhases: the first time stands apart, and a phase that ran once has only that.
func TestBenchPhases(t *testing.T) {
	r := benchReport{stepFLOPs: 6e12, operations: 7, fileBytes: 6e9, Matmul: 6}
	r.finish(map[string][]float64{"load": {3}, "step": {9, 4, 1, 2, 1}, "image": {1, 2, 3, 7}})
	want := []benchPhase{
		{Name: "load", First: 3, Steady: 3, Min: 3, Max: 3, Read: 2},
		{Name: "step", First: 9, Steady: 1.5, Min: 1, Max: 4, TFLOP: 6, Speed: 4, Share: math.Round(1e4*4/6.0) / 1e4, Operations: 7},
		{Name: "image", First: 1, Steady: 3, Min: 2, Max: 7},
	}
	if len(r.Phases) != len(want) {
		t.Fatalf("phases %+v", r.Phases)
	}
	for i, p := range r.Phases {
		if p != want[i] {
			t.Errorf("phase %+v, expected %+v", p, want[i])
		}
	}
}

// TestMeasuredSteps: the steps of a run that compile do not count, except in the first run.
func TestMeasuredSteps(t *testing.T) {
	for _, c := range []struct {
		run         int
		steps, want []time.Duration
	}{
		{0, []time.Duration{9, 1, 2}, []time.Duration{9}},
		{0, []time.Duration{9}, []time.Duration{9}},
		{1, []time.Duration{5, 1, 2}, []time.Duration{1, 2}},
		{3, []time.Duration{5}, []time.Duration{5}},
	} {
		if got := measuredSteps(c.run, c.steps); !slices.Equal(got, c.want) {
			t.Errorf("run %d with steps %v: %v, expected %v", c.run, c.steps, got, c.want)
		}
	}
}
