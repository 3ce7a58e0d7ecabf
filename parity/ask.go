package parity

import (
	"cmp"
	"slices"

	"github.com/gomflux/gomflux/mlx/hooks"
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
func (r *Report) ask(asked map[string]bool) []string {
	if r.Verdict.OK {
		return nil
	}
	until := slices.IndexFunc(r.sights, func(s sight) bool { return s.ours == r.Verdict.Tensor })
	if until < 0 {
		return nil
	}
	// Other outputs of the module come right before this one, so they do not count: what is
	// inside the module is before them.
	module := moduleOf(r.Verdict.Tensor)
	from := until
	for from > 0 {
		if s := r.sights[from-1]; s.there && s.kind == hooks.Output && moduleOf(s.ours) != module {
			break
		}
		from--
	}
	names := choose(r.sights[from:until+1], asked)
	if len(names) > 0 || module == r.Verdict.Module {
		return names
	}
	// A module got a wrong input, which any module before it in the stage may have caused.
	for from > 0 && stageOf(r.sights[from-1].ours) == r.Verdict.Stage {
		from--
	}
	return choose(r.sights[from:until+1], asked)
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
