package cli

import (
	"cmp"
	"runtime"

	"github.com/gomflux/gomflux/mlx"
)

// NewMachine describes this machine and one of its devices. It runs on the MLX thread.
func NewMachine(device mlx.Device) Machine {
	m := Machine{
		Name: cmp.Or(processorName(), runtime.GOARCH), OS: cmp.Or(systemName(), runtime.GOOS), CPUs: runtime.NumCPU(),
		Memory: SystemMemory(),
	}
	for _, d := range mlx.Devices() {
		if d.Device == device {
			m.DeviceName, m.DeviceMemory = d.Name, uint64(d.Memory)
		}
	}
	if device == mlx.CPU {
		m.DeviceName, m.DeviceMemory = m.Name, m.Memory
	}
	return m
}

// A Machine describes a machine without anything personal.
type Machine struct {
	Name         string `json:"name"`
	OS           string `json:"os"`
	CPUs         int    `json:"cpus"`
	Memory       uint64 `json:"memory_bytes"`
	DeviceName   string `json:"device_name"`
	DeviceMemory uint64 `json:"device_memory_bytes"`
}
