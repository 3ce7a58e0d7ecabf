package scheduler

import (
	"errors"

	"github.com/gomflux/gomflux/mlx"
)

// Heun is diffusers' FlowMatchHeunDiscreteScheduler: Heun's second-order method. It evaluates the
// model again at the end of an Euler step, and repeats the step with the mean of both velocities.
// The last step, down to sigma 0, is an Euler step. N steps take 2N-1 evaluations.
//
// It spaces its sigmas itself, so only the number of the pipeline's sigmas matters: evenly from 1
// to the smallest sigma of training, and then shifted by the config's shift, which has already
// been applied to that smallest one. (diffusers' pipeline for Z-Image insists on its own sigmas
// and so refuses this class; this is the class as it is, made from that model's config.)
var Heun = &Class{
	Name: "flow_match_heun_discrete", ClassName: "FlowMatchHeunDiscreteScheduler", ShortName: "heun", OwnSigmas: true,
	New: newHeun,
}

func newHeun(c FlowMatchConfig, sigmas []float32, _ float64) (Scheduler, error) {
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
	s := Schedule{Order: 2}
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
		for range min(i, 1) + 1 { // the model is evaluated once at the first sigma, and twice at the others
			s.Sigmas = append(s.Sigmas, sigma)
			s.Timesteps = append(s.Timesteps, sigma*float32(c.NumTrainTimesteps))
		}
	}
	s.Sigmas = append(s.Sigmas, 0)
	return &heun{FlowMatch{s}}, nil
}

type heun struct{ FlowMatch }

// Step makes an Euler step in the first evaluation of a step. Its state is half of that
// displacement, which the second evaluation, where Sigmas[i] and Sigmas[i+1] are equal, replaces
// by the one along the velocity at the step's end.
func (s *heun) Step(e Evaluation) (*mlx.Array, State) {
	if e.Index%s.Noise.order() == 1 {
		width := s.Noise.Sigmas[e.Index] - s.Noise.Sigmas[e.Index-1]
		half := e.Velocity.AsType(mlx.Float32).Times(float64(width) / 2)
		return e.Latents.Sub(e.State[0]).Add(half), nil
	}
	delta := s.delta(e.Index, e.Velocity)
	if s.Noise.Ends(e.Index) {
		return e.Latents.Add(delta), nil
	}
	return e.Latents.Add(delta), State{delta.Times(0.5)}
}
