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
