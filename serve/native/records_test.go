package native

import (
	"fmt"
	"testing"

	"github.com/gomflux/gomflux/serve/engine"
)

// TestRecords: records are kept as long as the engine knows their jobs, and not much longer.
func TestRecords(t *testing.T) {
	e := &fakeEngine{}
	a := New(e, Config{})
	for i := range 1000 {
		j := &fakeJob{status: engine.Status{ID: fmt.Sprint(i)}}
		if e.jobs = append(e.jobs, j); len(e.jobs) > 40 {
			e.jobs = e.jobs[1:] // forgotten
		}
		rec := &record{}
		a.remember(j.status.ID, rec)
		if a.record(j.status.ID) != rec {
			t.Fatalf("job %d has no record", i)
		}
		for _, j := range e.jobs {
			if a.jobs[j.status.ID] == nil {
				t.Fatalf("after job %d, job %s has no record", i, j.status.ID)
			}
		}
		if n := len(a.jobs); n > 80 {
			t.Fatalf("%d records of 40 jobs", n)
		}
	}
}
