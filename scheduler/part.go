package scheduler

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A Part is a part of a schedule's steps, between two fractions of their number, as the start and
// stop of diffusers' guiders: 0 and 0.6 are the first 60 % of the steps. nil stands for all steps.
type Part []float64

var errPart = errors.New("expected two numbers from 0 to 1 with a comma between them, the first below the second (such as 0,0.6)")

// ParsePart parses the form of String.
func ParsePart(s string) (Part, error) {
	start, stop, _ := strings.Cut(s, ",")
	a, errStart := strconv.ParseFloat(start, 64)
	b, errStop := strconv.ParseFloat(stop, 64)
	if errStart != nil || errStop != nil {
		return nil, errPart
	}
	p := Part{a, b}
	return p, p.Check()
}

// Check returns an error unless the part is nil or has two fractions that rise.
func (p Part) Check() error {
	if p == nil || len(p) == 2 && p[0] >= 0 && p[0] < p[1] && p[1] <= 1 {
		return nil
	}
	return errPart
}

// String returns the two fractions with a comma between them, "" for all steps.
func (p Part) String() string {
	if len(p) != 2 {
		return ""
	}
	return fmt.Sprintf("%g,%g", p[0], p[1])
}

// Steps returns the first of so many steps that belongs to the part, and the first one after it,
// both from 0 and rounded down, as in diffusers.
func (p Part) Steps(steps int) (first, end int) {
	if p == nil {
		return 0, steps
	}
	return int(p[0] * float64(steps)), int(p[1] * float64(steps))
}

// Includes reports whether a step, from 0, of so many belongs to the part.
func (p Part) Includes(step, steps int) bool {
	first, end := p.Steps(steps)
	return first <= step && step < end
}
