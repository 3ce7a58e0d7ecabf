package main

import (
	"context"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/mlx"
	_ "github.com/gomflux/gomflux/models/shapes" // the built-in model
	"github.com/gomflux/gomflux/serve"
	"github.com/gomflux/gomflux/serve/engine"
	"github.com/gomflux/gomflux/serve/gallery"
)

// inProcess starts a server in the process of the test, so that the race detector sees it.
func inProcess(
	t *testing.T, clients, queue int, open func(ctx context.Context, progress func(gomflux.Progress)) (engine.Model, error),
) *server {
	t.Helper()
	if _, err := mlx.Open(); err != nil {
		t.Fatal(err)
	}
	e := engine.New(engine.Config{
		Open: func(ctx context.Context, _ string, _ []gomflux.LoRA, progress func(gomflux.Progress)) (engine.Model, error) {
			return open(ctx, progress)
		},
		Models: func() []engine.ModelInfo {
			d := gomflux.Defaults{Steps: 12, Guidance: 4, Height: 64, Width: 64}
			return []engine.ModelInfo{{Name: "shapes", Default: true, Defaults: d}}
		},
		Queue: queue, Shared: true, KeepAlive: time.Hour, Keep: time.Hour,
		Memory:  func() (active, cache int64) { return int64(mlx.ActiveMemory()), int64(mlx.CacheMemory()) },
		Release: func() { gomflux.ReleaseMemory(context.Background()) }, Rest: 10 * time.Millisecond,
	})
	pictures, err := gallery.Open(filepath.Join(t.TempDir(), "pictures"), 1e6)
	if err != nil {
		t.Fatal(err)
	}
	tokens, file := newTokens(clients)
	name := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	names, err := serve.ReadTokens(name)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := serve.New(serve.Config{
		Engine: e, Address: l.Addr().String(), Tokens: names, MaxBody: 1e6, MaxPixels: 1e6, Gallery: pictures, Grace: 30 * time.Second,
		Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	stop := sync.OnceValue(func() error {
		cancel()
		defer pictures.Close()
		return <-served
	})
	t.Cleanup(func() { stop() })
	return &server{url: "http://" + l.Addr().String(), tokens: tokens, stop: stop, kill: func() {}}
}

func openShapes(ctx context.Context, progress func(gomflux.Progress)) (engine.Model, error) {
	return gomflux.Open(ctx, "shapes", &gomflux.OpenOptions{Device: gomflux.CPU, Progress: progress})
}

// TestLoad is a short run of all parts with the built-in model.
func TestLoad(t *testing.T) {
	o := options{clients: 6, duration: 2 * time.Second, cancels: 40, steps: 1, size: 32, seed: 1, leeway: 10}
	r, err := newLoad(o, inProcess(t, o.clients, 6, openShapes)).run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Checks {
		if !c.OK {
			t.Errorf("%s: %s", c.Name, c.Found)
		}
	}
	if len(r.Checks) < 10 {
		t.Errorf("%d checks", len(r.Checks))
	}
	t.Log(r)
}

// TestSoak is a short soak. Each row of its table is of a server that has given its memory back.
func TestSoak(t *testing.T) {
	o := options{clients: 3, jobs: 14, round: 3, steps: 1, size: 32, seed: 1, leeway: 10}
	r, err := newLoad(o, inProcess(t, o.clients, 6, openShapes)).run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() || len(r.Rests) != 6 {
		t.Errorf("%d rows, expected 6: %s", len(r.Rests), r)
	}
	if last := r.Rests[5]; last.Done+last.Canceled > 14 || last.Done < 5 || last.Active < 1e6 || last.Cache != 0 {
		t.Errorf("the last row is %+v", last)
	}
}

// A wrongModel makes some images of other seeds than it was asked for.
type wrongModel struct{ engine.Model }

func (m wrongModel) Generate(ctx context.Context, o gomflux.Options) (*gomflux.Result, error) {
	if *o.Seed%16 == 0 {
		seed := *o.Seed + 1
		o.Seed = &seed
	}
	return m.Model.Generate(ctx, o)
}

// TestWrong: a run fails if images are wrong.
func TestWrong(t *testing.T) {
	o := options{clients: 3, duration: 200 * time.Millisecond, steps: 1, size: 32, seed: 2, leeway: 10}
	s := inProcess(t, o.clients, 64, func(ctx context.Context, progress func(gomflux.Progress)) (engine.Model, error) {
		m, err := openShapes(ctx, progress)
		return wrongModel{m}, err
	})
	r, err := newLoad(o, s).run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.OK() {
		t.Errorf("no check fails: %s", r)
	}
}

func TestFairness(t *testing.T) {
	for _, test := range []struct {
		counts []int
		ok     bool
	}{{[]int{100, 100, 108}, true}, {[]int{100, 100, 130}, false}, {[]int{0, 0, 6}, true}, {[]int{0, 7, 7}, false}} {
		l := &load{options: options{leeway: 0.1}, report: &report{}}
		l.fairness(test.counts)
		if l.report.OK() != test.ok {
			t.Errorf("%v: %+v", test.counts, l.report.Checks)
		}
	}
}

func TestMemory(t *testing.T) {
	for _, test := range []struct {
		name  string
		at    func(i float64) float64 // resident memory
		ok    bool
		slope float64
	}{
		{"flat", func(float64) float64 { return 100e6 }, true, 0},
		{"noise", func(i float64) float64 { return 100e6 + 20e6*math.Mod(i, 2) }, true, 0},
		{"fills, then flat", func(i float64) float64 { return 100e6 + 1e6*min(i, 39) }, true, 0},
		{"a leak", func(i float64) float64 { return 100e6 + 1e6*i }, false, 60},
		{"a falling one", func(i float64) float64 { return 200e6 - 1e6*i }, true, -60},
	} {
		var samples []rest
		for i := range 100 {
			samples = append(samples, rest{Seconds: float64(i), Resident: test.at(float64(i))})
		}
		r := &report{}
		r.memory(samples, 0.1)
		found := r.Values[2]
		if r.OK() != test.ok || found.Name != "resident memory, slope" || math.Abs(found.Number-test.slope) > 2 {
			t.Errorf("%s: %s", test.name, r)
		}
	}
}

func TestPercentile(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	for p, want := range map[float64]float64{0: 1, 20: 1, 50: 3, 90: 5, 99: 5, 100: 5} {
		if got := percentile(values, p); got != want {
			t.Errorf("p%v is %v, expected %v", p, got, want)
		}
	}
	if percentile(nil, 50) != 0 || values[0] != 5 {
		t.Error("no values, or they were sorted")
	}
}
