package hub

import "time"

// A rate is how fast a number of bytes grows, over the last ten seconds.
type rate struct{ samples []sample }

type sample struct {
	at time.Time
	n  int64
}

// window is how far back a rate looks.
const window = 10 * time.Second

// add records the number of bytes at a time.
func (r *rate) add(now time.Time, n int64) {
	if len(r.samples) > 0 && n < r.samples[len(r.samples)-1].n {
		r.samples = nil // a damaged file starts again
	}
	r.samples = append(r.samples, sample{now, n})
	for len(r.samples) > 2 && now.Sub(r.samples[1].at) >= window {
		r.samples = r.samples[1:]
	}
}

// perSecond returns the rate in bytes per second, 0 while it is unknown.
func (r *rate) perSecond() float64 {
	if len(r.samples) < 2 {
		return 0
	}
	first, last := r.samples[0], r.samples[len(r.samples)-1]
	if last.at.Sub(first.at) < time.Second/2 {
		return 0
	}
	return float64(last.n-first.n) / last.at.Sub(first.at).Seconds()
}

// left returns how long the remaining bytes take, 0 while it is unknown.
func (r *rate) left(remaining int64) time.Duration {
	per := r.perSecond()
	if per <= 0 {
		return 0
	}
	return time.Duration(min(float64(remaining)/per, 1e6) * float64(time.Second))
}
