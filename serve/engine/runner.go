package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	"io"
	"log/slog"
	"math"
	"runtime/debug"
	"slices"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/errs"
)

// A PanicError is a panic, which is in the log with an ID.
type PanicError struct{ What, ID string }

// Error returns the message of the error.
func (e *PanicError) Error() string {
	return fmt.Sprintf("internal error (%s %s in the server's log)", e.What, e.ID)
}

// Protect calls f, which works on something with an id, and returns its error. If f panics, that is
// logged, and the error is a [*PanicError]. The log nil stands for slog's default.
func Protect(log *slog.Logger, what, id string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = Panicked(log, what, id, p)
		}
	}()
	return f()
}

// Panicked logs what a deferred function has recovered.
func Panicked(log *slog.Logger, what, id string, p any) *PanicError {
	cmp.Or(log, slog.Default()).Error("internal error (this is a bug: please report it)", "id", id, "error", fmt.Sprint(p),
		"stack", string(debug.Stack()))
	return &PanicError{what, id}
}

// protect is Protect for a job.
func (j *Job) protect(f func() error) error { return Protect(j.engine.c.Log, "job", j.id, f) }

// loop is the runner: it runs the jobs and frees the model until the engine is closed.
func (e *Engine) loop() {
	defer close(e.stopped)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		e.freeIfAsked()
		j, closed := e.start()
		switch {
		case j != nil:
			e.run(j)
			continue
		case closed:
			e.free()
			return
		}
		timer.Reset(e.idle())
		select {
		case <-e.wake:
		case <-timer.C:
		}
	}
}

// start returns the next job, which is then the running one, or nil and whether the engine is
// closed.
func (e *Engine) start() (*Job, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.queue.next(e.inMemory())
	if w == nil {
		return nil, e.closed
	}
	j := w.job
	j.started = e.now()
	j.loadBegan = j.started
	j.state = Loading
	if e.model != nil && e.key == j.key {
		j.state = Running
		j.imageStarted = j.started
	}
	e.stats.WaitSeconds += j.started.Sub(j.created).Seconds()
	e.running = j
	e.answerUnloads()
	e.reorder()
	return j, false
}

