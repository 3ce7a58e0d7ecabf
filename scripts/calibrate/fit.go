package main

import (
	"math"

	"github.com/gomflux/gomflux/models/component"
)

// A knob is a constant of a stack that is fitted.
type knob struct {
	of   func(*component.Stack) *float64
	step float64 // the first
	most float64
}

// knobs are the constants that count on the CPU or a GPU, for a model of a width.
func knobs(cpu bool, width float64) []knob {
	if !cpu {
		return []knob{
			{func(s *component.Stack) *float64 { return &s.Made }, 4 * width, 500 * width},
			{func(s *component.Stack) *float64 { return &s.Read }, 4 * width, 500 * width},
		}
	}
	return []knob{
		{func(s *component.Stack) *float64 { return &s.Alive }, 4 * width, 500 * width},
		{func(s *component.Stack) *float64 { return &s.Scores }, 0.25, 4},
		{func(s *component.Stack) *float64 { return &s.Cast }, 0.2, 2},
		{func(s *component.Stack) *float64 { return &s.CastAlone }, 0.2, 2},
	}
}

const (
	halvings = 6    // of steps
	gain     = 1e-3 // that is worth a change, of the error
)

// fit searches the stack with the smallest error from a first one. Around the best
// one it tries a grid, one step to each side, and halves the steps when that is no
// better.
func fit(first component.Stack, knobs []knob, loss func(component.Stack) float64) component.Stack {
	best, least := first, loss(first)
	for scale := 1.0; scale >= math.Pow(0.5, halvings); {
		from, before := best, least
		for _, s := range grid(from, knobs, scale) {
			if l := loss(s); l < least*(1-gain) {
				best, least = s, l
			}
		}
		if least == before {
			scale /= 2
		}
	}
	return best
}

// grid is a stack and its neighbours.
func grid(s component.Stack, knobs []knob, scale float64) []component.Stack {
	all := []component.Stack{s}
	for _, k := range knobs {
		for _, s := range all { // as many as there were
			for _, step := range []float64{-k.step, k.step} {
				other := s
				v := k.of(&other)
				*v = min(max(0, *v+scale*step), k.most)
				all = append(all, other)
			}
		}
	}
	return all
}

// squares is the root of the mean square of errors.
func squares(errors []float64) float64 {
	sum := 0.0
	for _, e := range errors {
		sum += e * e
	}
	return math.Sqrt(sum / float64(max(1, len(errors))))
}
