package main

import (
	"math"

	"github.com/gomflux/gomflux/models/component"
)

// A knob is a constant that is fitted.
type knob struct {
	of   func(*component.BlockMemory) *float64
	step float64 // initial step
	max  float64
}

// knobs returns the constants that matter on the CPU or on a GPU, for a model's width.
func knobs(cpu bool, width float64) []knob {
	if !cpu {
		return []knob{
			{func(s *component.BlockMemory) *float64 { return &s.Written }, 4 * width, 500 * width},
			{func(s *component.BlockMemory) *float64 { return &s.Read }, 4 * width, 500 * width},
		}
	}
	return []knob{
		{func(s *component.BlockMemory) *float64 { return &s.Live }, 4 * width, 500 * width},
		{func(s *component.BlockMemory) *float64 { return &s.Scores }, 0.25, 4},
		{func(s *component.BlockMemory) *float64 { return &s.Cast }, 0.2, 2},
		{func(s *component.BlockMemory) *float64 { return &s.CastAlone }, 0.2, 2},
	}
}

const (
	halvings = 6    // of the steps
	gain     = 1e-3 // relative improvement of the error that a change must bring
)

// fit searches the constants with the smallest loss. It tries a grid around the best ones so far,
// one step to each side, and halves the steps when no point is better.
func fit(first component.BlockMemory, knobs []knob, loss func(component.BlockMemory) float64) component.BlockMemory {
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

// grid returns a point and its neighbours.
func grid(s component.BlockMemory, knobs []knob, scale float64) []component.BlockMemory {
	all := []component.BlockMemory{s}
	for _, k := range knobs {
		for _, s := range all { // evaluated once, before all grows
			for _, step := range []float64{-k.step, k.step} {
				other := s
				v := k.of(&other)
				*v = min(max(0, *v+scale*step), k.max)
				all = append(all, other)
			}
		}
	}
	return all
}

// squares returns the root mean square of errors.
func squares(errors []float64) float64 {
	sum := 0.0
	for _, e := range errors {
		sum += e * e
	}
	return math.Sqrt(sum / float64(max(1, len(errors))))
}
