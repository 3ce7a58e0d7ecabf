package mlx

import (
	"context"
	"regexp"
	"slices"
	"testing"
)

// TestTurnOff expects that a kernel that is turned off does not run, and is still checked.
func TestTurnOff(t *testing.T) {
	b := &broken{}
	kernelRunners[BackendCPU] = b
	before := *gatedSumKernel
	defer func() {
		delete(kernelRunners, BackendCPU)
		*gatedSumKernel = before
	}()
	err := Do(context.Background(), func() error {
		if err := Use(CPU); err != nil {
			return err
		}
		defer func() {
			if err := TurnOff(); err != nil {
				t.Error(err)
			}
		}()
		a := FromFloat32([]float32{1, 2, 3, 4, 5, 6, 7, 8}, 1, 1, 8)
		for i, off := range [][]string{nil, {"gated_sum"}, {"bias_sum"}, {"gated_sum", "host_rope"}} {
			gatedSumKernel.checked, gatedSumKernel.failed = true, nil
			if err := TurnOff(off...); err != nil {
				t.Fatal(err)
			}
			b.calls = 0
			Eval(GatedSum(a, a, a))
			if runs := !slices.Contains(off, "gated_sum"); (b.calls == 1) != runs {
				t.Errorf("%d: without %v the kernel ran %d times", i, off, b.calls)
			}
			if onHost(hostRope, a) != (useHost && !slices.Contains(off, "host_rope")) {
				t.Errorf("%d: without %v rotary embeddings on the host: %v", i, off, onHost(hostRope, a))
			}
		}
		gatedSumKernel.checked, b.calls = false, 0
		gatedSumKernel.verify()
		if b.calls == 0 || gatedSumKernel.failed == nil || !gatedSumKernel.off {
			t.Errorf("the check ran the kernel %d times: %v", b.calls, gatedSumKernel.failed)
		}
		if err := TurnOff("nothing"); err == nil || !gatedSumKernel.off {
			t.Errorf("an unknown name: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if v := ReplacementsVersion(); !regexp.MustCompile(`^[0-9a-f]{12}$`).MatchString(v) {
		t.Errorf("version %q", v)
	}
}
