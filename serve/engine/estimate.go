package engine

import (
	"cmp"
	"math"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/inpaint"
)

// weight is the weight of the newest value in a moving average.
const weight = 0.3

// newer returns a moving average, which may be unknown, after another value.
func newer(average float64, known bool, v float64) float64 {
	if known {
		v = average + weight*(v-average)
	}
	return v
}

// A speed is how long a model takes for images of about the same size.
type speed struct {
	step, rest float64 // seconds per pixel: of a step, and of all that is not steps
}

// speeds are moving averages of how long models take.
type speeds struct {
	image map[string]map[int]speed // by model, "" being any model, and by classOf
	load  averages                 // of loading, by model or key of a language model
	text  averages                 // of writing, by key of a language model
}

// work is what an image asks for.
type work struct{ pixels, steps float64 }

// classOf returns the class of images of about the same size. How long a pixel takes depends on how many
// there are.
func classOf(pixels float64) int { return int(math.Round(2 * math.Log2(pixels))) }

// took records that a model generated an image.
func (s *speeds) took(name string, w work, r *gomflux.Result, d time.Duration) {
	rest := min(d, r.EncodeTime+r.DecodeTime)
	if r.StepsRun > 0 {
		w.steps = float64(r.StepsRun)
	}
	for _, name := range []string{name, ""} {
		if s.image[name] == nil {
			s.image[name] = map[int]speed{}
		}
		class := classOf(w.pixels)
		old, known := s.image[name][class]
		s.image[name][class] = speed{
			newer(old.step, known, (d-rest).Seconds()/w.pixels/w.steps), newer(old.rest, known, rest.Seconds()/w.pixels),
		}
	}
}

// each estimates how long a model takes for a step of an image, and for what is not steps, by images of
// the most similar size. It is 0 if nothing is known.
func (s *speeds) each(name string, w work) (step, rest time.Duration) {
	known := s.image[name]
	if known == nil {
		known = s.image[""]
	}
	var found speed
	nearest, class := math.MaxInt, classOf(w.pixels)
	for other, v := range known {
		if d := 2*max(other-class, class-other) + max(0, min(1, other-class)); d < nearest { // the smaller one of two
			nearest, found = d, v
		}
	}
	seconds := w.pixels * float64(time.Second)
	return time.Duration(found.step * seconds), time.Duration(found.rest * seconds)
}

// images estimates how long a model takes for n images, 0 if nothing is known.
func (s *speeds) images(name string, w work, n int) time.Duration {
	step, rest := s.each(name, w)
	return (time.Duration(w.steps*float64(step)) + rest) * time.Duration(n)
}

// loaded records that a model was loaded.
func (s *speeds) loaded(name string, d time.Duration) {
	s.load.add(name, d)
	s.load.add("", d)
}

// loading estimates how long it takes to load a model, 0 if nothing is known.
func (s *speeds) loading(name string) time.Duration { return cmp.Or(s.load.of(name), s.load.of("")) }

// averages are those of durations in seconds, by name.
type averages map[string]float64

func (a averages) add(name string, d time.Duration) {
	old, known := a[name]
	a[name] = newer(old, known, d.Seconds())
}

// of returns the average of a name, 0 if nothing is known.
func (a averages) of(name string) time.Duration { return time.Duration(a[name] * float64(time.Second)) }

// workOf returns the work of an image.
func workOf(o *gomflux.Options, d gomflux.Defaults) work {
	height, width := cmp.Or(o.Height, d.Height), cmp.Or(o.Width, d.Width)
	steps := float64(max(1, cmp.Or(o.Steps, d.Steps)))
	if o.Image != nil {
		steps = max(1, steps*(1-o.ImageStrength))
		if size := inpaint.Border(o.Inpaint.Expand).Size(o.Image.Bounds().Size()); !o.Inpaint.Crop {
			height, width = family.SizeWithin(size, o.Height, o.Width, 1, cmp.Or(4*d.Height*d.Width, size.X*size.Y))
		}
	}
	return work{float64(max(height, 1)) * float64(max(width, 1)), steps}
}

// left estimates the time until the job ends. Engine.mu must be held.
func (j *Job) left() time.Duration {
	e := j.engine
	own := j.takes()
	switch {
	case j.state.Ended() || own == 0 && j.step == 0:
		return 0
	case j.state == Queued && e.running != nil:
		return e.running.left() + j.before + own
	case j.state == Queued:
		return j.before + own
	case j.state == Loading:
		return own + j.loadingLeft()
	case j.state == Writing:
		return max(0, own-e.now().Sub(j.text.began))
	}
	now := e.now()
	step, rest := e.speeds.each(j.model, j.work)
	steps := time.Duration(j.work.steps)
	left := max(0, step*steps+rest-now.Sub(j.imageStarted))
	if j.step > 0 { // as fast as its own steps were
		steps, step = time.Duration(j.steps), j.stepEnded.Sub(j.stepsBegan)/time.Duration(j.step)
		left = max(0, step*(steps-time.Duration(j.step))+rest-now.Sub(j.stepEnded))
	}
	return left + (step*steps+rest)*time.Duration(max(0, j.images-j.image-1))
}

// loadingLeft estimates how long the job's model is still being loaded.
func (j *Job) loadingLeft() time.Duration {
	return max(0, cmp.Or(j.loadTime, j.engine.speeds.loading(j.loads()))-j.engine.now().Sub(j.loadBegan))
}
