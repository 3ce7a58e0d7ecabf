// Package scheduler samples: it chooses the noise levels at which a model is evaluated, and moves
// the latents along the model's predictions. There is one file for each scheduler class of
// diffusers or mflux; [All] lists them. The package also draws noise as PyTorch does.
package scheduler

import (
	"fmt"
	"strings"

	"github.com/gomflux/gomflux/mlx"
)

// A Scheduler samples one run. Its state between evaluations is passed through Step, so a
// Scheduler holds no arrays, and the caller decides how long they live.
//
// Implementations embed [FlowMatch] and add Step.
type Scheduler interface {
	// Schedule returns the noise schedule, whose values may be replaced before the first
	// evaluation ([Schedule.Replace]).
	Schedule() *Schedule
	// Step returns the latents after an evaluation of the model, float32, and the state for
	// the next one.
	Step(e Evaluation) (latents *mlx.Array, state State)
	// Denoised returns the estimate of the clean latents that follows from an evaluation.
	Denoised(e Evaluation) *mlx.Array
	// ScaleNoise adds as much noise to clean latents as they have before evaluation i, float32
	// (scale_noise in diffusers).
	ScaleNoise(i int, clean, noise *mlx.Array) *mlx.Array
}

// State holds the arrays that a scheduler needs again at the next evaluation, such as an earlier
// velocity. It is nil at the first evaluation of a run, which need not be number 0.
type State []*mlx.Array

// An Evaluation is one evaluation of the model.
type Evaluation struct {
	Index    int        // from 0
	Latents  *mlx.Array // input of the model, float32 [B, C, h, w]
	Velocity *mlx.Array // output of the model, in the shape of Latents, any float dtype
	State    State      // returned by the previous Step
	// Noise draws standard normal noise in the shape of Latents, float32. It depends only on
	// the run's seeds and on Index, and is independent of the initial noise.
	Noise func() *mlx.Array
}

// A Class describes a scheduler class.
type Class struct {
	Name      string // in [Names]: the class in snake case without "scheduler"
	ClassName string // in diffusers or mflux, and as _class_name in scheduler_config.json
	ShortName string // accepted for Name, "" for none
	OwnSigmas bool   // spaces its sigmas itself: only the number of those that it is given matters
	// New returns a scheduler for one run with a valid config. The sigmas are those of the pipeline, one
	// for each step and not shifted yet ([LinearSigmas]); mu is the shift for the image's size, for
	// classes with dynamic shifting ([DynamicShift.Mu]).
	New func(c FlowMatchConfig, sigmas []float32, mu float64) (Scheduler, error)
}

// All lists the scheduler classes. The first one is the default for a config without _class_name.
var All = []*Class{Euler, Heun, Linear}

// Names lists the names of the schedulers, the default first.
func Names() []string {
	var names []string
	for _, c := range All {
		names = append(names, c.Name)
	}
	return names
}

// Name returns the name in [Names] of a scheduler that is given by that name, by its short name
// (euler, heun) or by its class name (FlowMatchHeunDiscreteScheduler), ignoring case. The error
// lists the names.
func Name(name string) (string, error) {
	c, err := find(name)
	if err != nil {
		return "", err
	}
	return c.Name, nil
}

func find(name string) (*Class, error) {
	var known []string
	for _, c := range All {
		if name != "" && (strings.EqualFold(name, c.Name) || strings.EqualFold(name, c.ClassName) || strings.EqualFold(name, c.ShortName)) {
			return c, nil
		}
		if c.ShortName != "" {
			known = append(known, c.Name+" (or "+c.ShortName+")")
		} else {
			known = append(known, c.Name)
		}
	}
	return nil, fmt.Errorf("unknown scheduler %q, expected one of %s", name, strings.Join(known, ", "))
}
