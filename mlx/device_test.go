package mlx_test

import (
	"runtime"
	"testing"

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
