package scheduler

import (
	"fmt"
	"math"

	"github.com/gomflux/gomflux/mlx"
)

// FlowMatch has the methods that all schedulers for flow matching share. There the latents are
// (1-sigma)·clean + sigma·noise, and the model predicts the velocity noise - clean.
type FlowMatch struct{ Noise Schedule }

// Schedule returns the noise schedule.
func (f *FlowMatch) Schedule() *Schedule { return &f.Noise }

// Denoised returns the estimate of the clean latents that follows from an evaluation.
func (f *FlowMatch) Denoised(e Evaluation) *mlx.Array {
	return e.Latents.Sub(e.Velocity.AsType(mlx.Float32).Times(float64(f.Noise.Sigmas[e.Index])))
}

// ScaleNoise mixes clean latents and noise to the noise level before evaluation i, float32.
func (f *FlowMatch) ScaleNoise(i int, clean, noise *mlx.Array) *mlx.Array {
	sigma := f.Noise.Sigmas[i]
	return noise.AsType(mlx.Float32).Times(float64(sigma)).Add(clean.AsType(mlx.Float32).Times(float64(1 - sigma)))
}

// delta returns how far the velocity moves the latents from sigma number i to number i+1, float32.
func (f *FlowMatch) delta(i int, velocity *mlx.Array) *mlx.Array {
	return velocity.AsType(mlx.Float32).Times(float64(f.Noise.Sigmas[i+1] - f.Noise.Sigmas[i]))
}

// A FlowMatchConfig has the keys of scheduler_config.json of the schedulers for flow matching.
type FlowMatchConfig struct {
	DynamicShift
	NumTrainTimesteps    int      `json:"num_train_timesteps"`
	Shift                float64  `json:"shift"`
	UseDynamicShifting   bool     `json:"use_dynamic_shifting"`
	InvertSigmas         bool     `json:"invert_sigmas"`
	ShiftTerminal        *float64 `json:"shift_terminal"`
	UseKarrasSigmas      bool     `json:"use_karras_sigmas"`
	UseExponentialSigmas bool     `json:"use_exponential_sigmas"`
	UseBetaSigmas        bool     `json:"use_beta_sigmas"`
	TimeShiftType        string   `json:"time_shift_type"`
	StochasticSampling   bool     `json:"stochastic_sampling"`
}

// DefaultFlowMatchConfig returns the values that diffusers uses for keys that a config lacks.
func DefaultFlowMatchConfig() FlowMatchConfig {
	return FlowMatchConfig{
		DynamicShift:      DynamicShift{BaseShift: 0.5, MaxShift: 1.15, BaseImageSeqLen: 256, MaxImageSeqLen: 4096},
		NumTrainTimesteps: 1000, Shift: 1, TimeShiftType: "exponential",
	}
}

// Validate returns an error that names the first value that is not supported.
func (c *FlowMatchConfig) Validate() error {
	for _, key := range []struct {
		name string
		set  bool
	}{
		{"invert_sigmas", c.InvertSigmas}, {"use_karras_sigmas", c.UseKarrasSigmas}, {"use_exponential_sigmas", c.UseExponentialSigmas},
		{"use_beta_sigmas", c.UseBetaSigmas}, {"stochastic_sampling", c.StochasticSampling},
	} {
		if key.set {
			return fmt.Errorf("%s true", key.name)
		}
	}
	if c.TimeShiftType != "exponential" && c.TimeShiftType != "linear" {
		return fmt.Errorf("time_shift_type %q, expected exponential or linear", c.TimeShiftType)
	}
	if c.NumTrainTimesteps < 1 || !(c.Shift > 0) || c.MaxImageSeqLen == c.BaseImageSeqLen {
		return fmt.Errorf("num_train_timesteps %d and shift %g must be positive, and max_image_seq_len %d must differ "+
			"from base_image_seq_len",
			c.NumTrainTimesteps, c.Shift, c.MaxImageSeqLen)
	}
	if t := c.ShiftTerminal; t != nil && !(*t >= 0 && *t < 1) {
		return fmt.Errorf("shift_terminal %g, expected at least 0 and below 1", *t)
	}
	return nil
}

// schedule shifts the pipeline's sigmas, by the config's shift or with dynamic shifting by mu, in
// float32 as FlowMatchEulerDiscreteScheduler.set_timesteps does.
func (c *FlowMatchConfig) schedule(sigmas []float32, mu float64) Schedule {
	out := make([]float32, len(sigmas), len(sigmas)+1)
	for i, s := range sigmas {
		switch {
		case !c.UseDynamicShifting:
			out[i] = float32(c.Shift) * s / (1 + float32(c.Shift-1)*s)
		case c.TimeShiftType == "exponential":
			e := float32(math.Exp(mu))
			out[i] = e / (e + (1/s - 1))
		default:
			m := float32(mu)
			out[i] = m / (m + (1/s - 1))
		}
	}
	// A single step starts and ends at 1, so there is nothing to stretch; diffusers divides 0 by
	// 0 there.
	if t := c.ShiftTerminal; t != nil && *t != 0 && out[len(out)-1] != 1 {
		stretch := (1 - out[len(out)-1]) / float32(1-*t)
		for i, s := range out {
			out[i] = 1 - (1-s)/stretch
		}
	}
	timesteps := make([]float32, len(out))
	for i, s := range out {
		timesteps[i] = s * float32(c.NumTrainTimesteps)
	}
	return Schedule{Sigmas: append(out, 0), Timesteps: timesteps}
}
