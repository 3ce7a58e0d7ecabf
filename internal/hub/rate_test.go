package hub

import (
	"testing"
	"time"
)

func TestRate(t *testing.T) {
	var r rate
	start := time.Now()
	if r.add(start, 0); r.perSecond() != 0 {
		t.Error("a rate after one sample")
	}
	for i := 1; i <= 30; i++ {
		n := int64(i) * 1e6
		if i > 15 {
			n = 15e6 + int64(i-15)*2e6
		}
		r.add(start.Add(time.Duration(i)*time.Second), n)
	}
	if per := r.perSecond(); per != 2e6 {
		t.Errorf("%f per second, expected that of the last ten seconds", per)
	}
	if left := r.left(60e6); left != 30*time.Second {
		t.Errorf("%v left, expected 30 s", left)
	}
	r.add(start.Add(31*time.Second), 10)
	if r.perSecond() != 0 {
		t.Error("fewer bytes than before did not reset the rate")
	}
}
