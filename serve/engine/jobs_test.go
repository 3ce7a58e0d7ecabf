package engine

import (
	"context"
	"errors"
	"fmt"
	"image"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gomflux/gomflux"
)

func TestFull(t *testing.T) {
	change := func(_ *world, c *Config) { c.Queue = 2 }
	inBubble(t, change, func(t *testing.T, _ *world, e *Engine) {
		request := Request{Client: "A", Model: "a", Seeds: []uint64{1}}
		refused := func(jobs int, retry time.Duration) {
			t.Helper()
			_, err := e.Submit(t.Context(), request)
			full, ok := errors.AsType[*FullError](err)
			if !ok || full.Jobs != jobs || full.Retry != retry {
				t.Errorf("error %v, expected %d jobs and %v", err, jobs, retry)
			}
		}
		first := submit(t, e, "A", "a", "1")
		synctest.Wait() // it runs
		submit(t, e, "A", "a", "1")
		submit(t, e, "A", "a", "1")
		refused(2, anyRetry)
		first.Wait(t.Context())
		synctest.Wait()
		submit(t, e, "A", "a", "1")
		refused(2, 4*time.Second) // the running job has four steps of a second
		time.Sleep(1500 * time.Millisecond)
		refused(2, 2500*time.Millisecond)
		time.Sleep(2 * time.Second)
		refused(2, minRetry)
		if s := e.Stats(); s.Refused != 4 || s.Waiting != 2 || s.Queue != 2 || s.Jobs[Running] != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestNoQueue(t *testing.T) {
	change := func(_ *world, c *Config) { c.Queue = 0 }
	inBubble(t, change, func(t *testing.T, _ *world, e *Engine) {
		j := submit(t, e, "A", "a", "1")
		if _, err := e.Submit(t.Context(), Request{Seeds: []uint64{1}}); err == nil {
			t.Error("a second job was accepted")
		}
		j.Wait(t.Context())
		submit(t, e, "A", "a", "1").Wait(t.Context())
	})
}

// A pair generates two images at the same time.
type pair struct{ *fake }

func (m pair) Round(ctx context.Context, o gomflux.Options, seeds []uint64) (results []*gomflux.Result, err error) {
	for _, seed := range seeds[:min(2, len(seeds))] {
		r := &gomflux.Result{Image: image.NewRGBA(image.Rect(0, 0, 8, 8))}
		r.Settings.Seed = seed
		results = append(results, r)
	}
	return results, sleep(ctx, 4*time.Second)
}

// A model can generate several images of a job at the same time.
func TestRounds(t *testing.T) {
	change := func(_ *world, c *Config) {
		load := c.Open
		c.Open = func(
			ctx context.Context, name string, loras []gomflux.LoRA, progress func(gomflux.Progress),
		) (Model, error) {
			m, err := load(ctx, name, loras, progress)
			return pair{m.(*fake)}, err
		}
	}
	inBubble(t, change, func(t *testing.T, _ *world, e *Engine) {
		j, err := e.Submit(t.Context(), Request{Client: "A", Model: "a", Seeds: []uint64{7, 8, 9}})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := j.Wait(t.Context()); err != nil || time.Since(began) != 18*time.Second {
			t.Errorf("took %v, %v: expected 10 s for the model and 4 s for each of two rounds", time.Since(began), err)
		}
		for i, p := range j.Pictures() {
			if p.Index != i || p.Seed != uint64(7+i) || p.Result.Settings.Seed != p.Seed {
				t.Errorf("image %d: found number %d, seed %d of %d", i, p.Index, p.Result.Settings.Seed, p.Seed)
			}
		}
		if n := len(j.Pictures()); n != 3 {
			t.Errorf("%d images", n)
		}
	})
}

func TestCancel(t *testing.T) {
	for _, test := range []struct {
		name  string
		after time.Duration // since submitting it, behind a job that takes 14 seconds
		state State
		log   []string
	}{
		{"queued", 0, Queued, nil},
		{"loading", 16 * time.Second, Loading, []string{"open b"}},
		{"running", 25 * time.Second, Running, []string{"open b", "run b 2"}},
		{"the second image", 29 * time.Second, Running, []string{"open b", "run b 2", "run b 2"}},
		{"done", 40 * time.Second, Done, []string{"open b", "run b 2", "run b 2"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, w *world, e *Engine) {
				first := submit(t, e, "A", "a", "1")
				request := Request{Client: "A", Model: "b", Seeds: []uint64{1, 2}, Options: gomflux.Options{Prompt: "2"}}
				j, err := e.Submit(t.Context(), request)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(test.after)
				if s := j.Status().State; s != test.state {
					t.Fatalf("state %s, expected %s", s, test.state)
				}
				start := time.Now()
				j.Cancel()
				j.Cancel()
				err = j.Wait(t.Context())
				expected := Canceled
				if test.state == Done {
					expected = Done
				} else if !errors.Is(err, context.Canceled) {
					t.Errorf("Wait returned %v", err)
				}
				if s := j.Status(); s.State != expected || s.Err != nil {
					t.Errorf("status %+v", s)
				}
				if time.Since(start) != 0 {
					t.Errorf("it took %v", time.Since(start))
				}
				if err := first.Wait(t.Context()); err != nil {
					t.Error(err)
				}
				submit(t, e, "A", "a", "3").Wait(t.Context())
				log := w.take()
				log = slices.DeleteFunc(log, func(s string) bool { return s != "open b" && s != "run b 2" })
				if !slices.Equal(log, test.log) {
					t.Errorf("log %q, expected %q", log, test.log)
				}
			})
		})
	}
}

// TestCancelAnytime cancels jobs at random moments. Every job ends, with the right number of
// images, and the others are done.
func TestCancelAnytime(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *world, e *Engine) {
		r := rand.New(rand.NewPCG(1, 2))
		counts := map[State]int{}
		for i := range 100 {
			var jobs []*Job
			for k := range 3 {
				jobs = append(jobs, submit(t, e, fmt.Sprint(k), []string{"a", "b", "c"}[(i+k)%3], "p"))
			}
			k := r.IntN(3)
			time.Sleep(time.Duration(r.Int64N(int64(45 * time.Second))))
			before := jobs[k].Status().State
			counts[before]++
			jobs[k].Cancel()
			for n, j := range jobs {
				err := j.Wait(t.Context())
				s := j.Status()
				canceled := n == k && before != Done
				if canceled != (s.State == Canceled) || canceled != errors.Is(err, context.Canceled) || !canceled && err != nil {
					t.Fatalf("round %d, job %d, canceled while %s: %v, %+v", i, n, before, err, s)
				}
				if !canceled && len(j.Pictures()) != 1 {
					t.Fatalf("%d images", len(j.Pictures()))
				}
			}
		}
		for _, s := range []State{Queued, Loading, Running, Done} {
			if counts[s] == 0 {
				t.Errorf("no job was canceled while %s", s)
			}
		}
	})
}

