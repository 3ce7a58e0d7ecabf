package gomflux

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
)

// A Device is what a model runs on.
type Device string

const (
	AnyDevice Device = "" // a GPU if there is one, else the CPU
	CPU       Device = "cpu"
	GPU       Device = "gpu" // Metal or CUDA
	Metal     Device = "metal"
	CUDA      Device = "cuda"
)

// A Dtype is the type of a tensor's elements. Models compute in one of the
// floating-point types.
type Dtype string

const (
	Float32  Dtype = "float32"
	BFloat16 Dtype = "bfloat16"
	Float16  Dtype = "float16"
	Int32    Dtype = "int32"
	Uint8    Dtype = "uint8"
)

// A Scheduler makes the steps from noise to a picture.
type Scheduler string

const (
	Euler  Scheduler = "flow_match_euler_discrete" // diffusers' FlowMatchEulerDiscreteScheduler
	Heun   Scheduler = "flow_match_heun_discrete"  // diffusers' FlowMatchHeunDiscreteScheduler
	Linear Scheduler = "linear"                    // mflux's LinearScheduler
)

// A Quantization is how weights are packed: to a number of bits, or to blocks of
// small floating-point numbers.
type Quantization string

const (
	Bits3 Quantization = "3"
	Bits4 Quantization = "4"
	Bits5 Quantization = "5"
	Bits6 Quantization = "6"
	Bits8 Quantization = "8"
	MXFP4 Quantization = "mxfp4"
	MXFP8 Quantization = "mxfp8"
	NVFP4 Quantization = "nvfp4"
)

// An RNG is a random number generator that draws the noise of a seed.
type RNG string

const (
	MLXNoise   RNG = "mlx"   // as mflux draws it
	TorchNoise RNG = "torch" // as diffusers does with a generator on the CPU
)

// Latents are a picture as a diffusion model works on it: float32, in the shape of
// diffusers' pipeline without the batch axis.
type Latents struct {
	Shape []int // [C, h, w]; decoding and previews take [1, C, h, w] too
	Data  []float32
}

// Settings is everything that makes a picture again, by [OptionsFrom]. Package
// picture writes it into files and reads it.
type Settings = picture.Settings

// device is the device of a name, nil for any.
func (d Device) device() (*mlx.Device, error) {
	if d == AnyDevice {
		return nil, nil
	}
	parsed, err := mlx.ParseDevice(string(d))
	if err != nil {
		return nil, errs.Request(err)
	}
	return &parsed, nil
}

// compute is a dtype that models compute in, nil for the device's own.
func (d Dtype) compute() (*mlx.Dtype, error) {
	if d == "" {
		return nil, nil
	}
	parsed, err := mlx.ParseDtype(string(d))
	if err != nil || parsed != mlx.Float32 && parsed != mlx.Float16 && parsed != mlx.BFloat16 {
		return nil, errs.Request(fmt.Errorf("dtype %q: expected float32, bfloat16 or float16", string(d)))
	}
	return &parsed, nil
}
