package engine

import (
	"cmp"
	"maps"
	"slices"
)

const (
	// maxRun is how many jobs in a row may run before the job whose turn it is because the
	// model that they need is in memory.
	maxRun = 8
	// maxPassed is how many jobs may pass over a single job.
	maxPassed = 32
	// maxOrdered is how many jobs are put into the exact order by queue.order. Each takes a time
	// that is proportional to the length of the queue.
	maxOrdered = 200
)

// A queue has the jobs that wait, in the order that [Engine] describes. If the next job in turn
// needs another model than the one in memory, the first job for the model in memory passes over it
// and over those between them. A job that was passed over maxPassed times runs before all jobs that
// were not, so that the number cannot grow.
//
// Turns are as in start-time fair queueing: rounds are numbered, each image takes a round of its
// client, and the job with the lowest round is next in turn.
type queue struct {
	lines []*line        // of clients that have waiting jobs; within a round, the first has its turn first
	round int            // of the newest job that was next in turn
	later map[string]int // first rounds of clients without waiting jobs, if they are not the next one
	run   int            // jobs that passed over others since a model was loaded
	n     int            // jobs in all lines
}

// A line has the waiting jobs of a client.
type line struct {
	client string
	jobs   []*waiting
	round  int // of the first job
}

// A waiting job needs the model with a key.
type waiting struct {
	job    *Job
	key    string
	passed int // how many jobs passed over it
}

// rounds returns how many rounds the job takes.
func (w *waiting) rounds() int { return max(1, w.job.images) }

// add appends a job to the line of its client.
func (q *queue) add(client, key string, j *Job) {
	q.n++
	w := &waiting{job: j, key: key}
	for _, l := range q.lines {
		if l.client == client {
			l.jobs = append(l.jobs, w)
			return
		}
	}
	q.lines = append(q.lines, &line{client, []*waiting{w}, max(q.round+1, q.later[client])})
	delete(q.later, client)
}

// waiting returns the number of jobs of a client.
func (q *queue) waiting(client string) int {
	for _, l := range q.lines {
		if l.client == client {
			return len(l.jobs)
		}
	}
	return 0
}

// remove removes a job and reports whether it was in the queue.
func (q *queue) remove(j *Job) bool {
	for i, l := range q.lines {
		k := slices.IndexFunc(l.jobs, func(w *waiting) bool { return w.job == j })
		if k < 0 {
			continue
		}
		if l.jobs = slices.Delete(l.jobs, k, k+1); len(l.jobs) == 0 {
			q.lines = slices.Delete(q.lines, i, i+1)
			q.keep(l.client, l.round)
		}
		q.n--
		return true
	}
	return false
}

// keep keeps the first round of a client without waiting jobs.
func (q *queue) keep(client string, round int) {
	if q.later == nil {
		q.later = map[string]int{}
	}
	maps.DeleteFunc(q.later, func(_ string, round int) bool { return round <= q.round+1 })
	q.later[client] = round
}

// giveBack gives a client the rounds of images that it did not get.
func (q *queue) giveBack(client string, images int) {
	for _, l := range q.lines {
		if l.client == client {
			l.round = max(q.round+1, l.round-images)
			return
		}
	}
	if round, ok := q.later[client]; ok {
		q.keep(client, round-images)
	}
}

// turns returns all jobs in the order of turns.
func (q *queue) turns() []*waiting {
	type turn struct {
		*waiting
		round int
	}
	turns := make([]turn, 0, q.n)
	for _, l := range q.lines {
		round := l.round
		for _, w := range l.jobs {
			turns = append(turns, turn{w, round})
			round += w.rounds()
		}
	}
	slices.SortStableFunc(turns, func(a, b turn) int { return cmp.Compare(a.round, b.round) })
	all := make([]*waiting, len(turns))
	for i, t := range turns {
		all[i] = t.waiting
	}
	return all
}

// next removes and returns the job that runs next if the model with a key is in memory, or nil.
func (q *queue) next(key string) *waiting {
	if q.n == 0 {
		return nil
	}
	turns := q.turns()
	for _, l := range q.lines {
		if l.jobs[0] == turns[0] {
			q.round = l.round
		}
	}
	i := q.choose(turns, key)
	for _, w := range turns[:i] {
		w.passed++
	}
	if turns[i].key != key {
		q.run = 0
	} else if i > 0 {
		q.run++
	}
	q.take(turns[i])
	return turns[i]
}

// choose returns the index of the job that runs next.
func (q *queue) choose(turns []*waiting, key string) int {
	if i := slices.IndexFunc(turns, func(w *waiting) bool { return w.passed >= maxPassed }); i >= 0 {
		return i
	}
	if q.run < maxRun {
		return max(0, slices.IndexFunc(turns, func(w *waiting) bool { return w.key == key }))
	}
	return 0
}

// take removes a job, and moves its client to later rounds.
func (q *queue) take(w *waiting) {
	i := slices.IndexFunc(q.lines, func(l *line) bool { return slices.Contains(l.jobs, w) })
	q.lines[i].round += w.rounds()
	q.remove(w.job)
}

// order returns the jobs in the order in which they will run if no others come and the model with
// a key is in memory. After maxOrdered jobs, the others follow in the order of turns.
func (q *queue) order(key string) []*waiting {
	turns := q.turns()
	if !slices.ContainsFunc(turns, func(w *waiting) bool { return w.key != turns[0].key || w.passed >= maxPassed }) {
		return turns
	}
	rest := queue{round: q.round, run: q.run, n: q.n}
	for _, l := range q.lines {
		copied := &line{client: l.client, round: l.round}
		for _, w := range l.jobs {
			c := *w
			copied.jobs = append(copied.jobs, &c)
		}
		rest.lines = append(rest.lines, copied)
	}
	all := make([]*waiting, 0, q.n)
	for rest.n > 0 && len(all) < maxOrdered {
		w := rest.next(key)
		all, key = append(all, w), w.key
	}
	return append(all, rest.turns()...)
}
