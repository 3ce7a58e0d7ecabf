package mlx

import "github.com/gomflux/gomflux/mlx/internal/mlxc"

// FreeMemory returns how much memory new arrays on a device can take before memory is
// swapped out or an allocation fails, in bytes, or 0 if that is unknown. MLX's cache
// counts as free. The source on CUDA is CUDA itself, and on a CPU the system; on Linux
// the limits of control groups apply. On a Mac's GPU it is the system's free memory, up
// to the limit that Metal recommends.
func FreeMemory(d Device) int64 {
	system, cache, active := systemFree(), int64(CacheMemory()), int64(ActiveMemory())
	if d == CPU && (system == 0 || gpuAvailable) { // with a GPU, the cache is the GPU's
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
	n, ok := infoSize(info, workingSet)
	if !ok {
		return 0
	}
	if n -= active; system > 0 {
		n = min(n, system+cache)
	}
	return max(n, 0)
}

// workingSet is MLX's name of [DeviceInfo.WorkingSet].
const workingSet = "max_recommended_working_set_size"

func infoSize(info uintptr, key string) (int64, bool) {
	var has bool
	var n uintptr
	if mlxc.DeviceInfoHasKey(&has, info, key) != 0 || !has || mlxc.DeviceInfoGetSize(&n, info, key) != 0 {
		return 0, false
	}
	return int64(n), true
}
