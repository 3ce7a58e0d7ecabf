package parity

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// TestUpscalers replays networks that enlarge images: a run of SeedVR2's makers' code, and one of spandrel.
func TestUpscalers(t *testing.T) {
	for _, c := range []struct {
		dump   string
		fault  string // a module whose output is wrong
		inside string // and in which of the others it is not seen
		least  int    // tensors that are compared
	}{
		{"seedvr2", "upscaler.blocks.1.attn.proj_out.all@0", "upscaler.blocks.1.attn.proj_qkv.all@0", 200},
		{"real-esrgan", "upscaler.body.0.rdb2@0", "upscaler.body.0.rdb2.conv5@0", 40},
	} {
		run := fmt.Sprintf("../upscaler/testdata/runs/%s/dump", c.dump)
		r, err := Replay(t.Context(), run, Options{Dtype: exact})
		if err != nil {
			t.Fatal(err)
		}
		t.Log(r.Verdict.Text)
		if !r.Verdict.OK || len(r.Tensors) < c.least || len(r.Missing) > 0 || !r.Unhooked.OK {
			t.Errorf("%s: %s; %d tensors, missing %q, without hooks %+v", c.dump, r.Verdict.Text, len(r.Tensors), r.Missing, r.Unhooked)
		}
		r, err = Replay(t.Context(), run, Options{Dtype: exact, bug: func(_ *replay, tap hooks.Tap) *mlx.Array {
			if tap.FullName() != c.fault {
				return nil
			}
			return tap.Output.Times(1.01)
		}})
		if err != nil {
			t.Fatal(err)
		}
		if v := r.Verdict; v.OK || v.Module != c.fault || r.Find(c.inside).Own == nil || !r.Find(c.inside).Own.OK {
			t.Errorf("%s: %s", c.dump, v.Text)
		}
		_, err = Replay(t.Context(), run, Options{Quantize: &mlx.Quantization{Mode: "affine", Bits: 4}})
		if err == nil || !strings.Contains(err.Error(), "enlarges images") {
			t.Errorf("%s quantized: %v", c.dump, err)
		}
		err = mlx.Do(t.Context(), func() error {
			_, err := Prepare(run, Options{Dtype: exact})
			return err
		})
		mlxtest.Contains(t, fmt.Sprint(err), "as that of a pipeline")
	}
}
