package scheduler

import "github.com/gomflux/gomflux/mlx"

// Euler is diffusers' FlowMatchEulerDiscreteScheduler: Euler's method over sigmas that the model's
// config shifts, by a constant or by the image's size.
var Euler = &Class{
	Name: "flow_match_euler_discrete", ClassName: "FlowMatchEulerDiscreteScheduler", ShortName: "euler",
	New: func(c FlowMatchConfig, sigmas []float32, mu float64) (Scheduler, error) {
		return &euler{FlowMatch{c.schedule(sigmas, mu)}}, nil
	},
}

type euler struct{ FlowMatch }

func (s *euler) Step(e Evaluation) (*mlx.Array, State) {
	return e.Latents.Add(s.delta(e.Index, e.Velocity)), nil
}
