package mlx_test

import (
	"runtime"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

func TestParseDevice(t *testing.T) {
	here, other := mlx.BackendCUDA, mlx.BackendMetal
	if runtime.GOOS == "darwin" {
		here, other = other, here
	}
	for name, want := range map[string]mlx.Device{"cpu": mlx.CPU, "gpu": mlx.GPU, here.String(): mlx.GPU} {
		if d, err := mlx.ParseDevice(name); err != nil || d != want {
			t.Errorf("%s is %v (%v), expected %v", name, d, err, want)
		}
	}
	for name, want := range map[string]string{
		"tpu":          `device "tpu": expected gpu or cpu`,
		"":             `device "": expected gpu or cpu`,
		other.String(): "device " + other.String() + ": a GPU is " + here.String() + " here (the device gpu is either)",
	} {
		if _, err := mlx.ParseDevice(name); err == nil || err.Error() != want {
			t.Errorf("%s: error %v, expected %s", name, err, want)
		}
	}
}

func TestBackend(t *testing.T) {
	for b, want := range map[mlx.Backend]string{mlx.BackendCPU: "cpu", mlx.BackendMetal: "metal", mlx.BackendCUDA: "cuda"} {
		if b.String() != want {
			t.Errorf("backend %d is %v, expected %s", int(b), b, want)
		}
	}
	if mlx.CPU.Backend() != mlx.BackendCPU || mlx.CPU.String() != "cpu" || mlx.GPU.String() != mlx.GPU.Backend().String() {
		t.Errorf("the devices are %v and %v", mlx.CPU, mlx.GPU)
	}
}

func TestComputeDtype(t *testing.T) {
	gpu := func(name, architecture string) mlx.DeviceInfo {
		return mlx.DeviceInfo{Device: mlx.GPU, Name: name, Architecture: architecture}
	}
	const m1, m2, old = "the M1 has no bfloat16 hardware", "the M2 has no bfloat16 hardware",
		"compute capability below 8.0 has no bfloat16 hardware"
	const virtual = "Apple's virtual GPU has no bfloat16 hardware"
	for _, c := range []struct {
		info   mlx.DeviceInfo
		want   mlx.Dtype
		reason string
	}{
		{mlx.DeviceInfo{Device: mlx.CPU, Name: "Apple M1", Architecture: "arm64"}, mlx.Float32, "half precision is slower on CPUs"},
		{gpu("Apple M1", "applegpu_g13g"), mlx.Float16, m1},
		{gpu("Apple M1 Max", "applegpu_g13s"), mlx.Float16, m1},
		{gpu("Apple M1 Ultra", "applegpu_g13d"), mlx.Float16, m1},
		{gpu("Apple M2 Pro", "applegpu_g14s"), mlx.Float16, m2},
		{gpu("Apple M3 Max", "applegpu_g15s"), mlx.BFloat16, ""},
		{gpu("Apple M4", "applegpu_g16g"), mlx.BFloat16, ""},
		{gpu("Apple M5", "applegpu_g17g"), mlx.BFloat16, ""},
		{gpu("Apple M1 Max", ""), mlx.Float16, m1},
		{gpu("Apple M2", "unknown"), mlx.Float16, m2},
		{gpu("Apple M10", ""), mlx.BFloat16, ""},
		{gpu("Apple Paravirtual device", "applegpu_g17g"), mlx.Float16, virtual}, // whatever the machine has
		{gpu("Apple Paravirtual device", "air64_v27"), mlx.Float16, virtual},
		{gpu("NVIDIA T4", "sm_75"), mlx.Float16, old},
		{gpu("Tesla V100", "sm_70"), mlx.Float16, old},
		{gpu("NVIDIA A100", "sm_80"), mlx.BFloat16, ""},
		{gpu("NVIDIA H200", "sm_90"), mlx.BFloat16, ""},
		{gpu("NVIDIA GeForce RTX 5090", "sm_120"), mlx.BFloat16, ""},
		{gpu("", "sm_"), mlx.BFloat16, ""},
		{gpu("", ""), mlx.BFloat16, ""},
	} {
		if dtype, reason := c.info.ComputeDtype(); dtype != c.want || reason != c.reason {
			t.Errorf("%q %q: %v (%s), expected %v (%s)", c.info.Name, c.info.Architecture, dtype, reason, c.want, c.reason)
		}
	}
}

// TestDevicesFrees checks with glibc's count of allocated bytes that Devices frees what it asks MLX for.
func TestDevicesFrees(t *testing.T) {
	addr, err := purego.Dlsym(purego.RTLD_DEFAULT, "mallinfo2")
	if err != nil {
		t.Skip(err)
	}
	var mallinfo2 func(result *[10]uintptr) uintptr
	purego.RegisterFunc(&mallinfo2, addr)
	allocated := func() int {
		var info [10]uintptr
		mallinfo2(&info)
		return int(info[7])
	}
	mlxtest.Do(t, func() {
		mlx.Devices()
		before := allocated()
		for range 2000 {
			mlx.Devices()
		}
		if n := allocated() - before; n > 200_000 {
			t.Errorf("2000 calls keep %d bytes", n)
		}
	})
}
