package engine

import (
	"context"
	"errors"
	"fmt"
	"image"
	"log/slog"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/modeltest"
)

// A world opens fake models and records what they do. All times are those of a synctest bubble.
type world struct {
	mu      sync.Mutex
	log     []string // open, close and run with names, in order
	open    int      // models in memory
	loading time.Duration
	step    time.Duration
	steps   int
	openErr map[string]error
	run     func(ctx context.Context, o gomflux.Options) error // is called in each image, if set
	preview func() error
	check   func(m *fake) error
	asked   []gomflux.Options
}

func newWorld() *world {
	return &world{loading: 10 * time.Second, step: time.Second, steps: 4, openErr: map[string]error{}}
}

func (w *world) add(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

// take returns the log and empties it.
func (w *world) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	log := w.log
	w.log = nil
	return log
}

func (w *world) config() Config {
	return Config{
		Open: w.load, Queue: 100, KeepAlive: time.Minute, Keep: time.Hour, Log: slog.New(slog.DiscardHandler),
		Models: func() []ModelInfo {
			d := gomflux.Defaults{Steps: 4, Height: 64, Width: 64}
			return []ModelInfo{
				{Name: "a", Default: true, Defaults: d}, {Name: "b", Edits: true, Defaults: d}, {Name: "c", Defaults: d},
				{Name: "words", Writes: true, OnlyWrites: true, Missing: "it is a language model"},
				{Name: "away", Missing: "not here (to get it: gomflux pull away)"},
			}
		},
	}
}

func (w *world) load(
	ctx context.Context, name string, loras []gomflux.LoRA, progress func(gomflux.Progress),
) (Model, error) {
	w.mu.Lock()
	w.open++
	n, err := w.open, w.openErr[name]
	w.mu.Unlock()
	if n > 1 {
		panic("two models in memory")
	}
	for _, l := range loras {
		name += "+" + l.Path
	}
	w.add("open %s", name)
	m := &fake{world: w, name: name}
	for i := range 2 {
		progress(gomflux.Progress{Phase: gomflux.PhaseLoad, Bytes: int64(i) * 50, TotalBytes: 100})
		if wait := sleep(ctx, w.loading/2); wait != nil {
			err = wait
			break
		}
	}
	if err != nil {
		w.mu.Lock()
		w.open--
		w.mu.Unlock()
		return nil, err
	}
	return m, nil
}

// sleep waits, and returns the cause of ctx if that is done before.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A fake is a model.
type fake struct {
	world  *world
	name   string
	closed bool
}

func (m *fake) Defaults() gomflux.Defaults { return gomflux.Defaults{} }
func (m *fake) Multiple() int              { return 16 }
func (m *fake) Class() string              { return "Fake" }

func (m *fake) Check(gomflux.Options) error {
	if m.world.check != nil {
		return m.world.check(m)
	}
	return nil
}

func (m *fake) Close() error {
	m.world.add("close %s", m.name)
	m.world.mu.Lock()
	m.world.open--
	m.world.mu.Unlock()
	m.closed = true
	return nil
}

func (m *fake) Preview(context.Context, gomflux.Latents) (*image.RGBA, error) {
	if m.world.preview != nil {
		if err := m.world.preview(); err != nil {
			return nil, err
		}
	}
	return image.NewRGBA(image.Rect(0, 0, 8, 8)), nil
}

func (m *fake) Generate(ctx context.Context, o gomflux.Options) (*gomflux.Result, error) {
	if m.closed {
		panic("the model is closed")
	}
	m.world.add("run %s %s", m.name, o.Prompt)
	m.world.mu.Lock()
	m.world.asked = append(m.world.asked, o)
	m.world.mu.Unlock()
	if m.world.run != nil {
		if err := m.world.run(ctx, o); err != nil {
			return nil, err
		}
	}
	steps := m.world.steps
	o.Progress(gomflux.Progress{Phase: gomflux.PhaseEncode})
	o.Progress(gomflux.Progress{Phase: gomflux.PhaseStep, Steps: steps})
	for i := range steps {
		if err := sleep(ctx, m.world.step); err != nil {
			return nil, err
		}
		o.Progress(gomflux.Progress{Phase: gomflux.PhaseStep, Step: i + 1, Steps: steps})
		if o.OnStep != nil {
			if err := o.OnStep(gomflux.Step{Step: i + 1, Steps: steps}); err != nil {
				return nil, err
			}
		}
	}
	return &gomflux.Result{Image: image.NewRGBA(image.Rect(0, 0, 8, 8)), StepTime: time.Duration(steps) * m.world.step}, nil
}

// submit submits a job with one image, and a prompt that names it.
func submit(t *testing.T, e *Engine, client, model, prompt string) *Job {
	t.Helper()
	j, err := e.Submit(t.Context(), Request{
		Client: client, Model: model, Options: gomflux.Options{Prompt: prompt}, Seeds: []uint64{1},
	})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// expectLog compares the log of a world, and empties it.
func expectLog(t *testing.T, w *world, expected ...string) {
	t.Helper()
	if log := w.take(); !slices.Equal(log, expected) {
		t.Errorf("found\n%q, expected\n%q", log, expected)
	}
}

// inBubble runs a test of an engine in a synctest bubble, which fails if goroutines are left.
func inBubble(t *testing.T, change func(*world, *Config), f func(t *testing.T, w *world, e *Engine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c := w.config()
		if change != nil {
			change(w, &c)
		}
		e := New(c)
		f(t, w, e)
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if w.open != 0 {
			t.Errorf("%d models are in memory after Close", w.open)
		}
	})
}

