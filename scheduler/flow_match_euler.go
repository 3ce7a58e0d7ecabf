// Package scheduler holds the noise schedules, one file per class of diffusers or
// mflux.
package scheduler

import (
	"fmt"
	"math"
)

// FlowMatchEulerConfig is scheduler_config.json of diffusers'
// FlowMatchEulerDiscreteScheduler.
type FlowMatchEulerConfig struct {
	ClassName            string   `json:"_class_name"` // any that [Name] knows; empty is Euler's
	NumTrainTimesteps    int      `json:"num_train_timesteps"`
	Shift                float64  `json:"shift"`
	UseDynamicShifting   bool     `json:"use_dynamic_shifting"`
	BaseShift            float64  `json:"base_shift"`
	MaxShift             float64  `json:"max_shift"`
	BaseImageSeqLen      int      `json:"base_image_seq_len"`
	MaxImageSeqLen       int      `json:"max_image_seq_len"`
	InvertSigmas         bool     `json:"invert_sigmas"`
	ShiftTerminal        *float64 `json:"shift_terminal"`
	UseKarrasSigmas      bool     `json:"use_karras_sigmas"`
	UseExponentialSigmas bool     `json:"use_exponential_sigmas"`
	UseBetaSigmas        bool     `json:"use_beta_sigmas"`
	TimeShiftType        string   `json:"time_shift_type"`
	StochasticSampling   bool     `json:"stochastic_sampling"`
}

// DefaultFlowMatchEulerConfig is what diffusers assumes where a config says
// nothing.
func DefaultFlowMatchEulerConfig() FlowMatchEulerConfig {
	return FlowMatchEulerConfig{
		NumTrainTimesteps: 1000, Shift: 1, BaseShift: 0.5, MaxShift: 1.15, BaseImageSeqLen: 256, MaxImageSeqLen: 4096,
		TimeShiftType: "exponential",
	}
}

// Validate says what of the config cannot be run.
func (c *FlowMatchEulerConfig) Validate() error {
	if c.ClassName != "" {
		if _, err := Name(c.ClassName); err != nil {
			return fmt.Errorf("_class_name: %w", err)
		}
	}
	for name, set := range map[string]bool{
		"invert_sigmas": c.InvertSigmas, "use_karras_sigmas": c.UseKarrasSigmas, "use_exponential_sigmas": c.UseExponentialSigmas,
		"use_beta_sigmas": c.UseBetaSigmas, "stochastic_sampling": c.StochasticSampling,
	} {
		if set {
			return fmt.Errorf("%s true", name)
		}
	}
	if c.TimeShiftType != "exponential" && c.TimeShiftType != "linear" {
		return fmt.Errorf("time_shift_type %q, expected exponential or linear", c.TimeShiftType)
	}
	if c.NumTrainTimesteps < 1 || !(c.Shift > 0) || c.MaxImageSeqLen == c.BaseImageSeqLen {
		return fmt.Errorf("num_train_timesteps %d and shift %g must be positive, and max_image_seq_len %d not base_image_seq_len",
			c.NumTrainTimesteps, c.Shift, c.MaxImageSeqLen)
	}
	if t := c.ShiftTerminal; t != nil && !(*t >= 0 && *t < 1) {
		return fmt.Errorf("shift_terminal %g, expected 0 to 1", *t)
	}
	return nil
}

// Mu is the shift of a picture of so many tokens, for dynamic shifting
// (calculate_shift of the pipelines).
func (c *FlowMatchEulerConfig) Mu(tokens int) float64 {
	m := (c.MaxShift - c.BaseShift) / float64(c.MaxImageSeqLen-c.BaseImageSeqLen)
	return float64(tokens)*m + c.BaseShift - m*float64(c.BaseImageSeqLen)
}

// euler shifts sigmas (by the config's shift, or by mu with dynamic shifting)
// in float32, as FlowMatchEulerDiscreteScheduler.set_timesteps does.
func (c *FlowMatchEulerConfig) euler(sigmas []float32, mu float64) (*Schedule, error) {
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
	// a single step starts and ends at 1, and has nothing to stretch: diffusers
	// divides 0 by 0 there
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
	return &Schedule{Sigmas: append(out, 0), Timesteps: timesteps}, nil
}

// LinearSigmas is torch.linspace(1, 1/n, n) in float32.
func LinearSigmas(n int) []float32 {
	sigmas := make([]float32, n)
	start, end := float32(1), float32(1/float64(n))
	step := float32(0)
	if n > 1 {
		step = (end - start) / float32(n-1)
	}
	for i := range sigmas {
		// torch counts from both ends towards the middle
		if i < n/2 || n == 1 {
			sigmas[i] = start + step*float32(i)
		} else {
			sigmas[i] = end - step*float32(n-1-i)
		}
	}
	return sigmas
}

// LinearSigmas64 is numpy.linspace(1, 1/n, n), which is computed in float64, as
// float32.
func LinearSigmas64(n int) []float32 {
	sigmas := make([]float32, n)
	end := 1 / float64(n)
	step := 0.0
	if n > 1 {
		step = (end - 1) / float64(n-1)
	}
	for i := range sigmas {
		sigmas[i] = float32(float64(i)*step + 1)
	}
	if n > 1 {
		sigmas[n-1] = float32(end)
	}
	return sigmas
}

// EmpiricalMu is the shift of a picture of so many tokens in so many steps that
// FLUX.2 takes (compute_empirical_mu of its pipelines): fitted lines for 10 and
// for 200 steps, and what lies between them. Above 4300 tokens it is that of 200.
func EmpiricalMu(tokens, steps int) float64 {
	at10 := 8.73809524e-05*float64(tokens) + 1.89833333
	at200 := 0.00016927*float64(tokens) + 0.45666666
	if tokens > 4300 {
		return at200
	}
	slope := (at200 - at10) / 190
	return slope*float64(steps) + at200 - 200*slope
}
