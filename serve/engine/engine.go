package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
)

const (
	maxEnded      = 1000      // jobs that are kept after their end
	maxEndedBytes = 512 << 20 // pixels of their images
	// The limits of FullError.Retry, and its value if nothing is known.
	minRetry, maxRetry, anyRetry = time.Second, 10 * time.Minute, 5 * time.Second
)

// An Engine runs jobs, one after the other, with at most one model in memory.
//
// Clients take turns, and a turn is an image: after a job with several images, a client waits for as
// many of each other client that has waiting jobs. Within a client and a model, jobs are served in
// the order in which they came. Since loading a model
// takes long, jobs for the model in memory pass over others, within two limits: after 8 such jobs
// in a row, the next job in turn runs; and no job is passed over by more than 32 jobs in all. LoRAs
// are part of a model here.
//
// With Config.Shared, a client can have no more waiting jobs than there are free places in the
// queue: alone it fills half of it, and fewer places the more others wait. A client without waiting
// jobs is refused only if all places are taken, and gets the next one that becomes free before
// those that have some.
//
// A language model stays in memory, next to the model for images if there is room, until the next images
// are generated.
//
// A model is loaded when a job needs it. It is freed before another one is loaded, by Unload and
// Close, after Config.KeepAlive, and after a panic. Errors and panics of a job or of loading its
// model end only that job. An error that is the model's fault, such as files that are damaged or not
// supported, is a [gomflux.ErrNotFound], as that of Submit for a model that is known to have it.
//
// When there was nothing to do for Config.Rest, memory that is not in use goes back to the system.
//
// Jobs that have ended can be asked for until Config.Keep is over, but only the newest 1000, with
// images of at most 512 MB. Images that were stored elsewhere take no memory, see Job.Stored.
type Engine struct {
	c       Config
	wake    chan struct{} // has room for one; wakes the runner
	stopped chan struct{} // is closed when the runner has returned

	mu      sync.Mutex
	list    []*Job // that are known, oldest first
	queue   queue
	running *Job            // is loading or running
	unload  bool            // Unload was called
	unloads []chan struct{} // calls of Unload that wait
	closed  bool
	speeds  speeds
	stats   Stats
	// touched is when memory was last used or freed, zero since Release was called.
	touched time.Time

	// Only the runner changes the model in memory and its name and key, while it holds mu.
	model     Model // nil if no model is in memory
	name, key string
	// language is the language model in memory, next to the other one if there is room; nil without one.
	language     LanguageModel
	languageName string
	used         time.Time // when the last job that used it ended
	broken       bool      // the model was used by a job that panicked
	// checking is locked for reading while Submit checks options with the model, which is not
	// closed then.
	checking sync.RWMutex
}

// New returns an engine. Its owner must call Close.
func New(c Config) *Engine {
	if c.Now == nil {
		c.Now = time.Now
	}
	e := &Engine{
		c: c, wake: make(chan struct{}, 1), stopped: make(chan struct{}),
		speeds: speeds{image: map[string]map[int]speed{}, load: averages{}, text: averages{}},
		stats:  Stats{Jobs: map[State]int64{}, Seconds: map[gomflux.Phase]float64{}},
	}
	go e.loop()
	return e
}

func (e *Engine) now() time.Time { return e.c.Now() }

