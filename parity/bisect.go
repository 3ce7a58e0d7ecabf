package parity

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// A Bisection configures how [Bisect] obtains tensors that a run does not have.
type Bisection struct {
	// Again makes the reference repeat the run in a folder and record the named tensors in the
	// folder out.
	Again func(ctx context.Context, run, out string, names []string) error
	// Folder keeps the recorded runs; "" is a temporary folder.
	Folder string
	// Round is called after every replay.
	Round func(Round)
}

const (
	mostRounds = 12
	mostAsked  = 64 // outputs in one round
)

// Bisect replays a run that lacks tensors, and has the reference record more until the first
// module that diverges is known. Each round asks for tensors between the one that differs and
// the last one before it that was compared: outputs of the outermost modules first (some of
// them if there are many), and inputs and inner values last.
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
