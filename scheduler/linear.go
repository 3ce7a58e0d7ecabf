package scheduler

// linear is what mflux 0.24.0 calls linear (LinearScheduler), for the models
// that it shifts, as it does Z-Image: Euler's steps over the pipeline's sigmas,
// shifted exponentially by mu, that is by the number of tokens of the picture
// (e^0.5 at 256 to e^1.15 at 4096 for a config that names no other), whatever
// use_dynamic_shifting and shift say. A shift_terminal is heeded.
func (c *FlowMatchEulerConfig) linear(sigmas []float32, mu float64) (*Schedule, error) {
	dynamic := *c
	dynamic.UseDynamicShifting, dynamic.TimeShiftType = true, "exponential"
	return dynamic.euler(sigmas, mu)
}
