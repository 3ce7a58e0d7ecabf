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
	if m.DeviceName, m.DeviceMemory = m.Name, m.Memory; device != mlx.CPU {
		d, _ := deviceInfo(device)
		m.DeviceName, m.DeviceMemory = d.Name, uint64(d.Memory)
	}
	return m
}

// deviceInfo describes a device, if MLX has it. It runs on the MLX thread.
func deviceInfo(device mlx.Device) (mlx.DeviceInfo, bool) {
	for _, d := range mlx.Devices() {
		if d.Device == device {
			return d, true
		}
	}
	return mlx.DeviceInfo{}, false
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
