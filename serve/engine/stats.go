package engine

import (
	"maps"

	"github.com/gomflux/gomflux"
)

// Stats are counters and gauges of an engine.
type Stats struct {
	// Jobs counts jobs by state: those that are queued, loading or running now, and all that
	// were done, failed or canceled since the engine started.
	Jobs     map[State]int64
	Waiting  int   // jobs in the queue
	Queue    int   // the largest number of them, see Config.Queue
	Refused  int64 // requests for which the queue was full
	Pictures int64 // finished images
	Loads    int64 // how often a model was loaded
	// Seconds are the seconds spent in each phase: loading models, and encoding, denoising and
	// decoding finished images.
	Seconds map[gomflux.Phase]float64
	// WaitSeconds are the seconds that started jobs waited in the queue.
	WaitSeconds float64
	Model       string // in memory, or ""
	// Memory is the memory in use, and CacheMemory what is kept for later use, in bytes, as
	// Config.Memory reports them.
	Memory, CacheMemory int64
	// PeakMemory is the largest Result.PeakMemory, in bytes.
	PeakMemory int64
}

// Stats returns the counters and gauges of the engine.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	s := e.stats
	s.Jobs, s.Seconds = maps.Clone(e.stats.Jobs), maps.Clone(e.stats.Seconds)
	s.Waiting, s.Queue, s.Model = e.queue.n, e.c.Queue, e.name
	s.Jobs[Queued] = int64(e.queue.n)
	if e.running != nil {
		s.Jobs[e.running.state]++
	}
	e.mu.Unlock()
	if e.c.Memory != nil {
		s.Memory, s.CacheMemory = e.c.Memory()
	}
	return s
}
