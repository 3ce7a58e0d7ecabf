package parity

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/gomflux/gomflux/mlx/hooks"
)

// A Bisection says how [Bisect] asks for tensors that a run does not have.
type Bisection struct {
	// Again makes the reference record the run of a folder once more, to the
	// folder out, with the tensors that are named.
	Again func(ctx context.Context, run, out string, names []string) error
	// Folder is where those records are left; "" is a temporary one.
	Folder string
	// Round is told of every look at the run, when it is done.
	Round func(Round)
}

// A Round is one look at a run in [Bisect].
type Round struct {
	Tensors int     `json:"tensors"` // that were compared
	Verdict Verdict `json:"verdict"`
	// Asked are the names that the reference is asked for, for the next round.
	Asked []string `json:"asked,omitempty"`
}

const (
	mostRounds = 12
	mostAsked  = 64 // outputs in one round
)

// Bisect replays a run that does not have everything, and asks the reference
// for more until the first module that diverges is known by itself. In every
// round it asks for what was made between the tensor that shows the difference
// and the one before it that was compared: for the outermost modules first, for
// some of them where they are many, and at last for inputs and inner values.
func Bisect(ctx context.Context, run string, o Options, b Bisection) (_ *Report, err error) {
	folder := b.Folder
	if folder == "" {
		if folder, err = os.MkdirTemp("", "gomflux-bisect-*"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(folder)
	}
	all := o
	asked := map[string]bool{}
	var rounds []Round
	for {
		report, err := Replay(ctx, run, o)
		if err != nil {
			return nil, err
		}
		round := Round{Tensors: len(report.Tensors), Verdict: report.Verdict}
		if len(rounds)+1 < mostRounds {
			round.Asked = report.ask(asked)
		}
		rounds = append(rounds, round)
		if b.Round != nil {
			b.Round(round)
		}
		if len(round.Asked) == 0 {
			if len(rounds) > 1 {
				all.more = o.more
				report, err = Replay(ctx, run, all) // with every reading
			}
			if err == nil {
				report.Rounds = rounds
			}
			return report, err
		}
		out := filepath.Join(folder, fmt.Sprint("round-", len(rounds)+1))
		if err := b.Again(ctx, run, out, round.Asked); err != nil {
			return nil, err
		}
		o.more, o.Readings, o.quick = append(o.more, out), []string{Isolated}, true
		for _, name := range round.Asked {
			asked[name] = true
		}
	}
}

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
