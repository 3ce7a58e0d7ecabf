package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	soakClients = 8 // that ask at once
	soakCancels = 8 // one of so many jobs is canceled
)

// A rest is what was seen of the server, in a soak when it was idle. Memory is in bytes.
type rest struct {
	Seconds  float64 `json:"seconds"` // since the beginning, before all jobs
	Done     float64 `json:"done"`    // jobs since then
	Canceled float64 `json:"canceled"`
	Failed   float64 `json:"failed"`
	Loads    float64 `json:"model_loads"`
	Resident float64 `json:"resident"` // 0 if it is not known
	Active   float64 `json:"mlx_active"`
	Cache    float64 `json:"mlx_cache"`
	Peak     float64 `json:"mlx_peak"` // of an image until then
}

// soak takes the place of the other parts: rounds of jobs of changing sizes and models, some of which are
// canceled, and a time without jobs after each, at whose end the server's memory is read.
func (l *load) soak(ctx context.Context) error {
	began := time.Now()
	var first map[string]float64
	see := func() error {
		m, err := l.server.metrics(ctx)
		if err != nil {
			return err
		}
		if first == nil {
			first = m
		}
		ended := func(state string) float64 {
			name := `gomflux_jobs_ended_total{state="` + state + `"}`
			return m[name] - first[name]
		}
		row := l.server.rest(m, began)
		row.Done, row.Canceled, row.Failed = ended("done"), ended("canceled"), ended("failed")
		row.Loads = m["gomflux_model_loads_total"] - first["gomflux_model_loads_total"]
		l.report.Rests = append(l.report.Rests, row)
		fmt.Fprint(os.Stderr, row) // as progress
		return nil
	}
	if err := see(); err != nil {
		return err
	}
	t := &tally{byClient: make([]int, len(l.clients))}
	for asked := 0; asked < l.jobs && ctx.Err() == nil; asked += l.round {
		l.soakRound(ctx, t, min(l.round, l.jobs-asked))
		if err := l.server.rested(ctx); err != nil {
			return err
		}
		time.Sleep(l.idle)
		if err := see(); err != nil {
			return err
		}
	}
	l.judgeSoak(t)
	return nil
}

// soakRound asks for n jobs. The last one, alone, is for the default model, so that the same one is in
// memory at the end of each round.
func (l *load) soakRound(ctx context.Context, t *tally, n int) {
	var left, deleted, took atomic.Int64
	left.Store(int64(n - 1))
	var wg sync.WaitGroup
	for i, c := range l.clients[:min(soakClients, len(l.clients))] {
		wg.Go(func() {
			for ctx.Err() == nil && left.Add(-1) >= 0 {
				w, r := l.soakWork()
				if r.IntN(soakCancels) > 0 {
					o := c.do(ctx, w, nobody)
					took.Store(int64(o.took))
					t.add(i, o, true)
					continue
				}
				problem, _ := c.canceled(ctx, w, time.Duration(r.Int64N(took.Load()+1)), &deleted)
				t.add(i, outcome{err: problem}, false)
			}
		})
	}
	wg.Wait()
	t.add(0, l.clients[0].do(ctx, l.work(), nobody), true)
}

// soakWork returns the next work, of any model and of a size from half to twice the usual one.
func (l *load) soakWork() (work, *rand.Rand) {
	w := l.work()
	r := rand.New(rand.NewPCG(l.seed+1, w.seed))
	w.size = max(16, l.size*(1+r.IntN(4))/2/16*16)
	if n := len(l.models); n > 0 {
		w.model = l.models[r.IntN(n)]
	}
	return w, r
}

func (l *load) judgeSoak(t *tally) {
	r := l.report
	last := r.Rests[len(r.Rests)-1]
	r.check("all answers are right", len(t.problems) == 0, "%s", t.problem())
	r.check("no job fails", last.Failed == 0, "%.0f of %.0f failed", last.Failed, last.Failed+last.Done+last.Canceled)
	r.memory(r.Rests[1:], l.leeway)
}

// rested waits until the server has no jobs and MLX keeps no memory.
func (s *server) rested(ctx context.Context) error {
	if err := s.idle(ctx); err != nil {
		return err
	}
	return s.await(ctx, "the server has had no jobs for a minute, and MLX keeps memory (gomflux_cache_memory_bytes)",
		func(m map[string]float64) bool { return m["gomflux_cache_memory_bytes"] == 0 })
}

// rests returns the table of what was seen when the server was idle.
func rests(all []rest) string {
	if len(all) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "idle after %7s %9s %6s %6s %9s %11s %10s %9s\n",
		"done", "canceled", "failed", "loads", "RSS MB", "MLX active", "MLX cache", "MLX peak")
	for _, s := range all {
		b.WriteString(s.String())
	}
	return b.String() + "\n"
}

// String returns the row of the table.
func (s rest) String() string {
	return fmt.Sprintf("%8.0f s %7.0f %9.0f %6.0f %6.0f %9.1f %11.1f %10.1f %9.1f\n", s.Seconds, s.Done, s.Canceled, s.Failed, s.Loads,
		s.Resident/1e6, s.Active/1e6, s.Cache/1e6, s.Peak/1e6)
}
