package engine

import (
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/inpaint"
)

// weight is the weight of the newest value in a moving average.
const weight = 0.3

// An average is an exponential moving average.
type average struct {
	value float64
	known bool
}

// add adds a value.
func (a *average) add(v float64) {
	if a.known {
		v = a.value + weight*(v-a.value)
	}
	a.value, a.known = v, true
}

// speeds are moving averages of how long models take.
type speeds struct {
	image map[string]*average // seconds of an image per unit of work, by model; "" is any model
	load  map[string]*average // seconds of loading, by model
}

// add adds a duration to the average of a model.
func add(averages map[string]*average, name string, seconds float64) {
	if averages[name] == nil {
		averages[name] = &average{}
	}
	averages[name].add(seconds)
}

// took records that a model generated an image of some work.
func (s *speeds) took(name string, work float64, d time.Duration) {
	if work > 0 {
		add(s.image, name, d.Seconds()/work)
		add(s.image, "", d.Seconds()/work)
	}
}

// images estimates how long a model takes for some work, 0 if nothing is known.
func (s *speeds) images(name string, work float64) time.Duration {
	a := s.image[name]
	if a == nil {
		a = s.image[""]
	}
	if a == nil {
		return 0
	}
	return time.Duration(a.value * work * float64(time.Second))
}

// loading estimates how long it takes to load a model, 0 if nothing is known.
func (s *speeds) loading(name string) time.Duration {
	if a := s.load[name]; a != nil {
		return time.Duration(a.value * float64(time.Second))
	}
	return 0
}

// workOf returns the work of an image: its steps times its pixels.
func workOf(o *gomflux.Options, d gomflux.Defaults) float64 {
	height, width, steps := d.Height, d.Width, d.Steps
	if o.Image != nil && !o.Inpaint.Crop {
		size := inpaint.Border(o.Inpaint.Expand).Size(o.Image.Bounds().Size())
		height, width = size.Y, size.X
	}
	if o.Height > 0 {
		height = o.Height
	}
	if o.Width > 0 {
		width = o.Width
	}
	if o.Steps > 0 {
		steps = o.Steps
	}
	return float64(max(steps, 1)) * float64(max(height, 1)) * float64(max(width, 1))
}