// idle frees the model if no job has used it for Config.KeepAlive, forgets old jobs, and releases
// memory after Config.Rest. It returns the time until it should be called again.
func (e *Engine) idle() time.Duration {
	const never = time.Hour
	loaded := e.inMemory() != ""
	if loaded && e.c.KeepAlive >= 0 && e.now().Sub(e.used) >= e.c.KeepAlive {
		e.free()
		loaded = false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forget()
	next := e.rest(never)
	if loaded && e.c.KeepAlive >= 0 {
		next = min(next, e.c.KeepAlive-e.now().Sub(e.used))
	}
	for _, j := range e.list {
		if j.state.Ended() {
			next = min(next, e.c.Keep-e.now().Sub(j.ended))
		}
	}
	return max(next, time.Millisecond)
}

// rest releases memory if nothing has touched it for Config.Rest. It returns the time until it
// should be called again, or never. mu must be held, and is unlocked meanwhile.
func (e *Engine) rest(never time.Duration) time.Duration {
	if e.c.Release == nil || e.touched.IsZero() {
		return never
	}
	if left := e.c.Rest - e.now().Sub(e.touched); left > 0 {
		return left
	}
	e.touched = time.Time{}
	e.mu.Unlock()
	defer e.mu.Lock()
	e.c.Release()
	return 0
}

// freeIfAsked frees the model for those who called Unload.
func (e *Engine) freeIfAsked() {
	e.mu.Lock()
	asked := e.unload
	e.mu.Unlock()
	if asked || e.broken {
		e.free()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unload = e.unload && !asked
	e.answerUnloads()
}

// answerUnloads lets calls of Unload return. mu must be held.
func (e *Engine) answerUnloads() {
	for _, done := range e.unloads {
		close(done)
	}
	e.unloads = nil
}

// free frees all models.
func (e *Engine) free() {
	e.freeLanguage()
	e.freeModel()
}

// freeModel frees the model for images.
func (e *Engine) freeModel() {
	e.mu.Lock()
	m := e.model
	e.model, e.name, e.key, e.broken = nil, "", "", false
	e.mu.Unlock()
	e.close(m)
}

// close closes a model, unless it is nil, when no options are being checked with it.
func (e *Engine) close(model io.Closer) {
	if model == nil {
		return
	}
	e.checking.Lock()
	defer e.checking.Unlock()
	Protect(e.c.Log, "model", NewID(), model.Close)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.touched = e.now()
}

// run runs a job to its end.
func (e *Engine) run(j *Job) {
	r := j.request
	err := e.write(j, &r)
	if r.Upscale != nil {
		err = j.protect(func() error { return e.upscale(j, r.Upscale) })
	} else if err == nil && j.images > 0 {
		e.freeLanguage()
		if err = e.load(j, &r); err == nil {
			err = j.protect(func() error { return e.generate(j, &r) })
			e.brokenBy(err)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.used = e.now()
	e.touched = e.used
	e.running = nil
	e.end(j, err)
	e.queue.giveBack(j.client, max(1, j.images)-max(1, len(j.pictures)))
	e.reorder()
}

// brokenBy notes that a model was used by a job that panicked.
func (e *Engine) brokenBy(err error) {
	_, panicked := errors.AsType[*PanicError](err)
	e.broken = e.broken || panicked
}

// load loads the model of a job if it is not in memory. Another model is freed before.
func (e *Engine) load(j *Job, r *Request) error {
	if e.model != nil && e.key == j.key {
		e.mu.Lock()
		defer e.mu.Unlock()
		j.state = Running
		return nil
	}
	e.freeModel()
	m, err := open(j.ctx, e, j, r.Model, j.model, func() (Model, error) {
		return e.c.Open(j.ctx, r.Model, r.LoRAs, func(p gomflux.Progress) { e.progress(j, p) })
	})
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.model, e.name, e.key = m, r.Model, j.key
	j.state = Running
	j.imageStarted = e.now()
	return nil
}

// open opens a model for a job, and notes under a name how long that took.
func open[M any](ctx context.Context, e *Engine, j *Job, model, timed string, f func() (M, error)) (m M, err error) {
	if ctx.Err() != nil {
		return m, context.Cause(ctx)
	}
	e.mu.Lock()
	start := e.now()
	j.state, j.loadBegan, j.loadTime = Loading, start, 0
	e.mu.Unlock()
	err = j.protect(func() (err error) {
		m, err = f()
		if err != nil && ctx.Err() == nil {
			err = unusable(model, err)
		}
		return err
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	took := e.now().Sub(start)
	e.stats.Seconds[gomflux.PhaseLoad] += took.Seconds()
	if err == nil {
		e.stats.Loads++
		e.speeds.loaded(timed, took)
	}
	return m, err
}

// unusable returns the error of a model that could not be opened, unless it is the fault of the request
// or of the machine.
func unusable(model string, err error) error {
	var lora *gomflux.LoRAError
	var compute *mlx.Error
	switch {
	case errors.Is(err, gomflux.ErrRequest), errors.As(err, &lora), errors.As(err, &compute):
		return err
	}
	return errs.NotFound(fmt.Errorf("model %s: %w", model, err))
}

// notFinite returns the error of a job whose model computed something that is not finite: because of its
// files, or of a number of the request that is far from ordinary ones. Otherwise the log has the reason.
func (e *Engine) notFinite(r *Request, found *gomflux.NotFiniteError) error {
	if found.Damaged() {
		return unusable(r.Model, found)
	}
	const text = "%s %g: the model computes %s that are NaN or infinite with it (try %g)"
	usual := e.model.Defaults().Guidance
	if g := r.Options.Guidance; g != nil && *g > 10*max(1, usual) {
		return errs.Requestf(text, "guidance", *g, found.What, usual)
	}
	for _, l := range r.LoRAs {
		if math.Abs(l.Scale) > 10 {
			return errs.Requestf("LoRA %s: "+text, l.Path, "scale", l.Scale, found.What, 1.0)
		}
	}
	cmp.Or(e.c.Log, slog.Default()).Warn("not finite", "model", r.Model, "error", error(found))
	return fmt.Errorf("the model computed %s that are NaN or infinite (the server's log has the reason)", found.What)
}

// progress publishes the progress of loading, now and then, and the steps.
func (e *Engine) progress(j *Job, p gomflux.Progress) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch p.Phase {
	case gomflux.PhaseLoad:
		now := e.now()
		if p.Bytes > 0 {
			j.loadTime = time.Duration(float64(now.Sub(j.loadBegan)) * float64(p.TotalBytes) / float64(p.Bytes))
		}
		if p.Bytes < p.TotalBytes && now.Sub(j.loadingShown) < loadingPause {
			return
		}
		j.loadingShown = now
		j.publish(Event{Kind: EventLoading, Bytes: p.Bytes, Total: p.TotalBytes})
	case gomflux.PhaseStep:
		j.step, j.steps = p.Step, p.Steps
		if p.Step == 0 {
			j.stepsBegan = e.now()
			return
		}
		j.stepEnded = e.now()
		j.publish(Event{Kind: EventStep})
	}
}

// generate generates the images of a job.
func (e *Engine) generate(j *Job, r *Request) error {
	if _, err := r.Options.PrepareMask(); err != nil {
		return err
	}
	r.Options.PrepareImages()
	for i := 0; i < len(r.Seeds); {
		if j.ctx.Err() != nil {
			return context.Cause(j.ctx)
		}
		start := e.now()
		e.mu.Lock()
		j.image, j.step, j.imageStarted = i, 0, start
		e.mu.Unlock()
		o := r.Options
		o.Progress = func(p gomflux.Progress) { e.progress(j, p) }
		o.OnStep = nil
		if j.previews {
			o.OnStep = e.previewer(j, r.Previews)
		}
		results, err := e.round(j.ctx, o, r.Seeds[i:])
		if found, ok := errors.AsType[*gomflux.NotFiniteError](err); ok {
			err = e.notFinite(r, found)
		}
		if err != nil {
			return err
		}
		took := e.now().Sub(start) / time.Duration(len(results))
		for _, result := range results {
			to, from := &result.Settings, r.Sources
			to.Image, to.Mask, to.References = from.Image, from.Mask, slices.Clone(from.References)
			e.finished(j, NewPicture(i, r.Seeds[i], result), took)
			i++
		}
	}
	return nil
}

// round generates the image of the first seed, and those of the next ones if the model does so at the same time.
func (e *Engine) round(ctx context.Context, o gomflux.Options, seeds []uint64) ([]*gomflux.Result, error) {
	if m, ok := e.model.(Rounds); ok {
		return m.Round(ctx, o, seeds)
	}
	o.Seed = &seeds[0]
	result, err := e.model.Generate(ctx, o)
	return []*gomflux.Result{result}, err
}

// finished adds a finished image to a job.
func (e *Engine) finished(j *Job, p *Picture, took time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	j.pictures = append(j.pictures, p)
	e.stats.Pictures++
	e.stats.Seconds[gomflux.PhaseEncode] += p.Result.EncodeTime.Seconds()
	e.stats.Seconds[gomflux.PhaseStep] += p.Result.StepTime.Seconds()
	e.stats.Seconds[gomflux.PhaseDecode] += p.Result.DecodeTime.Seconds()
	e.stats.PeakMemory = max(e.stats.PeakMemory, int64(p.Result.PeakMemory))
	e.speeds.took(j.model, j.work, p.Result, took)
	j.publish(Event{Kind: EventPicture, Picture: p})
}

// previewer returns an Options.OnStep that publishes the wanted previews of an image. It never fails: a preview that
// cannot be made is left out.
func (e *Engine) previewer(j *Job, want int) func(gomflux.Step) error {
	made := 0
	return func(s gomflux.Step) error {
		if !j.previews || !previewDue(want, made, s.Step, s.Steps) {
			return nil
		}
		var img *image.RGBA
		err := j.protect(func() (err error) {
			img, err = e.model.Preview(j.ctx, s.Denoised)
			return err
		})
		_, panicked := errors.AsType[*PanicError](err)
		j.previews = !panicked
		made++
		if err != nil || img == nil {
			return nil
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		j.publish(Event{Kind: EventPreview, Preview: img, Part: made - 1})
		return nil
	}
}

// previewDue reports whether a preview is due after a step, if some of the wanted previews were
// made. They divide the steps into equal parts, so the last one is not the finished image unless
// there are more previews than steps.
func previewDue(want, made, step, steps int) bool {
	if want < 0 || want >= steps {
		return true
	}
	return made < want && step*(want+1) >= (made+1)*steps
}
