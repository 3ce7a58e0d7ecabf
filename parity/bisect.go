package parity

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gomflux/gomflux/parity/report"
)

// A Bisection configures how [Bisect] obtains tensors that a run does not have.
type Bisection struct {
	// Again makes the reference repeat the run in a folder and record the named tensors in the
	// folder out.
	Again func(ctx context.Context, run, out string, names []string) error
	// Folder keeps the recorded runs; "" is a temporary folder.
	Folder string
	// Round is called after every replay.
	Round func(report.Round)
}

const (
	mostRounds = 12
	mostAsked  = 64 // outputs in one round
)

// Bisect replays a run that lacks tensors, and has the reference record more until the first
// module that diverges is known. Each round asks for tensors between the one that differs and
// the last one before it that was compared: outputs of the outermost modules first (some of
// them if there are many), and inputs and inner values last. It ends where a round brings nothing, or
// a hint explains what is wrong.
func Bisect(ctx context.Context, run string, o Options, b Bisection) (_ *report.Report, err error) {
	folder := b.Folder
	if folder == "" {
		if folder, err = os.MkdirTemp("", "gomflux-bisect-*"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(folder)
	}
	o.seen = cmp.Or(o.seen, new([]seenTensor))
	all := o
	asked := map[string]bool{}
	var rounds []report.Round
	for {
		rep, err := Replay(ctx, run, o)
		if err != nil {
			return nil, err
		}
		round := report.Round{Tensors: len(rep.Tensors), Verdict: rep.Verdict}
		if len(rounds)+1 < mostRounds && !rep.Verdict.Explained() && !idle(rounds, rep.Verdict) {
			round.Asked = nextToRecord(rep.Verdict, *o.seen, asked)
		}
		rounds = append(rounds, round)
		if b.Round != nil {
			b.Round(round)
		}
		if len(round.Asked) == 0 {
			if len(rounds) > 1 {
				all.more = o.more
				rep, err = Replay(ctx, run, all) // with every reading
			}
			if err == nil {
				rep.Rounds = rounds
				rep.Verdict.Unseen = len(nextToRecord(rep.Verdict, *o.seen, asked)) > 0
			}
			return rep, err
		}
		out := filepath.Join(folder, fmt.Sprint("round-", len(rounds)+1))
		if err := b.Again(ctx, run, out, round.Asked); err != nil {
			return nil, err
		}
		o.more, o.Readings, o.quick = append(o.more, out), []string{report.Isolated}, true
		for _, name := range round.Asked {
			asked[name] = true
		}
	}
}

// idle reports whether the last round, which asked for all between a right and a wrong tensor, brought
// nothing.
func idle(rounds []report.Round, v report.Verdict) bool {
	n := len(rounds) - 1
	return n >= 0 && len(rounds[n].Asked) <= mostAsked/2 && v.Same(rounds[n].Verdict)
}
