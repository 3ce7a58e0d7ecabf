package profile

import (
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// A node is a call of a module that has ended, an inner value of one, or a value of the pipeline.
type node struct {
	name            string
	chain           []string  // the classes of the modules around it and, of a module, its own
	depth           int       // the number of modules around it and itself
	tap             hooks.Tap // without its arrays
	shape           []int
	dtype           string
	inputs, outputs []*mlx.Array
	children        []*node // in the order of their calls
}

// isCall reports whether the node is a call of a module.
func (n *node) isCall() bool { return n.depth == len(n.chain) }

// Hook records a tap. It is a [hooks.Func].
func (p *Profiler) Hook(tap hooks.Tap) (*mlx.Array, error) {
	if p.sums.Overhead == 0 { // the run has chosen its device
		p.sums.Overhead = p.overhead()
	}
	p.endOther()
	switch {
	case tap.Point.OnRequest(): // nothing else computes it
	case tap.Point.Kind == hooks.Inner:
		name := tap.Name + ":" + tap.Point.Key
		p.pending = append(p.pending, p.newNode(name, tap, nil, []*mlx.Array{tap.Output}))
	case tap.Point.Key != "":
		p.further[tap.Name] = append(p.further[tap.Name], held(tap.Output))
	default:
		outputs := append([]*mlx.Array{tap.Output}, p.further[tap.Name]...)
		n := p.newNode(tap.Name, tap, tap.Inputs, outputs)
		freeAll(p.further[tap.Name])
		delete(p.further, tap.Name)
		p.end(n)
	}
	return nil, nil
}

// newNode holds the arrays of a tap.
func (p *Profiler) newNode(name string, tap hooks.Tap, inputs []hooks.Arg, outputs []*mlx.Array) *node {
	n := &node{name: name, chain: p.running(), tap: tap, shape: tap.Output.Shape(), dtype: tap.Output.Dtype().String()}
	if tap.Class != "" && (len(n.chain) == 0 || n.chain[len(n.chain)-1] != tap.Class) {
		n.chain = append(n.chain, tap.Class)
	}
	if n.depth = len(n.chain); tap.Class == "" || tap.Point.Kind == hooks.Inner {
		n.depth++
	}
	n.tap.Output, n.tap.Inputs, n.tap.Parameters = nil, nil, nil
	for _, in := range inputs {
		n.inputs = append(n.inputs, held(in.Array))
	}
	for _, out := range outputs {
		n.outputs = append(n.outputs, held(out))
	}
	return n
}

// onStack returns the classes of the modules whose methods are running, the outermost first.
func (p *Profiler) onStack() (chain []string) {
	var stack [256]uintptr
	frames := runtime.CallersFrames(stack[:runtime.Callers(3, stack[:])])
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		class, known := p.methods[f.Function]
		if !known {
			class = p.classOf(f.Function)
			p.methods[f.Function] = class
		}
		// a method may call another one of the same module
		if class != "" && (len(chain) == 0 || chain[len(chain)-1] != class) {
			chain = append(chain, class)
		}
	}
	slices.Reverse(chain)
	return chain
}

// classOf returns the class of a module that a function is a method of, or "".
func (p *Profiler) classOf(function string) string {
	pkg, rest, _ := strings.Cut(function[strings.LastIndexByte(function, '/')+1:], ".(*")
	name, _, isMethod := strings.Cut(rest, ").")
	if class := pkg + "." + name; isMethod && p.classes[class] {
		return class
	}
	return ""
}

// held returns the same array, which stays in memory until it is freed.
func held(x *mlx.Array) *mlx.Array {
	same := x.Reshape(x.Shape()...)
	mlx.Keep(same)
	return same
}

// end adds a call that has ended. It made all calls before it that are deeper.
func (p *Profiler) end(n *node) {
	if n.isCall() {
		first := len(p.pending)
		for first > 0 && p.pending[first-1].depth > n.depth {
			first--
		}
		n.children = slices.Clone(p.pending[first:])
		p.pending = p.pending[:first]
	}
	p.pending = append(p.pending, n)
}

// Attach begins to watch the evaluations of the run.
func (p *Profiler) Attach() {
	mlx.ResetPeakMemory()
	p.stop = mlx.WatchEval(func() func() {
		if p.inside {
			return func() {}
		}
		return p.evaluation()
	})
}

