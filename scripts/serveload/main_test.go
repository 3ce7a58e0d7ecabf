package main

import (
	"context"
	"log/slog"
	"math"
	"net"
	"path/filepath"
	"slices"
	"strings"
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
	name, err := writeTokens(t.TempDir(), clients)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := serve.ReadTokens(name)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := serve.New(serve.Config{
		Engine: e, Address: l.Addr().String(), Tokens: tokens, MaxBody: 1e6, MaxPixels: 1e6, Gallery: pictures, Grace: 30 * time.Second,
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
	return &server{url: "http://" + l.Addr().String(), tokens: tokens, stop: stop}
}

func openShapes(ctx context.Context, progress func(gomflux.Progress)) (engine.Model, error) {
	return gomflux.Open(ctx, "shapes", &gomflux.OpenOptions{Device: gomflux.CPU, Progress: progress})
}

// TestLoad is a short run of all parts with the built-in model.
func TestLoad(t *testing.T) {
	o := options{clients: 6, duration: 2 * time.Second, cancels: 40, steps: 1, size: 32, seed: 1, leeway: 10}
	l, out := run1(t, o, inProcess(t, o.clients, 6, openShapes))
	if len(l.failed) > 0 || l.checks < 10 {
		t.Errorf("%d checks, %q fail: %s", l.checks, l.failed, out)
	}
	if l.deleted.Load() == 0 {
		t.Errorf("no job was canceled with DELETE: %s", out)
	}
	t.Log(out)
}

// run1 runs a load, and returns it with what it printed.
func run1(t *testing.T, o options, s *server) (*load, string) {
	t.Helper()
	var out strings.Builder
	l := newLoad(o, s, &out)
	if err := l.run(t.Context()); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	return l, out.String()
}

// TestSoak is a short soak. Each row of its table is of a server that has given its memory back.
func TestSoak(t *testing.T) {
	o := options{clients: 3, jobs: 14, round: 3, steps: 1, size: 32, seed: 1, leeway: 10}
	l, out := run1(t, o, inProcess(t, o.clients, 6, openShapes))
	if len(l.failed) > 0 || len(l.rests) != 5 {
		t.Fatalf("%d rows, expected 5; %q fail: %s", len(l.rests), l.failed, out)
	}
	m := l.rests[4].metrics
	done, canceled := m[ended("done")], m[ended("canceled")]
	if done+canceled > 14 || done < 5 || m["gomflux_memory_bytes"] < 1e6 || m["gomflux_cache_memory_bytes"] != 0 {
		t.Errorf("%.0f jobs are done, %.0f canceled: %s", done, canceled, out)
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
	if l, out := run1(t, o, s); !slices.Contains(l.failed, "all answers are right") {
		t.Errorf("only %q fail: %s", l.failed, out)
	}
}

func TestFairness(t *testing.T) {
	for _, test := range []struct {
		counts []float64
		ok     bool
	}{{[]float64{100, 100, 108}, true}, {[]float64{100, 100, 130}, false}, {[]float64{0, 0, 6}, true}, {[]float64{0, 7, 7}, false}} {
		r := &report{out: t.Output()}
		r.fairness(test.counts, 0.1)
		if ok := len(r.failed) == 0; ok != test.ok {
			t.Errorf("%v: %v", test.counts, ok)
		}
	}
}

func TestMemory(t *testing.T) {
	for _, test := range []struct {
		name  string
		at    func(i float64) float64 // resident memory
		ok    bool
		grown string
	}{
		{"flat", func(float64) float64 { return 100e6 }, true, " 0.0 MB"},
		{"noise", func(i float64) float64 { return 100e6 + 20e6*math.Mod(i, 2) }, true, " 0.0 MB"},
		{"fills, then flat", func(i float64) float64 { return 100e6 + 1e6*min(i, 39) }, true, " 0.0 MB"},
		{"a leak", func(i float64) float64 { return 100e6 + 1e6*i }, false, " 60.0 MB"},
		{"a falling one", func(i float64) float64 { return 200e6 - 1e6*i }, true, " -60.0 MB"},
	} {
		var samples []sample
		for i := range 100 {
			s := sample{time.Unix(int64(i), 0), map[string]float64{resident: test.at(float64(i))}}
			samples = append(samples, s)
		}
		var out strings.Builder
		r := &report{out: &out}
		r.memory(samples, 0.1)
		if ok := len(r.failed) == 0; ok != test.ok || r.checks != 1 || !strings.Contains(out.String(), "grew by"+test.grown) {
			t.Errorf("%s: %s", test.name, &out)
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
