package mlx_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// helper runs in place of the tests if run starts this test binary: a process opens the
// library only once.
func helper(mode string) int {
	switch mode {
	case "open":
		lib, err := mlx.Open()
		fmt.Printf("MLXC=%s\nMLX=%s\nBLAS=%s\n", lib.MLXC, lib.MLX, lib.BLAS)
		for range 2 { // the error stays the same
			again := mlx.Do(context.Background(), func() error { mlx.Zeros(mlx.Float32, 2).Floats(); return nil })
			if fmt.Sprint(again) != fmt.Sprint(err) {
				fmt.Printf("Do says %v\n", again)
			}
		}
		fmt.Printf("ERROR=%v\n", err)
	case "compile":
		err := mlx.Do(context.Background(), func() error {
			f := mlx.Compile(func(in []*mlx.Array) []*mlx.Array { return []*mlx.Array{in[0].Plus(1).Exp().Sin()} })
			fmt.Println(f([]*mlx.Array{mlx.Zeros(mlx.Float32, 3)})[0].Floats())
			return nil
		})
		fmt.Printf("ERROR=%v\n", err)
	default:
		return 2
	}
	return 0
}

// run runs the helper in a process of its own and returns what it printed.
func run(t *testing.T, mode, dir string, env ...string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), append(env, "GOMFLUX_TEST_HELPER="+mode)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func libName(name string) string {
	if runtime.GOOS == "darwin" {
		return "lib" + name + ".dylib"
	}
	return "lib" + name + ".so"
}

// library makes a library of empty functions.
func library(t *testing.T, path string, functions ...string) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler to make a library with")
	}
	var source strings.Builder
	for _, f := range functions {
		fmt.Fprintf(&source, "void %s(void) {}\n", f)
	}
	cmd := exec.Command(cc, "-shared", "-fPIC", "-x", "c", "-o", path, "-")
	cmd.Stdin = strings.NewReader(source.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestLibraryErrors(t *testing.T) {
	name := libName("mlxc")
	cases := []struct {
		name string
		make func(t *testing.T, dir string)
		want []string
	}{
		{"an empty folder", func(t *testing.T, dir string) {},
			[]string{"library " + name + " not found", "make setup", "GOMFLUX_MLX", "DIR/" + name, "DIR/lib/" + name}},
		{"0.5", func(t *testing.T, dir string) { library(t, filepath.Join(dir, name), "mlx_add", "mlx_cumsum") },
			[]string{"DIR/" + name, "wrong mlx-c version", "mlx-c 0.7 is needed, this is 0.5 or older", "make setup", "GOMFLUX_MLX"}},
		{"0.6", func(t *testing.T, dir string) {
			library(t, filepath.Join(dir, name), "mlx_add", "mlx_cumsum", "mlx_hanning")
		},
			[]string{"DIR/" + name, "mlx-c 0.7 is needed, this is 0.6;", "make setup"}},
		{"0.6, later build", func(t *testing.T, dir string) {
			library(t, filepath.Join(dir, name), "mlx_add", "mlx_cumsum", "mlx_hanning", "mlx_distributed_group_new")
		}, []string{"DIR/" + name, "this is 0.6 (a later build)", "make setup"}},
		{"0.7 that lacks a function", func(t *testing.T, dir string) {
			library(t, filepath.Join(dir, name), "mlx_add", "mlx_compile_cache_new", "mlx_cumsum_axis")
		}, []string{"cannot open DIR/" + name, "no function mlx_abs"}},
		{"another library", func(t *testing.T, dir string) { library(t, filepath.Join(dir, name), "hello") },
			[]string{"DIR/" + name, "not mlx-c at all"}},
		{"no library", func(t *testing.T, dir string) { write(t, filepath.Join(dir, name), "hello\n") },
			[]string{"cannot open DIR/" + name}},
		{"no library in lib", func(t *testing.T, dir string) { write(t, filepath.Join(dir, "lib", name), "") },
			[]string{"cannot open DIR/lib/" + name}},
		{"libmlx is no library", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, libName("mlx")), "hello\n")
			library(t, filepath.Join(dir, name), "mlx_add")
		}, []string{"cannot open DIR/" + libName("mlx")}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			c.make(t, dir)
			out := run(t, "open", dir, mlx.EnvLibrary+"="+dir)
			for _, want := range c.want {
				mlxtest.Contains(t, out, strings.ReplaceAll(want, "DIR", dir))
			}
			if strings.Contains(out, "Do says") {
				t.Errorf("Do does not return Open's error: %s", out)
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestLibraryFolders checks that the program searches its own folder and the system's,
// wherever it is installed and started.
func TestLibraryFolders(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	out := run(t, "open", dir, mlx.EnvLibrary+"=")
	if strings.Contains(out, "ERROR=<nil>") {
		t.Skip("the system has an MLX of its own")
	}
	if exe, err = filepath.EvalSymlinks(exe); err != nil {
		t.Fatal(err)
	}
	beside := filepath.Dir(exe)
	mlxtest.Contains(t, out, filepath.Join(beside, libName("mlxc")), filepath.Join(beside, "lib", libName("mlxc")),
		filepath.Join(beside, "..", ".setup", "lib", libName("mlxc")), "/usr/local/lib/"+libName("mlxc"))

	// in a folder of the module, as with go test and go run, it finds the module's .setup
	root := filepath.Join(dir, "gomflux")
	write(t, filepath.Join(root, "go.mod"), "module github.com/gomflux/gomflux\n\ngo 1.26\n")
	below := filepath.Join(root, "a", "b")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	out = run(t, "open", below, mlx.EnvLibrary+"=")
	if root, err = filepath.EvalSymlinks(root); err != nil {
		t.Fatal(err)
	}
	mlxtest.Contains(t, out, filepath.Join(root, ".setup", "lib", libName("mlxc")))
}

func TestLibraryFound(t *testing.T) {
	lib, err := mlx.Open()
	if err != nil {
		t.Fatal(err)
	}
	if !filepath.IsAbs(lib.MLXC) || filepath.Base(lib.MLXC) != libName("mlxc") {
		t.Errorf("found %q as libmlxc", lib.MLXC)
	}
	// the same with the environment variable
	out := run(t, "open", t.TempDir(), mlx.EnvLibrary+"="+filepath.Dir(lib.MLXC))
	mlxtest.Contains(t, out, "MLXC="+lib.MLXC+"\n", "ERROR=<nil>")
	if runtime.GOOS != "linux" {
		return
	}
	ldconfig, err := exec.Command("/sbin/ldconfig", "-p").Output()
	if err != nil || !bytes.Contains(ldconfig, []byte("libopenblas.so.0")) {
		t.Skip("no OpenBLAS in the system")
	}
	if lib.BLAS != "libopenblas.so.0" {
		t.Errorf("found BLAS %q, expected libopenblas.so.0", lib.BLAS)
	}
}
