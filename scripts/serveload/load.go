package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	greedyEvery = 16 // one of so many clients is greedy
	greedyJobs  = 6  // that it always has
)

// A load is a run against a server.
type load struct {
	options
	server  *server
	report  *report
	clients []*client
	number  atomic.Uint64 // of works
}

func newLoad(o options, s *server) *load {
	l := &load{options: o, server: s, report: &report{}}
	l.report.Machine = fmt.Sprintf("%s, %d cores, %s/%s", time.Now().UTC().Format("2006-01-02 15:04 MST"), runtime.NumCPU(),
		runtime.GOOS, runtime.GOARCH)
	for i := range o.clients {
		l.clients = append(l.clients, newClient(s, i))
	}
	return l
}

// run runs the parts one after the other.
func (l *load) run(ctx context.Context) (*report, error) {
	parts := []func(context.Context) error{l.load, l.cancel}
	if l.jobs > 0 {
		parts = []func(context.Context) error{l.soak}
	}
	if l.server.stop != nil {
		parts = append(parts, l.stop)
	}
	for _, part := range parts {
		if err := part(ctx); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return l.report, nil
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

func nobody(string) {}

// A tally is what became of works.
type tally struct {
	mu       sync.Mutex
	outcomes []outcome
	byClient []int // images
	problems []error
}

func (t *tally) add(client int, o outcome, inTime bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.outcomes = append(t.outcomes, o)
	if o.err != nil {
		t.problems = append(t.problems, o.err)
	} else if inTime {
		t.byClient[client] += o.images
	}
}

// problem returns a description of the problems.
func (t *tally) problem() string {
	if len(t.problems) == 0 {
		return "no problem"
	}
	return fmt.Sprintf("%d problems, such as: %.300v", len(t.problems), t.problems[0])
}

// load is the first part.
func (l *load) load(ctx context.Context) error {
	before, err := l.server.metrics(ctx)
	if err != nil {
		return err
	}
	t := &tally{byClient: make([]int, len(l.clients))}
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
					o := c.do(ctx, l.work(), nobody)
					if jobs > 1 {
						o.predicted = 0 // others that come later have their turns before
					}
					t.add(i, o, time.Since(began) < l.duration)
				}
			})
		}
	}
	samples := l.watch(ctx, began)
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	after, err := l.server.metrics(ctx)
	if err != nil {
		return err
	}
	l.judge(t, before, after, time.Since(began))
	l.report.memory(samples, l.leeway)
	return nil
}

// watch takes samples of the server's memory during the first part.
func (l *load) watch(ctx context.Context, began time.Time) (samples []rest) {
	for time.Since(began) < l.duration && ctx.Err() == nil {
		if m, err := l.server.metrics(ctx); err == nil {
			samples = append(samples, l.server.rest(m, began))
		}
		time.Sleep(l.duration / 200)
	}
	return samples
}

// judge reports the first part.
func (l *load) judge(t *tally, before, after map[string]float64, took time.Duration) {
	r := l.report
	images, refused, again := 0, 0, 0
	var waits, ratios, predicted, actual, retry []float64
	var times []float64
	for _, o := range t.outcomes {
		images += o.images
		times = append(times, o.took.Seconds())
		if o.refused > 0 {
			refused += o.refused
			again++
			retry = append(retry, o.retried.Seconds()/float64(o.refused))
		}
		if o.ended > 0 {
			waits = append(waits, o.waited.Seconds())
		}
		if o.ended > 0 && o.predicted > 0 {
			predicted, actual = append(predicted, o.predicted.Seconds()), append(actual, o.ended.Seconds())
			ratios = append(ratios, o.ended.Seconds()/o.predicted.Seconds())
		}
	}
	r.add("clients", float64(len(l.clients)), "")
	r.add("load: time", took.Seconds(), "s")
	r.add("load: answers", float64(len(t.outcomes)), "")
	r.add("load: images", float64(images), "")
	r.check("all answers are right", len(t.problems) == 0, "%s", t.problem())
	made := after["gomflux_images_total"] - before["gomflux_images_total"]
	r.check("no image is made twice or lost", made == float64(images), "%d received, %.0f made", images, made)
	l.fairness(t.byClient)
	r.percentiles("load: time until the answer", times, "s")
	r.percentiles("load: wait in the queue (jobs API)", waits, "s")
	r.percentiles("load: predicted time to the end", predicted, "s")
	r.percentiles("load: time to the end", actual, "s")
	r.percentiles("load: time / predicted time", ratios, "")
	r.add("load: time / predicted time, most", percentile(ratios, 100), "")
	r.check("the queue's predictions", len(ratios) < 20 || percentile(ratios, 50) < 2 && percentile(ratios, 50) > 0.5,
		"median of time / predicted time %.2f of %d", percentile(ratios, 50), len(ratios))
	r.add("load: refused with 429", float64(refused), "")
	if again > 0 {
		r.add("load: refusals of a refused work, mean", float64(refused)/float64(again), "")
		r.add("load: Retry-After, p50", percentile(retry, 50), "s")
	}
}

