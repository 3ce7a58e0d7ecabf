package scheduler_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/parity"
	"github.com/gomflux/gomflux/scheduler"
)

// testdata/schedules.json is made by
// python -m gomflux_reference schedules scheduler/testdata/schedules.json.
func TestSchedules(t *testing.T) {
	text, err := os.ReadFile("testdata/schedules.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Config            json.RawMessage
		Steps, Tokens     int
		Sigmas, Timesteps []float32
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 80 {
		t.Fatalf("%d cases", len(cases))
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%s/%d/%d", c.Config, c.Steps, c.Tokens), func(t *testing.T) {
			config := scheduler.DefaultFlowMatchEulerConfig()
			if err := json.Unmarshal(c.Config, &config); err != nil {
				t.Fatal(err)
			}
			if err := config.Validate(); err != nil {
				t.Fatal(err)
			}
			s := config.NewSchedule(scheduler.LinearSigmas(c.Steps), config.Mu(c.Tokens))
			if s.Steps() != c.Steps || len(s.Sigmas) != c.Steps+1 {
				t.Fatalf("%d timesteps and %d sigmas for %d steps", len(s.Timesteps), len(s.Sigmas), c.Steps)
			}
			// a few roundings of float32
			tolerance := parity.Tolerance{Max: 3e-7, L2: 3e-7}
			if d := parity.Compare(s.Sigmas, c.Sigmas); !d.Within(tolerance) {
				t.Errorf("sigmas %v, expected %v: %v", s.Sigmas, c.Sigmas, d)
			}
			if d := parity.Compare(s.Timesteps, c.Timesteps); !d.Within(tolerance) {
				t.Errorf("timesteps %v, expected %v: %v", s.Timesteps, c.Timesteps, d)
			}
		})
	}
}

func TestStep(t *testing.T) {
	err := mlx.Do(context.Background(), func() error {
		s := scheduler.Schedule{Sigmas: []float32{1, 0.75, 0}, Timesteps: []float32{1000, 750}}
		x, v := mlx.FromFloat32([]float32{1, 2}), mlx.FromFloat32([]float32{4, -8})
		for i, want := range [][]float32{{0, 4}, {-2, 8}} {
			if got := s.Step(i, x, v).Floats(); got[0] != want[0] || got[1] != want[1] {
				t.Errorf("step %d: %v, expected %v", i, got, want)
			}
		}
		if dtype := s.Step(0, x, v.AsType(mlx.BFloat16)).Dtype(); dtype != mlx.Float32 {
			t.Errorf("latents became %v", dtype)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestValidate(t *testing.T) {
	tests := []struct {
		change func(*scheduler.FlowMatchEulerConfig)
		want   string
	}{
		{func(c *scheduler.FlowMatchEulerConfig) { c.UseKarrasSigmas = true }, "use_karras_sigmas"},
		{func(c *scheduler.FlowMatchEulerConfig) { c.UseBetaSigmas = true }, "use_beta_sigmas"},
		{func(c *scheduler.FlowMatchEulerConfig) { c.UseExponentialSigmas = true }, "use_exponential_sigmas"},
		{func(c *scheduler.FlowMatchEulerConfig) { c.InvertSigmas = true }, "invert_sigmas"},
		{func(c *scheduler.FlowMatchEulerConfig) { c.StochasticSampling = true }, "stochastic_sampling"},
		{func(c *scheduler.FlowMatchEulerConfig) { c.TimeShiftType = "cubic" }, `time_shift_type "cubic"`},
		{func(c *scheduler.FlowMatchEulerConfig) { c.Shift = math.NaN() }, "shift NaN"},
		{func(c *scheduler.FlowMatchEulerConfig) { c.MaxImageSeqLen = c.BaseImageSeqLen }, "max_image_seq_len"},
		{func(c *scheduler.FlowMatchEulerConfig) { one := 1.0; c.ShiftTerminal = &one }, "shift_terminal 1"},
	}
	for _, test := range tests {
		c := scheduler.DefaultFlowMatchEulerConfig()
		test.change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, expected %q", err, test.want)
		}
	}
}
