package native

import (
	"cmp"
	"context"
	"fmt"
	"image"
	"image/color"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// A fakeEngine has jobs that tests drive.
type fakeEngine struct {
	api.Engine
	mu       sync.Mutex
	jobs     []*fakeJob
	requests []engine.Request
	err      error // of Submit
}

func (e *fakeEngine) Submit(_ context.Context, r engine.Request) (api.Job, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return nil, e.err
	}
	r.Model = cmp.Or(r.Model, "shapes") // the default model
	e.requests = append(e.requests, r)
	j := &fakeJob{sources: r.Sources, changed: make(chan struct{}), status: engine.Status{
		ID: fmt.Sprintf("job%d", len(e.jobs)), Client: r.Client, Prompt: r.Options.Prompt, Label: r.Label,
		Model: r.Model, State: engine.Queued, Images: len(r.Seeds),
		Steps: r.Options.Steps, Created: time.Unix(1e9, 0),
	}}
	e.jobs = append(e.jobs, j)
	j.happens(engine.Event{Kind: engine.EventQueued})
	return j, nil
}

func (e *fakeEngine) Job(id, client string) (api.Job, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, j := range e.jobs {
		if s := j.Status(); s.ID == id && (client == "" || client == s.Client) {
			return j, true
		}
	}
	return nil, false
}

func (e *fakeEngine) Jobs(client string) (all []engine.Status) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, j := range slices.Backward(e.jobs) {
		if s := j.Status(); client == "" || client == s.Client {
			all = append(all, s)
		}
	}
	return all
}

func (e *fakeEngine) Models() []engine.ModelInfo {
	return []engine.ModelInfo{
		{Name: "shapes", Default: true, Loaded: true, Licence: family.Licence{Name: "MIT"},
			Defaults: gomflux.Defaults{Steps: 4, Height: 64, Width: 64}},
		{Name: "other", Missing: "not here (gomflux pull other)", Edits: true, Created: time.Unix(1e9, 0)},
	}
}

// last returns the newest job and its request.
func (e *fakeEngine) last() (*fakeJob, engine.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.jobs[len(e.jobs)-1], e.requests[len(e.requests)-1]
}

type fakeJob struct {
	api.Job
	mu       sync.Mutex
	status   engine.Status
	sources  engine.Sources
	events   []engine.Event
	pictures []*engine.Picture
	changed  chan struct{}
}

func (j *fakeJob) ID() string { return j.status.ID }

func (j *fakeJob) Status() engine.Status {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.status
}

func (j *fakeJob) Stored() {}

func (j *fakeJob) Skip() { j.happens(engine.Event{Kind: engine.EventWritten}) }

func (j *fakeJob) Cancel() {
	if !j.Status().State.Ended() {
		j.end(engine.Canceled, nil)
	}
}

func (j *fakeJob) end(s engine.State, err error) {
	j.mu.Lock()
	j.status.State, j.status.Err, j.status.Ended = s, err, time.Now()
	j.mu.Unlock()
	j.happens(engine.Event{Kind: engine.Kind(s)})
}

// happens adds an event, and a picture with its number.
func (j *fakeJob) happens(e engine.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e.Number, e.Status = len(j.events)+1, j.status
	j.events = append(j.events, e)
	if e.Picture != nil {
		j.pictures = append(j.pictures, e.Picture)
	}
	close(j.changed)
	j.changed = make(chan struct{})
}

func (j *fakeJob) finishes(index int, seed uint64) *gomflux.Result {
	r := &gomflux.Result{Image: testImage(8, 8), EncodeTime: time.Second, Settings: picture.Settings{
		Generator: "gomflux test", Model: "shapes", Prompt: "a <cat>", Seed: seed, Steps: 4, Height: 8, Width: 8, Seconds: 5,
	}}
	r.Settings.Image, r.Settings.Mask, r.Settings.References = j.sources.Image, j.sources.Mask, j.sources.References
	j.happens(engine.Event{Kind: engine.EventPicture, Picture: engine.NewPicture(index, seed, r)})
	return r
}

func (j *fakeJob) Pictures() []*engine.Picture {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.pictures)
}

func (j *fakeJob) Events(ctx context.Context, after int) iter.Seq[engine.Event] {
	return func(yield func(engine.Event) bool) {
		for {
			j.mu.Lock()
			events, changed, ended := j.events, j.changed, j.status.State.Ended()
			j.mu.Unlock()
			for ; after < len(events); after++ {
				if !yield(events[after]) {
					return
				}
			}
			if ended && len(events) > 0 && engine.State(events[len(events)-1].Kind).Ended() {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

func testImage(w, h int) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	for i := range w * h {
		img.Set(i%w, i/w, color.RGBA{uint8(i), uint8(2 * i), 9, 255})
	}
	return img
}
