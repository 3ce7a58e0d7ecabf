package gomflux

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
)

// A Device is a device that models run on.
type Device string

const (
	AnyDevice Device = ""      // a GPU if there is one, otherwise the CPU
	CPU       Device = "cpu"   // the CPU
	GPU       Device = "gpu"   // a GPU, with Metal or CUDA
	Metal     Device = "metal" // a GPU with Metal
	CUDA      Device = "cuda"  // a GPU with CUDA
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

// A Scheduler computes the denoising steps from noise to an image.
type Scheduler string

const (
	Euler  Scheduler = "flow_match_euler_discrete" // diffusers' FlowMatchEulerDiscreteScheduler
	Heun   Scheduler = "flow_match_heun_discrete"  // diffusers' FlowMatchHeunDiscreteScheduler
	Linear Scheduler = "linear"                    // mflux's LinearScheduler
)

// A Background is what is behind the objects of a generated image, for models whose images have
// an alpha channel. The images of other models are opaque.
type Background string

const (
	AutoBackground        Background = "auto"        // as the model generates it
	TransparentBackground Background = "transparent" // an error if the model's images are opaque
	OpaqueBackground      Background = "opaque"      // transparent pixels are blended with white
)

// A Quantization is a quantization of weights: to a number of bits, or to a block format
// of small floating-point numbers.
type Quantization string

const (
	Bits3 Quantization = "3"     // 3 bits
	Bits4 Quantization = "4"     // 4 bits
	Bits5 Quantization = "5"     // 5 bits
	Bits6 Quantization = "6"     // 6 bits
	Bits8 Quantization = "8"     // 8 bits
	MXFP4 Quantization = "mxfp4" // 4-bit floats in blocks of 32 (OCP Microscaling)
	MXFP8 Quantization = "mxfp8" // 8-bit floats in blocks of 32 (OCP Microscaling)
	NVFP4 Quantization = "nvfp4" // 4-bit floats in blocks of 16 (NVIDIA)
)

// An RNG is a random number generator for the initial noise.
type RNG string

const (
	MLXNoise   RNG = "mlx"   // MLX's generator, as in mflux
	TorchNoise RNG = "torch" // PyTorch's CPU generator, as in diffusers
)

// Latents are an image in the latent space of a diffusion model. They are float32, in
// the shape of diffusers' pipeline without the batch axis.
type Latents struct {
	// Shape is [C, h, w]. Decoding and previews accept [1, C, h, w] too.
	Shape []int
	// Data has the elements in row-major order.
	Data []float32
}

// Settings are the settings that generate an image, see [OptionsFrom]. Package picture
// writes them to image files and reads them.
type Settings = picture.Settings

// device returns the engine's device, nil for AnyDevice.
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

// compute returns the engine's dtype for computations, nil for the device's default.
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
