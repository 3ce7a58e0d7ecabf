package main

import (
	"context"
	"errors"
	"runtime"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/lora"
	_ "github.com/gomflux/gomflux/models/shapes"
)

// The models that generate and edit use without --model.
const (
	defaultModel     = "z-image-turbo"
	defaultEditModel = "flux2-klein-4b"
)

// modelFlags are the flags of every command that runs a model.
type modelFlags struct {
	model, base string
	fallback    string // without --model; "" if it is required
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

// dtypes are the values of --dtype, with short names.
var dtypes = []gomflux.Dtype{gomflux.Float32, gomflux.BFloat16, gomflux.Float16, "fp32", "bf16", "fp16"}

// place returns --device and --dtype as the packages below gomflux take them, nil
// for flags that are not given.
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
	usage := "`name` of a built-in or published model (see gomflux models), a folder, a safetensors file, " +
		"or owner/name[@revision][:file] in the Hugging Face cache"
	if m.fallback != "" {
		usage += " (default: " + m.fallback + ")"
	}
	f.VarP((*modelName)(&m.model), "model", "m", usage)
	addBaseModel(f, &m.base)
}

func addBaseModel(f *pflag.FlagSet, base *string) {
	f.StringVar(base, "base-model", "", "base model (`name`) that supplies what a single-file model lacks (default: detected)")
}

// A modelName is the value of --model, which cannot be empty. It implements
// pflag.Value.
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

func (m *modelFlags) addCompute(f *pflag.FlagSet) {
	f.Var(&m.dtype, "dtype", "dtype of the computation: float32, bfloat16 or float16 (default: see gomflux doctor)")
	f.Var(&m.device, "device", "device of the computation: cpu or gpu (default: a GPU if there is one)")
}

// addLowRAM adds --low-ram of commands that load a model as [gomflux.Open] does.
func addLowRAM(f *pflag.FlagSet, lowRAM *bool) {
	f.BoolVar(lowRAM, "low-ram", false, "keep only one text encoder or the transformer in memory at a time, and none while decoding "+
		"(slower; automatic if memory is short)")
}

// find finds the model.
func (m *modelFlags) find() (*gomflux.Source, error) {
	if m.model == "" && m.base != "" {
		return nil, usageErrorf("--base-model needs a single-file model (--model FILE)")
	}
	if m.model == "" {
		s, err := gomflux.Find(m.fallback)
		if errors.Is(err, gomflux.ErrNotFound) {
			builtin := ""
			if m.fallback == defaultModel {
				builtin = "--model shapes is built in; "
			}
			return nil, usageErrorf("no --model given, and the default model, %s, is not downloaded "+
				"(%sto download the default: gomflux pull %s; --model FOLDER uses a model in a folder)",
				m.fallback, builtin, m.fallback)
		}
		return s, coded(exitModel, err)
	}
	return findWith(m.model, m.base)
}

// findWith finds a model, and the base model of a single file.
func findWith(name, base string) (*gomflux.Source, error) {
	s, err := gomflux.FindWith(name, base)
	if errors.Is(err, gomflux.ErrRequest) {
		return nil, coded(exitUsage, err)
	}
	return s, coded(exitModel, err)
}

// openOptions returns the flags as options to open a source with.
func (m *modelFlags) openOptions() *gomflux.OpenOptions {
	return &gomflux.OpenOptions{Device: m.device.orZero(), Dtype: m.dtype.orZero()}
}

// checkLibrary opens MLX and checks that the requested device is there.
func (m *modelFlags) checkLibrary(ctx context.Context, out *ui.Output) (mlx.Library, error) {
	lib, err := mlx.Open()
	if err != nil {
		return lib, coded(exitLibrary, err)
	}
	gpu, err := hasGPU(ctx)
	switch {
	case err != nil:
		return lib, coded(exitLibrary, err)
	case m.device.orZero() == gomflux.GPU && !gpu:
		return lib, usageErrorf("device gpu: MLX finds no GPU on this machine " +
			"(gomflux doctor lists the devices; --device cpu always works)")
	case slowBLAS(lib) && (m.device.orZero() == gomflux.CPU || !gpu):
		out.Warn("%s", blasHint)
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

const blasHint = "no fast BLAS library found: the CPU runs about ten times slower than it could " +
	"(install OpenBLAS; on Debian and Ubuntu: apt install libopenblas0-pthread)"

// slowBLAS reports whether MLX's matrix products on the CPU use the reference
// BLAS. Macs have a fast one.
func slowBLAS(lib mlx.Library) bool { return runtime.GOOS == "linux" && lib.BLAS == "" }

// modelError gives an error of loading or running a model its exit code.
func modelError(err error) error {
	if errors.Is(err, gomflux.ErrRequest) {
		return coded(exitUsage, err)
	}
	// package parity returns the engine's errors, which gomflux's wrap
	_, unfit := errors.AsType[*lora.Error](err)
	e, ok := errors.AsType[*models.NotFiniteError](err)
	if unfit || ok && e.Damaged() || errors.Is(err, gomflux.ErrNotFound) || errors.Is(err, gomflux.ErrUnsupported) {
		return coded(exitModel, err)
	}
	return err
}

// openVAE loads the autoencoder that the flags name. The progress shows loading,
// and stays for what the caller does.
func (m *modelFlags) openVAE(ctx context.Context, out *ui.Output) (*gomflux.VAE, *ui.Progress, error) {
	source, err := m.find()
	if err != nil {
		return nil, nil, err
	}
	if _, err := m.checkLibrary(ctx, out); err != nil {
		return nil, nil, err
	}
	progress := out.StartProgress(ctx)
	open := m.openOptions()
	open.Progress = progress.Report
	vae, err := source.OpenVAE(ctx, open)
	if err != nil {
		progress.Close()
		return nil, nil, coded(exitModel, modelError(err))
	}
	return vae, progress, nil
}
