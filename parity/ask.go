package parity

import (
	"cmp"
	"slices"

	"github.com/gomflux/gomflux/mlx/hooks"
)

// A sight is a tensor that passed in a replay.
type sight struct {
	ours, name string // name is the reference's
	kind       hooks.Kind
	depth      int
	there      bool // in the reference's run
	wanted     bool // it could be
}

// ask chooses what a reference should be asked for, in its names. It is nothing
// if all holds, or all is known.
func (r *Report) ask(asked map[string]bool) []string {
	if r.Verdict.OK {
		return nil
	}
	until := slices.IndexFunc(r.sights, func(s sight) bool { return s.ours == r.Verdict.Tensor })
	if until < 0 {
		return nil
	}
	from := until
	for from > 0 && !(r.sights[from-1].there && r.sights[from-1].kind == hooks.Output) {
		from--
	}
	names := choose(r.sights[from:until+1], asked)
	if len(names) > 0 || moduleOf(r.Verdict.Tensor) == r.Verdict.Module {
		return names
	}
	// What a module got is wrong. It may be of any module that ran before it.
	for from > 0 && stageOf(r.sights[from-1].ours) == r.Verdict.Stage {
		from--
	}
	return choose(r.sights[from:until+1], asked)
}

// choose takes levels of depth as long as they are not too much at once, and
// of the next one what finds room.
func choose(sights []sight, asked map[string]bool) []string {
	levels := map[int][]string{}
	seen := map[string]bool{}
	const last = 1 << 20 // level of what is no output
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

// spread takes n of many names, at equal distances.
func spread(names []string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = names[(i+1)*len(names)/n-1]
	}
	return out
}
