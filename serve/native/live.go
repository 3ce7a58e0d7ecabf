package native

import (
	"context"
	"iter"
	"net/http"
	"slices"

	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// announce tells those who follow all jobs that there is a new one.
func (a *API) announce() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.submitted)
	a.submitted = make(chan struct{})
}

// HangUp ends the streams of those who follow all jobs, whose jobs have ended.
func (a *API) HangUp() { close(a.over) }

// A liveEvent is an event of a job, or the list of jobs with which a stream begins.
type liveEvent struct {
	id string
	engine.Event
	jobs []jsonJob
}

// live streams the events of all jobs of a client, from whichever API they come.
func (a *API) live(w http.ResponseWriter, r *http.Request) error {
	owner := a.Owner(r)
	return follow(w, r, "all jobs", func(ctx context.Context) iter.Seq[liveEvent] { return a.liveEvents(ctx, owner) },
		func(ctx context.Context, s *api.Stream, e liveEvent) error {
			if e.id == "" {
				return s.Event(0, "jobs", map[string]any{"jobs": e.jobs})
			}
			return a.send(ctx, s, e.id, string(e.Kind), e.Event)
		})
}

// liveEvents returns the jobs of an owner that have not ended, and then the events of these and later
// jobs.
func (a *API) liveEvents(ctx context.Context, owner string) iter.Seq[liveEvent] {
	return func(yield func(liveEvent) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		events := make(chan liveEvent)
		known := map[string]bool{}
		for first := true; ; first = false {
			a.mu.Lock()
			submitted := a.submitted
			a.mu.Unlock()
			present, begin := map[string]bool{}, liveEvent{jobs: []jsonJob{}}
			for _, s := range slices.Backward(a.engine.Jobs(owner)) { // oldest first
				present[s.ID] = true
				j, ok := a.engine.Job(s.ID, owner)
				if known[s.ID] || !ok || first && s.State.Ended() {
					continue
				}
				begin.jobs = append(begin.jobs, a.jobJSON(ctx, s, nil))
				go forward(ctx, j, events)
			}
			known = present
			if first && !yield(begin) {
				return
			}
			for waits := true; waits; {
				select {
				case e := <-events:
					if !yield(e) {
						return
					}
				case <-submitted:
					waits = false
				case <-a.over:
					return
				case <-ctx.Done():
					return
				}
			}
		}
	}
}

// forward sends the events of a job.
func forward(ctx context.Context, j api.Job, to chan<- liveEvent) {
	for e := range j.Events(ctx, 0) {
		select {
		case to <- liveEvent{id: j.ID(), Event: e}:
		case <-ctx.Done():
			return
		}
	}
}
