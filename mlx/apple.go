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
	return !d.virtual() && (generation >= 18 || generation == 17 && size != 'p')
}

// virtual reports whether the device is the GPU of a virtual machine on a Mac, such as GitHub's
// runners. It has the functions of an M1 at most, and an architecture of its own (air64_v27).
func (d DeviceInfo) virtual() bool { return d.Name == "Apple Paravirtual device" }

// MacOf describes the GPU of a Mac with so much memory, in GiB, for estimates: that of an M1, M1 Max
// or M1 Ultra. It has a working set of two thirds of the memory, or three quarters above 32 GiB, and
// arrays of at most half of it, as MLX reports for an M1 with 16 GiB (11.45 and 8.59 GB) and for
// GitHub's virtual machines with 7 (5.01 and 3.76). Newer chips and systems allow more.
func MacOf(memory int) DeviceInfo {
	d := DeviceInfo{Device: OtherMac, Name: "Apple M1", Architecture: "applegpu_g13g", Memory: uint64(memory) << 30}
	d.WorkingSet, d.LargestArray = d.Memory/3*2, d.Memory/2
	if memory > 32 {
		d.WorkingSet = d.Memory / 4 * 3
	}
	switch {
	case memory > 64:
		d.Name, d.Architecture = "Apple M1 Ultra", "applegpu_g13d"
	case memory > 16:
		d.Name, d.Architecture = "Apple M1 Max", "applegpu_g13s"
	}
	return d
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

// MetalKernelFLOPs is about how many floating-point operations a kernel on Metal may take. macOS ends
// a command buffer that keeps the GPU for about five seconds. The slowest chip, an M1 with seven or
// eight cores, has 2.6 TFLOP/s, and reaches half of it or more in large products, so such a kernel takes
// less than two seconds. MLX ends a command buffer with the kernel with which its inputs exceed 40 Mi
// elements; kernels before it have at most 0.8 TFLOP, at 19 kFLOP for an element.
const MetalKernelFLOPs = 2e12

// mostFLOPs limits the floating-point operations of a kernel on a backend; absent for no limit.
var mostFLOPs = map[Backend]float64{BackendMetal: MetalKernelFLOPs}

// LimitKernels limits the floating-point operations of a kernel on the CPU until restore is called, for
// tests of what happens on Metal.
func LimitKernels(flops float64) (restore func()) {
	mostFLOPs[BackendCPU] = flops
	return func() { delete(mostFLOPs, BackendCPU) }
}

// RowsAtOnce returns how many of some rows a kernel may compute on the device, if each takes so many
// floating-point operations: all, except where a long kernel would be ended.
func (d Device) RowsAtOnce(rows int, flops float64) int {
	if most, limited := mostFLOPs[d.Backend()]; limited && float64(rows)*flops > most {
		return max(1, int(most/flops))
	}
	return rows
}

// InParts returns f(a), which must compute the slices of a along an axis one by one, in so many floating-point
// operations each. If they are too many for a kernel, f gets some slices at a time.
func (a *Array) InParts(axis int, flops float64, f func(*Array) *Array) *Array {
	n := a.Dim(axis)
	step := device.RowsAtOnce(n, flops)
	if step >= n {
		return f(a)
	}
	var parts []*Array
	for from := 0; from < n; from += step {
		parts = append(parts, f(a.Slice(axis, from, min(from+step, n))))
	}
	return Concat(axis, parts...)
}