func TestWaitContext(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *world, e *Engine) {
		j := submit(t, e, "A", "a", "1")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := j.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait returned %v", err)
		}
		if s := j.Status().State; s != Loading {
			t.Errorf("state %s", s)
		}
	})
}

// numbers returns the numbers of the events of a kind.
func numbers(events []Event, kind Kind) (all []int) {
	for _, e := range events {
		if e.Kind == kind {
			all = append(all, e.Number)
		}
	}
	return all
}

func TestEvents(t *testing.T) {
	change := func(w *world, _ *Config) { w.steps = 300 }
	inBubble(t, change, func(t *testing.T, _ *world, e *Engine) {
		j, err := e.Submit(t.Context(), Request{Model: "a", Seeds: []uint64{1, 2, 3}, Previews: -1})
		if err != nil {
			t.Fatal(err)
		}
		read := func(after int, wait time.Duration) (events []Event) {
			for event := range j.Events(t.Context(), after) {
				events = append(events, event)
				time.Sleep(wait)
			}
			return events
		}
		var wg sync.WaitGroup
		all := make([][]Event, 3)
		for i, wait := range []time.Duration{0, time.Millisecond, 7 * time.Second} {
			wg.Go(func() { all[i] = read(0, wait) })
		}
		var few int
		wg.Go(func() {
			for range j.Events(t.Context(), 0) {
				if few++; few == 5 {
					return // a reader that goes away
				}
			}
		})
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
			defer cancel()
			for range j.Events(ctx, 0) {
			}
			if time.Since(j.Status().Created) != 100*time.Second {
				t.Error("the reader did not end with its context")
			}
		})
		wg.Wait()
		all = append(all, read(0, 0), read(1000, 0)) // late ones
		const last = 3 + 3*(300*2+1) + 1             // queued, loading, steps with previews and pictures, done
		for i, events := range all {
			complete := i < 2
			if complete != (len(events) == last) {
				t.Errorf("reader %d: %d events of %d", i, len(events), last)
			}
			if n := len(events); n == 0 || events[n-1].Kind != EventDone || events[n-1].Number != last {
				t.Fatalf("reader %d: the last event of %d is %+v", i, n, events[max(0, n-1)])
			}
			pictures := 3
			if i == 4 {
				pictures = 2 // the first one has the number 604
			}
			if n := numbers(events, EventPicture); len(n) != pictures || !slices.Contains(n, last-1) {
				t.Errorf("reader %d: pictures %v", i, n)
			}
			if !slices.IsSortedFunc(events, func(a, b Event) int { return a.Number - b.Number }) {
				t.Errorf("reader %d: the events are not in order", i)
			}
		}
		if few != 5 {
			t.Errorf("%d events", few)
		}
		if n := len(numbers(all[3], EventStep)); n > maxSmallEvents || n < maxSmallEvents-10 {
			t.Errorf("%d steps are kept", n)
		}
		if again := read(last, 0); len(again) != 0 {
			t.Errorf("events after the end: %v", again)
		}
	})
}

