package models

import "github.com/gomflux/gomflux/mlx"

// A pace limits the memory that MLX takes in advance for a run on CUDA.
type pace struct {
	limit int // MLX's own limit of memory, 0 where there is no pace
	ahead int // what MLX may take beyond what there is
}

// setPace sets the limit for work on a device, until restore.
func setPace(d mlx.Device, ahead int64) *pace {
	if d.Backend() != mlx.BackendCUDA {
		return &pace{}
	}
	p := &pace{mlx.SetMemoryLimit(0), int(ahead)}
	p.keep()
	return p
}

// keep counts from what is in memory now.
func (p *pace) keep() {
	if p != nil && p.limit > 0 {
		mlx.SetMemoryLimit(min(p.limit, mlx.ActiveMemory()+p.ahead))
	}
}

func (p *pace) restore() {
	if p.limit > 0 {
		mlx.SetMemoryLimit(p.limit)
	}
}
