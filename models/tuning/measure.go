package tuning

import (
	"slices"
	"strings"
	"time"

	"github.com/gomflux/gomflux/mlx"
)

// A Comparison times several ways to compute the same, and chooses among them. To add one, add a
// function that returns it to the list of [Comparisons].
type Comparison struct {
	Name string
	// LeftOut is why nothing can be compared on this device, "" if it can.
	LeftOut string
	// Candidates are the names of the ways.
	Candidates []string
	Cases      []Case
	// Enough, if set, reports after each case whether the following ones need not be timed.
	Enough func([]CaseResult) bool
	// Choose changes the settings if something is clearly faster than the default, and returns a
	// description of what is used.
	Choose func(*Settings, []CaseResult) string
}

// A Case is an input for which the candidates are timed.
type Case struct {
	Name string
	// Prepare makes the inputs, and returns a function for each candidate that returns arrays to
	// evaluate.
	Prepare func() []Trial
}

// A Trial computes something with a candidate.
type Trial struct {
	// Begin, if set, is called before the candidate is timed, and what it returns after that.
	Begin func() (end func())
	// New, if set, computes with a shape that was not used before, which may compile kernels.
	New func() []*mlx.Array
	Run func() []*mlx.Array
}

// A Result is what a comparison measured.
type Result struct {
	Name    string       `json:"name"`
	LeftOut string       `json:"left_out,omitempty"`
	Cases   []CaseResult `json:"cases,omitempty"`
	Chosen  string       `json:"chosen,omitempty"`
}

// A CaseResult has the times of the candidates for an input.
type CaseResult struct {
	Name  string `json:"name"`
	Times []Time `json:"times"`
}

// A Time is that of a candidate, in seconds.
type Time struct {
	Candidate string `json:"candidate"`
	// First is the time of the first call.
	First float64 `json:"first_s"`
	// New is the time of the first call with another shape, 0 where that is not measured.
	New float64 `json:"new_shape_s,omitempty"`
	// Median is the time of later calls.
	Median  float64 `json:"median_s"`
	Samples int     `json:"samples"`
}

// time returns the time of a candidate, nil if it was not timed.
func (c *CaseResult) time(candidate string) *Time {
	for i := range c.Times {
		if c.Times[i].Candidate == candidate {
			return &c.Times[i]
		}
	}
	return nil
}

// margin is by how much something must be faster than the default to replace it.
const margin = 1.05

// maxNew is how many seconds longer than the default a new shape may take. MLX compiles kernels for
// some shapes on CUDA, which takes seconds each time.
const maxNew = 0.25

// faster reports whether a candidate is clearly faster than another one in this case.
func (c *CaseResult) faster(candidate, other string) bool {
	a, b := c.time(candidate), c.time(other)
	return a != nil && b != nil && a.Median*margin < b.Median && a.New < b.New+maxNew
}

// slower reports whether a candidate is slower than another one in this case at all.
func (c *CaseResult) slower(candidate, other string) bool {
	a, b := c.time(candidate), c.time(other)
	return a == nil || b == nil || a.Median > b.Median
}

// A Meter times comparisons. It must be used on the MLX thread.
type Meter struct {
	// Now returns the time; nil is [time.Now].
	Now func() time.Time
	// Rounds is how many times all candidates are timed in turn, forwards and backwards.
	Rounds int
	// Progress, if set, is called before a case is timed.
	Progress func(comparison, name string)
}

// Measure times all comparisons, and returns the settings that follow.
func (m *Meter) Measure(list []Comparison) (s Settings, results []Result) {
	for _, c := range list {
		r := Result{Name: c.Name, LeftOut: c.LeftOut}
		if c.LeftOut != "" {
			results = append(results, r)
			continue
		}
		err := mlx.Try(func() { r.Cases = m.cases(&c) })
		mlx.ClearCache()
		if err != nil {
			r.LeftOut = shortened(err.Error())
		} else {
			r.Chosen = c.Choose(&s, r.Cases)
		}
		results = append(results, r)
	}
	return s, results
}

// cases times the cases of a comparison.
func (m *Meter) cases(c *Comparison) (results []CaseResult) {
	for _, one := range c.Cases {
		if m.Progress != nil {
			m.Progress(c.Name, one.Name)
		}
		mlx.WithScope(func() {
			results = append(results, CaseResult{one.Name, m.time(c.Candidates, one.Prepare())})
		})
		if c.Enough != nil && c.Enough(results) {
			break
		}
	}
	return results
}

// shortened returns the beginning of a text's first line.
func shortened(text string) string {
	const most = 200 // bytes
	text, _, _ = strings.Cut(text, "\n")
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

const (
	// sampleTime is how long a sample should take.
	sampleTime = 20 * time.Millisecond
	// maxCalls is the number of calls of a sample, whose results are in memory at the same time.
	maxCalls = 16
	// hopeless is how many times as long as the fastest a candidate takes that is not timed again.
	hopeless = 4
)

// time times the candidates of a case: once for what only a first call does, then in turn, A B B A.
func (m *Meter) time(candidates []string, trials []Trial) []Time {
	times := make([]Time, len(trials))
	samples, calls := make([][]float64, len(trials)), make([]int, len(trials))
	fastest := 0.0
	for i, t := range trials {
		times[i].Candidate = candidates[i]
		m.begin(t, func() {
			times[i].First = m.sample(t.Run, 1)
			if t.New != nil {
				times[i].New = m.sample(t.New, 1)
			}
			once := m.sample(t.Run, 1)
			samples[i] = []float64{once}
			calls[i] = max(1, min(maxCalls, int(sampleTime.Seconds()/max(once, 1e-9))))
			if fastest == 0 || once < fastest {
				fastest = once
			}
		})
	}
	order := make([]int, 0, 2*len(trials))
	for i := range trials {
		order = append(order, i)
	}
	for i := range slices.Backward(trials) {
		order = append(order, i)
	}
	first := make([]bool, len(trials))
	for range m.Rounds {
		for _, i := range order {
			if samples[i][0] > hopeless*fastest {
				continue
			}
			if !first[i] { // the call before was not one of several
				first[i], samples[i] = true, samples[i][:0]
			}
			m.begin(trials[i], func() { samples[i] = append(samples[i], m.sample(trials[i].Run, calls[i])) })
		}
	}
	for i := range times {
		times[i].Median, times[i].Samples = Median(samples[i]), len(samples[i])
	}
	return times
}

// begin calls f between a trial's Begin and its end.
func (m *Meter) begin(t Trial, f func()) {
	if t.Begin != nil {
		defer t.Begin()()
	}
	f()
}

// sample returns the time of a call in seconds.
func (m *Meter) sample(run func() []*mlx.Array, calls int) float64 {
	now := m.Now
	if now == nil {
		now = time.Now
	}
	mlx.StopPoint()
	start := now()
	mlx.WithScope(func() {
		var all []*mlx.Array
		for range calls {
			all = append(all, run()...)
		}
		mlx.Eval(all...)
	})
	return now().Sub(start).Seconds() / float64(calls)
}

// Median returns the median, or the mean of the two in the middle.
func Median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}
