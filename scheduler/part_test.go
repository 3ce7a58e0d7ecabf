package scheduler

import (
	"math"
	"slices"
	"testing"
)

func TestPart(t *testing.T) {
	for text, want := range map[string][]int{
		"0,0.6": {0, 1, 2, 3, 4, 5}, "0.0,1": {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, "0.25,0.75": {2, 3, 4, 5, 6},
		"0.29,0.3": {2}, "0.5,0.55": nil,
	} {
		p, err := ParsePart(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var got []int
		for i := range 10 {
			if p.Includes(i, 10) {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s of 10 steps: %v, expected %v", text, got, want)
		}
		if again, err := ParsePart(p.String()); err != nil || !slices.Equal(again, p) {
			t.Errorf("%s is written as %s: %v, %v", text, p, again, err)
		}
	}
	for _, text := range []string{"", "0", "0,", ",1", "0.6,0", "0.5,0.5", "0,1.1", "-0.1,1", "NaN,1", "0,NaN", "0,0.5,1", "0 0.5", "a,b"} {
		if p, err := ParsePart(text); err == nil {
			t.Errorf("%q is accepted as %v", text, p)
		}
	}
	for _, p := range []Part{{}, {0}, {0, 0.5, 1}, {0.5, 0.5}, {math.NaN(), 1}} {
		if p.Check() == nil {
			t.Errorf("%v is accepted", []float64(p))
		}
	}
	if p := Part(nil); p.Check() != nil || !p.Includes(9, 10) || p.String() != "" {
		t.Error("nil is not all steps")
	}
}

// FuzzParsePart checks that every accepted part contains steps of a long schedule only, in one run.
func FuzzParsePart(f *testing.F) {
	for _, s := range []string{"0,0.6", "0.1,1", "1,0", "1e-9,1e-8", "0x1p-2,1", "inf,1"} {
		f.Add(s, 20)
	}
	f.Fuzz(func(t *testing.T, s string, steps int) {
		p, err := ParsePart(s)
		if err != nil || steps < 1 || steps > 1<<20 {
			return
		}
		if first, end := p.Steps(steps); first < 0 || end < first || end > steps {
			t.Errorf("%q of %d steps: %d to %d", s, steps, first, end)
		}
		if again, err := ParsePart(p.String()); err != nil || !slices.Equal(again, p) {
			t.Errorf("%q is written as %s: %v, %v", s, p, again, err)
		}
	})
}
