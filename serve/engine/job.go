package engine

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/gomflux/gomflux"
)

const (
	maxSmallEvents  = 128      // events of a job without images that can be read later
	maxPreviewBytes = 16 << 20 // pixels of previews of a job that can be read later
	// loadingPause is the time between events about loading, of which a model has hundreds.
	loadingPause = 200 * time.Millisecond
)

// A Job is a request that was submitted.
type Job struct {
	engine   *Engine
	id       string
	client   string
	model    string // with its name in full
	key      string // of the model with its LoRAs
	images   int
	work     work // of each image
	ctx      context.Context
	cancel   context.CancelCauseFunc
	writes   context.Context // of the language model
	skip     context.CancelCauseFunc
	done     chan struct{} // is closed when the job has ended
	request  Request       // without images after the end
	previews bool          // whether previews are made; false after a panic in one

	// the fields below are guarded by engine.mu
	state                   State
	ahead                   int
	before                  time.Duration // estimate of the jobs before it, without the running one
	image, step, steps      int
	imageStarted            time.Time
	stepsBegan, stepEnded   time.Time // of the image: when its first step began, and its last one ended
	loadBegan               time.Time
	loadTime                time.Duration // estimate of loading the model, once a part of it is loaded
	loadingShown            time.Time     // when the last event about loading was published
	created, started, ended time.Time
	answer                  *gomflux.Answer
	text                    text
	err                     error
	pictures                []*Picture
	events                  []Event
	last                    int           // number of the last event
	small, previewBytes     int           // of events
	changed                 chan struct{} // is closed at the next event; nil if nobody waits
}

// ID returns the unguessable id of the job.
func (j *Job) ID() string { return j.id }

// Status describes the job.
func (j *Job) Status() Status {
	j.engine.mu.Lock()
	defer j.engine.mu.Unlock()
	return j.status()
}

func (j *Job) status() Status {
	s := Status{
		ID: j.id, Client: j.client, Prompt: j.request.Options.Prompt, Label: j.request.Label,
		Model: j.model, State: j.state, Image: j.image, Images: j.images,
		Step: j.step, Steps: j.steps, Created: j.created, Started: j.started, Ended: j.ended, Left: j.left(),
		Warnings: j.request.Warnings, Answer: j.answer,
	}
	if j.state == Queued {
		s.Ahead = j.ahead
	}
	if j.state == Failed {
		s.Err = j.err
	}
	return s
}

// Pictures returns the finished images, without pixels after Stored.
func (j *Job) Pictures() []*Picture {
	j.engine.mu.Lock()
	defer j.engine.mu.Unlock()
	return slices.Clone(j.pictures)
}

// Cancel ends the job as canceled: at once if it is queued, and otherwise as soon as the model
// stops. A job that has ended stays as it is.
func (j *Job) Cancel() {
	e := j.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if j.state.Ended() {
		return
	}
	j.cancel(context.Canceled)
	if e.queue.remove(j) {
		e.end(j, nil)
		e.reorder()
	}
}

// Wait waits until the job has ended. It returns nil for a job that is done, the error of a job
// that failed, context.Canceled for a canceled one, and the cause of ctx if that is done before.
func (j *Job) Wait(ctx context.Context) error {
	select {
	case <-j.done:
	default:
		select {
		case <-j.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	j.engine.mu.Lock()
	defer j.engine.mu.Unlock()
	return j.err
}

// Events returns the events of the job after the one with the number after, 0 for all. It waits
// for new ones until the job has ended or ctx is done. Only the newest events without images and
// previews of a limited size are kept, so a reader that is late or slow misses older ones.
// Pictures and the end are always kept.
func (j *Job) Events(ctx context.Context, after int) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		for after := after; ; {
			event, changed, ended := j.event(after)
			switch {
			case ctx.Err() != nil:
				return
			case event != nil:
				if after = event.Number; !yield(*event) {
					return
				}
			case ended:
				return
			default:
				select {
				case <-changed:
				case <-ctx.Done():
					return
				}
			}
		}
	}
}

// event returns the first event that is kept after a number. Without one, it returns whether the
// job has ended, and otherwise a channel that is closed at the next event.
func (j *Job) event(after int) (found *Event, changed <-chan struct{}, ended bool) {
	j.engine.mu.Lock()
	defer j.engine.mu.Unlock()
	i, _ := slices.BinarySearchFunc(j.events, after+1, func(e Event, n int) int { return e.Number - n })
	switch {
	case i < len(j.events):
		e := j.events[i]
		return &e, nil, false
	case j.state.Ended():
		return nil, nil, true
	case j.changed == nil:
		j.changed = make(chan struct{})
	}
	return nil, j.changed, false
}

