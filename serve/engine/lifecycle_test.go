package engine

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/errs"
)

func TestSwitchingModels(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world, e *Engine) {
		first := submit(t, e, "A", "a", "1")
		synctest.Wait() // it runs
		jobs := []*Job{first}
		for _, job := range []string{"A b 2", "A a 3", "B b 4", "B a 5", "C b 6"} {
			f := strings.Fields(job)
			jobs = append(jobs, submit(t, e, f[0], f[1], f[2]))
		}
		for i, ahead := range []int{0, 4, 1, 5, 2, 3} {
			if s := jobs[i].Status(); s.Ahead != ahead {
				t.Errorf("job %d: %d jobs ahead, expected %d", i+1, s.Ahead, ahead)
			}
		}
		for _, j := range jobs {
			if err := j.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
		expectLog(t, w, "open a", "run a 1", "run a 3", "run a 5", "close a", "open b", "run b 6", "run b 2", "run b 4")
	})
}

func TestKeepAlive(t *testing.T) {
	for _, test := range []struct {
		name      string
		keepAlive time.Duration
		wait      time.Duration // between two jobs
		kept      bool
	}{
		{"not yet", time.Minute, 59 * time.Second, true},
		{"over", time.Minute, 61 * time.Second, false},
		{"for ever", -1, 1000 * time.Hour, true},
		{"not at all", 0, time.Second, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			change := func(_ *world, c *Config) { c.KeepAlive = test.keepAlive }
			inBubble(t, change, func(t *testing.T, w *world, e *Engine) {
				submit(t, e, "A", "a", "1").Wait(t.Context())
				time.Sleep(test.wait)
				if loaded := e.Models()[0].Loaded; loaded != test.kept {
					t.Errorf("loaded %v, expected %v", loaded, test.kept)
				}
				if w.open != map[bool]int{true: 1}[test.kept] {
					t.Errorf("%d models in memory", w.open)
				}
				submit(t, e, "A", "a", "2").Wait(t.Context())
				if test.kept {
					expectLog(t, w, "open a", "run a 1", "run a 2")
				} else if log := w.take(); len(log) < 5 || log[2] != "close a" {
					t.Errorf("found %q", log)
				}
			})
		})
	}
}

// TestKeepAliveRenewed checks that the time runs from the end of the last job.
func TestKeepAliveRenewed(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world, e *Engine) {
		for range 5 {
			submit(t, e, "A", "a", "1").Wait(t.Context())
			time.Sleep(50 * time.Second)
		}
		expectLog(t, w, "open a", "run a 1", "run a 1", "run a 1", "run a 1", "run a 1")
		time.Sleep(11 * time.Second)
		expectLog(t, w, "close a")
	})
}

// TestRelease checks that memory is released once when there was nothing to do for Config.Rest: after
// jobs, after the model was freed, and after jobs were forgotten; never before.
func TestRelease(t *testing.T) {
	change := func(w *world, c *Config) {
		c.Rest = 5 * time.Second
		c.Release = func() {
			if w.open > 0 {
				w.add("release with a model")
			} else {
				w.add("release")
			}
		}
	}
	inBubble(t, change, func(t *testing.T, w *world, e *Engine) {
		after := func(d time.Duration, expected ...string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			expectLog(t, w, expected...)
		}
		after(time.Hour) // nothing has used memory
		for range 3 {    // jobs that take longer than Rest, with breaks that are shorter
			submit(t, e, "A", "a", "1").Wait(t.Context())
			time.Sleep(4 * time.Second)
		}
		after(0, "open a", "run a 1", "run a 1", "run a 1")
		after(time.Second, "release with a model")
		after(49 * time.Second)
		e.Unload()
		after(0, "close a")
		after(5*time.Second, "release")
		submit(t, e, "A", "a", "2").Wait(t.Context())
		after(59*time.Second, "open a", "run a 2", "release with a model")
		after(2*time.Second, "close a") // by KeepAlive
		after(4*time.Second, "release")
		after(56 * time.Minute)
		after(4*time.Minute, "release", "release", "release", "release") // the jobs are forgotten
		after(24 * time.Hour)
	})
}

func TestLoRAs(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world, e *Engine) {
		for _, loras := range [][]gomflux.LoRA{nil, {{Path: "l"}}, {{Path: "l", Scale: 1}}, {{Path: "l", Scale: 0.5}}, nil} {
			j, err := e.Submit(t.Context(), Request{Model: "a", LoRAs: loras, Seeds: []uint64{1}})
			if err != nil {
				t.Fatal(err)
			}
			if err := j.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
		expectLog(t, w, "open a", "run a ", "close a", "open a+l", "run a+l ", "run a+l ",
			"close a+l", "open a+l", "run a+l ", "close a+l", "open a", "run a ")
	})
}

func TestUnload(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world, e *Engine) {
		e.Unload() // nothing is loaded
		j := submit(t, e, "A", "a", "1")
		time.Sleep(11 * time.Second)
		start := time.Now()
		e.Unload()
		if time.Since(start) != 0 {
			t.Error("Unload waited for the job")
		}
		if err := j.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		expectLog(t, w, "open a", "run a 1", "close a")
		submit(t, e, "A", "a", "2").Wait(t.Context())
		e.Unload()
		expectLog(t, w, "open a", "run a 2", "close a")
		if s := e.Stats(); s.Model != "" || s.Loads != 2 {
			t.Errorf("model %q in memory, %d loads", s.Model, s.Loads)
		}
	})
}

