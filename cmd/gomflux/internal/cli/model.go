package cli

import (
	"context"
	"errors"
	"runtime"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/lora"
	_ "github.com/gomflux/gomflux/models/shapes"
)

// The models that generate and edit use without --model.
const (
	DefaultModel     = "z-image-turbo"
	DefaultEditModel = "flux2-klein-4b"
)

// ModelFlags are the flags of every command that runs a model.
type ModelFlags struct {
	Model, Base string
	Fallback    string // without --model; "" if it is required
	Dtype       Optional[gomflux.Dtype]
	Device      Optional[gomflux.Device]
}

func NewModelFlags() ModelFlags {
	return ModelFlags{
		Fallback: DefaultModel,
		Dtype:    OneOf("dtype", Dtypes...),
		Device:   OneOf("device", gomflux.CPU, gomflux.GPU),
	}
}

// Dtypes are the values of --dtype, with short names.
var Dtypes = []gomflux.Dtype{gomflux.Float32, gomflux.BFloat16, gomflux.Float16, "fp32", "bf16", "fp16"}

// Place returns --device and --dtype as the packages below gomflux take them, nil
// for flags that are not given.
func (m *ModelFlags) Place() (device *mlx.Device, dtype *mlx.Dtype, err error) {
	if m.Device.Given() {
		d, err := mlx.ParseDevice(m.Device.String())
		if err != nil {
			return nil, nil, err
		}
		device = &d
	}
	if m.Dtype.Given() {
		d, err := mlx.ParseDtype(m.Dtype.String())
		if err != nil {
			return nil, nil, err
		}
		dtype = &d
	}
	return device, dtype, nil
}

func (m *ModelFlags) AddModel(f *pflag.FlagSet) {
	usage := "`name` of a built-in or published model (see gomflux models), a folder, a safetensors file, " +
		"or owner/name[@revision][:file] in the Hugging Face cache"
	if m.Fallback != "" {
		usage += " (default: " + m.Fallback + ")"
	}
	f.VarP((*ModelName)(&m.Model), "model", "m", usage)
	AddBaseModel(f, &m.Base)
}

func AddBaseModel(f *pflag.FlagSet, base *string) {
	f.StringVar(base, "base-model", "", "base model (`name`) that supplies what a single-file model lacks (default: detected)")
}

// A ModelName is the value of --model, which cannot be empty. It implements
// pflag.Value.
type ModelName string

func (n *ModelName) Set(s string) error {
	if s == "" {
		return errors.New("the name is empty (leave it out for the default)")
	}
	*n = ModelName(s)
	return nil
}

func (n *ModelName) String() string { return string(*n) }
func (n *ModelName) Type() string   { return "name" }

func (m *ModelFlags) AddCompute(f *pflag.FlagSet) {
	f.Var(&m.Dtype, "dtype", "dtype of the computation: float32, bfloat16 or float16 (default: see gomflux doctor)")
	f.Var(&m.Device, "device", "device of the computation: cpu or gpu (default: a GPU if there is one)")
}

// AddLowRAM adds --low-ram of commands that load a model as [gomflux.Open] does.
func AddLowRAM(f *pflag.FlagSet, lowRAM *bool) {
	f.BoolVar(lowRAM, "low-ram", false, "keep only one text encoder or the transformer in memory at a time, and none while decoding "+
		"(slower; automatic if memory is short)")
}

// Find finds the model.
func (m *ModelFlags) Find() (*gomflux.Source, error) {
	if m.Model == "" && m.Base != "" {
		return nil, UsageErrorf("--base-model needs a single-file model (--model FILE)")
	}
	if m.Model == "" {
		s, err := gomflux.Find(m.Fallback)
		if errors.Is(err, gomflux.ErrNotFound) {
			builtin := ""
			if m.Fallback == DefaultModel {
				builtin = "--model shapes is built in; "
			}
			return nil, UsageErrorf("no --model given, and the default model, %s, is not downloaded "+
				"(%sto download the default: gomflux pull %s; --model FOLDER uses a model in a folder)",
				m.Fallback, builtin, m.Fallback)
		}
		return s, Coded(ExitModel, err)
	}
	return FindWith(m.Model, m.Base)
}

// FindWith finds a model, and the base model of a single file.
func FindWith(name, base string) (*gomflux.Source, error) {
	s, err := gomflux.FindWith(name, base)
	if errors.Is(err, gomflux.ErrRequest) {
		return nil, Coded(ExitUsage, err)
	}
	return s, Coded(ExitModel, err)
}

// OpenOptions returns the flags as options to open a source with.
func (m *ModelFlags) OpenOptions() *gomflux.OpenOptions {
	return &gomflux.OpenOptions{Device: m.Device.OrZero(), Dtype: m.Dtype.OrZero()}
}

// CheckLibrary opens MLX and checks that the requested device is there.
func (m *ModelFlags) CheckLibrary(ctx context.Context, out *ui.Output) (mlx.Library, error) {
	lib, err := mlx.Open()
	if err != nil {
		return lib, Coded(ExitLibrary, err)
	}
	gpu, err := hasGPU(ctx)
	switch {
	case err != nil:
		return lib, Coded(ExitLibrary, err)
	case m.Device.OrZero() == gomflux.GPU && !gpu:
		return lib, UsageErrorf("device gpu: MLX finds no GPU on this machine " +
			"(gomflux doctor lists the devices; --device cpu always works)")
	case SlowBLAS(lib) && (m.Device.OrZero() == gomflux.CPU || !gpu):
		out.Warn("%s", BlasHint)
	}
	return lib, nil
}

func hasGPU(ctx context.Context) (gpu bool, err error) {
	err = mlx.Do(ctx, func() error {
		_, gpu = deviceInfo(mlx.GPU)
		return nil
	})
	return gpu, err
}

const BlasHint = "no fast BLAS library found: the CPU runs about ten times slower than it could " +
	"(install OpenBLAS; on Debian and Ubuntu: apt install libopenblas0-pthread)"

// SlowBLAS reports whether MLX's matrix products on the CPU use the reference
// BLAS. Macs have a fast one.
func SlowBLAS(lib mlx.Library) bool { return runtime.GOOS == "linux" && lib.BLAS == "" }

// ModelError gives an error of loading or running a model its exit code.
func ModelError(err error) error {
	if errors.Is(err, gomflux.ErrRequest) && !errors.Is(err, gomflux.ErrUnsupported) {
		return Coded(ExitUsage, err)
	}
	// package parity returns the engine's errors, which gomflux's wrap
	_, unfit := errors.AsType[*lora.Error](err)
	e, ok := errors.AsType[*models.NotFiniteError](err)
	damaged := ok && e.Damaged() || errors.Is(err, checkpoint.ErrDamaged)
	if unfit || damaged || errors.Is(err, gomflux.ErrNotFound) || errors.Is(err, gomflux.ErrUnsupported) {
		return Coded(ExitModel, err)
	}
	return err
}

// OpenVAE loads the autoencoder that the flags name. The progress shows loading,
// and stays for what the caller does.
func (m *ModelFlags) OpenVAE(ctx context.Context, out *ui.Output) (*gomflux.VAE, *ui.Progress, error) {
	source, err := m.Find()
	if err != nil {
		return nil, nil, err
	}
	if _, err := m.CheckLibrary(ctx, out); err != nil {
		return nil, nil, err
	}
	progress := out.StartProgress(ctx)
	open := m.OpenOptions()
	open.Progress = progress.Report
	vae, err := source.OpenVAE(ctx, open)
	if err != nil {
		progress.Close()
		return nil, nil, Coded(ExitModel, ModelError(err))
	}
	return vae, progress, nil
}
