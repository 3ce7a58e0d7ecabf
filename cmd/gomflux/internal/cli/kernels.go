package cli

import (
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
)

// warnOfKernels prints a warning when a kernel turns out not to work.
func warnOfKernels(out *ui.Output) {
	mlx.OnKernelFailure = func(k mlx.KernelStatus) {
		out.Warn("the kernel %s is not used, which makes images slower: %v", k.Name, k.Err)
	}
}
