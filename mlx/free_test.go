package mlx_test

import (
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// TestFreeMemory checks that every device has free memory, and not more than its total.
func TestFreeMemory(t *testing.T) {
	mlxtest.Do(t, func() {
		for _, d := range mlx.Devices() {
			free := mlx.FreeMemory(d.Device)
			if free <= 0 || d.Memory > 0 && uint64(free) > d.Memory {
				t.Errorf("%v: %d bytes are free of %d", d.Device, free, d.Memory)
			}
		}
	})
}
