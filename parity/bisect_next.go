package parity

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/report"
)

// A seenTensor is a tensor that a replay has seen.
type seenTensor struct {
	ours, name string // name is the reference's
	kind       hooks.Kind
	depth      int
	recorded   bool // the reference's run has it
	recordable bool // but may not have
}

// nextToRecord chooses the tensors that the reference should record next, by its names: nothing if
// everything is within tolerance, or the module is known.
func nextToRecord(v report.Verdict, seen []seenTensor, asked map[string]bool) []string {
	if v.OK {
		return nil
	}
	until := slices.IndexFunc(seen, func(s seenTensor) bool { return s.ours == v.Tensor })
	if until < 0 {
		return nil
	}
	// Other outputs of the module come right before this one, so they do not count: what is
	// inside the module is before them.
	module := report.ModuleOf(v.Tensor)
	from := until
	for from > 0 {
		if s := seen[from-1]; s.recorded && s.kind == hooks.Output && report.ModuleOf(s.ours) != module {
			break
		}
		from--
	}
	names := choose(seen[from:until+1], asked)
	if len(names) > 0 {
		return names
	}
	// What is wrong may also come before the last tensor that was compared, in the other stream of
	// the module. A wrong input may be from any module before it in the stage.
	within := func(s seenTensor) bool { return inModule(s.ours, module) }
	if module != v.Module {
		within = func(s seenTensor) bool { return report.StageOf(s.ours) == v.Stage }
	}
	for from > 0 && within(seen[from-1]) {
		from--
	}
	return choose(seen[from:until+1], asked)
}

// inModule reports whether a tensor is of a module, or of one inside it, at the module's step.
func inModule(tensor, module string) bool {
	t, m := hooks.NameOf(tensor), hooks.NameOf(module)
	return t.Step == m.Step && (t.Module == m.Module || strings.HasPrefix(t.Module, m.Module+"."))
}

// choose takes tensors level by level of the module tree, up to mostAsked, and some of the first
// level that is too large.
func choose(seen []seenTensor, asked map[string]bool) []string {
	levels := map[int][]string{}
	chosen := map[string]bool{}
	const last = 1 << 20 // level of inputs and inner values
	for _, s := range seen {
		if s.recorded || !s.recordable || asked[s.name] || chosen[s.name] {
			continue
		}
		chosen[s.name] = true
		level := last
		if s.kind == hooks.Output {
			level = s.depth
		}
		levels[level] = append(levels[level], s.name)
	}
	var depths []int
	for d := range levels {
		depths = append(depths, d)
	}
	slices.SortFunc(depths, cmp.Compare)
	var names []string
	for _, d := range depths {
		level, room := levels[d], mostAsked-len(names)
		if len(level) > room {
			if room > mostAsked/2 {
				names = append(names, spread(level, room)...)
			}
			break
		}
		names = append(names, level...)
	}
	return names
}

// spread returns n of many names, at equal distances.
func spread(names []string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = names[(i+1)*len(names)/n-1]
	}
	return out
}
