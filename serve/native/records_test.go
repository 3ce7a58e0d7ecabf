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

// TestOneAddress: an image that is being stored has the address of the gallery as soon as its job shows it.
func TestOneAddress(t *testing.T) {
	s := serve(t, nil)
	s.call("POST", "/api/v1/jobs", `{"prompt":"a"}`, 202, nil)
	j, _ := s.engine.last()
	for i := range 8 {
		j.finishes(i, 7)
		var job jsonJob
		s.call("GET", "/api/v1/jobs/job0", "", 200, &job)
		for _, p := range job.Pictures {
			if p.Name == "" || p.URL != "/api/v1/pictures/"+p.Name {
				t.Fatalf("after image %d: %+v", i, p)
			}
		}
		if len(job.Pictures) != i+1 {
			t.Fatalf("%d images, expected %d", len(job.Pictures), i+1)
		}
	}
}