func TestJob(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world, e *Engine) {
		seeds := []uint64{7, 8}
		j, err := e.Submit(t.Context(), Request{Client: "me", Options: gomflux.Options{Prompt: "p"}, Seeds: seeds, Previews: 1})
		if err != nil {
			t.Fatal(err)
		}
		var kinds []string
		for event := range j.Events(t.Context(), 0) {
			if event.Number != len(kinds)+1 {
				t.Errorf("event %d has the number %d", len(kinds)+1, event.Number)
			}
			kinds = append(kinds, string(event.Kind))
		}
		one := []string{"step", "step", "preview", "step", "step", "picture"}
		expected := slices.Concat([]string{"queued", "loading", "loading"}, one, one, []string{"done"})
		if !slices.Equal(kinds, expected) {
			t.Errorf("events %q, expected %q", kinds, expected)
		}
		if err := j.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		s := j.Status()
		if took := s.Ended.Sub(s.Started); s.State != Done || took != 18*time.Second || s.Client != "me" || s.Model != "a" || s.Err != nil {
			t.Errorf("status %+v after %v", s, took)
		}
		for i, p := range j.Pictures() {
			if p.Index != i || p.Seed != seeds[i] || p.Seed != *w.asked[i].Seed {
				t.Errorf("image %d: index %d, seed %d", i, p.Index, p.Seed)
			}
		}
		expectLog(t, w, "open a", "run a p", "run a p")
	})
}

func TestSubmitErrors(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *world, e *Engine) {
		reference := gomflux.Options{References: []image.Image{image.NewRGBA(image.Rect(0, 0, 1, 1))}}
		for _, test := range []struct {
			request  Request
			kind     error
			expected string
		}{
			{Request{Model: "a"}, gomflux.ErrRequest, "no images: expected at least one seed"},
			{Request{Model: "x", Seeds: []uint64{1}}, gomflux.ErrNotFound, `no model "x" here (to get it: gomflux pull x)`},
			{Request{Model: "away", Seeds: []uint64{1}}, gomflux.ErrNotFound, "model away: not here (to get it: gomflux pull away)"},
			{Request{Model: "a", Seeds: []uint64{1}, Options: reference}, gomflux.ErrRequest, "a does not take reference images"},
		} {
			if _, err := e.Submit(t.Context(), test.request); !errors.Is(err, test.kind) || err.Error() != test.expected {
				t.Errorf("error %v, expected %s", err, test.expected)
			}
		}
	})
}

// TestSubmitChecks checks that a model in memory checks the options of requests, and is not closed
// meanwhile.
func TestSubmitChecks(t *testing.T) {
	refused := errors.New("steps -1: must be positive")
	inBubble(t, nil, func(t *testing.T, w *world, e *Engine) {
		w.check = func(m *fake) error {
			go e.Unload()
			for range 1000 {
				runtime.Gosched()
			}
			if m.closed {
				t.Error("the model was closed")
			}
			return refused
		}
		submit(t, e, "A", "a", "1").Wait(t.Context()) // not in memory yet
		if _, err := e.Submit(t.Context(), Request{Model: "a", Seeds: []uint64{1}}); !errors.Is(err, refused) {
			t.Errorf("error %v", err)
		}
		synctest.Wait()
		if n := len(e.Jobs("")); n != 1 {
			t.Errorf("%d jobs, expected only the first", n)
		}
		expectLog(t, w, "open a", "run a 1", "close a")
		submit(t, e, "A", "a", "2").Wait(t.Context())
	})
}

// The mask is read once for all images of a job, and what was made of it is freed with the job. That of a
// job that waits is read when it is submitted and when it runs, and takes no memory in between.
func TestMaskOnce(t *testing.T) {
	prepare := func(w *world, _ *Config) {
		w.run = func(_ context.Context, o gomflux.Options) error {
			_, err := o.PrepareMask()
			return err
		}
	}
	inBubble(t, prepare, func(t *testing.T, w *world, e *Engine) {
		mask := &modeltest.CountedGray{Gray: image.NewGray(image.Rect(0, 0, 16, 8))}
		mask.Pix[3] = 255
		o := gomflux.Options{Image: image.NewRGBA(mask.Rect), Mask: mask}
		if _, err := (&gomflux.Options{Image: o.Image, Mask: mask}).PrepareMask(); err != nil {
			t.Fatal(err)
		}
		once := mask.Reads
		if _, err := o.PrepareMask(); err != nil { // as the API that reads the request
			t.Fatal(err)
		}
		first := mask.Reads - once
		jobs := []*Job{}
		for i := range 2 {
			j, err := e.Submit(t.Context(), Request{Options: o, Seeds: []uint64{1, 2, 3}})
			if err != nil {
				t.Fatal(err)
			}
			jobs = append(jobs, j)
			kept := j.submitted().Options
			if none := kept; i == 1 {
				none.ForgetPrepared()
				if !reflect.DeepEqual(kept, none) {
					t.Errorf("the job that waits keeps more than its images: %+v", kept)
				}
			}
			synctest.Wait()
			o.ForgetPrepared()
		}
		for _, j := range jobs {
			if err := j.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if r := j.submitted(); !reflect.DeepEqual(r.Options, gomflux.Options{}) {
				t.Errorf("the job that has ended keeps %+v", r.Options)
			}
		}
		if once == 0 || first != once || mask.Reads != (1+1+2)*once || len(w.asked) != 6 {
			t.Errorf("%d images, the mask was read %d times, expected %d", len(w.asked), mask.Reads, 4*once)
		}
	})
}

// submitted returns the request of a job, without what is freed at its end.
func (j *Job) submitted() Request {
	j.engine.mu.Lock()
	defer j.engine.mu.Unlock()
	return j.request
}
