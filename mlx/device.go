package mlx

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// A Device is the CPU or the GPU, on which arrays are computed.
type Device int32

const (
	CPU Device = iota
	GPU        // Metal on a Mac, CUDA elsewhere
)

// String is the name of the device's backend.
func (d Device) String() string { return d.Backend().String() }

// A Backend is the implementation with which MLX computes on a device.
type Backend int

const (
	BackendCPU Backend = iota
	BackendMetal
	BackendCUDA
)

var backendNames = [...]string{BackendCPU: "cpu", BackendMetal: "metal", BackendCUDA: "cuda"}

func (b Backend) String() string { return backendNames[b] }

// Backend returns the device's backend on this system.
func (d Device) Backend() Backend {
	switch {
	case d == CPU:
		return BackendCPU
	case runtime.GOOS == "darwin":
		return BackendMetal
	}
	return BackendCUDA
}

// ParseDevice reads a device's name: cpu, gpu, or that of the GPU's backend.
func ParseDevice(name string) (Device, error) {
	switch name {
	case CPU.String():
		return CPU, nil
	case "gpu", GPU.String():
		return GPU, nil
	case BackendMetal.String(), BackendCUDA.String():
		return 0, fmt.Errorf("device %s: a GPU is %v here (the device gpu is either)", name, GPU)
	}
	return 0, fmt.Errorf("device %q: expected gpu or cpu", name)
}

var (
	device        Device // of the running job
	defaultDevice Device // a GPU if there is one
	gpuAvailable  bool
	streams       [2]uintptr
	devices       [2]uintptr
)

// initDevices finds the devices and their streams, which belong to this thread.
func initDevices() {
	devices[CPU] = mlxc.DeviceNewType(int32(CPU), 0)
	check(mlxc.GetDefaultStream(&streams[CPU], devices[CPU]))
	gpu := mlxc.DeviceNewType(int32(GPU), 0)
	// a CUDA build on a machine without a driver reports no GPU here, or fails
	if mlxc.DeviceIsAvailable(&gpuAvailable, gpu) != 0 {
		takeMessage()
		gpuAvailable = false
	}
	if gpuAvailable {
		devices[GPU] = gpu
		check(mlxc.GetDefaultStream(&streams[GPU], gpu))
		defaultDevice = GPU
	} else {
		// by default the CPU's allocator returns freed memory above 32 MB to the system;
		// the page faults of allocating it again take up to ten times as long as the
		// computation
		SetCacheLimit(4 << 30)
	}
	setDevice(defaultDevice)
}

func setDevice(d Device) {
	device, stream = d, streams[d]
	check(mlxc.SetDefaultDevice(devices[d]))
}

// Use selects the device for the rest of the running job. The default is the GPU, if
// there is one.
func Use(d Device) error {
	if d == GPU && !gpuAvailable {
		return fmt.Errorf("mlx: no GPU that this MLX can use")
	}
	setDevice(d)
	return nil
}

// CurrentDevice is the device of the running job.
func CurrentDevice() Device { return device }

// ComputeDtype is the dtype in which models compute on a device by default. Half
// precision is 40 times slower than float32 on Linux CPUs.
func (d Device) ComputeDtype() Dtype {
	if d == CPU {
		return Float32
	}
	return BFloat16
}

// DeviceInfo describes a device.
type DeviceInfo struct {
	Device       Device
	Name         string // "" where MLX does not know it
	Architecture string
	Memory       uint64 // bytes, 0 where MLX does not know it
}

// Devices lists the devices that can be used.
func Devices() []DeviceInfo {
	infos := []DeviceInfo{describe(CPU)}
	if gpuAvailable {
		infos = append(infos, describe(GPU))
	}
	return infos
}

func describe(d Device) DeviceInfo {
	out := DeviceInfo{Device: d}
	info := mlxc.DeviceInfoNew()
	defer mlxc.DeviceInfoFree(info)
	if mlxc.DeviceInfoGet(&info, devices[d]) != 0 {
		takeMessage()
		return out
	}
	out.Name = infoString(info, "device_name")
	out.Architecture = infoString(info, "architecture")
	for _, key := range []string{"memory_size", "total_memory"} {
		var has bool
		var n uintptr
		if mlxc.DeviceInfoHasKey(&has, info, key) == 0 && has && mlxc.DeviceInfoGetSize(&n, info, key) == 0 {
			out.Memory = uint64(n)
		}
	}
	takeMessage()
	return out
}

func infoString(info uintptr, key string) string {
	var has bool
	var p *byte
	if mlxc.DeviceInfoHasKey(&has, info, key) != 0 || !has || mlxc.DeviceInfoGetString(unsafe.Pointer(&p), info, key) != 0 {
		return ""
	}
	return cString(p)
}

// Version is the version of the libmlx that was opened.
func Version() string {
	s := mlxc.StringNew()
	defer func() { mlxc.StringFree(s) }()
	check(mlxc.Version(&s))
	return cString((*byte)(mlxc.StringData(s)))
}

func memory(f func(*uintptr) int32) int {
	var n uintptr
	check(f(&n))
	return int(n)
}

// ActiveMemory is the memory of all living arrays, in bytes.
func ActiveMemory() int { return memory(mlxc.GetActiveMemory) }

// PeakMemory is the highest ActiveMemory since ResetPeakMemory.
func PeakMemory() int { return memory(mlxc.GetPeakMemory) }

// CacheMemory is the freed memory that MLX keeps for new arrays, in bytes.
func CacheMemory() int { return memory(mlxc.GetCacheMemory) }

// ResetPeakMemory sets PeakMemory to 0.
func ResetPeakMemory() { check(mlxc.ResetPeakMemory()) }

// ClearCache returns MLX's cached memory to the system.
func ClearCache() { check(mlxc.ClearCache()) }

// SetCacheLimit limits CacheMemory, in bytes.
func SetCacheLimit(bytes int) {
	var before uintptr
	check(mlxc.SetCacheLimit(&before, uintptr(bytes)))
}

// SetMemoryLimit sets a soft limit for ActiveMemory, in bytes, and returns the previous
// one. At the limit MLX waits for a GPU to finish some work before it queues more. The
// arrays of a single kernel may exceed the limit.
func SetMemoryLimit(bytes int) int {
	var before uintptr
	check(mlxc.SetMemoryLimit(&before, uintptr(bytes)))
	return int(before)
}
