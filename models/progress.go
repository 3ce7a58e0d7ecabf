package models

import (
	"image"
	"time"
)

// A Phase is a part of a run.
type Phase string

const (
	PhaseLoad   Phase = "load"
	PhaseEncode Phase = "encode"
	PhaseStep   Phase = "step"
	PhaseDecode Phase = "decode"
)

// Progress is what a run has reached. Phases are reported when they start
// (steps as step 0), steps when they are done.
type Progress struct {
	Phase             Phase
	Component         string // of PhaseLoad
	Bytes, TotalBytes int64
	Step, Steps       int // steps done, of all that run
}

// A Step is what a denoising step has made of a picture.
type Step struct {
	Index       int     // of the picture in its batch
	Step, Steps int     // steps done, of all that run
	Sigma       float64 // how much of the latents is still noise, from 1 to 0
	Latents     Latents
	// Denoised is what the latents would be without their noise, as far as the
	// model can tell at this step.
	Denoised Latents
}

// A Result is a picture and how long its parts took.
type Result struct {
	Image                *image.RGBA
	PromptTokens         int           // that the transformer sees
	Steps                int           // that ran
	Scheduler            string        // its name
	Encode, Step, Decode time.Duration // Step is the sum over all steps, without OnStep
	PeakMemory           int           // bytes, of MLX's arrays
	EstimatedMemory      int64         // what PeakMemory was to be, 0 if that was not estimated
}

// reporter makes progress of what is read of a component.
func reporter(report func(Progress)) func(component string, done, total int64) {
	if report == nil {
		return nil
	}
	return func(component string, done, total int64) {
		report(Progress{Phase: PhaseLoad, Component: component, Bytes: done, TotalBytes: total})
	}
}
