package scheduler

// Linear is what mflux 0.24.0 calls linear (LinearScheduler), for models whose sigmas it shifts,
// such as Z-Image: Euler steps over the pipeline's sigmas, shifted exponentially by mu, that is by
// the number of the image's tokens (e^0.5 at 256 to e^1.15 at 4096 unless the config has other
// values), whatever the config's use_dynamic_shifting and shift are. shift_terminal is applied.
var Linear = &Class{
	Name: "linear", ClassName: "LinearScheduler",
	New: func(c FlowMatchConfig, sigmas []float32, mu float64) (Scheduler, error) {
		c.UseDynamicShifting, c.TimeShiftType = true, "exponential"
		return &euler{FlowMatch{c.schedule(sigmas, mu)}}, nil
	},
}
