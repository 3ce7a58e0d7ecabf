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
// products, which the M5 was the first Mac to have. GPUs of phones, of size p, have them a
// generation later (MLX's is_nax_available).
func (d DeviceInfo) HasNeuralAccelerators() bool {
	generation, size := d.appleGPU()
	return generation >= 18 || generation == 17 && size != 'p'
}

// appleGPU returns the generation of an Apple GPU and the letter of its size, such as 17 and s of
// the architecture applegpu_g17s. The generation is 0 for other devices.
func (d DeviceInfo) appleGPU() (generation int, size byte) {
	chip, apple := strings.CutPrefix(d.Architecture, "applegpu_g")
	if !apple || chip == "" {
		return 0, 0
	}
	last := len(chip) - 1
	generation, err := strconv.Atoi(chip[:last])
	if err != nil {
		return 0, 0
	}
	return generation, chip[last]
}
