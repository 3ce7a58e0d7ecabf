package ui

import (
	"fmt"
	"time"
)

// A StepClock measures how long the steps of a run take.
type StepClock struct {
	step, steps int
	first, last time.Time // when the first and the latest reported step were done
	firstStep   int
}

// Done records that a step is done.
func (c *StepClock) Done(step, steps int, now time.Time) {
	if c.first.IsZero() {
		c.first, c.firstStep = now, step
	}
	c.step, c.steps, c.last = step, steps, now
}

// PerStep returns the mean time of the steps that were measured from start to
// end, 0 before the first of them.
func (c *StepClock) PerStep() time.Duration {
	if c.step <= c.firstStep {
		return 0
	}
	return c.last.Sub(c.first) / time.Duration(c.step-c.firstStep)
}

func (c *StepClock) text(now time.Time) string {
	if c.first.IsZero() {
		return ""
	}
	per := c.PerStep()
	if per == 0 {
		return fmt.Sprintf("%.0f s", now.Sub(c.first).Seconds())
	}
	left := max(0, time.Duration(c.steps-c.step)*per-now.Sub(c.last))
	return fmt.Sprintf("%s/step, %s left", Duration(per), Duration(left))
}

// A Rate is how fast a number of bytes grows, over the last ten seconds.
type Rate struct{ samples []sample }

type sample struct {
	at time.Time
	n  int64
}

// window is how far back a Rate looks.
const window = 10 * time.Second

// Add records the number of bytes at a time.
func (r *Rate) Add(now time.Time, n int64) {
	if len(r.samples) > 0 && n < r.samples[len(r.samples)-1].n {
		r.samples = nil // a damaged file starts again
	}
	r.samples = append(r.samples, sample{now, n})
	for len(r.samples) > 2 && now.Sub(r.samples[1].at) >= window {
		r.samples = r.samples[1:]
	}
}

// PerSecond returns the rate in bytes per second, 0 while it is unknown.
func (r *Rate) PerSecond() float64 {
	if len(r.samples) < 2 {
		return 0
	}
	first, last := r.samples[0], r.samples[len(r.samples)-1]
	if last.at.Sub(first.at) < time.Second/2 {
		return 0
	}
	return float64(last.n-first.n) / last.at.Sub(first.at).Seconds()
}

// Left returns how long the remaining bytes take, 0 while it is unknown.
func (r *Rate) Left(remaining int64) time.Duration {
	per := r.PerSecond()
	if per <= 0 {
		return 0
	}
	return time.Duration(min(float64(remaining)/per, 1e6) * float64(time.Second))
}