// wakeUp wakes the runner.
func (e *Engine) wakeUp() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Submit adds a job to the queue. ctx is only for submitting. If the queue is full, the error is a
// [*FullError]; after Close it is [ErrClosed]. A model that is not available is a
// [gomflux.ErrNotFound]. Requests whose errors are known before the model is loaded are a
// [gomflux.ErrRequest].
func (e *Engine) Submit(ctx context.Context, r Request) (*Job, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var info ModelInfo
	var err error
	if r.Upscale != nil {
		info.Name = r.Upscale.Upscaler
	} else if info, err = e.Model(r.Model, r.Messages != nil); err != nil {
		return nil, err
	}
	switch {
	case len(r.Seeds) == 0 && r.Language == nil && r.Upscale == nil:
		return nil, errs.Requestf("no images: expected at least one seed")
	case len(r.Options.References) > 0 && !info.Edits:
		return nil, errs.Requestf("%s does not take reference images", info.Name)
	}
	r.Model, r.Seeds, r.LoRAs, r.Warnings = info.Name, slices.Clone(r.Seeds), slices.Clone(r.LoRAs), slices.Clone(r.Warnings)
	if err := e.checkLanguage(&r); err != nil {
		return nil, err
	}
	j := &Job{
		engine: e, id: NewID(), client: r.Client, model: r.Model, key: r.key(), images: len(r.Seeds),
		work: workOf(&r.Options, info.Defaults), done: make(chan struct{}), request: r, previews: r.Previews != 0, state: Queued,
	}
	j.ctx, j.cancel = context.WithCancelCause(context.Background())
	j.writes, j.skip = context.WithCancelCause(j.ctx)
	if err := e.check(j); err != nil {
		j.cancel(nil)
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.room(j.client); err != nil {
		j.cancel(nil)
		return nil, err
	}
	e.forget()
	if e.running != nil || e.queue.n > 0 { // so that at most one job that waits has more than its images
		j.request.Options.ForgetPrepared()
	}
	j.created = e.now()
	j.ahead = -1 // so that reorder publishes it
	e.list = append(e.list, j)
	e.queue.add(j.client, j.key, j)
	e.reorder()
	e.wakeUp()
	return j, nil
}

// check checks the mask of a job, and all options if its model is in memory.
func (e *Engine) check(j *Job) error {
	if _, err := j.request.Options.PrepareMask(); err != nil {
		return err
	}
	e.checking.RLock()
	defer e.checking.RUnlock()
	e.mu.Lock()
	m, key := e.model, e.key
	e.mu.Unlock()
	if m == nil || key != j.key || j.images == 0 {
		return nil
	}
	return m.Check(j.request.Options)
}

// room returns an error if a client can add no job. On a shared engine, a client can have as many
// waiting jobs as there are free places: half of them alone, and fewer the more others wait. So a
// place that becomes free goes first to a client without waiting jobs.
func (e *Engine) room(client string) error {
	if e.closed {
		return ErrClosed
	}
	limit := max(e.c.Queue, 0)
	if e.running == nil {
		limit++ // the first job in the queue is about to run
	}
	own := 0
	if e.c.Shared {
		own = e.queue.waiting(client)
	}
	free := limit - e.queue.n
	if own < free {
		return nil
	}
	e.stats.Refused++
	full := &FullError{Jobs: e.queue.n, Retry: e.retry(client, own, free)}
	if free > 0 {
		full.Own = own
	}
	return full
}

// retry estimates when a client with some waiting jobs can add one. A client that has some gets no
// place before the next of them starts: until then others who come may take those that become free.
func (e *Engine) retry(client string, own, free int) time.Duration {
	if e.running == nil || e.running.left() == 0 {
		return anyRetry
	}
	after := e.running.left()
	waits := own > 0
	for _, p := range e.plan() {
		free++
		if e.c.Shared && p.job.client == client {
			own--
			waits = false
		}
		if own < free && !waits {
			after += p.start
			break
		}
	}
	return min(max(after, minRetry), maxRetry)
}

// Model returns the model with a name, or the default one if the name is empty. It must generate images, or only
// write if writes is set.
func (e *Engine) Model(name string, writes bool) (ModelInfo, error) {
	all := e.c.Models()
	i := slices.IndexFunc(all, func(m ModelInfo) bool { return m.Is(name) || name == "" && m.Default })
	switch {
	case i < 0 && name == "":
		return ModelInfo{}, errs.Requestf("model is missing, and there is no default model")
	case i < 0:
		return ModelInfo{}, errs.NotFound(fmt.Errorf("no model %q here (to get it: gomflux pull %s)", name, name))
	case all[i].Missing != "" && !(writes && all[i].CanWrite(false)):
		return ModelInfo{}, errs.NotFound(fmt.Errorf("model %s: %s", all[i].Name, all[i].Missing))
	}
	return all[i], nil
}

// NewID returns an unguessable id: 32 hexadecimal digits.
func NewID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// keyOf returns a key for a model with LoRAs, which are baked into its weights.
func keyOf(model string, loras []gomflux.LoRA) string {
	key := fmt.Sprintf("%q", model)
	for _, l := range loras {
		scale := l.Scale
		if scale == 0 {
			scale = 1
		}
		key += fmt.Sprintf(" %q %v %v", l.Path, scale, l.Partial)
	}
	return key
}

// Job returns the job with an id. The client "" can see all jobs, other clients only their own.
func (e *Engine) Job(id, client string) (*Job, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forget()
	i := slices.IndexFunc(e.list, func(j *Job) bool { return j.id == id && (client == "" || client == j.client) })
	if i < 0 {
		return nil, false
	}
	return e.list[i], true
}

// Jobs describes the jobs that the client can see, as in Job, newest first.
func (e *Engine) Jobs(client string) []Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forget()
	var all []Status
	for _, j := range slices.Backward(e.list) {
		if client == "" || client == j.client {
			all = append(all, j.status())
		}
	}
	return all
}

