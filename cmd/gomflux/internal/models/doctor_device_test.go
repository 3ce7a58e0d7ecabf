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
	mac := describeDevice(mlx.DeviceInfo{Device: mlx.OtherMac, Name: "Apple Paravirtual device", Architecture: "air64_v27",
		Memory: 7516192768, WorkingSet: 5010800640, LargestArray: 3758096384})
	const want = "metal, Apple Paravirtual device, air64_v27, 7.52 GB, 5.01 GB for all arrays and 3.76 GB for one, computes in float16: " +
		"Apple's virtual GPU has no bfloat16 hardware"
	if got := mac.text(); got != want {
		t.Errorf("%s, expected %s", got, want)
	}
}
