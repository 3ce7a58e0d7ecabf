package mlx

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// TestKernels compares every kernel with its graph on a GPU, in all dtypes.
func TestKernels(t *testing.T) {
	err := Do(context.Background(), func() error {
		states, err := Kernels()
		if err != nil {
			t.Skip(err)
		}
		for _, s := range states {
			if s.Err != nil {
				t.Errorf("%s: %v", s.Name, s.Err)
			}
		}
		if err := Use(GPU); err != nil {
			return err
		}
		for _, c := range kernelCases() {
			for _, dtype := range kernelDtypes {
				if err := runCase(c, dtype); err != nil {
					t.Errorf("%s in %v: %v", c.name, dtype, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A recorder records the launches of kernels, and returns zeros as their results.
type recorder struct{ launches map[string]recorded }

type recorded struct {
	kernel  *kernel
	launch  launch
	variant string
}

func (r recorder) run(k *kernel, l launch) (out []*Array) {
	r.launches[l.variant(k)] = recorded{k, l, l.variant(k)}
	for _, o := range l.outputs {
		out = append(out, Zeros(o.dtype, o.shape...))
	}
	return out
}

// record passes the launches of cases to use, one of each variant.
func record(t *testing.T, cases []kernelCase, dtypes []Dtype, use func(recorded)) {
	t.Helper()
	r := recorder{map[string]recorded{}}
	withRunner(t, r, func() {
		for _, c := range cases {
			for _, dtype := range dtypes {
				c.compute(&inputs{dtype: dtype})
			}
		}
		for _, key := range slices.Sorted(maps.Keys(r.launches)) {
			use(r.launches[key])
		}
	})
}

// TestKernelNames expects a file for every kernel, a check that launches it, and no other files.
func TestKernelNames(t *testing.T) {
	launched := map[string]bool{}
	for _, k := range kernels {
		record(t, caseNamed(t, kernelChecks(), "check of "+k.name), kernelDtypes[:1], func(r recorded) { launched[r.kernel.name] = true })
		if !launched[k.name] {
			t.Errorf("the check of %s does not launch it", k.name)
		}
		delete(launched, k.name)
		launched[k.name+".cpp"] = true
	}
	files, err := kernelFiles.ReadDir("kernels")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if filepath.Ext(f.Name()) == ".cpp" && !launched[f.Name()] {
			t.Errorf("%s belongs to no kernel", f.Name())
		}
	}
}

// TestCompileCUDA compiles the kernels with NVIDIA's run-time compiler, where it is installed. It
// needs no GPU.
func TestCompileCUDA(t *testing.T) {
	library := "libnvrtc.so.13"
	if path := os.Getenv("GOMFLUX_NVRTC"); path != "" {
		library = path
	}
	if err := mlxc.OpenGlobal(library); err != nil {
		t.Skip(err)
	}
	record(t, kernelChecks(), kernelDtypes[:1], func(r recorded) {
		for _, architecture := range []string{"sm_75", "sm_90"} {
			source := r.kernel.cudaSource(r.launch)
			if code, err := mlxc.CompileCUDA(r.kernel.name, source, architecture); err != nil || len(code) == 0 {
				t.Errorf("%s for %s: %v", r.variant, architecture, err)
			}
		}
	})
	if _, err := mlxc.CompileCUDA("wrong", "nonsense", "sm_90"); err == nil || !strings.Contains(err.Error(), "error") {
		t.Errorf("nonsense: found %v", err)
	}
}

// A broken runner runs kernels that fail, or return zeros.
type broken struct {
	err   error
	calls int
}

func (b *broken) run(_ *kernel, l launch) (out []*Array) {
	b.calls++
	if b.err != nil {
		raise("%v", b.err)
	}
	for _, o := range l.outputs {
		out = append(out, Zeros(o.dtype, o.shape...))
	}
	return out
}

// TestKernelFailure computes with kernels that do not compile, and with ones whose results differ. The
// graph is used instead, with one warning.
func TestKernelFailure(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{{errors.New("no such instruction"), "no such instruction"}, {nil, "differ"}} {
		b := &broken{err: c.err}
		kernelRunners[BackendCPU] = b
		var warnings []string
		OnKernelFailure = func(s KernelStatus) { warnings = append(warnings, s.Name+": "+s.Err.Error()) }
		before := *gatedSumKernel
		err := Do(context.Background(), func() error {
			if err := Use(CPU); err != nil {
				return err
			}
			gatedSumKernel.checked, gatedSumKernel.failed = false, nil
			a := FromFloat32([]float32{1, 2, 3, 4, 5, 6, 7, 8}, 1, 1, 8)
			for range 3 {
				if got := GatedSum(a, a, a).Floats(); got[7] != 72 {
					t.Errorf("found %v, expected a + a·a", got)
				}
			}
			return nil
		})
		*gatedSumKernel, OnKernelFailure = before, nil
		delete(kernelRunners, BackendCPU)
		if err != nil {
			t.Fatal(err)
		}
		if len(warnings) != 1 || !strings.HasPrefix(warnings[0], "gated_sum: ") || !strings.Contains(warnings[0], c.want) {
			t.Errorf("warnings %q, expected one with %q", warnings, c.want)
		}
		if b.calls != 1 {
			t.Errorf("the kernel ran %d times, expected once", b.calls)
		}
	}
}
