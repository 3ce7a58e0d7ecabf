// Package profile measures the evaluated time and the memory of every module of a run.
//
// MLX is lazy: a module's Forward only describes its computation. A [Profiler] therefore records
// the inputs and outputs that modules pass to its hook, and just before the run evaluates anything
// it evaluates them one after the other: the inputs of a module, its inner values and the modules
// inside it, and its outputs. The time of each evaluation belongs to the innermost module that it
// is a part of. What a run evaluates itself belongs to the module whose method is on the call stack.
// Operations are not fused across these places, so a profiled run is slower than another one.
package profile

import (
	"io"
	"slices"
	"time"

	"github.com/gomflux/gomflux/mlx"
)

// A Profiler measures runs, one after the other. Attach, Detach and Hook must be called on the MLX
// thread, and the other methods by the goroutine that starts the runs, or from their callbacks.
type Profiler struct {
	trace   *trace
	classes map[string]bool      // of modules
	methods map[string]string    // the class of a module by its method; "" for other functions
	running func() []string      // the classes of the modules that are running, the outermost first
	now     func() time.Duration // since the start, and later at each call

	stack   []*frame
	peak    int           // of the latest image
	charged time.Duration // the time up to which all time belongs to a frame
	sums    sums

	pending []*node                 // calls that have ended since the last evaluation
	further map[string][]*mlx.Array // outputs after the first, of calls that have not ended
	inside  bool                    // the profiler evaluates arrays itself
	level   int                     // the number of evaluations that have begun and not ended
	begun   bool                    // a module began with the evaluation, whose inputs are not known to be evaluated
	stop    func()                  // stops to watch evaluations; nil if it does not
}

// New begins a profile, and a trace that is written to w. [Profiler.Close] must be called.
func New(w io.Writer) *Profiler {
	start, last := time.Now(), time.Duration(0)
	p := &Profiler{trace: newTrace(w), sums: newSums(), further: map[string][]*mlx.Array{},
		classes: map[string]bool{}, methods: map[string]string{}}
	p.running = p.onStack
	p.now = func() time.Duration {
		last = max(last+1, time.Since(start)) // no two slices begin or end at the same time
		return last
	}
	return p
}

// SetClasses sets the classes of all modules whose outputs the hook gets.
func (p *Profiler) SetClasses(classes []string) {
	for _, class := range classes {
		p.classes[class] = true
	}
}

// A kind is the kind of a frame.
type kind string

const (
	imageFrame  kind = "image"
	phaseFrame  kind = "phase"
	stepFrame   kind = "step"
	otherFrame  kind = "other" // loading and callbacks within a phase, whose time does not count as the phase's
	moduleFrame kind = "module"
)

// A frame is a part of the run that has begun and not ended.
type frame struct {
	kind     kind
	name     string // of a module without an output, its class until a module inside it has ended
	class    string // of a module
	call     *node  // of a module or a value, when it has ended; nil before
	start    time.Duration
	self     time.Duration // of evaluations, without those of modules inside
	stepSelf time.Duration // of evaluations in the steps of a phase, without those of modules
	total    time.Duration // of evaluations
	host     time.Duration // between evaluations
	excluded time.Duration // of other frames inside
	peak     int           // highest memory
}

// top returns the innermost frame, nil for none.
func (p *Profiler) top() *frame {
	if len(p.stack) == 0 {
		return nil
	}
	return p.stack[len(p.stack)-1]
}

func (p *Profiler) push(k kind, name string) *frame {
	now := p.now()
	p.charge(now, false)
	f := &frame{kind: k, name: name, start: now}
	p.stack = append(p.stack, f)
	return f
}

// charge gives the time since the last charge to the innermost frame, as time of an evaluation or
// as time between evaluations.
func (p *Profiler) charge(now time.Duration, evaluated bool) {
	took := now - p.charged
	p.charged = now
	f := p.top()
	switch {
	case f == nil:
	case evaluated:
		f.self += took
	default:
		f.host += took
	}
}

// pop ends the innermost frame.
func (p *Profiler) pop() {
	now := p.now()
	p.charge(now, false)
	f := p.top()
	p.stack = p.stack[:len(p.stack)-1]
	f.total += f.self
	dur := now - f.start
	if f.kind == imageFrame {
		p.peak = f.peak
	}
	if outer := p.top(); outer != nil {
		outer.peak = max(outer.peak, f.peak)
		if around := parent(f.name); outer.kind == moduleFrame && outer.name == outer.class && around != "" {
			outer.name = around // it may have no output
		}
		if f.kind == otherFrame {
			outer.excluded += dur
		} else {
			if f.kind == stepFrame {
				outer.stepSelf += f.self
			}
			outer.total += f.total
			outer.host += f.host
			outer.excluded += f.excluded
		}
	}
	p.sums.add(f, dur-f.excluded, p.phase())
	p.trace.slice(f, dur)
}

// endTo ends all frames inside the first n.
func (p *Profiler) endTo(n int) {
	for len(p.stack) > n {
		p.pop()
	}
}

// depth returns the number of frames up to the innermost one of some kinds, with it; 0 if there is
// no such frame.
func (p *Profiler) depth(kinds ...kind) int {
	for i, f := range slices.Backward(p.stack) {
		if slices.Contains(kinds, f.kind) {
			return i + 1
		}
	}
	return 0
}

// BeginImage begins an image, or several that are generated at once.
func (p *Profiler) BeginImage(name string) {
	p.endTo(0)
	p.push(imageFrame, name)
}

// EndImage ends the image.
func (p *Profiler) EndImage() { p.endTo(0) }

// Peak returns the highest memory of the latest image that has ended. MLX's own peak is reset with
// every evaluation.
func (p *Profiler) Peak() int { return p.peak }

// phase returns the name of the phase, or of what happens outside of all phases.
func (p *Profiler) phase() string {
	for _, f := range slices.Backward(p.stack) {
		if f.kind == phaseFrame || f.kind == otherFrame {
			return f.name
		}
	}
	return ""
}

// BeginPhase ends the phase of the run, and begins another.
func (p *Profiler) BeginPhase(name string) {
	p.endTo(p.depth(imageFrame))
	p.push(phaseFrame, name)
}

// BeginStep ends a denoising step, and begins another.
func (p *Profiler) BeginStep(name string) {
	p.EndStep()
	p.push(stepFrame, name)
}

// EndStep ends the denoising step.
func (p *Profiler) EndStep() { p.endTo(p.depth(phaseFrame)) }

// BeginOther begins something within a phase that does not belong to it, such as loading a
// component. It ends with the function that it returns, or when the run goes on.
func (p *Profiler) BeginOther(name string) (end func()) {
	if f := p.top(); f != nil && f.kind == otherFrame && f.name == name {
		return func() {}
	}
	p.endOther()
	f := p.push(otherFrame, name)
	return func() {
		if i := slices.Index(p.stack, f); i >= 0 {
			p.endTo(i)
		}
	}
}

// endOther ends a frame of BeginOther.
func (p *Profiler) endOther() {
	if n := p.depth(otherFrame); n > 0 {
		p.endTo(n - 1)
	}
}

// Close ends everything and writes the end of the trace, with facts about the run. The summary
// describes what has run so far. An error is the first one of writing the trace.
func (p *Profiler) Close(facts map[string]any) (*Summary, error) {
	p.endTo(0)
	return &p.sums.Summary, p.trace.close(facts)
}
