package mlx

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// A Device is the CPU or the GPU, on which arrays are computed.
type Device int32

const (
	CPU Device = iota
	GPU        // Metal on a Mac, CUDA elsewhere
	// OtherMac is the GPU of a Mac that is not this machine, for estimates. Nothing can be computed
	// on it.
	OtherMac
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
	case runtime.GOOS == "darwin" || d == OtherMac:
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
		if GPU.Backend() == BackendCUDA {
			keepCode()
		}
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
	if d != CPU && (d != GPU || !gpuAvailable) {
		return fmt.Errorf("mlx: no GPU that this MLX can use")
	}
	setDevice(d)
	return nil
}

// CurrentDevice is the device of the running job.
func CurrentDevice() Device { return device }

// ComputeDtype is the dtype in which models compute on a device by default: see
// [DeviceInfo.ComputeDtype].
func (d Device) ComputeDtype() Dtype {
	if d == CPU {
		return Float32
	}
	return gpuDtype()
}

var gpuDtype = sync.OnceValue(func() Dtype {
	if !gpuAvailable {
		return BFloat16
	}
	dtype, _ := describe(GPU).ComputeDtype()
	return dtype
})

// DeviceInfo describes a device.
type DeviceInfo struct {
	Device       Device
	Name         string // "" where MLX does not know it
	Architecture string
	Memory       uint64 // bytes, 0 where MLX does not know it
	// WorkingSet is the memory that Metal recommends for all arrays, and LargestArray that of one, in
	// bytes; 0 for other devices.
	WorkingSet, LargestArray uint64
}

// ComputeDtype returns the dtype in which models compute on the device by default, and the
// reason for it. Half precision is 40 times slower than float32 on Linux CPUs. The GPUs of
// Apple's M1 and M2, the virtual ones of Macs, and NVIDIA's before compute capability 8.0, have no
// bfloat16 hardware, and multiply matrices of float16 faster. GPUs that are not known compute in bfloat16,
// which has the range of float32.
func (d DeviceInfo) ComputeDtype() (dtype Dtype, reason string) {
	if d.Device == CPU {
		return Float32, "half precision is slower on CPUs"
	}
	if chip := d.withoutBFloat16(); chip != "" {
		return Float16, chip + " has no bfloat16 hardware"
	}
	return BFloat16, ""
}

// withoutBFloat16 returns the name of the GPU's kind if it has no hardware for bfloat16, or
// "". The GPU of the M1 has generation 13, that of the M2 generation 14; the names are Apple M1,
// Apple M1 Pro and so on. CUDA's architectures are like sm_75.
func (d DeviceInfo) withoutBFloat16() string {
	if d.virtual() {
		return "Apple's virtual GPU"
	}
	if generation, _ := d.appleGPU(); generation != 0 {
		return map[int]string{13: "the M1", 14: "the M2"}[generation]
	}
	if capability, ok := strings.CutPrefix(d.Architecture, "sm_"); ok {
		if n, err := strconv.Atoi(capability); err == nil && n < 80 {
			return "compute capability below 8.0"
		}
		return ""
	}
	if chip, ok := strings.CutPrefix(d.Name, "Apple "); ok {
		chip, _, _ = strings.Cut(chip, " ")
		return map[string]string{"M1": "the M1", "M2": "the M2"}[chip]
	}
	return ""
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
	defer func() { mlxc.DeviceInfoFree(info) }() // DeviceInfoGet makes another one
	if mlxc.DeviceInfoGet(&info, devices[d]) != 0 {
		takeMessage()
		return out
	}
	out.Name = infoString(info, "device_name")
	out.Architecture = infoString(info, "architecture")
	for key, size := range map[string]*uint64{
		"memory_size": &out.Memory, "total_memory": &out.Memory, workingSet: &out.WorkingSet, "max_buffer_length": &out.LargestArray,
	} {
		if n, ok := infoSize(info, key); ok {
			*size = uint64(n)
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

// ReleaseMemory returns all memory to the system that is not in use: MLX's cache and, with glibc,
// what the C library keeps of freed memory. New arrays then take longer, until both are filled
// again, so it is for a program that will not use MLX for a while.
func ReleaseMemory() {
	ClearCache()
	if mlxc.MallocTrim != nil {
		mlxc.MallocTrim(0)
	}
}

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
