package scheduler

import (
	"fmt"
	"math"
)

// A Schedule is a noise schedule: the noise levels at which the model is evaluated. Evaluations
// are counted from 0 and happen in order, from 0 or from [Schedule.Start]. A step of a scheduler
// of second order has two of them.
type Schedule struct {
	Name string // of the scheduler, in [Names]
	// Sigmas are the noise levels of the latents before each evaluation, from 1 (only noise) to
	// 0, and after the last one.
	Sigmas []float32
	// Timesteps are the inputs of the model at each evaluation, sigma·num_train_timesteps.
	Timesteps []float32
	// Order is the number of evaluations in a step, except the last step, which may have fewer;
	// 0 stands for 1.
	Order int
	// Stateful schedulers carry state from one step to the next, so a run cannot resume from
	// the latents after a step alone.
	Stateful bool
}

// An Interval is the pair of consecutive timesteps of an evaluation. Most models see only Timestep;
// flow maps also see Next, the timestep that they predict for, which is 0 at the last evaluation.
type Interval struct{ Timestep, Next float32 }

// Interval returns the timesteps of evaluation i.
func (s *Schedule) Interval(i int) Interval {
	t := Interval{Timestep: s.Timesteps[i]}
	if i+1 < len(s.Timesteps) {
		t.Next = s.Timesteps[i+1]
	}
	return t
}

// Replace sets other sigmas and timesteps, as many as there are. Values that are not finite, and
// sigmas that are negative or rise, are an error.
func (s *Schedule) Replace(sigmas, timesteps []float32) error {
	switch {
	case len(sigmas) != len(s.Sigmas) || len(timesteps) != len(s.Timesteps):
		return fmt.Errorf("%d sigmas and %d timesteps, expected %d and %d", len(sigmas), len(timesteps), len(s.Sigmas), len(s.Timesteps))
	case !falls(sigmas):
		return fmt.Errorf("sigmas %g: expected finite numbers from 0 that do not rise", sigmas)
	}
	for _, t := range timesteps {
		if math.IsNaN(float64(t)) || math.IsInf(float64(t), 0) {
			return fmt.Errorf("timesteps %g: expected finite numbers", timesteps)
		}
	}
	s.Sigmas, s.Timesteps = sigmas, timesteps
	return nil
}

// falls reports whether sigmas are finite, not negative, and never rise.
func falls(sigmas []float32) bool {
	for i, sigma := range sigmas {
		if !(sigma >= 0 && sigma <= math.MaxFloat32) || i > 0 && sigma > sigmas[i-1] {
			return false
		}
	}
	return true
}

func (s *Schedule) order() int { return max(s.Order, 1) }

// Steps returns the number of steps.
func (s *Schedule) Steps() int { return s.StepOf(len(s.Timesteps)-1) + 1 }

// StepOf returns the step, from 0, that evaluation i belongs to. For the number of evaluations it
// is the number of steps.
func (s *Schedule) StepOf(i int) int {
	if i >= len(s.Timesteps) {
		return s.Steps()
	}
	return i / s.order()
}

// Ends reports whether evaluation i is the last one of its step.
func (s *Schedule) Ends(i int) bool { return (i+1)%s.order() == 0 || i == len(s.Timesteps)-1 }

// Start returns the first evaluation of a step. For a step after the last one it is the number of
// evaluations.
func (s *Schedule) Start(step int) int { return min(step*s.order(), len(s.Timesteps)) }

// Resumes reports whether a run can go on from the latents after evaluation i, without the
// scheduler's state.
func (s *Schedule) Resumes(i int) bool { return s.Ends(i) && !s.Stateful }

// FirstStep returns the step at which image-to-image begins, from 0. The higher the strength, from
// 0 to 1, the more of the image stays: that part of the steps is left out, rounded down but at
// least one, and with strength 1 all of them. Strength 0 leaves out no step and ignores the image.
// mflux counts in this way; in diffusers this strength is 1 - strength.
func FirstStep(steps int, strength float64) int {
	if !(strength > 0) {
		return 0
	}
	return max(1, int(float64(steps)*min(strength, 1)))
}