// TestEstimatesBySize: images of another size do not change what is estimated for a size that is known, and a
// model that was never loaded is estimated by the part of it that is loaded.
func TestEstimatesBySize(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world, e *Engine) {
		made := func(side int, step time.Duration) (predicted time.Duration) {
			t.Helper()
			w.step = step
			r := Request{Client: "A", Seeds: []uint64{1}, Options: gomflux.Options{Width: side, Height: side}}
			j, err := e.Submit(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			predicted = j.Status().Left
			j.Wait(t.Context())
			synctest.Wait()
			return predicted
		}
		made(64, time.Second)
		if left := made(256, 160*time.Second); left != 64*time.Second { // 16 times the pixels, in fact more
			t.Errorf("the first large image: %v", left)
		}
		if left := made(64, time.Second); left != 4*time.Second {
			t.Errorf("a small image after a large one: %v, expected 4 s", left)
		}
		if left := made(256, 160*time.Second); left != 640*time.Second {
			t.Errorf("the second large image: %v, expected 640 s", left)
		}
		if left := made(72, time.Second); left < 4*time.Second || left > 6*time.Second {
			t.Errorf("an image of about the same size: %v, expected 5 s", left)
		}
		w.loading, w.step = 100*time.Second, time.Second
		b := submit(t, e, "A", "b", "1")
		time.Sleep(60 * time.Second) // a half was loaded after 50 seconds
		synctest.Wait()
		if s := b.Status(); s.State != Loading || s.Left != 44*time.Second {
			t.Errorf("%v, %v left, expected 40 seconds of loading and 4 of steps", s.State, s.Left)
		}
	})
}

// TestNotFinite: a number that is far from ordinary ones is the request's fault, and is named. Otherwise the
// client does not read about files and flags.
func TestNotFinite(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world, e *Engine) {
		w.run = func(context.Context, gomflux.Options) error { return &gomflux.NotFiniteError{What: "latents"} }
		g := func(v float64) *float64 { return &v }
		for _, test := range []struct {
			options gomflux.Options
			lora    float64
			want    string // the error of a request, "" for one of the server
		}{
			{gomflux.Options{}, 0, ""},
			{gomflux.Options{Guidance: g(10)}, 1, ""},
			{gomflux.Options{Guidance: g(1e30)}, 0, "guidance 1e+30"},
			{gomflux.Options{Guidance: g(4)}, -1e9, "LoRA ink: scale -1e+09"},
		} {
			r := Request{Client: "A", Seeds: []uint64{1}, Options: test.options}
			if test.lora != 0 {
				r.LoRAs = []gomflux.LoRA{{Path: "ink", Scale: test.lora}}
			}
			j, err := e.Submit(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			err = j.Wait(t.Context())
			text, ofRequest := fmt.Sprint(err), errors.Is(err, gomflux.ErrRequest)
			if ofRequest != (test.want != "") || !strings.HasPrefix(text, test.want) ||
				!strings.Contains(text, "latents that are NaN") {
				t.Errorf("%+v: %v", test, err)
			}
		}
	})
}

