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
func (q *queue) named(client, key, id string) {
	q.add(client, key, &Job{id: id, client: client, images: 1})
}

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
		{"each image is a turn", "A:x:3 A:x B:x B:x B:x B:x B:x", "", "A1 B1 B2 B3 A2 B4 B5"},
		{"whoever came first", "B:x B:x B:x A:x:2 C:x:3 A:x C:x", "", "B1 A1 C1 B2 B3 A2 C2"},
		{
			"at most maxRun jobs in a row pass over others", "A:x" + strings.Repeat(" B:y", 10), "y",
			"B1 B2 B3 B4 B5 B6 B7 B8 A1 B9 B10",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			var q queue
			count := map[string]int{}
			for _, job := range strings.Fields(test.jobs) {
				f := strings.Split(job+":1", ":")
				count[f[0]]++
				images, _ := strconv.Atoi(f[2])
				q.add(f[0], f[1], &Job{id: fmt.Sprint(f[0], count[f[0]]), client: f[0], images: images})
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

// TestQueueImages has clients that always have a job, with different numbers of images. All get the
// same number of images, with and without other jobs that wait behind theirs.
func TestQueueImages(t *testing.T) {
	for _, behind := range []int{0, 2} {
		var q queue
		sizes := map[string]int{"A": 1, "B": 4, "C": 16, "D": 64}
		got := map[string]int{}
		add := func(client string) { q.add(client, "x", &Job{client: client, images: sizes[client]}) }
		for range behind + 1 {
			for client := range sizes {
				add(client)
			}
		}
		for range 64 * 85 { // 64 jobs of D
			w := q.next("x")
			got[w.job.client] += w.job.images
			add(w.job.client)
		}
		for client, n := range got {
			if n < 64*60 || n > 64*70 {
				t.Errorf("%d more jobs wait: client %s got %d images, expected %d", behind, client, n, 64*64)
			}
		}
		if len(q.later) > len(sizes) {
			t.Errorf("%d rounds are kept", len(q.later))
		}
	}
}

// TestQueueGiveBack: a client that did not get its images need not wait for them.
func TestQueueGiveBack(t *testing.T) {
	for _, test := range []struct {
		waits    bool // the client has another job when the first one ends
		images   int  // that it did not get
		expected string
	}{
		{true, 0, "B1 B2 B3 B4 A2"}, {true, 3, "B1 A2 B2 B3 B4"}, {true, 100, "B1 A2 B2 B3 B4"},
		{false, 0, "B1 B2 B3 B4 A2"}, {false, 3, "B1 B2 A2 B3 B4"}, {false, 2, "B1 B2 B3 A2 B4"},
	} {
		var q queue
		q.add("A", "x", &Job{id: "A1", client: "A", images: 4})
		for i := range 4 {
			q.named("B", "x", fmt.Sprint("B", i+1))
		}
		if test.waits {
			q.named("A", "x", "A2")
		}
		q.next("x")
		q.giveBack("A", test.images)
		if !test.waits {
			q.named("A", "x", "A2")
		}
		if order := strings.Join(drain(&q, "x"), " "); order != test.expected {
			t.Errorf("%+v: found %s", test, order)
		}
	}
}

// TestQueueNewcomers checks that clients that always come new do not keep others from their turns.
func TestQueueNewcomers(t *testing.T) {
	var q queue
	q.add("A", "x", &Job{images: 3})
	q.named("A", "x", "A")
	for i := range 5 {
		q.named(fmt.Sprint("first", i), "x", "first")
	}
	for i := range 20 {
		if q.next("x").job.id == "A" {
			return
		}
		q.named(fmt.Sprint("new", i), "x", "new")
	}
	t.Error("a job did not run though 20 others ran that came later")
}