// evaluation begins an evaluation of the run itself, in the innermost module that is running. Inside
// an operation on the host, the first evaluation in a module is that of its inputs, which belongs to
// the module around it.
func (p *Profiler) evaluation() (done func()) {
	switch {
	case p.level == 0:
		p.flush()
		p.begun = p.begin(p.running())
	case p.level == 1 && p.begun:
		p.level, p.begun = 2, false
		return func() {
			p.level--
			f := p.top()
			p.stack = p.stack[:len(p.stack)-1]
			p.evaluated()
			f.start = p.now()
			p.stack = append(p.stack, f)
		}
	}
	p.level++
	return func() {
		if p.level--; p.level == 0 {
			p.begun = false
			p.evaluated()
		}
	}
}

// Detach ends what Attach began, and frees the arrays of calls that were not evaluated.
func (p *Profiler) Detach() {
	p.stop()
	for _, n := range p.pending {
		n.free()
	}
	for _, arrays := range p.further {
		freeAll(arrays)
	}
	p.pending, p.further = nil, map[string][]*mlx.Array{}
}

// overhead measures the time of the smallest evaluation, and of measuring it.
func (p *Profiler) overhead() time.Duration {
	p.inside = true
	defer func() { p.inside = false }()
	took := make([]time.Duration, 21)
	mlx.WithScope(func() {
		x := mlx.Scalar(1, mlx.Float32)
		for i := range took {
			x = x.Plus(1)
			start := p.now()
			mlx.Eval(x)
			took[i] = p.now() - start
		}
	})
	slices.Sort(took)
	return took[len(took)/2]
}

func (n *node) free() {
	freeAll(n.inputs)
	freeAll(n.outputs)
	for _, c := range n.children {
		c.free()
	}
}

// evaluated charges an evaluation, which has just ended, to the innermost frame.
func (p *Profiler) evaluated() {
	now := p.now()
	p.charge(now, true)
	m := memory{Active: mlx.ActiveMemory(), Cache: mlx.CacheMemory()}
	m.Peak = max(m.Active, mlx.PeakMemory()) // MLX's is 0 until it allocates memory
	mlx.ResetPeakMemory()
	if f := p.top(); f != nil {
		f.peak = max(f.peak, m.Peak)
	}
	p.trace.memory(now, m)
}

// flush evaluates the pending calls before the run evaluates anything.
func (p *Profiler) flush() {
	now := p.now()
	if f := p.top(); f != nil && f.kind != otherFrame {
		p.trace.host(p.charged, now)
	}
	p.charge(now, false)
	p.inside = true
	defer func() { p.inside = false }()
	for len(p.pending) > 0 {
		n := p.pending[0]
		p.pending = p.pending[1:]
		p.run(n)
	}
}

// base returns the number of frames around the outermost module.
func (p *Profiler) base() int { return p.depth(imageFrame, phaseFrame, stepFrame, otherFrame) }

// begin begins the modules of a chain of classes that have not begun, and ends others inside them.
// It reports whether any began.
func (p *Profiler) begin(chain []string) (begun bool) {
	base := p.base()
	for i, class := range chain {
		if at := base + i; at < len(p.stack) && p.stack[at].class != class {
			p.endTo(at)
		}
		if base+i == len(p.stack) {
			p.push(moduleFrame, class).class = class
			begun = true
		}
	}
	p.endTo(base + len(chain))
	return begun
}

// run evaluates a call. If the run has evaluated anything inside it, the call has begun.
func (p *Profiler) run(n *node) {
	at := p.base() + n.depth - 1
	if !n.isCall() || at >= len(p.stack) || p.stack[at].class != n.tap.Class {
		p.begin(n.chain[:n.depth-1])
		p.eval(n.inputs)
		if f := p.push(moduleFrame, n.name); n.isCall() {
			f.class = n.tap.Class
		}
	} else {
		freeAll(n.inputs)
	}
	n.inputs = nil
	for len(n.children) > 0 {
		c := n.children[0]
		n.children = n.children[1:]
		p.run(c)
	}
	p.endTo(at + 1)
	p.eval(n.outputs)
	n.outputs = nil
	f := p.top()
	f.call, f.name, f.class = n, n.name, n.tap.Class
	p.pop()
}

// eval evaluates arrays, charges the time to the innermost frame, and frees the arrays.
func (p *Profiler) eval(arrays []*mlx.Array) {
	p.charge(p.now(), false) // the profiler's own time
	mlx.Eval(arrays...)
	p.evaluated()
	freeAll(arrays)
}

// freeAll frees arrays.
func freeAll(arrays []*mlx.Array) {
	for _, a := range arrays {
		a.Free()
	}
}