func TestFailures(t *testing.T) {
	damaged := errors.New("damaged")
	const panicked = "internal error (job ID in the server's log)"
	for _, test := range []struct {
		name     string
		change   func(*world, *Config)
		expected string // error of the first job
		log      string // of both
	}{
		{
			"the model cannot be loaded",
			func(w *world, _ *Config) { w.openErr["b"] = damaged },
			"model b: damaged", "open b, open a, run a 2",
		},
		{
			"the model does not take the request",
			func(w *world, _ *Config) { w.openErr["b"] = errs.Requestf("steps -1") },
			"steps -1", "open b, open a, run a 2",
		},
		{
			"the machine fails while it is loaded",
			func(w *world, _ *Config) { w.openErr["b"] = &mlx.Error{Message: "out of memory"} },
			"mlx: out of memory", "open b, open a, run a 2",
		},
		{
			"loading panics",
			func(_ *world, c *Config) {
				open := c.Open
				c.Open = func(ctx context.Context, name string, l []gomflux.LoRA, p func(gomflux.Progress)) (Model, error) {
					if name == "b" {
						panic("index out of range")
					}
					return open(ctx, name, l, p)
				}
			},
			panicked, "open a, run a 2",
		},
		{
			"the run fails",
			func(w *world, _ *Config) {
				w.run = func(_ context.Context, o gomflux.Options) error {
					if o.Prompt == "1" {
						return damaged
					}
					return nil
				}
			},
			"damaged", "open b, run b 1, close b, open a, run a 2",
		},
		{
			"the run panics",
			func(w *world, _ *Config) {
				w.run = func(_ context.Context, o gomflux.Options) error {
					if o.Prompt == "1" {
						panic(damaged)
					}
					return nil
				}
			},
			panicked, "open b, run b 1, close b, open a, run a 2",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log bytes.Buffer
			change := func(w *world, c *Config) {
				c.Log = slog.New(slog.NewTextHandler(&log, nil))
				test.change(w, c)
			}
			inBubble(t, change, func(t *testing.T, w *world, e *Engine) {
				bad, good := submit(t, e, "A", "b", "1"), submit(t, e, "A", "a", "2")
				expected := strings.ReplaceAll(test.expected, "ID", bad.ID())
				err := bad.Wait(t.Context())
				if err == nil || err.Error() != expected || !errors.Is(bad.Status().Err, err) || bad.Status().State != Failed {
					t.Errorf("error %v, status %+v", err, bad.Status())
				}
				if notFound := errors.Is(err, gomflux.ErrNotFound); notFound != strings.HasPrefix(expected, "model b: ") {
					t.Errorf("the model's fault: %v", notFound)
				}
				if test.expected == panicked {
					for _, part := range []string{"level=ERROR", "id=" + bad.ID(), "lifecycle_test.go"} {
						if !strings.Contains(log.String(), part) {
							t.Errorf("the log has no %s: %s", part, log.String())
						}
					}
				} else if log.Len() > 0 {
					t.Errorf("logged: %s", log.String())
				}
				if err := good.Wait(t.Context()); err != nil {
					t.Error(err)
				}
				expectLog(t, w, strings.Split(test.log, ", ")...)
				var last Event
				for last = range bad.Events(t.Context(), 0) {
				}
				if last.Kind != EventFailed || last.Status.Err == nil {
					t.Errorf("the last event is %+v", last)
				}
				if s := e.Stats(); s.Jobs[Failed] != 1 || s.Jobs[Done] != 1 {
					t.Errorf("jobs %v", s.Jobs)
				}
			})
		})
	}
}

// TestPanicFreesModel checks that the next job gets a model that was loaded again after a panic, but
// not after an error.
func TestPanicFreesModel(t *testing.T) {
	change := func(w *world, _ *Config) {
		w.run = func(_ context.Context, o gomflux.Options) error {
			switch o.Prompt {
			case "panic":
				panic("bad")
			case "error":
				return errors.New("bad")
			}
			return nil
		}
	}
	inBubble(t, change, func(t *testing.T, w *world, e *Engine) {
		for _, prompt := range []string{"error", "1", "panic", "2"} {
			submit(t, e, "A", "a", prompt).Wait(t.Context())
		}
		expectLog(t, w, "open a", "run a error", "run a 1", "run a panic", "close a", "open a", "run a 2")
	})
}

func TestClose(t *testing.T) {
	for _, test := range []struct {
		name    string
		patient bool
		after   time.Duration // since the first job was submitted
		state   State
	}{
		{"the running job ends", true, 11 * time.Second, Done},
		{"the loading job ends", true, 3 * time.Second, Done},
		{"the running job is stopped", false, 11 * time.Second, Failed},
		{"the loading job is stopped", false, 3 * time.Second, Failed},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, w *world, e *Engine) {
				running, waiting := submit(t, e, "A", "a", "1"), submit(t, e, "A", "b", "2")
				time.Sleep(test.after)
				ctx := t.Context()
				if !test.patient {
					var cancel func()
					ctx, cancel = context.WithTimeout(ctx, time.Second)
					defer cancel()
				}
				if err := e.Close(ctx); (err == nil) != test.patient {
					t.Errorf("Close returned %v", err)
				}
				if s := running.Status(); s.State != test.state || s.State == Failed && !errors.Is(s.Err, ErrClosed) {
					t.Errorf("status %+v", s)
				}
				if err := waiting.Wait(t.Context()); !errors.Is(err, ErrClosed) || waiting.Status().State != Failed {
					t.Errorf("the waiting job: %v, %+v", err, waiting.Status())
				}
				if _, err := e.Submit(t.Context(), Request{Seeds: []uint64{1}}); !errors.Is(err, ErrClosed) {
					t.Errorf("Submit returned %v", err)
				}
				if w.open != 0 {
					t.Errorf("%d models are in memory", w.open)
				}
				e.Unload() // returns
			})
		})
	}
}