// TestEventsPreviewBytes checks the limit for the previews that are kept.
func TestEventsPreviewBytes(t *testing.T) {
	j := &Job{engine: New(newWorld().config()), id: "x", images: 1, steps: 1, state: Running, work: work{1, 1}}
	defer j.engine.Close(t.Context())
	big := image.NewRGBA(image.Rect(0, 0, 1024, 1024))
	for range 10 {
		j.publish(Event{Kind: EventPreview, Preview: big})
	}
	if n := numbers(j.events, EventPreview); !slices.Equal(n, []int{7, 8, 9, 10}) || j.bytes() != maxPreviewBytes {
		t.Errorf("previews %v, %d bytes", n, j.bytes())
	}
	j.publish(Event{Kind: EventPreview, Preview: image.NewRGBA(image.Rect(0, 0, 4096, 4096))})
	if n := numbers(j.events, EventPreview); !slices.Equal(n, []int{11}) {
		t.Errorf("previews %v: expected the newest one", n)
	}
}

func TestQueuedEvents(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *world, e *Engine) {
		for range 3 {
			submit(t, e, "A", "a", "1")
		}
		j := submit(t, e, "A", "a", "2")
		var ahead []int
		for event := range j.Events(t.Context(), 0) {
			if event.Kind == EventQueued {
				ahead = append(ahead, event.Status.Ahead)
			}
		}
		if !slices.Equal(ahead, []int{3, 2, 1, 0}) {
			t.Errorf("jobs ahead %v", ahead)
		}
	})
}

// TestLoadingEvents loads a model of many tensors, which takes 25 seconds. Readers that come late
// see the first event and the newest one about loading.
func TestLoadingEvents(t *testing.T) {
	change := func(w *world, c *Config) {
		open := c.Open
		c.Open = func(
			ctx context.Context, name string, loras []gomflux.LoRA, progress func(gomflux.Progress),
		) (Model, error) {
			for i := range int64(1000) {
				progress(gomflux.Progress{Phase: gomflux.PhaseLoad, Bytes: i + 1, TotalBytes: 1000})
				if err := sleep(ctx, 25*time.Millisecond); err != nil {
					return nil, err
				}
			}
			return open(ctx, name, loras, func(gomflux.Progress) {})
		}
	}
	inBubble(t, change, func(t *testing.T, _ *world, e *Engine) {
		j := submit(t, e, "A", "a", "1")
		var live []Event
		for event := range j.Events(t.Context(), 0) {
			if event.Kind == EventLoading {
				live = append(live, event)
			}
		}
		if n := len(live); n != 126 || live[0].Bytes != 1 || live[1].Bytes != 9 || live[n-1].Bytes != 1000 {
			t.Errorf("%d events about loading: %+v", n, live)
		}
		var late []Event
		for event := range j.Events(t.Context(), 0) {
			late = append(late, event)
		}
		if len(late) != 8 || late[0].Kind != EventQueued || late[0].Number != 1 || late[1].Bytes != 1000 {
			t.Errorf("events that are kept: %+v", late)
		}
	})
}

