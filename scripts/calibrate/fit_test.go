package main

import (
	"math"
	"testing"

	"github.com/gomflux/gomflux/models/component"
)

// TestFit finds constants again by peaks that were computed with them, as the meter
// of package models does, and leaves alone what the peaks do not depend on.
func TestFit(t *testing.T) {
	const width, weights = 256.0, 5e6
	type pass struct{ tokens, heads, cast float64 }
	passes := []pass{{64, 4, 1e6}, {256, 4, 1e6}, {1024, 4, 1e6}, {1024, 4, 0}, {256, 4, 0}, {2048, 4, 1e6}, {16, 4, 2e6}}
	cpu := func(s component.BlockMemory, p pass) float64 {
		scores := s.Scores * p.heads * p.tokens * p.tokens
		return weights + 4*(p.tokens*s.Live+max(scores+s.Cast*p.cast, s.CastAlone*p.cast))
	}
	gpu := func(s component.BlockMemory, p pass) float64 {
		return weights + p.tokens*(4*s.Written+s.Read) + p.cast*s.Read/s.Written
	}
	for _, test := range []struct {
		name        string
		cpu         bool
		first, want component.BlockMemory
		peak        func(component.BlockMemory, pass) float64
	}{
		{"cpu", true, component.BlockMemory{Live: 20 * width, Scores: 1, Cast: 0.3, CastAlone: 0.7},
			component.BlockMemory{Live: 36 * width, Scores: 0.85, Cast: 0.5, CastAlone: 0.9}, cpu},
		{"gpu", false, component.BlockMemory{Written: 20 * width, Read: 20 * width, Live: 7, Scores: 1},
			component.BlockMemory{Written: 28 * width, Read: 38 * width, Live: 7, Scores: 1}, gpu},
	} {
		loss := func(s component.BlockMemory) float64 {
			var errors []float64
			for _, p := range passes {
				errors = append(errors, test.peak(s, p)/test.peak(test.want, p)-1)
			}
			return squares(errors)
		}
		got := fit(test.first, knobs(test.cpu, width), loss)
		if l := loss(got); l > 0.003 {
			t.Errorf("%s: %+v is off by %.4f", test.name, got, l)
		}
		for _, k := range knobs(test.cpu, width) {
			if g, w := *k.of(&got), *k.of(&test.want); math.Abs(g-w) > 0.05*w {
				t.Errorf("%s: %g, expected %g", test.name, g, w)
			}
		}
		if test.cpu == (got.Written != test.first.Written) || !test.cpu && got.Live != test.first.Live {
			t.Errorf("%s: what is of another device changed: %+v", test.name, got)
		}
	}
	flat := func(component.BlockMemory) float64 { return 0.1 }
	first := component.BlockMemory{Live: 3, Scores: 1, Cast: 0.3}
	if got := fit(first, knobs(true, width), flat); got != first {
		t.Errorf("what nothing tells apart became %+v", got)
	}
}

func TestLiteral(t *testing.T) {
	s := component.BlockMemory{Blocks: 3, Heads: 4, Written: 280, Read: 385, Live: 361.4, Scores: 1, Cast: 0.65}
	for cpu, want := range map[bool]string{
		true:  "component.BlockMemory{Blocks: 3, Heads: 4, Live: 36.1 * w, Scores: 1, Cast: 0.65, CastAlone: 0}",
		false: "component.BlockMemory{Blocks: 3, Heads: 4, Written: 28 * w, Read: 38.5 * w}",
	} {
		if got := literal(s, 10, cpu); got != want {
			t.Errorf("%s, expected %s", got, want)
		}
	}
}

func TestNumbers(t *testing.T) {
	var list []int
	if err := numbers(&list)("1,24"); err != nil || len(list) != 2 || list[1] != 24 {
		t.Errorf("%v, %v", list, err)
	}
	for _, bad := range []string{"", "0", "1,,2", "1, 2", "-3", "x"} {
		if numbers(&list)(bad) == nil {
			t.Errorf("%q is taken for numbers", bad)
		}
	}
}
