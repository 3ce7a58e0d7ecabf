package cli

import (
	"context"
	"fmt"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
)

// WarnMemory warns before an image is, say, decoded, that the memory that it needs may not suffice.
func WarnMemory(ctx context.Context, out *ui.Output, doing string, on gomflux.Device, need int64, height, width int) {
	device, err := mlx.ParseDevice(string(on))
	if err != nil {
		return
	}
	consequence := "the system may kill the program"
	if device == mlx.GPU {
		consequence = doing + " may fail"
	}
	var free int64
	mlx.Do(ctx, func() error {
		free = mlx.FreeMemory(device)
		return nil
	})
	if text := memoryWarning(doing, need, free, height, width); text != "" {
		out.Warn("%s: %s", text, consequence)
	}
}

// memoryWarning compares the memory that is needed, in strips where memory
// is short, with the free memory, in bytes, 0 if unknown.
func memoryWarning(doing string, need, free int64, height, width int) string {
	if free == 0 || need <= free {
		return ""
	}
	return fmt.Sprintf("%s an image of %dx%d needs about %s of memory, even in strips, and %s are free",
		doing, width, height, units.Bytes(need), units.Bytes(free))
}

// PeakMemory returns the peak memory of MLX's arrays, in bytes.
func PeakMemory(ctx context.Context) (n int, err error) {
	err = mlx.Do(ctx, func() error {
		n = mlx.PeakMemory()
		return nil
	})
	return n, err
}