func TestPreviews(t *testing.T) {
	for _, test := range []struct {
		previews, steps int
		expected        []int // steps with previews
	}{
		{0, 4, nil},
		{1, 4, []int{2}},
		{3, 4, []int{1, 2, 3}},
		{2, 9, []int{3, 6}},
		{3, 20, []int{5, 10, 15}},
		{3, 9, []int{3, 5, 7}},
		{-1, 3, []int{1, 2, 3}},
		{5, 3, []int{1, 2, 3}},
		{1, 1, []int{1}},
	} {
		change := func(w *world, _ *Config) { w.steps = test.steps }
		inBubble(t, change, func(t *testing.T, w *world, e *Engine) {
			j, err := e.Submit(t.Context(), Request{Seeds: []uint64{1}, Previews: test.previews})
			if err != nil {
				t.Fatal(err)
			}
			var found []int
			for event := range j.Events(t.Context(), 0) {
				if event.Kind == EventPreview {
					if event.Part != len(found) || event.Preview == nil {
						t.Errorf("preview %+v, expected part %d", event, len(found))
					}
					found = append(found, event.Status.Step)
				}
			}
			if !slices.Equal(found, test.expected) {
				t.Errorf("%d previews in %d steps are after steps %v, expected %v", test.previews, test.steps, found, test.expected)
			}
			if (w.asked[0].OnStep != nil) != (test.previews != 0) {
				t.Error("latents are computed for nobody, or not for the previews")
			}
		})
	}
}

func TestPreviewsFail(t *testing.T) {
	for _, test := range []struct {
		name    string
		preview func() error
		calls   int // in two jobs with four steps
	}{
		{"error", func() error { return errors.New("no previews") }, 8},
		{"panic", func() error { panic("no previews") }, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			calls := 0
			change := func(w *world, _ *Config) { w.preview = func() error { calls++; return test.preview() } }
			inBubble(t, change, func(t *testing.T, w *world, e *Engine) {
				for range 2 {
					j, err := e.Submit(t.Context(), Request{Seeds: []uint64{1}, Previews: -1})
					if err != nil {
						t.Fatal(err)
					}
					if err := j.Wait(t.Context()); err != nil || len(j.Pictures()) != 1 {
						t.Errorf("%v, %d images", err, len(j.Pictures()))
					}
				}
				expectLog(t, w, "open a", "run a ", "run a ")
				if calls != test.calls {
					t.Errorf("%d calls, expected %d", calls, test.calls)
				}
			})
		})
	}
}

func TestForgotten(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *world, e *Engine) {
		j := submit(t, e, "A", "a", "1")
		other := submit(t, e, "B", "a", "2")
		for client, expected := range map[string]int{"": 2, "A": 1, "B": 1, "C": 0} {
			if n := len(e.Jobs(client)); n != expected {
				t.Errorf("client %q sees %d jobs, expected %d", client, n, expected)
			}
		}
		if all := e.Jobs(""); all[0].ID != other.ID() || all[1].ID != j.ID() {
			t.Error("the newest job is not the first")
		}
		for client, expected := range map[string]bool{"": true, "A": true, "B": false} {
			if found, ok := e.Job(j.ID(), client); ok != expected || ok != (found == j) {
				t.Errorf("client %q: %v, expected %v", client, ok, expected)
			}
		}
		other.Wait(t.Context())
		time.Sleep(time.Hour - time.Second)
		if _, ok := e.Job(other.ID(), ""); !ok {
			t.Error("the job is forgotten before Config.Keep")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		e.mu.Lock()
		if len(e.list) != 0 {
			t.Errorf("%d jobs are kept", len(e.list))
		}
		e.mu.Unlock()
		if len(other.Pictures()) != 1 {
			t.Error("the images of a job that was forgotten are gone for those who have it")
		}
	})
}

// TestStored checks that a job whose images are stored keeps everything but pixels, and that those who
// have it lose nothing.
func TestStored(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *world, e *Engine) {
		j, err := e.Submit(t.Context(), Request{Model: "a", Seeds: []uint64{7, 8}, Previews: -1})
		if err != nil {
			t.Fatal(err)
		}
		j.Stored() // too early
		j.Wait(t.Context())
		if found, _ := e.Job(j.ID(), ""); found != j {
			t.Error("the running job was replaced")
		}
		j.Stored()
		found, ok := e.Job(j.ID(), "")
		if !ok || found.bytes() != 0 || !reflect.DeepEqual(found.Status(), j.Status()) || len(e.Jobs("")) != 1 {
			t.Errorf("the job takes %d bytes: %+v", found.bytes(), found.Status())
		}
		var events []Event
		for event := range found.Events(t.Context(), 0) {
			events = append(events, event)
		}
		var expected []Event
		for event := range j.Events(t.Context(), 0) {
			if p := event.Picture; p != nil {
				if p.Result.Image == nil {
					t.Error("those who have the job lose its images")
				}
				result := *p.Result
				result.Image = nil
				bare := *p
				bare.Result = &result
				event.Picture = &bare
			}
			if event.Kind != EventPreview {
				expected = append(expected, event)
			}
		}
		if !reflect.DeepEqual(events, expected) {
			t.Errorf("found\n%+v, expected\n%+v", events, expected)
		}
		found.Stored() // again
		j.Stored()     // no longer the engine's
		if again, _ := e.Job(j.ID(), ""); len(again.Pictures()) != 2 || again.Pictures()[1].Seed != 8 {
			t.Errorf("found %+v", again.Pictures())
		}
	})
}

