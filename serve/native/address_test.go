package native

import "testing"

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
