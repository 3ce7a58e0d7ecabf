package parity

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
