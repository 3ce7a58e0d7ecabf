package parity

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/report"
)

// A sight is a tensor that a replay has seen.
type sight struct {
	ours, name string // name is the reference's
	kind       hooks.Kind
	depth      int
	there      bool // the reference's run has it
	wanted     bool // the reference could record it
}

// ask chooses the tensors that the reference should record next, by its names: nothing if
// everything is within tolerance, or the module is known.
func ask(v report.Verdict, sights []sight, asked map[string]bool) []string {
	if v.OK {
		return nil
	}
	until := slices.IndexFunc(sights, func(s sight) bool { return s.ours == v.Tensor })
	if until < 0 {
		return nil
	}
	// Other outputs of the module come right before this one, so they do not count: what is
	// inside the module is before them.
	module := report.ModuleOf(v.Tensor)
	from := until
	for from > 0 {
		if s := sights[from-1]; s.there && s.kind == hooks.Output && report.ModuleOf(s.ours) != module {
			break
		}
		from--
	}
	names := choose(sights[from:until+1], asked)
	if len(names) > 0 {
		return names
	}
	// What is wrong may also come before the last tensor that was compared, in the other stream of
	// the module. A wrong input may be from any module before it in the stage.
	within := func(s sight) bool { return inModule(s.ours, module) }
	if module != v.Module {
		within = func(s sight) bool { return report.StageOf(s.ours) == v.Stage }
	}
	for from > 0 && within(sights[from-1]) {
		from--
	}
	return choose(sights[from:until+1], asked)
}

// inModule reports whether a tensor is of a module, or of one inside it, at the module's step.
func inModule(tensor, module string) bool {
	t, err := hooks.ParseName(tensor)
	m, err2 := hooks.ParseName(module)
	return err == nil && err2 == nil && t.Step == m.Step &&
		(t.Module == m.Module || strings.HasPrefix(t.Module, m.Module+"."))
}

// choose takes tensors level by level of the module tree, up to mostAsked, and some of the first
// level that is too large.
func choose(sights []sight, asked map[string]bool) []string {
	levels := map[int][]string{}
	seen := map[string]bool{}
	const last = 1 << 20 // level of inputs and inner values
	for _, s := range sights {
		if s.there || !s.wanted || asked[s.name] || seen[s.name] {
			continue
		}
		seen[s.name] = true
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
