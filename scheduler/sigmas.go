package scheduler

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Sigmas are the noise levels of a run, one for each step, in place of the pipeline's own: sigmas of diffusers'
// pipelines. The scheduler shifts them as its config says, and the last step leads to 0. nil stands for the pipeline's.
type Sigmas []float64

// ParseSigmas parses the form of String.
func ParseSigmas(text string) (s Sigmas, err error) {
	for part := range strings.SplitSeq(text, ",") {
		v, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil {
			return nil, errSigmas
		}
		s = append(s, v)
	}
	return s, s.Check()
}

var errSigmas = errors.New("expected numbers with commas between them, from 1 at most to above 0, each below the one before " +
	"(such as 1,0.6,0.2)")

// Check returns an error unless the sigmas are nil, or are above 0, at most 1 and fall.
func (s Sigmas) Check() error {
	last := 1.5
	for _, v := range s {
		if !(v > 0 && v <= 1 && v < last) {
			return errSigmas
		}
		last = v
	}
	return nil
}

// String returns the sigmas with commas between them, "" for nil.
func (s Sigmas) String() string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint([]float64(s)), "[]"), " ", ",")
}

// Float32 returns them as [Class.New] takes them.
func (s Sigmas) Float32() []float32 {
	values := make([]float32, len(s))
	for i, v := range s {
		values[i] = float32(v)
	}
	return values
}
