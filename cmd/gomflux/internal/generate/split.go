package generate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"

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
	switch {
	case g.debug.Options.Any():
		return cli.UsageErrorf("debugging flags need a process that is alone (leave them out, or start one process)")
	case g.profile.File != "":
		return cli.UsageErrorf("--profile needs a process that is alone (leave it out, or start one process)")
	}
	key, err := share(ctx, g.group, []uint64{rand.Uint64(), rand.Uint64()})
	if err != nil {
		return err
	}
	g.random = rand.New(rand.NewPCG(key[0], key[1])) // all draw the same seeds
	if g.group.Rank() > 0 {
		g.report = newGenerateReport(g.out)
		g.preview.Value, g.show.Value = nil, nil
	}
	return nil
}

// share returns the value that rank 0 passes.
func share[T any](ctx context.Context, group *gomflux.Group, v T) (T, error) {
	all, err := gather(ctx, group, v)
	if err != nil {
		return v, err
	}
	return all[0], nil
}

// gather returns the values that the processes pass, by their ranks.
func gather[T any](ctx context.Context, group *gomflux.Group, v T) ([]T, error) {
	if group.Size() == 1 {
		return []T{v}, nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	texts, err := group.Gather(ctx, text)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(texts))
	for i, text := range texts {
		if err := json.Unmarshal(text, &all[i]); err != nil {
			return nil, fmt.Errorf("rank %d: %w", i, err)
		}
	}
	return all, nil
}

// chooseSplit chooses between splits into images and those of each image, which the model chooses.
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
	if automatic := g.options.Split == gomflux.AutoSplit; automatic && (g.total%n == 0 || g.done != nil) {
		g.options.Split = gomflux.SplitPictures
	}
	if g.options.Split != gomflux.SplitPictures {
		return nil
	}
	if g.total < n && g.done == nil {
		return cli.UsageErrorf("split pictures: %s for %d processes (ask for more, or start fewer)", ui.Plural(g.total, "image"), n)
	}
	return g.splitPictures()
}

// splitPictures makes each process generate images of its own.
func (g *generation) splitPictures() error {
	g.options.Split = gomflux.SplitPictures
	rank.Resumable()
	if g.stepwise != "" {
		return cli.UsageErrorf("--stepwise-image-output-dir: the images of steps are in several processes " +
			"(leave it out, or generate one image at a time: --split passes)")
	}
	return nil
}

// weighSplit chooses images of each process after all if that is faster than to share every image, and prints how the
// processes split the work.
func (g *generation) weighSplit(ctx context.Context) error {
	n, why := g.group.Size(), ""
	if n == 1 {
		return nil
	}
	if g.options.Split == gomflux.AutoSplit {
		e, err := g.model.EstimateSplit(ctx, g.options)
		if err != nil {
			return err
		}
		link := fmt.Sprintf(" (%.2g Gb/s between them", e.Bandwidth/1e9)
		if e.Speedup > 0 {
			link += fmt.Sprintf("; %s is %.2g times as fast as one process", e.Split, e.Speedup)
		}
		why = link + ")"
		rounds := (g.total + n - 1) / n
		faster := e.Speedup > 0 && float64(rounds)*e.Speedup <= float64(g.total) || e.Speedup == 0 && g.total > n
		if faster && g.stepwise == "" && e.Split != gomflux.SplitStages {
			if err := g.splitPictures(); err != nil {
				return err
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
		if !g.done[c.first+i] {
			return false
		}
	}
	return true
}

// generateAll generates all images, in rounds of one chunk for each process that generates images of its own.
func (g *generation) generateAll(ctx context.Context) error {
	batch, err := share(ctx, g.group, g.batch())
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
		if all, err = gather(ctx, g.group, results); err != nil {
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
			if g.done[c.first+i] { // in a batch with others that are not
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