func TestForgottenMany(t *testing.T) {
	change := func(w *world, c *Config) { w.step, w.steps = 0, 0 }
	inBubble(t, change, func(t *testing.T, _ *world, e *Engine) {
		for range maxEnded + 50 {
			submit(t, e, "A", "a", "1").Wait(t.Context())
		}
		if n := len(e.Jobs("")); n != maxEnded {
			t.Errorf("%d jobs are kept, expected %d", n, maxEnded)
		}
		big := &gomflux.Result{Image: &image.RGBA{Pix: make([]byte, maxEndedBytes/2)}}
		e.mu.Lock()
		for _, j := range e.list[len(e.list)-4:] {
			j.pictures = []*Picture{{Result: big}} // the same memory
		}
		e.forget()
		if n := len(e.list); n != 2 {
			t.Errorf("%d jobs are kept, expected the two that fit", n)
		}
		e.mu.Unlock()
	})
}

func TestRequest(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world, e *Engine) {
		start := image.NewRGBA(image.Rect(0, 0, 64, 64))
		o := gomflux.Options{Prompt: "p", Image: start, References: []image.Image{start}}
		for _, cancel := range []bool{false, true} {
			j, err := e.Submit(t.Context(), Request{Model: "b", Options: o, Seeds: []uint64{1}})
			if err != nil {
				t.Fatal(err)
			}
			if r := j.submitted(); r.Options.Image == nil || len(r.Options.References) != 1 {
				t.Errorf("request %+v", r)
			}
			if cancel {
				j.Cancel()
			}
			j.Wait(t.Context())
			if r := j.submitted(); r.Options.Image != nil || r.Options.References != nil || r.Options.Prompt != "p" || r.Model != "b" {
				t.Errorf("request %+v after the end", r)
			}
		}
		if len(w.asked) != 1 || w.asked[0].Image == nil || len(w.asked[0].References) != 1 {
			t.Errorf("the model was given %+v", w.asked)
		}
	})
}

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := NewID()
		if len(id) != 32 || seen[id] {
			t.Fatalf("id %q", id)
		}
		seen[id] = true
	}
}

func TestEstimates(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *world, e *Engine) {
		first := submit(t, e, "A", "a", "1")
		if s := first.Status(); s.Left != 0 {
			t.Errorf("%v left, expected 0 because nothing is known", s.Left)
		}
		first.Wait(t.Context())
		synctest.Wait()
		double, err := e.Submit(t.Context(), Request{Client: "A", Seeds: []uint64{1, 2}, Options: gomflux.Options{Steps: 8, Width: 128}})
		if err != nil {
			t.Fatal(err)
		}
		last := submit(t, e, "A", "a", "3")
		synctest.Wait()
		const each = 16 * time.Second // four times the work of the first, in fact only 4 seconds
		if s := double.Status(); s.Left != 2*each {
			t.Errorf("%v left, expected %v", s.Left, 2*each)
		}
		if s := last.Status(); s.Left != 2*each+4*time.Second {
			t.Errorf("%v left, expected %v", s.Left, 2*each+4*time.Second)
		}
		time.Sleep(2500 * time.Millisecond) // two of four steps
		// as fast as its steps were: the other half of this image, whose step began 0.5 seconds ago, and the next one
		const half = 1500 * time.Millisecond
		if s := double.Status(); s.Left != half+4*time.Second || s.Step != 2 || s.Steps != 4 || s.Image != 0 || s.Images != 2 {
			t.Errorf("status %+v", s)
		}
		last.Wait(t.Context())
		if s := last.Status(); s.Left != 0 {
			t.Errorf("%v left after the end", s.Left)
		}
		b := submit(t, e, "A", "b", "4")
		b.Wait(t.Context())
		e.Unload()
		b = submit(t, e, "A", "b", "5")
		if s := b.Status(); s.Left < 13*time.Second || s.Left > 15*time.Second {
			t.Errorf("%v left, expected 10 seconds of loading and 4 of steps", s.Left)
		}
	})
}

