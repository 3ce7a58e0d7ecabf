package models

import (
	"image"
	"time"
)

// A Phase is a phase of a run.
type Phase string

const (
	PhaseLoad   Phase = "load"
	PhaseEncode Phase = "encode"
	PhaseStep   Phase = "step"
	PhaseDecode Phase = "decode"
)

// Progress is a progress report of a run. Phases are reported when they start, the steps as step 0,
// and each step again when it is done.
type Progress struct {
	Phase      Phase
	Component  string // being loaded, in PhaseLoad
	Bytes      int64  // loaded so far, in PhaseLoad
	TotalBytes int64  // to load, in PhaseLoad
	Step       int    // number of steps done
	Steps      int    // number of steps that run
}

// A Step is the result of a denoising step for one image.
type Step struct {
	Index    int     // of the image in its batch
	Step     int     // number of steps done
	Steps    int     // number of steps that run
	Sigma    float64 // noise level of Latents, from 1 to 0
	Latents  Latents
	Denoised Latents // estimate of the clean latents at this step; of layers, a grid without the whole image
}

// A Result is a generated image, with the times that its phases took.
type Result struct {
	Image *image.RGBA // opaque: transparent pixels are blended with white
	// Transparent is the image with its transparency, nil if all of it is opaque.
	Transparent *image.NRGBA
	// Layers are the layers that compose the image, the lowest first, of a model that splits an image.
	Layers       []*image.NRGBA
	PromptTokens int    // tokens of the prompt in the transformer's sequence
	Steps        int    // number of steps that ran
	Scheduler    string // its name
	// Skipped and SkippedNegative are the steps, from 1, in which the step cache replaced most of
	// the transformer for the prompt and for the negative prompt. A step is there once for each
	// evaluation.
	Skipped, SkippedNegative []int
	Compiled                 bool // the transformer was compiled
	PromptCached             bool // prompt embeddings came from the cache on disk, and no text encoder ran
	Encode                   time.Duration
	References               time.Duration // part of Encode for reference images
	Step                     time.Duration // all steps, without the time in OnStep
	Decode                   time.Duration
	PeakMemory               int   // of MLX's arrays, in bytes
	EstimatedMemory          int64 // estimate of PeakMemory, 0 if it was not estimated
}

// LoadReport returns a function that reports the progress of loading, nil for nil.
func LoadReport(report func(Progress)) func(component string, done, total int64) {
	if report == nil {
		return nil
	}
	return func(component string, done, total int64) {
		report(Progress{Phase: PhaseLoad, Component: component, Bytes: done, TotalBytes: total})
	}
}
