package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// named adds a job to a queue that can be recognised by its id.
func (q *queue) named(client, key, id string) { q.add(client, key, &Job{id: id, client: client}) }

// drain returns the ids of the jobs in the order in which they run.
func drain(q *queue, key string) (ids []string) {
	for w := q.next(key); w != nil; w = q.next(key) {
		ids, key = append(ids, w.job.id), w.key
	}
	return ids
}

func TestQueueOrder(t *testing.T) {
	for _, test := range []struct {
		name, jobs, loaded, expected string
	}{
		{"one client", "A:x A:x A:x", "", "A1 A2 A3"},
		{"clients take turns", "A:x A:x A:x B:x C:x C:x", "", "A1 B1 C1 A2 C2 A3"},
		{"a late client need not wait for all jobs of another", "A:x A:x A:x A:x B:x", "x", "A1 B1 A2 A3 A4"},
		{"the model in memory comes first", "A:x B:y A:x B:y A:x B:y", "y", "B1 B2 B3 A1 A2 A3"},
		{"without one, the first in turn decides", "A:x B:y A:x B:y A:x B:y", "", "A1 A2 A3 B1 B2 B3"},
		{"within a client too", "A:x A:y A:x A:y", "y", "A2 A4 A1 A3"},
		{"within a client and a model, first come first served", "A:y A:x A:x A:y A:y", "x", "A2 A3 A1 A4 A5"},
		{"turns among those with the model in memory", "A:x B:y C:y B:y C:y", "y", "B1 C1 B2 C2 A1"},
		{"three models", "A:x B:y C:z A:z B:x C:y", "z", "C1 A2 B1 C2 A1 B2"},
		{
			"at most maxRun jobs in a row pass over others", "A:x" + strings.Repeat(" B:y", 10), "y",
			"B1 B2 B3 B4 B5 B6 B7 B8 A1 B9 B10",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			var q queue
			count := map[string]int{}
			for _, job := range strings.Fields(test.jobs) {
				client, key, _ := strings.Cut(job, ":")
				count[client]++
				q.named(client, key, fmt.Sprint(client, count[client]))
			}
			var predicted []string
			for _, w := range q.order(test.loaded) {
				predicted = append(predicted, w.job.id)
			}
			expected := strings.Fields(test.expected)
			if !slices.Equal(predicted, expected) {
				t.Errorf("order: %q, expected %q", predicted, expected)
			}
			if order := drain(&q, test.loaded); !slices.Equal(order, expected) {
				t.Errorf("found %q, expected %q", order, expected)
			}
			if q.n != 0 || len(q.lines) != 0 {
				t.Errorf("%d jobs are left in %d lines", q.n, len(q.lines))
			}
		})
	}
}

// TestQueueBound adds jobs at random while others are taken. No job may be passed over more often
// than promised, and the jobs of a client and a model keep their order.
func TestQueueBound(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 20))
		var q queue
		key, most, switches, taken := "", 0, 0, 0
		passed, newest := map[string]int{}, map[string]int{}
		add := func(i int) {
			// Most jobs are for two models, and many from one client.
			client := fmt.Sprint("client", min(r.IntN(12), r.IntN(12)))
			q.named(client, fmt.Sprint("model", min(r.IntN(6), r.IntN(6), r.IntN(6))), strconv.Itoa(i))
		}
		for i := range 2000 {
			if add(i); i < 60 {
				continue
			}
			turns := q.turns()
			w := q.next(key)
			for _, before := range turns[:slices.Index(turns, w)] {
				id := before.job.id
				passed[id]++
				most = max(most, passed[id])
			}
			if id, _ := strconv.Atoi(w.job.id); id < newest[w.job.client+w.key] {
				t.Errorf("seed %d: job %d runs after job %d of its client and model", seed, id, newest[w.job.client+w.key])
			} else {
				newest[w.job.client+w.key] = id
			}
			if w.key != key {
				switches++
			}
			key = w.key
			taken++
		}
		if most > maxPassed {
			t.Errorf("seed %d: a job was passed over by %d jobs, expected at most %d", seed, most, maxPassed)
		}
		if switches > taken/3 {
			t.Errorf("seed %d: %d switches of models in %d jobs", seed, switches, taken)
		}
	}
}

// TestQueueStream checks that clients that always have another job for the model in memory delay a
// job for another model by no more than maxRun jobs.
func TestQueueStream(t *testing.T) {
	var q queue
	q.named("A", "x", "A")
	for i := range 100 {
		q.named(fmt.Sprint("B", i), "y", "B")
		q.named(fmt.Sprint("C", i), "y", "C")
		if q.next("y").job.id == "A" {
			if i != maxRun {
				t.Errorf("it ran after %d jobs, expected %d", i, maxRun)
			}
			return
		}
	}
	t.Error("it never ran")
}

// TestQueueLong checks that the order of a long queue has every job once.
func TestQueueLong(t *testing.T) {
	var q queue
	for i := range 3 * maxOrdered {
		q.named(fmt.Sprint("client", i%7), fmt.Sprint("model", i%5), strconv.Itoa(i))
	}
	seen := map[*Job]bool{}
	order := q.order("model3")
	for _, w := range order {
		seen[w.job] = true
	}
	if len(order) != 3*maxOrdered || len(seen) != len(order) {
		t.Errorf("%d jobs in the order, %d different ones, expected %d", len(order), len(seen), 3*maxOrdered)
	}
	if first := q.next("model3"); first.job != order[0].job || first.passed != order[0].passed {
		t.Error("the order has changed the queue")
	}
}
