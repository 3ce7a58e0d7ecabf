package models

import (
	"math"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/scheduler"
)

// The schedulers of this file show that other kinds of samplers need nothing but a type and a line
// in [scheduler.All].

// withScheduler adds a scheduler over the pipeline's sigmas as they are, for the time of a test.
func withScheduler(t *testing.T, name string, new func(scheduler.FlowMatch) scheduler.Scheduler) {
	all := scheduler.All
	t.Cleanup(func() { scheduler.All = all })
	over := func(c scheduler.FlowMatchConfig, sigmas []float32, _ float64) (scheduler.Scheduler, error) {
		s := scheduler.Schedule{Sigmas: append(slices.Clone(sigmas), 0)}
		for _, sigma := range sigmas {
			s.Timesteps = append(s.Timesteps, sigma*float32(c.NumTrainTimesteps))
		}
		return new(scheduler.FlowMatch{Noise: s}), nil
	}
	scheduler.All = append(slices.Clone(all), &scheduler.Class{Name: name, ClassName: name, New: over})
}

// multistep is the two-step Adams-Bashforth method, which extrapolates from the previous velocity.
// Its first step is an Euler step.
type multistep struct{ scheduler.FlowMatch }

func newMultistep(f scheduler.FlowMatch) scheduler.Scheduler {
	f.Noise.Stateful = true
	return &multistep{f}
}

func (s *multistep) Step(e scheduler.Evaluation) (*mlx.Array, scheduler.State) {
	sigmas := s.Noise.Sigmas
	v := e.Velocity
	width := float64(sigmas[e.Index+1] - sigmas[e.Index])
	if e.State != nil {
		before := float64(sigmas[e.Index] - sigmas[e.Index-1])
		v = v.Add(v.Sub(e.State[0]).Times(width / before / 2))
	}
	return e.Latents.Add(v.Times(width)), scheduler.State{e.Velocity}
}

// ancestral removes all noise and adds fresh noise at each step, as diffusers'
// FlowMatchEulerDiscreteScheduler does with stochastic_sampling.
type ancestral struct{ scheduler.FlowMatch }

func newAncestral(f scheduler.FlowMatch) scheduler.Scheduler { return &ancestral{f} }

func (s *ancestral) Step(e scheduler.Evaluation) (*mlx.Array, scheduler.State) {
	return s.ScaleNoise(e.Index+1, s.Denoised(e), e.Noise()), nil
}

