package profile

import (
	"slices"
	"strings"
	"time"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// A node is a call of a module that has ended, an inner value of one, or a value of the pipeline.
type node struct {
	name            string
	tap             hooks.Tap // without its arrays
	shape           []int
	dtype           string
	inputs, outputs []*mlx.Array
	children        []*node // in the order of their calls
}

// Hook records a tap. It is a [hooks.Func].
func (p *Profiler) Hook(tap hooks.Tap) (*mlx.Array, error) {
	if p.sums.overhead == 0 { // the run has chosen its device
		p.sums.overhead = p.overhead()
	}
	p.endOther()
	switch {
	case tap.Point.OnRequest(): // nothing else computes it
	case tap.Point.Kind == hooks.Inner:
		name := tap.Name + ":" + tap.Point.Key
		p.pending = append(p.pending, newNode(name, tap, nil, []*mlx.Array{tap.Output}))
	case tap.Point.Key != "":
		p.further[tap.Name] = append(p.further[tap.Name], held(tap.Output))
	default:
		outputs := append([]*mlx.Array{tap.Output}, p.further[tap.Name]...)
		n := newNode(tap.Name, tap, tap.Inputs, outputs)
		for _, a := range p.further[tap.Name] {
			a.Free()
		}
		delete(p.further, tap.Name)
		p.end(n)
	}
	return nil, nil
}

// newNode holds the arrays of a tap.
func newNode(name string, tap hooks.Tap, inputs []hooks.Arg, outputs []*mlx.Array) *node {
	n := &node{name: name, tap: tap, shape: tap.Output.Shape(), dtype: tap.Output.Dtype().String()}
	n.tap.Output, n.tap.Inputs, n.tap.Parameters = nil, nil, nil
	for _, in := range inputs {
		n.inputs = append(n.inputs, held(in.Array))
	}
	for _, out := range outputs {
		n.outputs = append(n.outputs, held(out))
	}
	return n
}

// held returns the same array, which stays in memory until it is freed.
func held(x *mlx.Array) *mlx.Array {
	same := x.Reshape(x.Shape()...)
	mlx.Keep(same)
	return same
}

// end adds a call that has ended. All calls since the first one of a module inside it were made by
// it.
func (p *Profiler) end(n *node) {
	if n.tap.Class != "" {
		first := slices.IndexFunc(p.pending, func(other *node) bool { return isInside(other.name, n.name) })
		if first >= 0 {
			n.children = slices.Clone(p.pending[first:])
			p.pending = p.pending[:first]
		}
	}
	p.pending = append(p.pending, n)
}

// isInside reports whether a module or a value is inside a module.
func isInside(name, module string) bool {
	rest, ok := strings.CutPrefix(name, module)
	return ok && rest != "" && (rest[0] == '.' || rest[0] == ':')
}

// Attach begins to watch the evaluations of the run.
func (p *Profiler) Attach() {
	mlx.ResetPeakMemory()
	p.stop = mlx.WatchEval(func() func() {
		if p.inside {
			return func() {}
		}
		p.flush()
		return func() { p.evaluated() }
	})
}

// Detach ends what Attach began, and frees the arrays of calls that were not evaluated.
func (p *Profiler) Detach() {
	p.stop()
	for _, n := range p.pending {
		n.free()
	}
	for _, arrays := range p.further {
		for _, a := range arrays {
			a.Free()
		}
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
	freeAll(&n.inputs)
	freeAll(&n.outputs)
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

// flush evaluates the pending calls before the run evaluates anything. Modules around them have
// begun, but not ended.
func (p *Profiler) flush() {
	now := p.now()
	if f := p.top(); f != nil && f.kind != otherFrame {
		p.trace.host(p.charged, now)
	}
	p.charge(now, false)
	if len(p.pending) == 0 {
		return
	}
	p.inside = true
	defer func() { p.inside = false }()
	base := p.depth(imageFrame, phaseFrame, stepFrame, otherFrame)
	for len(p.pending) > 0 {
		n := p.pending[0]
		p.pending = p.pending[1:]
		p.run(n, base, true)
	}
}

// run evaluates a call. The frames from a depth on belong to modules that began before this flush;
// unless the call ends one of them, it is inside some and ends the others. The modules around an
// outermost call have not ended, and begin here at the latest.
func (p *Profiler) run(n *node, depth int, outermost bool) {
	at := slices.IndexFunc(p.stack[depth:], func(f *frame) bool { return f.name == n.name }) + depth
	if at < depth {
		for len(p.stack) > depth && !isInside(n.name, p.top().name) {
			p.pop()
		}
		if outermost {
			p.beginAround(n.name)
		}
		p.eval(&n.inputs)
		p.push(moduleFrame, n.name)
		at = len(p.stack) - 1
	}
	freeAll(&n.inputs)
	for len(n.children) > 0 {
		c := n.children[0]
		n.children = n.children[1:]
		p.run(c, at+1, false)
	}
	p.endTo(at + 1)
	p.eval(&n.outputs)
	p.top().call = n
	p.pop()
}

// beginAround begins the modules around a module or value that have not begun.
func (p *Profiler) beginAround(name string) {
	for i, c := range name {
		module := name[:i]
		if c != '.' && c != ':' || !p.modules[module] {
			continue
		}
		if outer := p.top(); outer == nil || outer.kind != moduleFrame || isInside(module, outer.name) {
			p.push(moduleFrame, module)
		}
	}
}

// eval evaluates arrays, charges the time to the innermost frame, and frees the arrays.
func (p *Profiler) eval(arrays *[]*mlx.Array) {
	p.charge(p.now(), false) // the profiler's own time
	mlx.Eval(*arrays...)
	p.evaluated()
	freeAll(arrays)
}

// freeAll frees arrays.
func freeAll(arrays *[]*mlx.Array) {
	for _, a := range *arrays {
		a.Free()
	}
	*arrays = nil
}
