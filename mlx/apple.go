package mlx

import (
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/internal/macos"
)

// AcceleratorMacOS is the first version of macOS on which MLX computes with the neural
// accelerators of a GPU. Only a libmlx that was built for it has the kernels.
var AcceleratorMacOS = macos.Version{Major: 26, Minor: 2}

// HasNeuralAccelerators reports whether the device is an Apple GPU with units for matrix
// products, which the M5 was the first Mac to have. The architecture is as in applegpu_g17s:
// the generation, and a letter for the size; a p is that of a phone, a generation later
// (MLX's is_nax_available).
func (d DeviceInfo) HasNeuralAccelerators() bool {
	chip, apple := strings.CutPrefix(d.Architecture, "applegpu_g")
	if !apple || chip == "" {
		return false
	}
	size := chip[len(chip)-1]
	generation, err := strconv.Atoi(chip[:len(chip)-1])
	if size == 'p' {
		return err == nil && generation >= 18
	}
	return err == nil && generation >= 17
}
