package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gomflux/gomflux"
)

// trySubmit submits a job with one image, and returns how it was refused.
func trySubmit(t *testing.T, e *Engine, client string) *FullError {
	t.Helper()
	_, err := e.Submit(t.Context(), Request{Client: client, Model: "a", Seeds: []uint64{1}})
	full, ok := errors.AsType[*FullError](err)
	if err != nil && !ok {
		t.Fatal(err)
	}
	return full
}

// fill submits jobs until one is refused, and returns how many were not.
func fill(t *testing.T, e *Engine, client string) (n int) {
	t.Helper()
	for ; trySubmit(t, e, client) == nil; n++ {
	}
	return n
}

func TestShares(t *testing.T) {
	for _, test := range []struct {
		queue   int
		shared  bool
		clients string // in the order in which they submit as many jobs as they can
		expect  string
	}{
		{64, false, "A B", "64 0"},
		{64, true, "A A", "32 0"},
		{64, true, "A B C D E F G H", "32 16 8 4 2 1 1 0"},
		{7, true, "A B C D", "4 2 1 0"},
		{1, true, "A B", "1 0"},
		{0, true, "A", "0"},
	} {
		change := func(_ *world, c *Config) { c.Queue, c.Shared = test.queue, test.shared }
		inBubble(t, change, func(t *testing.T, _ *world, e *Engine) {
			submit(t, e, "first", "a", "1")
			synctest.Wait() // it runs
			var found []string
			for client := range strings.FieldsSeq(test.clients) {
				found = append(found, fmt.Sprint(fill(t, e, client)))
			}
			if text := strings.Join(found, " "); text != test.expect {
				t.Errorf("queue %d, shared %v, clients %s: %s jobs, expected %s", test.queue, test.shared, test.clients, text, test.expect)
			}
		})
	}
}

// TestSharesNewcomers checks that a place that becomes free is for clients without waiting jobs.
func TestSharesNewcomers(t *testing.T) {
	change := func(_ *world, c *Config) { c.Queue, c.Shared = 8, true }
	inBubble(t, change, func(t *testing.T, _ *world, e *Engine) {
		first := submit(t, e, "first", "a", "1")
		synctest.Wait()
		for i, expected := range []int{4, 2, 1, 1} {
			if n := fill(t, e, fmt.Sprint("client", i)); n != expected {
				t.Errorf("client %d: %d jobs, expected %d", i, n, expected)
			}
		}
		if full := trySubmit(t, e, "new"); full == nil || full.Jobs != 8 || full.Own != 0 {
			t.Fatalf("%+v, expected a full queue", full)
		}
		first.Wait(t.Context())
		synctest.Wait() // the first job of client 0 runs
		for i, own := range []int{3, 2, 1, 1} {
			if full := trySubmit(t, e, fmt.Sprint("client", i)); full == nil || full.Own != own {
				t.Errorf("client %d took the place though it has jobs: %+v, expected %d", i, full, own)
			}
		}
		if full := trySubmit(t, e, "new"); full != nil {
			t.Errorf("a client without jobs was refused though there was a place: %v", full)
		}
	})
}

// TestTurns checks that a client that gets many images has its next turn later, unless it did not
// get them.
func TestTurns(t *testing.T) {
	for _, test := range []struct {
		cancel bool
		order  []string
	}{
		{false, []string{"A many", "A many", "A many", "B 1", "B 2", "B 3", "A next", "B 4"}},
		{true, []string{"A many", "B 1", "B 2", "A next", "B 3", "B 4"}},
	} {
		inBubble(t, nil, func(t *testing.T, w *world, e *Engine) {
			request := Request{Client: "A", Model: "a", Seeds: []uint64{1, 2, 3}, Options: gomflux.Options{Prompt: "A many"}}
			first, err := e.Submit(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			var jobs []*Job
			for i := range 4 {
				jobs = append(jobs, submit(t, e, "B", "a", fmt.Sprint("B ", i+1)))
			}
			time.Sleep(11 * time.Second) // in the first image
			if test.cancel {
				first.Cancel()
				first.Wait(t.Context())
			}
			for _, j := range append(jobs, submit(t, e, "A", "a", "A next")) {
				j.Wait(t.Context())
			}
			var order []string
			for _, line := range w.take() {
				if name, ok := strings.CutPrefix(line, "run a "); ok {
					order = append(order, name)
				}
			}
			if !slices.Equal(order, test.order) {
				t.Errorf("canceled %v: order %q, expected %q", test.cancel, order, test.order)
			}
		})
	}
}

// TestRetry checks that a client that comes back after FullError.Retry finds a place if no others
// came, and without shares not much earlier.
func TestRetry(t *testing.T) {
	for _, shared := range []bool{false, true} {
		change := func(_ *world, c *Config) { c.Queue, c.Shared = 9, shared }
		inBubble(t, change, func(t *testing.T, _ *world, e *Engine) {
			submit(t, e, "A", "a", "1").Wait(t.Context())
			synctest.Wait()
			submit(t, e, "A", "a", "1")
			synctest.Wait()
			for _, client := range []string{"A", "B", "A", "A"} {
				fill(t, e, client)
				full := trySubmit(t, e, client)
				if (full.Own > 0) != shared || strings.Contains(full.Error(), "are yours") != shared {
					t.Errorf("shared %v: %v, own %d", shared, full, full.Own)
				}
				if full.Retry > minRetry {
					time.Sleep(full.Retry - minRetry)
					synctest.Wait()
					if !shared && trySubmit(t, e, client) == nil {
						t.Errorf("shared %v: there was a place before %v", shared, full.Retry)
					}
					time.Sleep(minRetry)
				} else {
					time.Sleep(full.Retry)
				}
				synctest.Wait()
				if again := trySubmit(t, e, client); again != nil {
					t.Errorf("shared %v, client %s: refused again after %v: %v", shared, client, full.Retry, again)
				}
				time.Sleep(time.Second) // retries at other moments of a job
			}
		})
	}
}

// TestRetryCrowd checks that a client that wants more than its share is not told to come back again
// and again while others always take the places that become free.
func TestRetryCrowd(t *testing.T) {
	change := func(_ *world, c *Config) { c.Queue, c.Shared = 9, true }
	inBubble(t, change, func(t *testing.T, _ *world, e *Engine) {
		submit(t, e, "first", "a", "1").Wait(t.Context())
		end := time.Now().Add(time.Hour)
		done, refused := map[string]int{}, map[string]int{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range 12 {
			client := fmt.Sprint("client", i)
			if i >= 8 {
				client = "greedy" // has four jobs at once
			}
			wg.Go(func() {
				for time.Now().Before(end) {
					j, err := e.Submit(t.Context(), Request{Client: client, Model: "a", Seeds: []uint64{1}})
					mu.Lock()
					if full, ok := errors.AsType[*FullError](err); ok {
						refused[client]++
						mu.Unlock()
						time.Sleep(full.Retry)
						continue
					}
					done[client]++
					mu.Unlock()
					j.Wait(t.Context())
				}
			})
		}
		wg.Wait()
		for client, n := range done {
			if n < 98 || n > 112 { // of 900
				t.Errorf("%s: %d jobs, expected 100", client, n)
			}
		}
		if n := refused["greedy"]; n > 5*done["greedy"] {
			t.Errorf("the greedy client was refused %d times for %d jobs", n, done["greedy"])
		}
		t.Log(done, refused)
	})
}
