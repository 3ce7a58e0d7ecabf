package main

import (
	"context"
	"errors"
	"runtime"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/lora"
	_ "github.com/gomflux/gomflux/models/shapes"
)

// What --model stands at where it is on the machine: the first of the models
// that make pictures, and of those that edit some.
const (
	defaultModel     = "z-image-turbo"
	defaultEditModel = "flux2-klein-4b"
)

// modelFlags are the flags of every command that runs a model.
type modelFlags struct {
	model, base string
	fallback    string // where none is given; "" if one must be
	dtype       optional[gomflux.Dtype]
	device      optional[gomflux.Device]
}

func newModelFlags() modelFlags {
	return modelFlags{
		fallback: defaultModel,
		dtype:    oneOf("dtype", dtypes...),
		device:   oneOf("device", gomflux.CPU, gomflux.GPU),
	}
}

// dtypes are what --dtype takes, with the short names.
var dtypes = []gomflux.Dtype{gomflux.Float32, gomflux.BFloat16, gomflux.Float16, "fp32", "bf16", "fp16"}

// place is --device and --dtype as the packages below gomflux take them, nil
// where they are not given.
func (m *modelFlags) place() (device *mlx.Device, dtype *mlx.Dtype, err error) {
	if m.device.given() {
		d, err := mlx.ParseDevice(m.device.String())
		if err != nil {
			return nil, nil, err
		}
		device = &d
	}
	if m.dtype.given() {
		d, err := mlx.ParseDtype(m.dtype.String())
		if err != nil {
			return nil, nil, err
		}
		dtype = &d
	}
	return device, dtype, nil
}

func (m *modelFlags) addModel(f *pflag.FlagSet) {
	usage := "a built-in or published model (`name`; gomflux models lists them), a folder, a safetensors file, or owner/name[@revision][:file] in the Hugging Face cache"
	if m.fallback != "" {
		usage += " (default: " + m.fallback + ")"
	}
	f.VarP((*modelName)(&m.model), "model", "m", usage)
	addBaseModel(f, &m.base)
}

func addBaseModel(f *pflag.FlagSet, base *string) {
	f.StringVar(base, "base-model", "", "the model (`name`) that what a single file does not have is taken from (default: the one that it is made from, if that can be told)")
}

// A modelName is the value of --model, which has a default only where it is left
// out. It implements pflag.Value.
type modelName string

func (n *modelName) Set(s string) error {
	if s == "" {
		return errors.New("the name is empty (leave it out for the default)")
	}
	*n = modelName(s)
	return nil
}

func (n *modelName) String() string { return string(*n) }
func (n *modelName) Type() string   { return "name" }

func (m *modelFlags) addPlace(f *pflag.FlagSet) {
	f.Var(&m.dtype, "dtype", "what to compute in: float32, bfloat16 or float16 (default: float32 on the CPU, bfloat16 on a GPU)")
	f.Var(&m.device, "device", "where to compute: cpu or gpu (default: a GPU if there is one)")
}

// find looks for the model.
func (m *modelFlags) find() (*gomflux.Source, error) {
	if m.model == "" && m.base != "" {
		return nil, usageErrorf("--base-model is for a model that is a single file (--model FILE)")
	}
	if m.model == "" {
		s, err := gomflux.Find(m.fallback)
		if errors.Is(err, gomflux.ErrNotFound) {
			builtin := ""
			if m.fallback == defaultModel {
				builtin = "--model shapes is built in; "
			}
			return nil, usageErrorf("no model given, and the default, %s, is not on this machine (%sto get the default: gomflux pull %s; --model FOLDER takes a model in a folder)",
				m.fallback, builtin, m.fallback)
		}
		return s, coded(exitModel, err)
	}
	return findWith(m.model, m.base)
}

// findWith looks for a model, and for what a single file takes from another one.
func findWith(name, base string) (*gomflux.Source, error) {
	s, err := gomflux.FindWith(name, base)
	if errors.Is(err, gomflux.ErrRequest) {
		return nil, coded(exitUsage, err)
	}
	return s, coded(exitModel, err)
}

// openOptions are the flags as a source is opened with them.
func (m *modelFlags) openOptions() *gomflux.OpenOptions {
	return &gomflux.OpenOptions{Device: m.device.orZero(), Dtype: m.dtype.orZero()}
}

// A warner passes on what may not be as the user expects.
type warner interface {
	warn(format string, args ...any)
}

// checkLibrary opens MLX, and finds out whether the device that was asked for
// is there.
func (m *modelFlags) checkLibrary(ctx context.Context, w warner) (mlx.Library, error) {
	lib, err := mlx.Open()
	if err != nil {
		return lib, coded(exitLibrary, err)
	}
	gpu, err := hasGPU(ctx)
	switch {
	case err != nil:
		return lib, coded(exitLibrary, err)
	case m.device.orZero() == gomflux.GPU && !gpu:
		return lib, usageErrorf("device gpu: MLX finds no GPU here (gomflux doctor says what it finds; --device cpu always works)")
	case slowBLAS(lib) && (m.device.orZero() == gomflux.CPU || !gpu):
		w.warn("%s", blasHint)
	}
	return lib, nil
}

func hasGPU(ctx context.Context) (gpu bool, err error) {
	err = mlx.Do(ctx, func() error {
		for _, d := range mlx.Devices() {
			gpu = gpu || d.Device == mlx.GPU
		}
		return nil
	})
	return gpu, err
}

const blasHint = "no fast BLAS library found, so the CPU is about ten times slower than it could be (install OpenBLAS; on Debian and Ubuntu: apt install libopenblas0-pthread)"

// slowBLAS says whether MLX's matrix products on the CPU are done by the
// reference BLAS. Macs bring a fast one.
func slowBLAS(lib mlx.Library) bool { return runtime.GOOS == "linux" && lib.BLAS == "" }

// modelError gives an error of a model's run its exit code.
func modelError(err error) error {
	if errors.Is(err, gomflux.ErrRequest) {
		return coded(exitUsage, err)
	}
	// package parity's errors are the engine's, which gomflux's wrap
	_, unfit := errors.AsType[*lora.Error](err)
	e, ok := errors.AsType[*models.NotFiniteError](err)
	if unfit || ok && e.Damaged() || errors.Is(err, gomflux.ErrNotFound) || errors.Is(err, gomflux.ErrUnsupported) {
		return coded(exitModel, err)
	}
	return err
}
