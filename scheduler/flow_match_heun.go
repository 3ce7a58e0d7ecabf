package scheduler

import (
	"errors"

	"github.com/gomflux/gomflux/mlx"
)

// heun is diffusers' FlowMatchHeunDiscreteScheduler: Heun's second-order
// method, which evaluates the model again where a first step has led and goes
// back to take the mean of both velocities; the last step, down to sigma 0, is
// Euler's. N steps are 2N-1 evaluations.
//
// It spaces its sigmas itself, so of the pipeline's only their number counts:
// evenly from 1 to the smallest sigma of training, and then shifted by the
// config's shift, which that smallest one has been before. (diffusers' pipeline
// for Z-Image insists on its own sigmas and so refuses the class; this is the
// class as it is, made from that model's config.)
func (c *FlowMatchEulerConfig) heun(sigmas []float32, _ float64) (*Schedule, error) {
	if c.UseDynamicShifting {
		return nil, errors.New("has no use_dynamic_shifting, which the model's config asks for (try flow_match_euler_discrete)")
	}
	if t := c.ShiftTerminal; t != nil && *t != 0 {
		return nil, errors.New("has no shift_terminal, which the model's config asks for (try flow_match_euler_discrete)")
	}
	train := float64(c.NumTrainTimesteps)
	last := 1 / float32(c.NumTrainTimesteps)
	last = float32(c.Shift) * last / (1 + float32(c.Shift-1)*last)

	n := len(sigmas)
	s := &Schedule{order: 2}
	for i := range n {
		t := train
		switch {
		case i == n-1 && n > 1:
			t = train * float64(last)
		case i > 0:
			t += float64(i) * ((train*float64(last) - train) / float64(n-1))
		}
		t /= train
		sigma := float32(c.Shift * t / (1 + (c.Shift-1)*t))
		for range min(i, 1) + 1 { // the first sigma is evaluated once, the others twice
			s.Sigmas = append(s.Sigmas, sigma)
			s.Timesteps = append(s.Timesteps, sigma*float32(c.NumTrainTimesteps))
		}
	}
	s.Sigmas = append(s.Sigmas, 0)
	return s, nil
}

// keepHalf keeps half the way of a step's first evaluation for [Schedule.correct],
// out of the scope that the evaluation runs in. If that never comes, the garbage
// collector frees it.
func (s *Schedule) keepHalf(way *mlx.Array) {
	s.drop()
	s.half = way.Times(0.5)
	mlx.Keep(s.half)
}

// correct replaces the second half of a step's way, which has been gone along
// the first velocity, by one along the velocity at its end.
func (s *Schedule) correct(i int, latents, velocity *mlx.Array) *mlx.Array {
	defer s.drop()
	half := velocity.AsType(mlx.Float32).Times(float64(s.Sigmas[i]-s.Sigmas[i-1]) / 2)
	return latents.Sub(s.half).Add(half)
}

func (s *Schedule) drop() {
	if s.half != nil {
		s.half.Free()
		s.half = nil
	}
}
