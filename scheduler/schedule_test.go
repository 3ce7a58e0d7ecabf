package scheduler_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/parity"
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

func (g golden) schedule(t *testing.T) *scheduler.Schedule {
	config := scheduler.DefaultFlowMatchEulerConfig()
	if err := json.Unmarshal(g.Config, &config); err != nil {
		t.Fatal(err)
	}
	if err := config.Validate(); err != nil {
		t.Fatal(err)
	}
	s, err := config.Schedule(g.Scheduler, scheduler.LinearSigmas(g.Steps), config.Mu(g.Tokens))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSchedules(t *testing.T) {
	_, cases := goldens(t)
	for _, g := range cases {
		t.Run(g.String(), func(t *testing.T) {
			s := g.schedule(t)
			if s.Name != g.Scheduler || s.Steps() != g.Steps || len(s.Timesteps) != len(g.Timesteps) || len(s.Sigmas) != len(g.Sigmas) {
				t.Fatalf("%s: %d timesteps and %d sigmas for %d steps, expected %d and %d", s.Name, len(s.Timesteps), len(s.Sigmas), s.Steps(), len(g.Timesteps), len(g.Sigmas))
			}
			// a few roundings of float32
			tolerance := parity.Tolerance{Max: 3e-7, L2: 3e-7}
			if d := parity.Compare(s.Sigmas, g.Sigmas); !d.Within(tolerance) {
				t.Errorf("sigmas %v, expected %v: %v", s.Sigmas, g.Sigmas, d)
			}
			if d := parity.Compare(s.Timesteps, g.Timesteps); !d.Within(tolerance) {
				t.Errorf("timesteps %v, expected %v: %v", s.Timesteps, g.Timesteps, d)
			}
		})
	}
}

// velocity is the model that the goldens are made with.
func velocity(x *mlx.Array, timestep float32) *mlx.Array {
	return x.Square().Over(2).Sub(x.Times(float64(timestep / 1000))).Plus(0.25)
}

// TestSteps goes the goldens' way with every evaluation in a scope of its own
// and the latents freed behind it, as a pipeline does.
func TestSteps(t *testing.T) {
	start, cases := goldens(t)
	walked := 0
	for _, g := range cases {
		if g.Samples == nil {
			continue
		}
		walked++
		t.Run(g.String(), func(t *testing.T) {
			s := g.schedule(t)
			tolerance := parity.Tolerance{Max: 2e-6, L2: 2e-6} // roundings of up to 39 evaluations
			mlxtest.Do(t, func() {
				x := mlx.FromFloat32(start)
				for i, timestep := range s.Timesteps {
					next := mlx.Scope(func() *mlx.Array {
						v := velocity(x, timestep)
						if d := parity.Compare(s.Denoised(i, x, v).Floats(), g.Denoised[i]); !d.Within(tolerance) {
							t.Errorf("denoised in evaluation %d: %v", i, d)
						}
						return s.Step(i, x, v)
					})
					mlx.Eval(next)
					x.Free()
					x = next
					if d := parity.Compare(x.Floats(), g.Samples[i]); !d.Within(tolerance) {
						t.Fatalf("after evaluation %d: %v, expected %v: %v", i, x.Floats(), g.Samples[i], d)
					}
				}
			})
		})
	}
	if walked < 80 {
		t.Errorf("%d walks", walked)
	}
}

func TestStepDtype(t *testing.T) {
	mlxtest.Do(t, func() {
		for _, name := range scheduler.Names() {
			config := scheduler.DefaultFlowMatchEulerConfig()
			s, err := config.Schedule(name, scheduler.LinearSigmas(2), 1)
			if err != nil {
				t.Fatal(err)
			}
			x, v := mlx.FromFloat32([]float32{1, 2}), mlx.FromFloat32([]float32{4, -8}).AsType(mlx.BFloat16)
			for i := range s.Timesteps {
				if dtype := s.Step(i, x, v).Dtype(); dtype != mlx.Float32 {
					t.Errorf("%s: latents became %v in evaluation %d", name, dtype, i)
				}
			}
		}
	})
}

// TestHeunAgain begins anew where a walk was stopped between two evaluations.
func TestHeunAgain(t *testing.T) {
	mlxtest.Do(t, func() {
		config := scheduler.DefaultFlowMatchEulerConfig()
		s, err := config.Schedule("heun", scheduler.LinearSigmas(3), 0)
		if err != nil {
			t.Fatal(err)
		}
		walk := func() []float32 {
			x := mlx.FromFloat32([]float32{-1, 0.25, 1.5})
			for i, timestep := range s.Timesteps {
				x = s.Step(i, x, velocity(x, timestep))
			}
			return x.Floats()
		}
		want := walk()
		s.Step(0, mlx.FromFloat32([]float32{7, 7, 7}), mlx.FromFloat32([]float32{8, 8, 8}))
		mlxtest.Same(t, "second walk", walk(), want)
	})
}

// TestHeunFrees looks for what a walk leaves behind.
func TestHeunFrees(t *testing.T) {
	const n = 1 << 16
	mlxtest.Do(t, func() {
		config := scheduler.DefaultFlowMatchEulerConfig()
		s, err := config.Schedule("heun", scheduler.LinearSigmas(3), 0)
		if err != nil {
			t.Fatal(err)
		}
		before := mlx.ActiveMemory()
		mlx.Scope(func() *mlx.Array {
			x := mlx.Zeros(mlx.Float32, n)
			for i, timestep := range s.Timesteps {
				x = s.Step(i, x, velocity(x, timestep))
				mlx.Eval(x)
			}
			return nil
		})
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

func TestDefaultSchedule(t *testing.T) {
	terminal := 0.1
	tests := []struct {
		name   string
		config scheduler.FlowMatchEulerConfig
		want   string // or a part of the error
	}{
		{"", scheduler.FlowMatchEulerConfig{}, "flow_match_euler_discrete"},
		{"", scheduler.FlowMatchEulerConfig{ClassName: "FlowMatchHeunDiscreteScheduler"}, "flow_match_heun_discrete"},
		{"euler", scheduler.FlowMatchEulerConfig{ClassName: "FlowMatchHeunDiscreteScheduler"}, "flow_match_euler_discrete"},
		{"ddim", scheduler.FlowMatchEulerConfig{}, `unknown scheduler "ddim"`},
		{"heun", scheduler.FlowMatchEulerConfig{UseDynamicShifting: true}, "flow_match_heun_discrete: has no use_dynamic_shifting"},
		{"heun", scheduler.FlowMatchEulerConfig{ShiftTerminal: &terminal}, "flow_match_heun_discrete: has no shift_terminal"},
	}
	for _, test := range tests {
		config := scheduler.DefaultFlowMatchEulerConfig()
		config.ClassName, config.UseDynamicShifting, config.ShiftTerminal = test.config.ClassName, test.config.UseDynamicShifting, test.config.ShiftTerminal
		s, err := config.Schedule(test.name, scheduler.LinearSigmas(4), 1)
		if err != nil {
			mlxtest.Contains(t, err.Error(), test.want)
		} else if s.Name != test.want {
			t.Errorf("%q with %q is %q, expected %q", test.name, test.config.ClassName, s.Name, test.want)
		}
	}
}

func TestEvaluations(t *testing.T) {
	tests := []struct {
		name   string
		steps  int
		stepOf []int
		ends   []bool
		starts []int // of steps 0, 1, …, and of one behind the last
	}{
		{"euler", 1, []int{0}, []bool{true}, []int{0, 1}},
		{"linear", 3, []int{0, 1, 2}, []bool{true, true, true}, []int{0, 1, 2, 3}},
		{"heun", 1, []int{0}, []bool{true}, []int{0, 1}},
		{"heun", 3, []int{0, 0, 1, 1, 2}, []bool{false, true, false, true, true}, []int{0, 2, 4, 5}},
	}
	for _, test := range tests {
		config := scheduler.DefaultFlowMatchEulerConfig()
		s, err := config.Schedule(test.name, scheduler.LinearSigmas(test.steps), 1)
		if err != nil {
			t.Fatal(err)
		}
		var stepOf, starts []int
		var ends []bool
		for i := range s.Timesteps {
			stepOf, ends = append(stepOf, s.StepOf(i)), append(ends, s.Ends(i))
		}
		for step := range s.Steps() + 1 {
			starts = append(starts, s.Start(step))
		}
		if s.Steps() != test.steps || !slices.Equal(stepOf, test.stepOf) || !slices.Equal(ends, test.ends) || !slices.Equal(starts, test.starts) {
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
		s := scheduler.Schedule{Sigmas: []float32{1, 0.75, 0}, Timesteps: []float32{1000, 750}}
		clean, noise := mlx.FromFloat32([]float32{4, -8}).AsType(mlx.BFloat16), mlx.FromFloat32([]float32{1, 2})
		for i, want := range [][]float32{{1, 2}, {1.75, -0.5}, {4, -8}} {
			mlxtest.Same(t, fmt.Sprintf("evaluation %d", i), s.ScaleNoise(i, clean, noise).Floats(), want)
		}
	})
}