// TestMultistepScheduler runs a scheduler with state from one step to the next: its error falls
// with the square of the number of steps.
func TestMultistepScheduler(t *testing.T) {
	withScheduler(t, "multistep", newMultistep)
	mlxtest.Do(t, func() {
		p := load(t, nil)
		p.family = smooth{p.family}
		last := func(name string, steps int) (latents []float32) {
			r := Request{Prompt: "x", Height: 16, Width: 16, Steps: steps, Seed: 1, MaxSequenceLength: 512, Scheduler: name}
			r.OnStep = func(s Step) error { latents = s.Latents.Data; return nil }
			if _, err := p.Generate(r); err != nil {
				t.Fatal(err)
			}
			return latents
		}
		end := last("multistep", 2048)
		off := func(steps int) float64 {
			var sum float64
			for i, v := range last("multistep", steps) {
				sum += math.Pow(float64(v-end[i]), 2)
			}
			return math.Sqrt(sum)
		}
		if few, many := off(16), off(32); many > few/3 {
			t.Errorf("32 steps are off by %g, 16 by %g, expected a quarter", many, few)
		}
		if first := last("multistep", 1); !slices.Equal(first, last("euler", 1)) {
			t.Error("a single step is not an Euler step")
		}

		// latents after a step are not enough to begin there
		r := Request{Prompt: "x", Height: 16, Width: 16, Steps: 3, Seed: 1, MaxSequenceLength: 512, Scheduler: "multistep"}
		r.Overrides = hostValues{"latents@0": func() *mlx.Array { return mlx.Zeros(mlx.Float32, 1, 4, 4, 4) }}
		if res, err := p.Generate(r); err != nil || res.Steps != 3 {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// TestNoiseAtEachStep runs a scheduler that draws noise: it follows from the seed, in batches too.
func TestNoiseAtEachStep(t *testing.T) {
	withScheduler(t, "ancestral", newAncestral)
	mlxtest.Do(t, func() {
		p := load(t, nil)
		p.family = smooth{p.family}
		made := map[string]string{}
		for _, rng := range scheduler.RNGs {
			r := Request{Prompt: "x", Height: 16, Width: 16, Steps: 4, MaxSequenceLength: 512, Scheduler: "ancestral", RNG: rng}
			single := func(seed uint64) (latents []float32) {
				r.Seed = seed
				r.OnStep = func(s Step) error { latents = s.Latents.Data; return nil }
				if _, err := p.Generate(r); err != nil {
					t.Fatal(err)
				}
				return latents
			}
			one, two := single(1), single(2)
			mlxtest.Same(t, rng+", again", single(1), one)
			var batch [2][]float32
			r.OnStep = func(s Step) error { batch[s.Index] = s.Latents.Data; return nil }
			run, err := p.Prepare(r, 2)
			if err == nil {
				_, err = run.Generate([]uint64{1, 2})
			}
			if err != nil {
				t.Fatal(err)
			}
			mlxtest.Same(t, rng+", first of the batch", batch[0], one)
			mlxtest.Same(t, rng+", second of the batch", batch[1], two)
			for _, latents := range [][]float32{one, two} {
				key := string(mlx.FromFloat32(latents).Bytes())
				if other, ok := made[key]; ok {
					t.Errorf("%s: the latents of %s", rng, other)
				}
				made[key] = rng
			}
		}

		// noise of consecutive steps differs, and is that of the seed from wherever a run begins
		run, err := p.Prepare(Request{Prompt: "x", Height: 16, Width: 16, Steps: 1, MaxSequenceLength: 512}, 1)
		if err != nil {
			t.Fatal(err)
		}
		shape := []int{4, 32, 32}
		noise := []*mlx.Array{run.noise(7, shape)}
		for i := range 2 {
			noise = append(noise, run.stepNoise([]uint64{7}, i, shape).Squeeze(0))
		}
		for i, x := range noise {
			for j, y := range noise[:i] {
				if c := float64(x.Mul(y).Reshape(-1).Mean(0).Floats()[0]); math.Abs(c) > 0.06 { // 4 standard deviations
					t.Errorf("noise %d and %d correlate by %g", i, j, c)
				}
			}
		}
	})
}

// flowMap is a model that takes both timesteps of an interval: it predicts the mean velocity of
// dx/dt = t between them, which leads to the exact end in any number of steps.
type flowMap struct {
	family.Pipeline
	seen *[]scheduler.Interval
}

func (f flowMap) Predictor(family.Conditioning, int, int, family.Compiler) (family.Predictor, error) {
	return func(x *mlx.Array, at scheduler.Interval) *mlx.Array {
		*f.seen = append(*f.seen, at)
		return mlx.Zeros(mlx.Float32, x.Shape()...).Plus(float64(at.Timestep+at.Next) / 2000)
	}, nil
}

// TestFlowMap gives a model consecutive timesteps.
func TestFlowMap(t *testing.T) {
	mlxtest.Do(t, func() {
		p := load(t, nil)
		var seen []scheduler.Interval
		p.family = flowMap{p.family, &seen}
		var ends [][]float32
		for _, steps := range []int{1, 2, 5} {
			var latents []float32
			seen = nil
			r := Request{Prompt: "x", Height: 16, Width: 16, Steps: steps, Seed: 1, MaxSequenceLength: 512}
			r.OnStep = func(s Step) error { latents = s.Latents.Data; return nil }
			if _, err := p.Generate(r); err != nil {
				t.Fatal(err)
			}
			if len(seen) != steps || seen[0].Timestep != 1000 || seen[steps-1].Next != 0 {
				t.Errorf("%d steps: timesteps %v", steps, seen)
			}
			for i := range steps - 1 {
				if seen[i].Next != seen[i+1].Timestep {
					t.Errorf("%d steps: timesteps %v", steps, seen)
				}
			}
			ends = append(ends, latents)
		}
		for _, end := range ends[1:] {
			for i, v := range end {
				if math.Abs(float64(v-ends[0][i])) > 1e-6 {
					t.Fatalf("latents %g after several steps, %g after one", v, ends[0][i])
				}
			}
		}
	})
}
