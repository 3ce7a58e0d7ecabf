package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	greedyEvery = 16 // one of so many clients is greedy
	greedyJobs  = 6  // that it always has
	fewClients  = 8  // that ask at once when works are canceled, so that some are running then
	ofWorks     = 8  // of so many, all but one are canceled on average, in a soak only one
)

// A load is a run against a server.
type load struct {
	options
	server  *server
	clients []*client
	number  atomic.Uint64 // of works
	deleted atomic.Int64  // works that were canceled with DELETE
	took    atomic.Int64  // time of the last work that was not canceled, in ns
	report
}

func newLoad(o options, s *server, out io.Writer) *load {
	l := &load{options: o, server: s, report: report{out: out}}
	for i := range o.clients {
		c := &client{http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}, url: s.url}
		if n := len(s.tokens); n > 0 {
			c.token = s.tokens[i%n].Secret
		}
		l.clients = append(l.clients, c)
	}
	return l
}

// run runs the parts one after the other, and returns an error if they cannot be run to the end.
func (l *load) run(ctx context.Context) error {
	parts := []func(context.Context) error{l.load, l.cancel, l.stop}
	if l.jobs > 0 {
		parts = parts[1:]
	}
	for _, part := range parts {
		if err := cmp.Or(part(ctx), context.Cause(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// work returns the next work. Every work has a prompt and seeds of its own.
func (l *load) work() work {
	n := l.number.Add(1)
	r := rand.New(rand.NewPCG(l.seed, n))
	w := work{
		api: apis[n%uint64(len(apis))], prompt: fmt.Sprintf("a red circle, number %d of %d", n, l.seed), seed: n * 8,
		count: 1, steps: l.steps + r.IntN(2), size: l.size,
	}
	if r.IntN(8) == 0 {
		w.count = 2
	}
	return w
}

// A tally is what became of works.
type tally struct {
	mu       sync.Mutex
	outcomes []outcome
}

func (t *tally) add(o outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.outcomes = append(t.outcomes, o)
}

// problem returns the number of problems and one of them, or nil.
func (t *tally) problem() error {
	wrong := slices.DeleteFunc(slices.Clone(t.outcomes), func(o outcome) bool { return o.err == nil })
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%d problems, such as: %.300v", len(wrong), wrong[0].err)
}

// load is the first part. The server's memory is read 200 times.
func (l *load) load(ctx context.Context) error {
	before, err := l.sample(ctx)
	if err != nil {
		return err
	}
	var t tally
	began := time.Now()
	var wg sync.WaitGroup
	for i, c := range l.clients {
		jobs := 1
		if i%greedyEvery == 1 {
			jobs = greedyJobs
		}
		for range jobs {
			wg.Go(func() {
				for time.Since(began) < l.duration && ctx.Err() == nil {
					o := c.do(ctx, l.work())
					l.took.Store(int64(o.took))
					o.client, o.inTime = i, time.Since(began) < l.duration
					if jobs > 1 {
						o.predicted = 0 // others that come later have their turns before
					}
					t.add(o)
				}
			})
		}
	}
	var samples []sample
	for ; time.Since(began) < l.duration && ctx.Err() == nil; time.Sleep(l.duration / 200) {
		if s, err := l.sample(ctx); err == nil {
			samples = append(samples, s)
		}
	}
	wg.Wait()
	took := time.Since(began)
	after, err := l.sample(ctx)
	if err != nil {
		return err
	}
	images := 0
	var times, predicted, actual, ratios, refused, retry []float64
	counts := make([]float64, len(l.clients))
	for _, o := range t.outcomes {
		images += o.images
		times = append(times, o.took.Seconds())
		if o.inTime {
			counts[o.client] += float64(o.images)
		}
		if o.refused > 0 {
			refused, retry = append(refused, float64(o.refused)), append(retry, o.retried.Seconds()/float64(o.refused))
		}
		if o.ended > 0 && o.predicted > 0 {
			predicted, actual = append(predicted, o.predicted.Seconds()), append(actual, o.ended.Seconds())
			ratios = append(ratios, o.ended.Seconds()/o.predicted.Seconds())
		}
	}
	l.row("load", "%d clients, %d answers with %d images in %.0f s", len(l.clients), len(t.outcomes), images, took.Seconds())
	l.right("all answers are right", t.problem())
	made := after.since(before, "gomflux_images_total")
	l.check("no image is made twice or lost", made == float64(images), "%d received, %.0f made", images, made)
	l.fairness(counts, l.leeway)
	l.percentiles("seconds until the answer", times)
	l.percentiles("predicted seconds to the end", predicted)
	l.percentiles("seconds to the end", actual)
	l.percentiles("time / predicted time", ratios)
	middle := percentile(ratios, 50)
	l.check("the queue's predictions", len(ratios) < 20 || middle < 2 && middle > 0.5, "median of time / predicted time %.2f of %d",
		middle, len(ratios))
	l.percentiles("refusals with 429 of a refused work", refused)
	l.percentiles("Retry-After in seconds", retry)
	l.memory(samples, l.leeway)
	return nil
}

// cancel is the second part, in which most works are canceled, or the only one of a soak: rounds of works, and a time
// without jobs after each, at whose end the server's memory is read. The last work of a round, alone, is for the
// default model, so that the same one is in memory at the end of each.
func (l *load) cancel(ctx context.Context) error {
	jobs, round, whole := l.jobs, l.round, ofWorks-1
	if jobs == 0 && l.cancels > 0 {
		jobs, whole = 1+l.cancels*ofWorks/(ofWorks-1), 1
		round = jobs
	}
	first, err := l.sample(ctx)
	if err != nil {
		return err
	}
	var t tally
	last := first
	l.row("idle after", "   done canceled   failed    loads   RSS MB MLX active MLX cache MLX peak")
	for asked := 0; asked < jobs && ctx.Err() == nil; asked += round {
		l.works(ctx, &t, min(round, jobs-asked)-1, whole)
		t.add(l.clients[0].do(ctx, l.work()))
		if err := l.rested(ctx); err != nil {
			return err
		}
		if last, err = l.sample(ctx); err != nil {
			return err
		}
		l.rests = append(l.rests, last)
		l.row(fmt.Sprintf("%.0f s", last.at.Sub(first.at).Seconds()), "%7.0f %8.0f %8.0f %8.0f %8.1f %10.1f %9.1f %8.1f",
			last.since(first, ended("done")), last.since(first, ended("canceled")), last.since(first, ended("failed")),
			last.since(first, "gomflux_model_loads_total"), last.metrics[resident]/1e6, last.metrics["gomflux_memory_bytes"]/1e6,
			last.metrics["gomflux_cache_memory_bytes"]/1e6, last.metrics["gomflux_peak_memory_bytes"]/1e6)
	}
	canceled := slices.DeleteFunc(slices.Clone(t.outcomes), func(o outcome) bool { return !o.canceled })
	late := slices.DeleteFunc(slices.Clone(canceled), func(o outcome) bool { return o.images == 0 })
	failed, ends := last.since(first, ended("failed")), last.since(first, ended("canceled"))
	l.row("cancel", "%d of %d works, %d with DELETE, %d had ended before", len(canceled), len(t.outcomes), l.deleted.Load(), len(late))
	l.right("all answers are right when others are canceled", t.problem())
	l.check("no job fails when others are canceled", failed == 0, "%.0f failed", failed)
	l.check("jobs are canceled", ends <= float64(len(canceled)) && (ends > 0 || l.jobs > 0 || l.cancels == 0), "%.0f of %d", ends,
		len(canceled))
	if l.jobs > 0 {
		l.memory(l.rests, l.leeway)
	}
	return nil
}

// works has few clients do n works of changing sizes and models by turns. On average so many of eight are done whole, and the
// others canceled at a random moment in the time that the last whole one took.
func (l *load) works(ctx context.Context, t *tally, n, whole int) {
	var begun atomic.Int64
	var wg sync.WaitGroup
	for _, c := range l.clients[:min(fewClients, len(l.clients))] {
		wg.Go(func() {
			for ctx.Err() == nil && begun.Add(1) <= int64(n) {
				w := l.work()
				r := rand.New(rand.NewPCG(l.seed+1, w.seed))
				w.size = max(16, l.size*(1+r.IntN(4))/2/16*16)
				if len(l.models) > 1 {
					w.model = l.models[r.IntN(len(l.models))]
				}
				if r.IntN(ofWorks) >= whole {
					t.add(l.canceled(ctx, c, w, time.Duration(r.Int64N(l.took.Load()+1))))
					continue
				}
				o := c.do(ctx, w)
				l.took.Store(int64(o.took))
				t.add(o)
			}
		})
	}
	wg.Wait()
}

// canceled sends a work, and cancels it after a time: a job with DELETE, others by closing the connection.
func (l *load) canceled(ctx context.Context, c *client, w work, after time.Duration) outcome {
	ctx, hangUp := context.WithCancel(ctx)
	defer hangUp()
	w.id = make(chan string, 1)
	time.AfterFunc(after, func() {
		if w.api != "jobs" {
			hangUp()
			return
		}
		select {
		case id := <-w.id:
			l.deleted.Add(1)
			c.call(ctx, http.MethodDelete, "/api/v1/jobs/"+id, nil, nil)
		case <-ctx.Done(): // it ended before
		}
	})
	o := c.do(ctx, w)
	o.canceled = true
	answer, ok := errors.AsType[*errStatus](o.err)
	if errors.Is(o.err, context.Canceled) || ok && w.api == "jobs" && answer.status == http.StatusServiceUnavailable {
		o.err = nil
	}
	return o
}

// stop is the last part. One work has ended when the server is stopped.
func (l *load) stop(ctx context.Context) error {
	if l.server.stop == nil {
		return nil
	}
	var t tally
	var all sync.WaitGroup
	first := make(chan struct{}, len(l.clients))
	var jobs []work
	for i, c := range l.clients {
		w := l.work()
		w.api, w.count, w.id = apis[i%len(apis)], 1, make(chan string, 1)
		if w.api == "jobs" {
			jobs = append(jobs, w)
		}
		all.Go(func() {
			t.add(c.do(ctx, w))
			close(w.id)
			first <- struct{}{}
		})
	}
	for _, w := range jobs { // each needs a second request for the events
		<-w.id
	}
	<-first
	began := time.Now()
	err := l.server.stop()
	took := time.Since(began)
	all.Wait()
	made, told := 0, 0
	var lost error
	for _, o := range t.outcomes {
		answer, ok := errors.AsType[*errStatus](o.err)
		switch {
		case o.err == nil:
			made++
		case ok && (answer.status == http.StatusServiceUnavailable || answer.status == 0):
			told++
		default:
			lost = o.err
		}
	}
	l.row("stop", "%d works with images, %d told that the server stops, exit after %.2f s", made, told, took.Seconds())
	l.right("all are answered at SIGTERM", lost)
	l.right("exit status 0", err)
	return nil
}

// ended returns the name of the metric of jobs that have ended in a state.
func ended(state string) string { return `gomflux_jobs_ended_total{state="` + state + `"}` }

// rested waits until the server has no jobs and MLX keeps no memory, and for the time of a rest.
func (l *load) rested(ctx context.Context) error {
	busy := []string{
		`gomflux_jobs{state="queued"}`, `gomflux_jobs{state="loading"}`, `gomflux_jobs{state="running"}`, "gomflux_cache_memory_bytes",
	}
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(50 * time.Millisecond) {
		s, err := l.sample(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(busy, func(name string) bool { return s.metrics[name] != 0 }) {
			time.Sleep(l.rest)
			return nil
		}
	}
	return fmt.Errorf("the server has had no request for a minute, and these are not all 0: %s", strings.Join(busy, ", "))
}

// sample reads the server's metrics and memory.
func (l *load) sample(ctx context.Context) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	s := sample{time.Now(), map[string]float64{resident: l.server.resident()}}
	text, err := l.clients[0].call(ctx, http.MethodGet, "/metrics", nil, nil)
	for line := range strings.Lines(string(text)) { // comments too, which nobody asks for
		i := max(0, strings.LastIndexByte(line, ' '))
		s.metrics[line[:i]], _ = strconv.ParseFloat(strings.TrimSpace(line[i:]), 64)
	}
	return s, err
}
