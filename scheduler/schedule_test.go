package scheduler_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/parity/report"
	"github.com/gomflux/gomflux/scheduler"
)

// A golden is a case of testdata/schedules.json, which
// python -m gomflux_reference schedules scheduler/testdata/schedules.json makes.
type golden struct {
	Scheduler         string
	Config            json.RawMessage
	Steps, Tokens     int
	Sigmas, Timesteps []float32
	Samples, Denoised [][]float32 // of each evaluation, from the file's start
}

func goldens(t *testing.T) (start []float32, cases []golden) {
	text, err := os.ReadFile("testdata/schedules.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Start []float32
		Cases []golden
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 100 {
		t.Fatalf("%d cases", len(file.Cases))
	}
	return file.Start, file.Cases
}

func (g golden) String() string {
	return fmt.Sprintf("%s/%s/%d/%d", g.Scheduler, g.Config, g.Steps, g.Tokens)
}

func (g golden) scheduler(t *testing.T) scheduler.Scheduler {
	t.Helper()
	config := modelConfig(t, string(g.Config))
	if err := config.Validate(); err != nil {
		t.Fatal(err)
	}
	s, err := config.New(g.Scheduler, scheduler.LinearSigmas(g.Steps), config.DynamicShift().Mu(g.Tokens))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newScheduler returns a scheduler by its name, for the default config.
func newScheduler(t *testing.T, name string, steps int, mu float64) scheduler.Scheduler {
	t.Helper()
	s, err := (&scheduler.ModelConfig{}).New(name, scheduler.LinearSigmas(steps), mu)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSchedules(t *testing.T) {
	_, cases := goldens(t)
	for _, g := range cases {
		t.Run(g.String(), func(t *testing.T) {
			s := g.scheduler(t).Schedule()
			if s.Name != g.Scheduler || s.Steps() != g.Steps || len(s.Timesteps) != len(g.Timesteps) || len(s.Sigmas) != len(g.Sigmas) {
				t.Fatalf("%s: %d timesteps and %d sigmas for %d steps, expected %d and %d",
					s.Name, len(s.Timesteps), len(s.Sigmas), s.Steps(), len(g.Timesteps), len(g.Sigmas))
			}
			// a few roundings of float32
			tolerance := report.Tolerance{Max: 3e-7, L2: 3e-7}
			if d := report.Compare(s.Sigmas, g.Sigmas); !d.Within(tolerance) {
				t.Errorf("sigmas %v, expected %v: %v", s.Sigmas, g.Sigmas, d)
			}
			if d := report.Compare(s.Timesteps, g.Timesteps); !d.Within(tolerance) {
				t.Errorf("timesteps %v, expected %v: %v", s.Timesteps, g.Timesteps, d)
			}
		})
	}
}

// velocity is the model that the goldens are made with.
func velocity(x *mlx.Array, timestep float32) *mlx.Array {
	return x.Square().Over(2).Sub(x.Times(float64(timestep / 1000))).Plus(0.25)
}

// TestSteps follows the goldens with every evaluation in a scope of its own that returns the
// latents and the scheduler's state, as a pipeline does.
func TestSteps(t *testing.T) {
	start, cases := goldens(t)
	walked := 0
	for _, g := range cases {
		if g.Samples == nil {
			continue
		}
		walked++
		t.Run(g.String(), func(t *testing.T) {
			s := g.scheduler(t)
			tolerance := report.Tolerance{Max: 2e-6, L2: 2e-6} // roundings of up to 39 evaluations
			mlxtest.Do(t, func() {
				sample(s, mlx.FromFloat32(start), func(e scheduler.Evaluation, x *mlx.Array) {
					if d := report.Compare(s.Denoised(e).Floats(), g.Denoised[e.Index]); !d.Within(tolerance) {
						t.Errorf("denoised in evaluation %d: %v", e.Index, d)
					}
					if d := report.Compare(x.Floats(), g.Samples[e.Index]); !d.Within(tolerance) {
						t.Fatalf("after evaluation %d: %v, expected %v: %v", e.Index, x.Floats(), g.Samples[e.Index], d)
					}
				})
			})
		})
	}
	if walked < 80 {
		t.Errorf("%d walks", walked)
	}
}

// sample runs a scheduler on the goldens' model, from latents x. It frees what a scope does not
// return, and calls each, if set, after every evaluation.
func sample(s scheduler.Scheduler, x *mlx.Array, each func(e scheduler.Evaluation, x *mlx.Array)) *mlx.Array {
	var state scheduler.State
	for i, timestep := range s.Schedule().Timesteps {
		made := mlx.Scopes(func() []*mlx.Array {
			e := scheduler.Evaluation{Index: i, Latents: x, Velocity: velocity(x, timestep), State: state}
			next, kept := s.Step(e)
			if each != nil {
				each(e, next)
			}
			return append([]*mlx.Array{next}, kept...)
		})
		mlx.Eval(made...)
		for _, a := range append(state, x) {
			a.Free()
		}
		x, state = made[0], made[1:]
	}
	return x
}

func TestStepDtype(t *testing.T) {
	mlxtest.Do(t, func() {
		for _, name := range scheduler.Names() {
			s := newScheduler(t, name, 2, 1)
			x, v := mlx.FromFloat32([]float32{1, 2}), mlx.FromFloat32([]float32{4, -8}).AsType(mlx.BFloat16)
			var state scheduler.State
			for i := range s.Schedule().Timesteps {
				var next *mlx.Array
				next, state = s.Step(scheduler.Evaluation{Index: i, Latents: x, Velocity: v, State: state})
				if dtype := next.Dtype(); dtype != mlx.Float32 {
					t.Errorf("%s: latents became %v in evaluation %d", name, dtype, i)
				}
			}
		}
	})
}

// TestRunsAreIndependent begins anew after a run that stopped between two evaluations of a step.
func TestRunsAreIndependent(t *testing.T) {
	mlxtest.Do(t, func() {
		s := newScheduler(t, "heun", 3, 0)
		run := func() []float32 { return sample(s, mlx.FromFloat32([]float32{-1, 0.25, 1.5}), nil).Floats() }
		want := run()
		s.Step(scheduler.Evaluation{Latents: mlx.FromFloat32([]float32{7, 7, 7}), Velocity: mlx.FromFloat32([]float32{8, 8, 8})})
		mlxtest.Same(t, "second run", run(), want)
	})
}

// TestStateIsFreed checks that nothing stays in memory after a run.
func TestStateIsFreed(t *testing.T) {
	const n = 1 << 16
	mlxtest.Do(t, func() {
		s := newScheduler(t, "heun", 3, 0)
		before := mlx.ActiveMemory()
		sample(s, mlx.Zeros(mlx.Float32, n), nil).Free()
		if left := mlx.ActiveMemory() - before; left >= 4*n {
			t.Errorf("%d bytes are left, an array has %d", left, 4*n)
		}
	})
}

func TestNames(t *testing.T) {
	tests := []struct{ name, want string }{
		{"flow_match_euler_discrete", "flow_match_euler_discrete"},
		{"euler", "flow_match_euler_discrete"},
		{"FlowMatchEulerDiscreteScheduler", "flow_match_euler_discrete"},
		{"flow_match_heun_discrete", "flow_match_heun_discrete"},
		{"Heun", "flow_match_heun_discrete"},
		{"flowmatchheundiscretescheduler", "flow_match_heun_discrete"},
		{"LINEAR", "linear"},
		{"LinearScheduler", "linear"},
	}
	for _, test := range tests {
		if got, err := scheduler.Name(test.name); got != test.want || err != nil {
			t.Errorf("%s is %q (%v), expected %q", test.name, got, err, test.want)
		}
	}
	for _, name := range []string{"", "ddim", "euler "} {
		_, err := scheduler.Name(name)
		if err == nil {
			t.Fatalf("%q is a scheduler", name)
		}
		mlxtest.Contains(t, err.Error(), append(scheduler.Names(), fmt.Sprintf("%q", name), "(or heun)")...)
	}
	if names := scheduler.Names(); len(names) != 3 || names[0] != "flow_match_euler_discrete" {
		t.Errorf("names %v", names)
	}
}

func TestDefaultScheduler(t *testing.T) {
	const heun = `"_class_name": "FlowMatchHeunDiscreteScheduler"`
	tests := []struct {
		name, config string
		want         string // or a part of the error
	}{
		{"", "{}", "flow_match_euler_discrete"},
		{"", "{" + heun + "}", "flow_match_heun_discrete"},
		{"euler", "{" + heun + "}", "flow_match_euler_discrete"},
		{"ddim", "{}", `unknown scheduler "ddim"`},
		{"heun", `{"use_dynamic_shifting": true}`, "flow_match_heun_discrete: has no use_dynamic_shifting"},
		{"heun", `{"shift_terminal": 0.1}`, "flow_match_heun_discrete: has no shift_terminal"},
	}
	for _, test := range tests {
		s, err := modelConfig(t, test.config).New(test.name, scheduler.LinearSigmas(4), 1)
		if err != nil {
			mlxtest.Contains(t, err.Error(), test.want)
		} else if got := s.Schedule().Name; got != test.want {
			t.Errorf("%q with %s is %q, expected %q", test.name, test.config, got, test.want)
		}
	}
}

func TestEvaluations(t *testing.T) {
	tests := []struct {
		name   string
		steps  int
		stepOf []int
		ends   []bool
		starts []int // of steps 0, 1, …, and of one after the last
	}{
		{"euler", 1, []int{0}, []bool{true}, []int{0, 1}},
		{"linear", 3, []int{0, 1, 2}, []bool{true, true, true}, []int{0, 1, 2, 3}},
		{"heun", 1, []int{0}, []bool{true}, []int{0, 1}},
		{"heun", 3, []int{0, 0, 1, 1, 2}, []bool{false, true, false, true, true}, []int{0, 2, 4, 5}},
	}
	for _, test := range tests {
		s := newScheduler(t, test.name, test.steps, 1).Schedule()
		var stepOf, starts []int
		var ends []bool
		for i := range s.Timesteps {
			stepOf, ends = append(stepOf, s.StepOf(i)), append(ends, s.Ends(i))
		}
		for step := range s.Steps() + 1 {
			starts = append(starts, s.Start(step))
		}
		if s.Steps() != test.steps || !slices.Equal(stepOf, test.stepOf) || !slices.Equal(ends, test.ends) ||
			!slices.Equal(starts, test.starts) {
			t.Errorf("%s: %d steps: %v, %v, %v, expected %v", test.name, s.Steps(), stepOf, ends, starts, test)
		}
	}
}

func TestFirstStep(t *testing.T) {
	tests := []struct {
		steps    int
		strength float64
		want     int
	}{
		{9, 0, 0}, {9, -1, 0},
		{9, 0.01, 1}, // at least one step is left out
		{9, 0.4, 3}, {10, 0.3, 3}, {4, 0.5, 2},
		{100, 0.29, 28}, // 28.999999999999996, as Python has it
		{9, 1, 9}, {9, 2, 9}, {1, 0.4, 1},
	}
	for _, test := range tests {
		if got := scheduler.FirstStep(test.steps, test.strength); got != test.want {
			t.Errorf("%g of %d steps begins at %d, expected %d", test.strength, test.steps, got, test.want)
		}
	}
}

func TestScaleNoise(t *testing.T) {
	mlxtest.Do(t, func() {
		s := scheduler.FlowMatch{Noise: scheduler.Schedule{Sigmas: []float32{1, 0.75, 0}, Timesteps: []float32{1000, 750}}}
		clean, noise := mlx.FromFloat32([]float32{4, -8}).AsType(mlx.BFloat16), mlx.FromFloat32([]float32{1, 2})
		for i, want := range [][]float32{{1, 2}, {1.75, -0.5}, {4, -8}} {
			mlxtest.Same(t, fmt.Sprintf("evaluation %d", i), s.ScaleNoise(i, clean, noise).Floats(), want)
		}
	})
}
