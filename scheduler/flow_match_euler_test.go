package scheduler_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/scheduler"
)

// modelConfig decodes a scheduler_config.json.
func modelConfig(t *testing.T, text string) *scheduler.ModelConfig {
	t.Helper()
	c := &scheduler.ModelConfig{}
	if err := json.Unmarshal([]byte(text), c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestValidate(t *testing.T) {
	tests := []struct{ config, want string }{
		{`{"use_karras_sigmas": true}`, "use_karras_sigmas"},
		{`{"use_beta_sigmas": true}`, "use_beta_sigmas"},
		{`{"use_exponential_sigmas": true}`, "use_exponential_sigmas"},
		{`{"invert_sigmas": true}`, "invert_sigmas"},
		{`{"stochastic_sampling": true}`, "stochastic_sampling"},
		{`{"stochastic_sampling": true, "_class_name": "FlowMatchHeunDiscreteScheduler"}`, "stochastic_sampling"},
		{`{"stochastic_sampling": true, "_class_name": "LinearScheduler"}`, "stochastic_sampling"},
		{`{"time_shift_type": "cubic"}`, `time_shift_type "cubic"`},
		{`{"shift": -1}`, "shift -1"},
		{`{"max_image_seq_len": 256}`, "max_image_seq_len"},
		{`{"_class_name": "DDIMScheduler"}`, `_class_name: unknown scheduler "DDIMScheduler"`},
		{`{"shift_terminal": 1}`, "shift_terminal 1"},
	}
	for _, test := range tests {
		c := modelConfig(t, test.config)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, expected %q", test.config, err, test.want)
		}
	}
	c := scheduler.DefaultFlowMatchConfig()
	c.Shift = math.NaN()
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "shift NaN") {
		t.Errorf("error %v", err)
	}
}

// TestTypeErrors checks that an error about a value of another type names the key of the file.
func TestTypeErrors(t *testing.T) {
	for _, key := range []string{"_class_name", "shift", "base_shift", "max_image_seq_len", "shift_terminal"} {
		var mismatch *json.UnmarshalTypeError
		err := json.Unmarshal([]byte(`{"`+key+`": []}`), &scheduler.ModelConfig{})
		if !errors.As(err, &mismatch) || mismatch.Field != key {
			t.Errorf("%s: error %v", key, err)
		}
	}
}
