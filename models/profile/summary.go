package profile

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Summary has the times and the memory of everything that was profiled.
type Summary struct {
	// Overhead is the time of the smallest evaluation on the device. The time of each call
	// contains it at least once.
	Overhead time.Duration
	// Phases are the phases of the runs, in their order.
	Phases []Phase
	// Steps are the denoising steps.
	Steps []Step
	// Modules are the modules, and the values of the pipeline, in the order of their first calls.
	Modules []*Module
}

// Empty reports whether nothing was profiled.
func (s *Summary) Empty() bool { return len(s.Modules) == 0 }

// Times are times of a part of a run.
type Times struct {
	// Duration is the whole time.
	Duration time.Duration
	// Evaluated is the time of evaluations.
	Evaluated time.Duration
	// Host is the time between evaluations: MLX describes computations, Go prepares data, and the
	// profiler does its work.
	Host time.Duration
}

// A Phase is the sum of a phase of all runs.
type Phase struct {
	Name string
	Times
	// Self is the part of Evaluated that belongs to no module.
	Self time.Duration
	// Count is the number of times that the phase was run.
	Count int
	// Peak is the highest memory of MLX, in bytes.
	Peak int
}

// A Step is a denoising step.
type Step struct {
	Name string
	Times
	// Peak is the highest memory of MLX, in bytes.
	Peak int
}

// A Module is the sum of the calls of a module, of the computations of an inner value (Name has a
// colon), or of those of a value of the pipeline (Class is "").
type Module struct {
	Name, Class, Phase string
	// Calls is the number of calls.
	Calls int
	// Self is the evaluated time of the module without the modules and inner values inside it, and
	// Total the time with them.
	Self, Total time.Duration
	// Peak is the highest memory of MLX during the calls, in bytes.
	Peak int
	// Shape and Dtype describe the first output of the last call.
	Shape []int
	Dtype string
}

// sums adds up frames.
type sums struct {
	Summary
	modules map[rowKey]*Module
}

type rowKey struct{ phase, name string }

func newSums() sums { return sums{modules: map[rowKey]*Module{}} }

// add adds a frame that has ended, and took a time without what is excluded from it.
func (s *sums) add(f *frame, dur time.Duration, phase string) {
	times := Times{dur, f.total, f.host}
	switch f.kind {
	case phaseFrame, otherFrame:
		name, _, _ := strings.Cut(f.name, " ") // load text_encoder
		i := slices.IndexFunc(s.Phases, func(p Phase) bool { return p.Name == name })
		if i < 0 {
			i = len(s.Phases)
			s.Phases = append(s.Phases, Phase{Name: name})
		}
		p := &s.Phases[i]
		p.Times = Times{p.Duration + dur, p.Evaluated + f.total, p.Host + f.host}
		p.Self, p.Count, p.Peak = p.Self+f.self+f.stepSelf, p.Count+1, max(p.Peak, f.peak)
	case stepFrame:
		s.Steps = append(s.Steps, Step{f.name, times, f.peak})
	case moduleFrame:
		m := s.modules[rowKey{phase, f.name}]
		if m == nil {
			m = &Module{Name: f.name, Phase: phase}
			s.modules[rowKey{phase, f.name}] = m
			s.Modules = append(s.Modules, m)
		}
		m.Calls++
		m.Self, m.Total, m.Peak = m.Self+f.self, m.Total+f.total, max(m.Peak, f.peak)
		if n := f.call; n != nil {
			m.Class, m.Shape, m.Dtype = n.tap.Class, n.shape, n.dtype
		}
	}
}

// Groups returns the sums of modules of the same class whose names differ only in numbers and whose
// outputs have the same shape, with * for each number that differs. The first has the largest Self.
func (s *Summary) Groups() []*Module { return grouped(s.Modules) }

// Classes returns the sums of modules of the same class, whose names are those of the classes. The
// first has the largest Self. The values of the pipeline have no class.
func (s *Summary) Classes() []*Module {
	var all []*Module
	for _, m := range s.Modules {
		all = append(all, &Module{Name: m.Class, Class: m.Class, Calls: m.Calls, Self: m.Self, Total: m.Total, Peak: m.Peak})
	}
	return grouped(all)
}

func grouped(all []*Module) (groups []*Module) {
	type key struct{ phase, pattern, class, shape string }
	found := map[key]*Module{}
	for _, m := range all {
		k := key{m.Phase, pattern(m.Name), m.Class, m.ShapeText()}
		g := found[k]
		if g == nil {
			found[k] = new(*m)
			groups = append(groups, found[k])
			continue
		}
		g.Name = merge(g.Name, m.Name)
		g.Calls += m.Calls
		g.Self, g.Total, g.Peak = g.Self+m.Self, g.Total+m.Total, max(g.Peak, m.Peak)
	}
	slices.SortStableFunc(groups, func(a, b *Module) int { return cmp.Compare(b.Self, a.Self) })
	return groups
}

// pattern returns a name with * for numbers.
func pattern(name string) string {
	parts := strings.Split(name, ".")
	for i, part := range parts {
		if _, err := strconv.Atoi(part); err == nil {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, ".")
}

// merge returns a name with * for each part that differs in another name of the same pattern.
func merge(name, other string) string {
	parts, others := strings.Split(name, "."), strings.Split(other, ".")
	for i := range parts {
		if parts[i] != others[i] {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, ".")
}

// ShapeText returns the shape as in 1x1088x1024.
func (m *Module) ShapeText() string {
	var sizes []string
	for _, n := range m.Shape {
		sizes = append(sizes, strconv.Itoa(n))
	}
	return strings.Join(sizes, "x")
}
