package generate

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/rank"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

// join connects the command with the others that were started together with it, if there are any. Of these
// only rank 0 writes results.
func (g *generation) join(ctx context.Context) (err error) {
	if g.group, err = cli.Join(ctx, g.split.Value, g.out); err != nil || g.group.Size() == 1 {
		return err
	}
	if g.debug.Options.Any() {
		return cli.UsageErrorf("debugging flags need a process that is alone (leave them out, or start one process)")
	}
	g.profile.OfRank(g.group.Rank())
	key, err := cli.Share(ctx, g.group, []uint64{rand.Uint64(), rand.Uint64()})
	if err != nil {
		return err
	}
	g.random = rand.New(rand.NewPCG(key[0], key[1])) // all draw the same seeds
	if g.group.Rank() > 0 {
		g.preview.Value, g.show.Value = nil, nil
	}
	return nil
}

// chooseSplit checks the split before the model is opened.
func (g *generation) chooseSplit(ctx context.Context) error {
	n := g.group.Size()
	g.done = rank.Before()
	if n == 1 {
		return nil
	}
	all, err := g.group.Gather(ctx, fmt.Append(nil, g.total, g.seeds))
	if err != nil {
		return err
	}
	for i, seeds := range all {
		if !bytes.Equal(seeds, all[0]) {
			return cli.UsageErrorf("the processes differ in the number of images, or in seeds: %s on rank 0, and %s on rank %d",
				all[0], seeds, i)
		}
	}
	g.options.Split = cmp.Or(g.split.OrZero(), gomflux.AutoSplit)
	if g.options.Split != gomflux.SplitPictures && !(g.options.Split == gomflux.AutoSplit && g.even()) {
		return nil
	}
	rank.Resumable(true)
	switch {
	case g.total < n && g.done == nil:
		return cli.UsageErrorf("split pictures: %s for %d processes (ask for more, or start fewer)", ui.Plural(g.total, "image"), n)
	case g.stepwise != "":
		return cli.UsageErrorf("--stepwise-image-output-dir: the images of steps are in several processes " +
			"(leave it out, or generate one image at a time: --split passes)")
	}
	return nil
}

// even reports whether each process can generate as many images of its own as the others, or what others have left.
func (g *generation) even() bool { return g.total%g.group.Size() == 0 || g.done != nil }

// weighSplit chooses images of each process if that is faster than to share every image, and the model does not need
// all processes, and prints how they split the work.
func (g *generation) weighSplit(ctx context.Context) error {
	n, why := g.group.Size(), ""
	if n == 1 {
		return nil
	}
	if g.options.Split == gomflux.AutoSplit {
		switch {
		case g.model.Settings(g.options).Split == string(gomflux.SplitStages):
			rank.Resumable(false)
		case g.even():
			g.options.Split = gomflux.SplitPictures
		default:
			e, err := g.model.EstimateSplit(ctx, g.options)
			if err != nil {
				return err
			}
			why = fmt.Sprintf(" (%.2g Gb/s between them", e.Bandwidth/1e9)
			if e.Speedup > 0 {
				why += fmt.Sprintf("; %s is %.2g times as fast as one process", e.Split, e.Speedup)
			}
			why += ")"
			rounds := (g.total + n - 1) / n
			faster := e.Speedup > 0 && float64(rounds)*e.Speedup <= float64(g.total) || e.Speedup == 0 && g.total > n
			if faster && g.stepwise == "" {
				g.options.Split = gomflux.SplitPictures
				rank.Resumable(true)
			}
		}
	}
	if s := g.model.Settings(g.options); g.group.Rank() == 0 {
		g.out.Note("%d processes, split by %s%s", s.Ranks, s.Split, why)
	}
	return nil
}

// parallel returns the number of images, or batches, that are generated at the same time.
func (g *generation) parallel() int {
	if g.options.Split == gomflux.SplitPictures {
		return g.group.Size()
	}
	return 1
}

// A chunk is some images of a prompt that are generated at once.
type chunk struct{ first, n int }

// isDone reports whether an earlier start of this run has written a chunk.
func (g *generation) isDone(c chunk) bool {
	for i := range c.n {
		if !slices.Contains(g.done, c.first+i) {
			return false
		}
	}
	return true
}

// generateAll generates all images, in rounds of one chunk for each process that generates images of its own.
func (g *generation) generateAll(ctx context.Context) error {
	batch, err := cli.Share(ctx, g.group, g.batch())
	if err != nil {
		return err
	}
	for i := 0; i < g.total; {
		var round []chunk
		for ; i < g.total && len(round) < g.parallel(); i += min(batch, g.each-i%g.each) {
			if c := (chunk{i, min(batch, g.each-i%g.each)}); !g.isDone(c) { // images of one prompt
				round = append(round, c)
			}
		}
		if err := g.generateRound(ctx, round); err != nil {
			return err
		}
	}
	return nil
}

// generateRound generates the chunks of a round. Rank 0 saves them.
func (g *generation) generateRound(ctx context.Context, round []chunk) error {
	own := 0
	if g.parallel() > 1 {
		own = g.group.Rank()
	}
	var results []*gomflux.Result
	var steps [][]sheetStep
	if own < len(round) {
		var err error
		if results, steps, err = g.generate(ctx, round[own]); err != nil {
			return err
		}
		defer func() { g.report.end() }()
	}
	all := [][]*gomflux.Result{results}
	if g.parallel() > 1 {
		var err error
		if all, err = cli.Gather(ctx, g.group, results); err != nil {
			return err
		}
	}
	if g.group.Rank() > 0 {
		return nil
	}
	for k, c := range round {
		if k != own {
			if _, err := g.begin(ctx, c); err != nil {
				return err
			}
			for _, cut := range all[k][0].Cuts {
				g.warnCut(cut, g.options)
			}
			steps = make([][]sheetStep, c.n)
		}
		for i, result := range all[k] {
			if slices.Contains(g.done, c.first+i) { // in a batch with others that are not
				continue
			}
			if err := g.finish(ctx, c.first+i, result, steps[i]); err != nil {
				return err
			}
			rank.Done(c.first + i)
		}
	}
	return nil
}
