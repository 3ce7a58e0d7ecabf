package engine

import (
	"context"
	"image"
	"math"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
)

// An Upscaling asks for enlarged images.
type Upscaling struct {
	Upscaler string // a name for [gomflux.OpenUpscaler]
	Images   []image.Image
	// UpscaleOptions are those of each image. Progress is not used.
	gomflux.UpscaleOptions
	MaxPixels int // of an enlarged image
	// Done is called with each enlarged image before the job ends. The job keeps none.
	Done func(large image.Image)
}

// upscalingSteps is how many steps an image has in the status of a job.
const upscalingSteps = 100

// upscale enlarges the images of a job. The models in memory stay there: a network computes in the memory that is free.
func (e *Engine) upscale(j *Job, r *Upscaling) error {
	e.mu.Lock()
	j.state, j.stepsBegan, j.steps = Running, e.now(), upscalingSteps*len(r.Images)
	e.mu.Unlock()
	u, err := gomflux.OpenUpscaler(j.ctx, r.Upscaler, nil)
	if err != nil {
		return unusable(r.Upscaler, err)
	}
	defer u.Close()
	for i, img := range r.Images {
		if j.ctx.Err() != nil {
			return context.Cause(j.ctx)
		}
		o, size := r.UpscaleOptions, img.Bounds().Size()
		w, h, err := u.Size(size.X, size.Y, &o)
		if err != nil {
			return err
		}
		if w*h > r.MaxPixels {
			return errs.Requestf("size %dx%d: expected at most %d pixels (a scale of %.2f)", w, h, r.MaxPixels,
				ScaleWithin(size.X, size.Y, r.MaxPixels))
		}
		reached := func(step int) {
			e.mu.Lock()
			defer e.mu.Unlock()
			if step += i * upscalingSteps; step > j.step {
				j.step, j.stepEnded = step, e.now()
				j.publish(Event{Kind: EventStep})
			}
		}
		o.Progress = func(p gomflux.Progress) { reached(p.Step * upscalingSteps / p.Steps) }
		large, err := u.Upscale(j.ctx, img, &o)
		if err != nil {
			return err
		}
		reached(upscalingSteps)
		r.Done(large)
	}
	return nil
}

// ScaleWithin returns the largest scale, to two digits, by which an image gets no more than a number of pixels.
func ScaleWithin(width, height, pixels int) float64 {
	return math.Floor(100*math.Sqrt(float64(pixels)/(float64(width)*float64(height)))) / 100
}
