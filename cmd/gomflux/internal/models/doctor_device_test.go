package models

import (
	"testing"

	"github.com/gomflux/gomflux/mlx"
)

// TestDoctorDtype is about the devices of other machines.
func TestDoctorDtype(t *testing.T) {
	for _, c := range []struct{ name, architecture, want string }{
		{"Apple M1 Max", "applegpu_g13s", "gpu, Apple M1 Max, applegpu_g13s, computes in float16: the M1 has no bfloat16 hardware"},
		{"Apple M4", "applegpu_g16g", "gpu, Apple M4, applegpu_g16g, computes in bfloat16"},
		{"NVIDIA H200", "sm_90", "gpu, NVIDIA H200, sm_90, computes in bfloat16"},
	} {
		d := describeDevice(mlx.DeviceInfo{Device: mlx.GPU, Name: c.name, Architecture: c.architecture})
		d.Device, d.Standard = "gpu", false
		if got := d.text(); got != c.want {
			t.Errorf("%s: %s, expected %s", c.name, got, c.want)
		}
	}
}
