package scheduler

// Linear is what mflux 0.24.0 calls linear (LinearScheduler), for models whose sigmas it shifts,
// such as Z-Image: Euler steps over the pipeline's sigmas, shifted exponentially by mu, that is by
// the number of the image's tokens (e^0.5 at 256 to e^1.15 at 4096 unless the config has other
// values), whatever the config's use_dynamic_shifting and shift are. shift_terminal is applied.
var Linear = &Class{
	Name: "linear", ClassName: "LinearScheduler",
	DefaultConfig: func() Config { return &linearConfig{DefaultFlowMatchConfig()} },
}

type linearConfig struct{ FlowMatchConfig }

func (c *linearConfig) New(sigmas []float32, mu float64) (Scheduler, error) {
	dynamic := c.FlowMatchConfig
	dynamic.UseDynamicShifting, dynamic.TimeShiftType = true, "exponential"
	return &euler{FlowMatch{dynamic.schedule(sigmas, mu)}}, nil
}