func TestStats(t *testing.T) {
	change := func(_ *world, c *Config) { c.Memory = func() (active, cache int64) { return 42, 7 } }
	inBubble(t, change, func(t *testing.T, _ *world, e *Engine) {
		submit(t, e, "A", "a", "1")
		submit(t, e, "A", "a", "2").Wait(t.Context())
		j := submit(t, e, "A", "a", "3")
		submit(t, e, "A", "a", "4")
		synctest.Wait()
		s := e.Stats()
		if s.Jobs[Done] != 2 || s.Jobs[Running] != 1 || s.Jobs[Queued] != 1 || s.Jobs[Loading] != 0 || s.Pictures != 2 {
			t.Errorf("stats %+v", s)
		}
		if s.Seconds[gomflux.PhaseLoad] != 10 || s.Seconds[gomflux.PhaseStep] != 8 || s.WaitSeconds != 14 || s.Loads != 1 {
			t.Errorf("stats %+v", s)
		}
		if s.Model != "a" || s.Memory != 42 || s.CacheMemory != 7 {
			t.Errorf("model %q, memory %d, cache %d", s.Model, s.Memory, s.CacheMemory)
		}
		s.Jobs[Done] = 100
		if e.Stats().Jobs[Done] != 2 {
			t.Error("the counters of the engine can be changed")
		}
		j.Wait(t.Context())
	})
}

func TestClient(t *testing.T) {
	if name := Client(WithClient(t.Context(), "me")); name != "me" {
		t.Errorf("client %q", name)
	}
	if name := Client(t.Context()); name != "" {
		t.Errorf("client %q without a name", name)
	}
}

// TestManyClients runs 1000 jobs of 64 clients that retry when the queue is full. No job is lost
// or runs twice, and no client falls back.
func TestManyClients(t *testing.T) {
	const clients, jobs = 64, 1000
	ran := map[string]int{}
	var mu sync.Mutex
	change := func(w *world, c *Config) {
		c.Queue = 40
		w.step, w.steps, w.loading = time.Millisecond, 2, 20*time.Millisecond
		w.run = func(_ context.Context, o gomflux.Options) error {
			mu.Lock()
			defer mu.Unlock()
			ran[o.Prompt]++
			return nil
		}
	}
	inBubble(t, change, func(t *testing.T, w *world, e *Engine) {
		var wg sync.WaitGroup
		for client := range clients {
			wg.Go(func() {
				for i := client; i < jobs; i += clients {
					request := Request{
						Client: fmt.Sprint("client", client), Model: []string{"a", "b", "c"}[i%3], Previews: i % 3,
						Options: gomflux.Options{Prompt: fmt.Sprint(i)}, Seeds: []uint64{uint64(i)},
					}
					j, err := e.Submit(t.Context(), request)
					for err != nil {
						full, ok := errors.AsType[*FullError](err)
						if !ok {
							t.Error(err)
							return
						}
						time.Sleep(full.Retry / 100)
						j, err = e.Submit(t.Context(), request)
					}
					pictures := 0
					for event := range j.Events(t.Context(), 0) {
						if event.Kind == EventPicture && event.Picture.Seed == uint64(i) {
							pictures++
						}
					}
					if err := j.Wait(t.Context()); err != nil || pictures != 1 {
						t.Errorf("job %d: %v, %d images", i, err, pictures)
					}
				}
			})
		}
		wg.Wait()
		for i := range jobs {
			if n := ran[fmt.Sprint(i)]; n != 1 {
				t.Errorf("job %d ran %d times", i, n)
			}
		}
		if s := e.Stats(); s.Jobs[Done] != jobs || s.Pictures != jobs || s.Waiting != 0 || s.Refused == 0 || s.Loads > jobs/maxRun {
			t.Errorf("stats %+v", s)
		}
	})
}