// publish adds an event. The newest place in the queue replaces the one before, and so does the
// progress of loading. Engine.mu must be held.
func (j *Job) publish(event Event) {
	replaces := event.Kind == EventQueued || event.Kind == EventLoading
	if n := len(j.events); replaces && n > 0 && j.events[n-1].Kind == event.Kind {
		j.events, j.small = j.events[:n-1], j.small-1
	}
	j.last++
	event.Number, event.Status = j.last, j.status()
	j.events = append(j.events, event)
	switch event.Kind {
	case EventQueued, EventLoading, EventStep:
		j.small++
	case EventPreview:
		j.previewBytes += len(event.Preview.Pix)
	}
	j.forgetEvents()
	if j.changed != nil {
		close(j.changed)
		j.changed = nil
	}
}

// forgetEvents removes the oldest events that exceed the limits, but not the newest preview.
func (j *Job) forgetEvents() {
	for i := 0; i < len(j.events) && (j.small > maxSmallEvents || j.previewBytes > maxPreviewBytes); {
		switch e := j.events[i]; {
		case j.small > maxSmallEvents && (e.Kind == EventQueued || e.Kind == EventLoading || e.Kind == EventStep):
			j.small--
		case j.previewBytes > maxPreviewBytes && e.Kind == EventPreview && len(e.Preview.Pix) < j.previewBytes:
			j.previewBytes -= len(e.Preview.Pix)
		default:
			i++
			continue
		}
		j.events = slices.Delete(j.events, i, i+1)
	}
}

// bytes returns the size of the images that the job keeps in memory.
func (j *Job) bytes() int {
	n := j.previewBytes + j.text.events*eventBytes
	for _, p := range j.pictures {
		if p.Result != nil && p.Result.Image != nil {
			n += len(p.Result.Image.Pix)
			if t := p.Result.Transparent; t != nil {
				n += len(t.Pix)
			}
			for _, layer := range p.Result.Layers {
				n += len(layer.Pix)
			}
		}
	}
	return n
}

// Stored reports that the images of a job that has ended are stored elsewhere. The engine keeps the job
// without their pixels and without previews. Whoever has the job already keeps them with it.
func (j *Job) Stored() {
	e := j.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	at := slices.Index(e.list, j)
	if at < 0 || !j.state.Ended() {
		return // forgotten
	}
	bare := *j
	bare.pictures, bare.events, bare.previewBytes = nil, nil, 0
	for _, p := range j.pictures {
		kept, result := *p, *p.Result
		result.Image, result.Transparent, result.Layers = nil, nil, nil
		kept.Result = &result
		bare.pictures = append(bare.pictures, &kept)
	}
	for _, event := range j.events {
		switch event.Kind {
		case EventPreview:
			continue
		case EventPicture:
			i := slices.Index(j.pictures, event.Picture)
			event.Picture = bare.pictures[i]
		}
		bare.events = append(bare.events, event)
	}
	e.list[at] = &bare
	e.touched = e.now()
	e.wakeUp()
}

// end ends a job whose run returned an error or nil. Engine.mu must be held.
func (e *Engine) end(j *Job, err error) {
	j.publishText()
	kind := EventDone
	switch cause := context.Cause(j.ctx); {
	case errors.Is(cause, ErrClosed) && (err != nil || len(j.pictures) < j.images):
		j.state, kind, j.err = Failed, EventFailed, ErrClosed
	case cause != nil && !errors.Is(cause, ErrClosed):
		j.state, kind, j.err = Canceled, EventCanceled, context.Canceled
	case err != nil:
		j.state, kind, j.err = Failed, EventFailed, err
	default:
		j.state = Done
	}
	j.ended = e.now()
	e.stats.Jobs[j.state]++
	j.publish(Event{Kind: kind})
	o := &j.request.Options
	o.Image, o.Mask, o.References, o.Latents, o.Hook, o.Values = nil, nil, nil, gomflux.Latents{}, nil, nil
	j.request.Messages, j.request.Upscale = nil, nil
	o.ForgetPrepared()
	j.cancel(nil)
	close(j.done)
	e.forget()
}
