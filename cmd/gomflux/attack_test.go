package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestAttacks runs the command on models with a file that was published as an
// attack: it is named, with exit code 3, no image is made, and neither memory
// nor time goes where the file wants it.
func TestAttacks(t *testing.T) {
	files, err := filepath.Glob("../../internal/checkpoint/testdata/attacks/*.safetensors")
	if err != nil || len(files) == 0 {
		t.Fatalf("no attacks, %v", err)
	}
	const vae = "m/vae/diffusion_pytorch_model.safetensors"
	dir, err := os.MkdirTemp("", "") // without the attack's name
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(filepath.Join(dir, "m"), os.DirFS(tinyModel)); err != nil {
		t.Fatal(err)
	}
	entries := func() (names []string) {
		found, err := filepath.Glob(dir + "/*")
		more, err2 := filepath.Glob(dir + "/m/*")
		most, err3 := filepath.Glob(dir + "/m/*/*")
		if err := errors.Join(err, err2, err3); err != nil {
			t.Fatal(err)
		}
		return append(append(found, more...), most...)
	}
	const single = "attack.safetensors"
	if err := os.WriteFile(filepath.Join(dir, single), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	before := strings.Join(entries(), " ")
	run := func(t *testing.T, code int, want string, args ...string) {
		t.Helper()
		cmd := exec.Command("gomflux", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOMFLUX_MLX="+absolute(libraries), "HF_HUB_CACHE="+filepath.Join(dir, "hub"))
		start := time.Now()
		out, err := cmd.CombinedOutput()
		took := time.Since(start)
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(string(out), want) ||
			len(out) > 20_000 || strings.Contains(string(out), "internal error") {
			t.Errorf("gomflux %s: exit code %d, expected %d and %q; output %.2000q", args[0], got, code, want, out)
		}
		if took > 10*time.Second { // with what starting takes on a busy machine
			t.Errorf("gomflux %s took %v", args[0], took)
		}
		if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
			kilobytes := int64(usage.Maxrss)
			if runtime.GOOS == "darwin" { // which counts bytes
				kilobytes >>= 10
			}
			t.Logf("gomflux %s: %v, %d kB", args[0], took, kilobytes)
			if kilobytes > 100<<10 {
				t.Errorf("gomflux %s took %d kB", args[0], kilobytes)
			}
		}
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{vae, single} {
				if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
					t.Fatal(err)
				}
			}
			run(t, 3, "gomflux: "+vae+": ", "generate", "-m", "m", "-p", "x", "-o", "x.png")
			run(t, 1, "error: vae: unreadable: "+vae+": ", "inspect", "m")
			run(t, 0, vae+": ", "show", "m")
			run(t, 3, single+": ", "generate", "-m", single, "-p", "x", "-o", "x.png")
			run(t, 3, single+": ", "generate", "-m", absolute(tinyModel), "-p", "x", "-o", "x.png", "--lora", single)
			run(t, 3, single+": ", "inspect", single)
			if after := strings.Join(entries(), " "); after != before {
				t.Errorf("files were %s and are %s", before, after)
			}
		})
	}
}
