package scheduler

import (
	"fmt"
	"math"
	"strings"

	"github.com/gomflux/gomflux/mlx"
)

// A kind is a scheduler.
type kind struct {
	name     string
	class    string // in diffusers, or in mflux
	short    string
	schedule func(c *FlowMatchEulerConfig, sigmas []float32, mu float64) (*Schedule, error)
}

var kinds = []kind{
	{"flow_match_euler_discrete", "FlowMatchEulerDiscreteScheduler", "euler", (*FlowMatchEulerConfig).euler},
	{"flow_match_heun_discrete", "FlowMatchHeunDiscreteScheduler", "heun", (*FlowMatchEulerConfig).heun},
	{"linear", "LinearScheduler", "", (*FlowMatchEulerConfig).linear},
}

// Names lists the schedulers, the default first:
//
//   - flow_match_euler_discrete: Euler's method over sigmas that the model's
//     config shifts, by a constant or by the size of the picture.
//   - flow_match_heun_discrete: Heun's method of the second order, over sigmas
//     of its own; N steps evaluate the model 2N-1 times.
//   - linear: Euler's method over sigmas that are shifted by the size of the
//     picture, whatever the config says, as mflux's scheduler of that name
//     does for Z-Image.
func Names() []string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// Name is the name of a scheduler in [Names] that is given by that name, by its
// short name (euler, heun) or by its class (FlowMatchHeunDiscreteScheduler), in
// any case. The error lists what there is.
func Name(name string) (string, error) {
	k, err := find(name)
	return k.name, err
}

func find(name string) (kind, error) {
	var known []string
	for _, k := range kinds {
		if name != "" && (strings.EqualFold(name, k.name) || strings.EqualFold(name, k.class) || strings.EqualFold(name, k.short)) {
			return k, nil
		}
		if k.short != "" {
			known = append(known, k.name+" (or "+k.short+")")
		} else {
			known = append(known, k.name)
		}
	}
	return kind{}, fmt.Errorf("unknown scheduler %q, expected one of %s", name, strings.Join(known, ", "))
}

// Schedule is the schedule of a scheduler by any of its names ([Name]), or of
// the config's own class if name is empty. The sigmas are the pipeline's, one
// for each step and not yet shifted ([LinearSigmas]), of which Heun's method
// takes only the number; mu is the shift of the picture's size
// ([FlowMatchEulerConfig.Mu]). Sigmas that are not finite or do not fall are an
// error.
func (c *FlowMatchEulerConfig) Schedule(name string, sigmas []float32, mu float64) (*Schedule, error) {
	if name == "" {
		name = c.ClassName
	}
	if name == "" {
		name = kinds[0].name
	}
	k, err := find(name)
	if err != nil {
		return nil, err
	}
	s, err := k.schedule(c, sigmas, mu)
	if err != nil {
		return nil, fmt.Errorf("scheduler %s: %w", k.name, err)
	}
	s.Name = k.name
	if !falls(s.Sigmas) {
		return nil, fmt.Errorf("scheduler %s: the config's shifts lead to sigmas that are no numbers, or do not fall: %g", k.name, s.Sigmas)
	}
	return s, nil
}

// falls reports whether sigmas are numbers from 0 that do not rise.
func falls(sigmas []float32) bool {
	for i, sigma := range sigmas {
		if !(sigma >= 0 && sigma <= math.MaxFloat32) || i > 0 && sigma > sigmas[i-1] {
			return false
		}
	}
	return true
}

// A Schedule is the path from noise to picture: where the model is evaluated
// and how its velocities move the latents. Evaluations are counted from 0 and
// happen in order, from 0 or from [Schedule.Start]; a step of a second-order
// scheduler has two of them.
type Schedule struct {
	Name      string
	Sigmas    []float32 // of the latents before each evaluation, and after the last: 0
	Timesteps []float32 // what the model is told at each evaluation: sigma·num_train_timesteps

	order int        // evaluations in a step; 0 is 1
	half  *mlx.Array // half the way of a step's first evaluation, while the second is awaited
}

// Replace takes other sigmas and timesteps, as many as there are. Sigmas that are no
// numbers or rise are an error, as are timesteps that are no numbers.
func (s *Schedule) Replace(sigmas, timesteps []float32) error {
	switch {
	case len(sigmas) != len(s.Sigmas) || len(timesteps) != len(s.Timesteps):
		return fmt.Errorf("%d sigmas and %d timesteps, expected %d and %d", len(sigmas), len(timesteps), len(s.Sigmas), len(s.Timesteps))
	case !falls(sigmas):
		return fmt.Errorf("sigmas %g: expected numbers from 0 that do not rise", sigmas)
	}
	for _, t := range timesteps {
		if math.IsNaN(float64(t)) || math.IsInf(float64(t), 0) {
			return fmt.Errorf("timesteps %g: expected numbers", timesteps)
		}
	}
	s.Sigmas, s.Timesteps = sigmas, timesteps
	return nil
}

// Order is how many evaluations a step has: 2 for Heun's method, whose last
// step has one.
func (s *Schedule) Order() int { return max(s.order, 1) }

// Steps is the number of steps.
func (s *Schedule) Steps() int { return s.StepOf(len(s.Timesteps)-1) + 1 }

// StepOf is the step, from 0, that evaluation i belongs to.
func (s *Schedule) StepOf(i int) int { return i / s.Order() }

// Ends tells whether evaluation i is the last of its step.
func (s *Schedule) Ends(i int) bool { return (i+1)%s.Order() == 0 || i == len(s.Timesteps)-1 }

// Start is the evaluation that a step begins with. For a step behind the last
// it is the number of evaluations.
func (s *Schedule) Start(step int) int { return min(step*s.Order(), len(s.Timesteps)) }

// Step moves the latents along the velocity that the model predicted for them
// in evaluation i, in float32: from Sigmas[i] to Sigmas[i+1]. In the second
// evaluation of a step, where the two are equal, it corrects the first.
func (s *Schedule) Step(i int, latents, velocity *mlx.Array) *mlx.Array {
	if i%s.Order() == 1 {
		return s.correct(i, latents, velocity)
	}
	way := velocity.AsType(mlx.Float32).Times(float64(s.Sigmas[i+1] - s.Sigmas[i]))
	if !s.Ends(i) {
		s.keepHalf(way)
	}
	return latents.Add(way)
}

// Denoised is the model's estimate of the picture's latents in evaluation i,
// where it predicted velocity for the latents.
func (s *Schedule) Denoised(i int, latents, velocity *mlx.Array) *mlx.Array {
	return latents.Sub(velocity.AsType(mlx.Float32).Times(float64(s.Sigmas[i])))
}

// ScaleNoise is the latents of a picture with as much noise as they have before
// evaluation i, in float32 (scale_noise in diffusers).
func (s *Schedule) ScaleNoise(i int, clean, noise *mlx.Array) *mlx.Array {
	sigma := s.Sigmas[i]
	return noise.AsType(mlx.Float32).Times(float64(sigma)).Add(clean.AsType(mlx.Float32).Times(float64(1 - sigma)))
}

// FirstStep is the step at which picture-to-picture begins, from 0. The higher
// the strength, from 0 to 1, the more of the picture stays: that much of the
// steps is left out, rounded down but at least one, and with strength 1 all of
// them. Strength 0 leaves none out and nothing of the picture. So mflux counts;
// in diffusers this strength is 1 - strength.
func FirstStep(steps int, strength float64) int {
	if !(strength > 0) {
		return 0
	}
	return max(1, int(float64(steps)*min(strength, 1)))
}
