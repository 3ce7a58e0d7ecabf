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
	ctx  context.Context
	fn   func() error
	call chan func() // functions to run on the caller's goroutine
	back chan any    // what such a function panicked with, or nil
	done chan outcome
}

type outcome struct {
	err   error
	panic any // a panic that is no error of MLX: a bug, raised again in Do
}

// thread is the one OS thread that touches MLX.
var thread struct {
	once sync.Once
	jobs chan *job
	id   int64 // its goroutine
	err  error // why it could not start

	// calling holds the goroutines that are inside Call, by id
	calling sync.Map

	// what follows belongs to the thread alone
	job     *job
	tracing int // depth of functions being traced by Compile
}

// ErrReentrant is returned by Do when it is called from a function that MLX's
// thread is waiting for.
var ErrReentrant = errors.New("mlx: called from inside a running job; return from the callback first")

// Do runs f on the MLX thread and returns its error. Jobs run one after the
// other; ctx stops one that waits, and stops a running one at its next
// [StopPoint]. Everything made in f is freed when it returns, except what
// [Keep] was given.
//
// A failed operation in f is returned as an [*Error], a stopped job as an
// error that wraps ctx's.
func Do(ctx context.Context, f func() error) error {
	if err := startThread(); err != nil {
		return err
	}
	me := goroutineID()
	if _, inside := thread.calling.Load(me); inside || me == thread.id {
		return ErrReentrant
	}
	j := &job{ctx: ctx, fn: f, call: make(chan func()), back: make(chan any), done: make(chan outcome, 1)}
	select {
	case thread.jobs <- j:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for {
		select {
		case f := <-j.call:
			thread.calling.Store(me, true)
			p := recovered(f)
			thread.calling.Delete(me)
			j.back <- p
		case out := <-j.done:
			if out.panic != nil {
				panic(out.panic)
			}
			return out.err
		}
	}
}

// Call runs f on the goroutine that called the running Do, and waits for it.
// It is how a job hands host data to its user. f must not use arrays; a Do
// inside it fails with [ErrReentrant].
func Call(f func()) {
	j := thread.job
	j.call <- f
	if p := <-j.back; p != nil {
		panic(&foreignPanic{p})
	}
}

// Throw ends the running job: its Do returns err.
func Throw(err error) {
	panic(&thrown{err})
}

// StopPoint is a place where the running job may stop: it ends the job if its
// context is done. On the CPU the arrays are evaluated first, since MLX itself
// never aborts an evaluation and a whole step can take minutes there; on a GPU,
// where waiting would drain the queue, nothing is evaluated.
func StopPoint(arrays ...*Array) {
	if thread.tracing > 0 {
		return
	}
	if device == CPU {
		Eval(arrays...)
	}
	if err := context.Cause(thread.job.ctx); err != nil {
		Throw(err)
	}
}

type thrown struct{ err error }

// A foreignPanic is a panic of the caller's own function, on its way back to
// the caller.
type foreignPanic struct{ value any }

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
	for j := range thread.jobs {
		j.done <- j.run()
	}
}

func (j *job) run() (out outcome) {
	thread.job = j
	top := pushScope()
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *Error:
			out.err = p
		case *thrown:
			out.err = p.err
		case *foreignPanic:
			out.panic = p.value
		default:
			out.panic = fmt.Sprintf("%v\n\non the MLX thread:\n%s", p, debug.Stack())
		}
		unwind(top)
		popScope()
		freeCompiled()
		setDevice(defaultDevice)
		freeQueued()
		thread.job, thread.tracing = nil, 0
	}()
	freeQueued()
	if err := context.Cause(j.ctx); err != nil {
		return outcome{err: err}
	}
	return outcome{err: j.fn()}
}

// initialize makes the first calls of MLX, on its thread.
func initialize() (err error) {
	defer func() {
		if p := recover(); p != nil {
			e, ok := p.(*Error)
			if !ok {
				panic(p)
			}
			err = e
		}
	}()
	installErrorHandler()
	initDevices()
	return nil
}

func recovered(f func()) (p any) {
	defer func() { p = recover() }()
	f()
	return nil
}

// goroutineID reads the number in "goroutine 7 [running]:". Go has no other
// way to notice that a goroutine waits for itself.
func goroutineID() int64 {
	buf := make([]byte, 64)
	fields := bytes.Fields(buf[:runtime.Stack(buf, false)])
	id, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		panic(err)
	}
	return id
}
