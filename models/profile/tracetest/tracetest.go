// Package tracetest checks traces in Chrome's trace event format in tests.
package tracetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// A Slice is a slice of a trace. Times are in microseconds.
type Slice struct {
	Name     string         `json:"name"`
	Category string         `json:"cat"`
	Phase    string         `json:"ph"`
	Start    *float64       `json:"ts"`
	Duration *float64       `json:"dur"`
	Process  *int           `json:"pid"`
	Thread   *int           `json:"tid"`
	Args     map[string]any `json:"args"`

	Inside *Slice `json:"-"` // the slice around it, nil if there is no such slice
}

// End returns the end of a slice.
func (s *Slice) End() float64 { return *s.Start + *s.Duration }

// Check returns the slices of a trace in the order of their starts, and its facts. It is an error
// if slices overlap without being nested, if counters go back in time, or if fields are missing.
func Check(text []byte) (all []*Slice, facts map[string]any, err error) {
	var file struct {
		Unit   string         `json:"displayTimeUnit"`
		Events []*Slice       `json:"traceEvents"`
		Facts  map[string]any `json:"otherData"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, nil, err
	}
	metadata, last := map[string]bool{}, 0.0
	for i, e := range file.Events {
		switch {
		case e.Name == "" || e.Process == nil || e.Start == nil || e.Thread == nil || *e.Start < 0:
			return nil, nil, fmt.Errorf("event %d: name, pid, tid or ts is missing", i)
		case e.Phase == "M":
			metadata[e.Name] = true
		case e.Phase == "C" && (*e.Start < last || len(e.Args) != 3):
			return nil, nil, fmt.Errorf("event %d: a counter at %v after one at %v, with %v", i, *e.Start, last, e.Args)
		case e.Phase == "C":
			last = *e.Start
		case e.Phase != "X" || e.Duration == nil || *e.Duration < 0:
			return nil, nil, fmt.Errorf("event %d: %+v is not a slice", i, *e)
		default:
			all = append(all, e)
		}
	}
	if !metadata["process_name"] || !metadata["thread_name"] || last == 0 || len(all) == 0 {
		return nil, nil, errors.New("names, counters or slices are missing")
	}
	return all, file.Facts, nest(all)
}

// nest sorts slices and sets Inside.
func nest(all []*Slice) error {
	slices.SortFunc(all, func(a, b *Slice) int {
		switch {
		case *a.Start < *b.Start:
			return -1
		case *a.Start > *b.Start:
			return 1
		}
		return 0
	})
	const rounding = 1e-4 // of float64 at 10^12 microseconds
	var open []*Slice
	for i, s := range all {
		if i > 0 && *s.Start == *all[i-1].Start {
			return fmt.Errorf("%s and %s begin at the same time, %v", s.Name, all[i-1].Name, *s.Start)
		}
		for len(open) > 0 && open[len(open)-1].End() <= *s.Start {
			open = open[:len(open)-1]
		}
		if len(open) > 0 {
			s.Inside = open[len(open)-1]
			if s.End() > s.Inside.End()+rounding {
				return fmt.Errorf("%s ends at %v, after %s around it at %v", s.Name, s.End(), s.Inside.Name, s.Inside.End())
			}
		}
		open = append(open, s)
	}
	return nil
}
