package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
)

func newDoctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Say what gomflux finds on this machine and what is missing",
		Long: `Doctor prints the libraries, devices and models that gomflux finds, the
environment variables that matter, and what to do about what is missing.
` + exitStatus,
		Args: noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return doctor(cmd.Context(), cmd.OutOrStdout())
		},
	}
}

// doctorVariables are the environment variables that change what gomflux does.
var doctorVariables = []string{mlx.EnvLibrary, "TMPDIR", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
	"CUDA_VISIBLE_DEVICES", "MLX_ENABLE_CACHE_THRASHING_CHECK", "MLX_CUDA_GRAPH_CACHE_SIZE", "MLX_ENABLE_TF32"}

func doctor(ctx context.Context, w io.Writer) error {
	line := func(what, format string, args ...any) {
		fmt.Fprintf(w, "%-12s %s\n", what, fmt.Sprintf(format, args...))
	}
	var advice []string

	line("program", "%s", version())
	if builtWithCgo() {
		line("tokenizer", "built in")
	} else {
		line("tokenizer", "missing")
		advice = append(advice, "this program cannot read prompts: build it with CGO_ENABLED=1 after make setup (make build does both)")
	}
	for name, b := range models.Builtins() {
		line("model", "%s, built in (%s): %s", name, bytes(size(b.FS)), b.About)
	}
	for _, name := range doctorVariables {
		if value, set := os.LookupEnv(name); set {
			line("environment", "%s=%s", name, value)
		}
	}

	lib, err := mlx.Open()
	if err == nil {
		line("mlx-c", "ABI 0.7, %s", lib.MLXC)
		err = describeMLX(ctx, lib, line)
	}
	if err != nil {
		line("mlx", "cannot be used")
		fmt.Fprintln(w)
		return coded(exitLibrary, err)
	}
	if slowBLAS(lib) {
		advice = append(advice, blasHint)
	}
	fmt.Fprintln(w)
	if len(advice) == 0 {
		fmt.Fprintln(w, "nothing is missing")
	}
	for _, a := range advice {
		fmt.Fprintln(w, a)
	}
	return nil
}

// describeMLX prints what there is to know about an MLX that has been opened.
func describeMLX(ctx context.Context, lib mlx.Library, line func(what, format string, args ...any)) error {
	var version string
	var devices []mlx.DeviceInfo
	var standard mlx.Device
	err := mlx.Do(ctx, func() error {
		version, devices, standard = mlx.Version(), mlx.Devices(), mlx.CurrentDevice()
		return nil
	})
	if err != nil {
		return err
	}
	path := lib.MLX
	if path == "" {
		path = "found by the system's loader"
	}
	line("mlx", "%s, %s", version, path)
	switch {
	case lib.BLAS != "":
		line("blas", "%s", lib.BLAS)
	case runtime.GOOS == "linux":
		line("blas", "the slow one that MLX was built with")
	}
	for _, d := range devices {
		parts := []string{d.Device.String()}
		if d.Device == standard {
			parts[0] += " (used unless --device says otherwise)"
		}
		for _, s := range []string{d.Name, d.Architecture} {
			if s != "" && s != d.Device.String() {
				parts = append(parts, s)
			}
		}
		memory := d.Memory
		if d.Device == mlx.CPU {
			memory = cmp.Or(memory, systemMemory())
		}
		if memory > 0 {
			parts = append(parts, bytes(int64(memory)))
		}
		line("device", "%s, computes in %s", strings.Join(parts, ", "), d.Device.ComputeDtype())
	}
	return nil
}

// size is that of all files together, in bytes.
func size(fsys fs.FS) (n int64) {
	err := fs.WalkDir(fsys, ".", func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	if err != nil {
		panic(errors.Join(errors.New("embedded files cannot be read"), err))
	}
	return n
}

// libraryPaths lists the files of a library on one line.
func libraryPaths(lib mlx.Library) string {
	var paths []string
	for _, p := range []string{lib.MLXC, lib.MLX, lib.BLAS} {
		if p != "" {
			paths = append(paths, p)
		}
	}
	return strings.Join(paths, ", ")
}
