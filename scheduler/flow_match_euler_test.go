package scheduler_test

import (
	"math"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/scheduler"
)

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
		{func(c *scheduler.FlowMatchEulerConfig) { c.ClassName = "DDIMScheduler" }, `_class_name: unknown scheduler "DDIMScheduler"`},
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
