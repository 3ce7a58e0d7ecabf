package api

import (
	"context"
	"iter"

	"github.com/gomflux/gomflux/serve/engine"
)

// An Engine runs jobs, as the APIs see it: that of package serve refuses some requests. Tests have others.
type Engine interface {
	Submit(ctx context.Context, r engine.Request) (Job, error)
	Job(id, client string) (Job, bool)
	Jobs(client string) []engine.Status
	Models() []engine.ModelInfo
	Unload()
}

// A Job is a job of an Engine. *[engine.Job] is one.
type Job interface {
	ID() string
	Status() engine.Status
	Cancel()
	Skip()
	Pictures() []*engine.Picture
	Events(ctx context.Context, after int) iter.Seq[engine.Event]
	Wait(ctx context.Context) error
	Stored()
}

// Adapted makes an engine an Engine.
type Adapted struct{ *engine.Engine }

// Submit is [engine.Engine.Submit].
func (a Adapted) Submit(ctx context.Context, r engine.Request) (Job, error) {
	j, err := a.Engine.Submit(ctx, r)
	if err != nil {
		return nil, err // and not a nil *engine.Job in the interface
	}
	return j, nil
}

// Job is [engine.Engine.Job].
func (a Adapted) Job(id, client string) (Job, bool) { return a.Engine.Job(id, client) }
