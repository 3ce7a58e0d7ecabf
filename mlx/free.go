package mlx

import "github.com/gomflux/gomflux/mlx/internal/mlxc"

// FreeMemory is the memory that arrays on a device can still take without that
// others are swapped out or fail, in bytes; 0 if that is not known. What MLX
// holds for the next arrays counts as free. It is CUDA's own number on CUDA, and
// the system's, within the limits of control groups, on Linux's CPU. A Mac's GPU
// has what the system has, within what Metal recommends.
func FreeMemory(d Device) int64 {
	system, cache, active := systemFree(), int64(CacheMemory()), int64(ActiveMemory())
	if d == CPU && (system == 0 || gpuAvailable) { // the cache is the GPU's if there is one
		return system
	}
	if d == CPU {
		return system + cache
	}
	info := mlxc.DeviceInfoNew()
	defer func() { mlxc.DeviceInfoFree(info) }()
	if mlxc.DeviceInfoGet(&info, devices[d]) != 0 {
		takeMessage()
		return 0
	}
	if n, ok := infoSize(info, "free_memory"); ok {
		return n + cache
	}
	n, ok := infoSize(info, "max_recommended_working_set_size")
	if !ok {
		return 0
	}
	if n -= active; system > 0 {
		n = min(n, system+cache)
	}
	return max(n, 0)
}

func infoSize(info uintptr, key string) (int64, bool) {
	var has bool
	var n uintptr
	if mlxc.DeviceInfoHasKey(&has, info, key) != 0 || !has || mlxc.DeviceInfoGetSize(&n, info, key) != 0 {
		return 0, false
	}
	return int64(n), true
}
