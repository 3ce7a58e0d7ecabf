package mlx

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
)

// A job is one call of Do.
type job struct {
	ctx    context.Context
	fn     func() error
	call   chan func()   // functions to run on the caller's goroutine
	back   chan *outcome // how such a function ended; nil if it returned
	nested chan *job     // jobs that such a function starts with Do
	done   chan outcome
}

// An outcome describes how a job ended. Throw and Call end the running job by a panic with
// an outcome.
type outcome struct {
	err   error
	panic any  // the value of a panic other than *Error, which is a bug; Do panics with it again
	exit  bool // runtime.Goexit was called, as by t.FailNow in a test; Do calls it again
}

// thread is the one OS thread that touches MLX.
var thread struct {
	once sync.Once
	jobs chan *job
	id   int64 // its goroutine
	err  error // of starting it

	// calling maps the goroutine that runs a Call's function to the job that waits for it
	calling sync.Map

	// the fields below are used by the thread only
	job     *job
	tracing int // depth of functions being traced by Compile
}

// ErrReentrant is returned by Do if it is called on the MLX thread itself.
var ErrReentrant = errors.New("mlx: Do called on the MLX thread, which it would block (return from the hook or job first)")

// Do runs f on the MLX thread, as a job, and returns its error. Jobs run one after the
// other. If ctx is done, a waiting job does not start and a running job stops at its next
// [StopPoint]. All arrays that f made are freed when it returns, except those passed to
// [Keep]. A function that runs by [Call] may use Do, since its job waits for it.
//
// If an operation in f fails, Do returns its [*Error]. If the job is stopped, Do returns
// an error that wraps ctx's error and its cause.
func Do(ctx context.Context, f func() error) error {
	if err := startThread(); err != nil {
		return err
	}
	me := goroutineID()
	if me == thread.id {
		return ErrReentrant
	}
	queue := thread.jobs
	if outer, inside := thread.calling.Load(me); inside {
		queue = outer.(*job).nested
	}
	j := &job{
		ctx: ctx, fn: f, call: make(chan func()), back: make(chan *outcome, 1), nested: make(chan *job), done: make(chan outcome, 1),
	}
	select {
	case queue <- j:
	case <-ctx.Done():
		return stopped(ctx)
	}
	out := j.wait(me)
	if out.panic != nil {
		panic(out.panic)
	}
	if out.exit {
		runtime.Goexit()
	}
	return out.err
}

// Finish runs f on the MLX thread, from which it may be called too, and waits for running jobs
// elsewhere. It is for freeing what outlives a job.
func Finish(f func()) error {
	if err := startThread(); err != nil {
		return err
	}
	if goroutineID() == thread.id {
		f()
		return nil
	}
	return Do(context.Background(), func() error { f(); return nil })
}

// wait runs the functions that the job passes to Call, until the job is done.
func (j *job) wait(caller int64) outcome {
	for {
		select {
		case f := <-j.call:
			j.answer(caller, f)
		case out := <-j.done:
			return out
		}
	}
}

// answer runs f on the caller's goroutine and sends the job its outcome.
func (j *job) answer(caller int64, f func()) {
	outer, nested := thread.calling.Swap(caller, j)
	back := &outcome{exit: true} // unless f returns or panics
	defer func() {
		if p := recover(); p != nil {
			back = &outcome{panic: p}
		}
		if nested {
			thread.calling.Store(caller, outer)
		} else {
			thread.calling.Delete(caller)
		}
		j.back <- back
		if back != nil && back.exit {
			j.wait(caller) // the job must not outlive its Do
		}
	}()
	f()
	back = nil
}

// stopped returns the error of a job whose context is done, or nil.
func stopped(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// Call runs f on the goroutine that called the running Do, and waits for it. Jobs use it
// to pass host data to callbacks. f must not use arrays, except in a Do of its own.
func Call(f func()) {
	j := thread.job
	j.call <- f
	for {
		select {
		case n := <-j.nested:
			n.runInside(j)
		case out := <-j.back:
			if out != nil {
				panic(out)
			}
			return
		}
	}
}

// Throw ends the running job: its Do returns err.
func Throw(err error) {
	panic(&outcome{err: err})
}

// StopPoint ends the running job if its context is done. On the CPU it evaluates the
// arrays first, since MLX cannot abort an evaluation and a whole step can take minutes
// there. On a GPU it evaluates nothing, since waiting would drain the queue.
func StopPoint(arrays ...*Array) {
	if thread.tracing > 0 {
		return
	}
	if device == CPU {
		Eval(arrays...)
	}
	if err := stopped(thread.job.ctx); err != nil {
		Throw(err)
	}
}

func startThread() error {
	thread.once.Do(func() {
		thread.jobs = make(chan *job)
		ready := make(chan error)
		go runThread(ready)
		thread.err = <-ready
	})
	return thread.err
}

func runThread(ready chan<- error) {
	runtime.LockOSThread() // and never unlock: the streams belong to this thread
	thread.id = goroutineID()
	if _, err := Open(); err != nil {
		ready <- err
		return
	}
	if err := initialize(); err != nil {
		ready <- err
		return
	}
	ready <- nil
	serve()
}

// serve runs jobs forever. If a job calls runtime.Goexit, which ends the goroutine after
// its deferred functions, the deferred function here serves the next jobs.
func serve() {
	defer func() {
		if p := recover(); p != nil {
			panic(p)
		}
		serve()
	}()
	for j := range thread.jobs {
		j.run()
	}
}

// run runs a job that is not nested in another.
func (j *job) run() {
	j.do(func() {
		freeCompiled()
		setDevice(defaultDevice)
		thread.job, thread.tracing = nil, 0
	})
}

// runInside runs a job while outer waits in a Call.
func (j *job) runInside(outer *job) {
	if thread.tracing > 0 {
		j.done <- outcome{err: ErrReentrant} // nothing can be computed during tracing
		return
	}
	on := device
	setDevice(defaultDevice)
	j.do(func() {
		setDevice(on)
		thread.job = outer
	})
}

// do runs the job's function, restores the thread's state by restore, and sends the
// outcome.
func (j *job) do(restore func()) {
	out := outcome{exit: true} // unless fn returns or panics
	thread.job = j
	top := pushScope()
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *Error:
			Drain()
			out = outcome{err: p}
		case *outcome:
			out = *p
		default:
			out = outcome{panic: fmt.Sprintf("%v\n\non the MLX thread:\n%s", p, debug.Stack())}
		}
		unwind(top)
		popScope()
		restore()
		freeQueued()
		j.done <- out
	}()
	freeQueued()
	err := stopped(j.ctx)
	if err == nil {
		err = j.fn()
	}
	out = outcome{err: err}
}

// initialize makes the first calls of MLX, on the MLX thread.
func initialize() (err error) {
	defer catch(&err)
	installErrorHandler()
	initDevices()
	return nil
}

// goroutineID reads the number in "goroutine 7 [running]:". Go has no other way to detect
// that a goroutine waits for itself.
func goroutineID() int64 {
	buf := make([]byte, 64)
	fields := bytes.Fields(buf[:runtime.Stack(buf, false)])
	id, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		panic(err)
	}
	return id
}
