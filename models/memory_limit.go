package models

import "github.com/gomflux/gomflux/mlx"

// A limiter bounds the memory that MLX allocates ahead of the work on CUDA, by MLX's memory limit.
type limiter struct {
	limit     int // MLX's limit before the run, in bytes; 0 where nothing is limited
	lookahead int // bytes that MLX may allocate beyond those in use
}

// limitMemory sets MLX's memory limit for a run on a device. The caller must call restore.
func limitMemory(d mlx.Device, lookahead int64) *limiter {
	if d.Backend() != mlx.BackendCUDA {
		return &limiter{}
	}
	l := &limiter{mlx.SetMemoryLimit(0), int(lookahead)}
	l.update()
	return l
}

// update sets the limit again for the memory that is in use now.
func (l *limiter) update() {
	if l != nil && l.limit > 0 {
		mlx.SetMemoryLimit(min(l.limit, mlx.ActiveMemory()+l.lookahead))
	}
}

func (l *limiter) restore() {
	if l.limit > 0 {
		mlx.SetMemoryLimit(l.limit)
	}
}

// autoencoderLookahead is the limit in bytes for an autoencoder without a run.
const autoencoderLookahead = 2e9