// Models describes the models that can be named in requests.
func (e *Engine) Models() []ModelInfo {
	all := slices.Clone(e.c.Models())
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range all {
		all[i].Loaded = e.model != nil && all[i].Name == e.name
	}
	return all
}

// Unload frees the model that is in memory. It returns when this is done, but at once if a job
// runs: the model is then freed when the job has ended.
func (e *Engine) Unload() {
	done := make(chan struct{})
	e.mu.Lock()
	e.unload = true
	busy := e.running != nil
	if !busy {
		e.unloads = append(e.unloads, done)
	}
	e.mu.Unlock()
	if busy {
		return
	}
	e.wakeUp()
	select {
	case <-done:
	case <-e.stopped:
	}
}

// Close stops the engine: there are no new jobs, and waiting jobs fail with [ErrClosed]. The
// running job ends, or fails with ErrClosed when ctx is done. Close returns when the model is
// freed. The error is the cause of ctx if it ended a job.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	for w := e.queue.next(e.key); w != nil; w = e.queue.next(e.key) {
		w.job.cancel(ErrClosed)
		e.end(w.job, ErrClosed)
	}
	e.mu.Unlock()
	e.wakeUp()
	select {
	case <-e.stopped:
		return nil
	case <-ctx.Done():
	}
	e.mu.Lock()
	var err error
	if e.running != nil {
		e.running.cancel(ErrClosed)
		err = context.Cause(ctx)
	}
	e.mu.Unlock()
	<-e.stopped
	return err
}

// reorder computes how many jobs run before each waiting one. mu must be held.
func (e *Engine) reorder() {
	ahead := 0
	if e.running != nil {
		ahead = 1
	}
	for _, p := range e.plan() {
		j := p.job
		j.before = p.start + p.loading
		if j.ahead != ahead {
			j.ahead = ahead
			j.publish(Event{Kind: EventQueued})
		}
		ahead++
	}
}

// A planned job is a waiting one with estimates.
type planned struct {
	job     *Job
	start   time.Duration // from the end of the running job to its start
	loading time.Duration // of its model
}

// plan returns the waiting jobs in the order in which they run. mu must be held.
func (e *Engine) plan() []planned {
	start, key := time.Duration(0), e.inMemory()
	images, language := e.key, key // the models in memory
	runs := func(j *Job) {
		switch key = j.key; {
		case j.images > 0:
			images, language = key, key
		case j.request.Language != nil:
			language = key
		}
	}
	if e.running != nil {
		runs(e.running)
	}
	var all []planned
	for _, w := range e.queue.order(key) {
		p := planned{job: w.job, start: start}
		if w.key != images && w.key != language && w.job.request.Upscale == nil {
			p.loading = e.speeds.loading(w.job.loads())
		}
		runs(w.job)
		all = append(all, p)
		start += p.loading + w.job.takes()
	}
	return all
}

// forget removes jobs that ended long ago, and the oldest ones if they are too many or too large.
// mu must be held.
func (e *Engine) forget() {
	ended, bytes, expired := 0, 0, e.now().Add(-e.c.Keep)
	for i := len(e.list) - 1; i >= 0; i-- {
		j := e.list[i]
		if !j.state.Ended() {
			continue
		}
		ended++
		bytes += j.bytes()
		if !j.ended.After(expired) || ended > maxEnded || bytes > maxEndedBytes && ended > 1 {
			e.list[i] = nil
			e.touched = e.now()
		}
	}
	e.list = slices.DeleteFunc(e.list, func(j *Job) bool { return j == nil })
}
