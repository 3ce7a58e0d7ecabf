package engine

import "slices"

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
type queue struct {
	lines []*line // of clients that have waiting jobs; the first has the next turn
	run   int     // jobs that passed over others since a model was loaded
	n     int     // jobs in all lines
}

// A line has the waiting jobs of a client.
type line struct {
	client string
	jobs   []*waiting
}

// A waiting job needs the model with a key.
type waiting struct {
	job    *Job
	key    string
	passed int // how many jobs passed over it
}

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
	q.lines = append(q.lines, &line{client, []*waiting{w}})
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
		}
		q.n--
		return true
	}
	return false
}

// turns returns all jobs in the order of turns.
func (q *queue) turns() []*waiting {
	all := make([]*waiting, 0, q.n)
	for round := 0; len(all) < q.n; round++ {
		for _, l := range q.lines {
			if round < len(l.jobs) {
				all = append(all, l.jobs[round])
			}
		}
	}
	return all
}

// next removes and returns the job that runs next if the model with a key is in memory, or nil.
func (q *queue) next(key string) *waiting {
	if q.n == 0 {
		return nil
	}
	turns := q.turns()
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

// take removes a job, and moves its client to the end.
func (q *queue) take(w *waiting) {
	i := slices.IndexFunc(q.lines, func(l *line) bool { return slices.Contains(l.jobs, w) })
	l := q.lines[i]
	q.remove(w.job)
	if len(l.jobs) > 0 {
		q.lines = append(slices.Delete(q.lines, i, i+1), l)
	}
}

// order returns the jobs in the order in which they will run if no others come and the model with
// a key is in memory. After maxOrdered jobs, the others follow in the order of turns.
func (q *queue) order(key string) []*waiting {
	turns := q.turns()
	if !slices.ContainsFunc(turns, func(w *waiting) bool { return w.key != turns[0].key || w.passed >= maxPassed }) {
		return turns
	}
	rest := queue{run: q.run, n: q.n}
	for _, l := range q.lines {
		copied := &line{client: l.client}
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
