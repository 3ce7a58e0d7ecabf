package serve

import (
	"maps"
	"slices"

	"github.com/gomflux/gomflux/serve/engine"
)

// engineMetrics writes the numbers of the engine.
func (s *Server) engineMetrics(m *metricsText) {
	stats := s.Engine.Stats()
	const jobs, ended = "gomflux_jobs", "gomflux_jobs_ended_total"
	m.family(jobs, "gauge", "Jobs that are waiting or running, by state.")
	for _, state := range []engine.State{engine.Queued, engine.Loading, engine.Writing, engine.Running} {
		m.sample(jobs, float64(stats.Jobs[state]), "state", string(state))
	}
	m.family(ended, "counter", "Jobs that have ended, by state.")
	for _, state := range []engine.State{engine.Done, engine.Failed, engine.Canceled} {
		m.sample(ended, float64(stats.Jobs[state]), "state", string(state))
	}
	const phase = "gomflux_phase_seconds_total"
	m.family(phase, "counter", "Seconds spent in each phase.")
	for _, name := range slices.Sorted(maps.Keys(stats.Seconds)) {
		m.sample(phase, stats.Seconds[name], "phase", string(name))
	}
	for _, one := range []struct {
		name, kind, help string
		value            float64
	}{
		{"gomflux_queue_limit", "gauge", "The largest number of waiting jobs.", float64(stats.Queue)},
		{"gomflux_jobs_refused_total", "counter", "Requests for which the queue was full.", float64(stats.Refused)},
		{"gomflux_images_total", "counter", "Finished images.", float64(stats.Pictures)},
		{"gomflux_model_loads_total", "counter", "How often a model was loaded.", float64(stats.Loads)},
		{"gomflux_wait_seconds_total", "counter", "Seconds that jobs waited before they started.", stats.WaitSeconds},
		{"gomflux_memory_bytes", "gauge", "Memory that MLX uses.", float64(stats.Memory)},
		{"gomflux_cache_memory_bytes", "gauge", "Freed memory that MLX keeps for later use.", float64(stats.CacheMemory)},
		{"gomflux_peak_memory_bytes", "gauge", "The largest memory that an image needed.", float64(stats.PeakMemory)},
	} {
		m.family(one.name, one.kind, one.help)
		m.sample(one.name, one.value)
	}
	m.family("gomflux_model_loaded", "gauge", "1 for the model in memory.")
	if stats.Model != "" {
		m.sample("gomflux_model_loaded", 1, "model", stats.Model)
	}
}