// fairness reports the numbers of images of each client.
func (l *load) fairness(counts []int) {
	least, most := slices.Min(counts), slices.Max(counts)
	sum, square := 0.0, 0.0
	for _, n := range counts {
		sum += float64(n)
		square += float64(n) * float64(n)
	}
	mean := sum / float64(len(counts))
	l.report.add("load: images of a client, least", float64(least), "")
	l.report.add("load: images of a client, mean", mean, "")
	l.report.add("load: images of a client, most", float64(most), "")
	if square > 0 {
		l.report.add("load: Jain's fairness index", sum*sum/square/float64(len(counts)), "")
	}
	l.report.check("clients get the same", float64(most-least) <= math.Max(greedyJobs, l.leeway*mean), "%d to %d images", least, most)
}

// cancel is the second part: few clients at a time, so that some jobs are running when they are
// canceled.
func (l *load) cancel(ctx context.Context) error {
	t := &tally{byClient: make([]int, len(l.clients))}
	var left, late, deleted atomic.Int64
	left.Store(int64(l.cancels))
	before, err := l.server.metrics(ctx)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for i, c := range l.clients[:max(2, len(l.clients)/8)] {
		wg.Go(func() {
			whole := time.Duration(0) // time of a work that is not canceled
			for n := 0; ctx.Err() == nil; n++ {
				if n%8 == 0 {
					o := c.do(ctx, l.work(), nobody)
					t.add(i, o, true)
					whole = o.took
					continue
				}
				if left.Add(-1) < 0 {
					return
				}
				problem, ended := c.canceled(ctx, l.work(), time.Duration(rand.Int64N(int64(whole)+1)), &deleted)
				if problem != nil {
					t.add(i, outcome{err: problem}, false)
				}
				if ended {
					late.Add(1)
				}
			}
		})
	}
	wg.Wait()
	idle := l.server.idle(ctx)
	after, err := l.server.metrics(ctx)
	if err != nil {
		return err
	}
	delta := func(name string) float64 { return after[name] - before[name] }
	failed, canceled := delta(`gomflux_jobs_ended_total{state="failed"}`), delta(`gomflux_jobs_ended_total{state="canceled"}`)
	l.report.add("cancel: works", float64(l.cancels), "")
	l.report.add("cancel: with DELETE", float64(deleted.Load()), "")
	l.report.add("cancel: jobs that were canceled", canceled, "")
	l.report.add("cancel: works that ended before", float64(late.Load()), "")
	l.report.add("cancel: works of others", float64(len(t.outcomes)), "")
	l.report.check("canceled jobs end", idle == nil, "%v", orNone(idle))
	l.report.check("no job fails when others are canceled", failed == 0 && len(t.problems) == 0, "%.0f failed, %s", failed, t.problem())
	l.report.check("jobs are canceled", l.cancels == 0 || canceled > 0 && canceled <= float64(l.cancels),
		"%.0f of %d", canceled, l.cancels)
	return nil
}

func orNone(err error) any {
	if err == nil {
		return "no problem"
	}
	return err
}

// canceled sends a work and cancels it after a time. It reports whether the work ended before, and
// what was wrong.
func (c *client) canceled(ctx context.Context, w work, after time.Duration, deleted *atomic.Int64) (problem error, ended bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ids := make(chan string, 1)
	time.AfterFunc(after, func() {
		if w.api != "jobs" {
			cancel()
			return
		}
		select {
		case id := <-ids:
			deleted.Add(1)
			var answer event
			c.json(ctx, http.MethodDelete, "/api/v1/jobs/"+id, nil, &answer)
		case <-ctx.Done(): // it ended before
		}
	})
	o := c.do(ctx, w, func(id string) { ids <- id })
	switch {
	case o.err == nil:
		return nil, true
	case errors.Is(o.err, context.Canceled), w.api == "jobs" && o.status == http.StatusServiceUnavailable:
		return nil, false
	}
	return o.err, false
}

// stop is the last part.
func (l *load) stop(ctx context.Context) error {
	t := &tally{byClient: make([]int, len(l.clients))}
	first := make(chan struct{}, len(l.clients))
	streams := sync.WaitGroup{}
	var wg sync.WaitGroup
	for i, c := range l.clients {
		w := l.work()
		w.api = apis[i%len(apis)]
		w.count = 1
		begun := func() {}
		if w.api == "jobs" { // which needs a second request for the events
			streams.Add(1)
			begun = sync.OnceFunc(streams.Done)
		}
		wg.Go(func() {
			o := c.do(ctx, w, func(string) { begun() })
			begun()
			t.add(i, o, true)
			first <- struct{}{}
		})
	}
	streams.Wait()
	<-first
	began := time.Now()
	err := l.server.stop()
	took := time.Since(began)
	wg.Wait()
	made, told := 0, 0
	var lost error
	for _, o := range t.outcomes {
		switch {
		case o.err == nil:
			made++
		case o.answered && (o.status == http.StatusServiceUnavailable || o.status == 0):
			told++
		default:
			lost = o.err
		}
	}
	l.report.add("stop: time until the exit", took.Seconds(), "s")
	l.report.add("stop: works with images", float64(made), "")
	l.report.add("stop: works told that the server stops", float64(told), "")
	l.report.check("all are answered at SIGTERM", lost == nil, "%v", orNone(lost))
	l.report.check("exit status 0", err == nil, "%v", orNone(err))
	return nil
}
