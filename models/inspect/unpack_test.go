package inspect

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// TestUnpack holds what is unpacked in Go against what MLX unpacks.
func TestUnpack(t *testing.T) {
	for _, q := range []mlx.Quantization{
		{Mode: "affine", Bits: 2, Group: 64},
		{Mode: "affine", Bits: 3, Group: 32}, {Mode: "affine", Bits: 3, Group: 128}, {Mode: "affine", Bits: 4, Group: 32}, {Mode: "affine", Bits: 4, Group: 64},
		{Mode: "affine", Bits: 5, Group: 64}, {Mode: "affine", Bits: 6, Group: 32}, {Mode: "affine", Bits: 8, Group: 128},
		{Mode: "mxfp4", Bits: 4, Group: 32}, {Mode: "mxfp8", Bits: 8, Group: 32}, {Mode: "nvfp4", Bits: 4, Group: 16},
	} {
		const rows, columns = 7, 384
		var arrays [3]*checkpoint.Array
		var want []float32
		mlxtest.Do(t, func() {
			packed := mlx.Normal(mlx.Key(1), mlx.Float32, rows, columns).Quantize(q)
			for i, a := range packed.Arrays() {
				arrays[i] = &checkpoint.Array{Dtype: map[bool]checkpoint.Dtype{true: checkpoint.F32, false: "U8"}[q.Mode == "affine" && i > 0], Shape: []int{a.Size()}, Data: slices.Clone(a.Bytes())}
			}
			want = packed.Dequantize(mlx.Float32).Floats()
		})
		got := unpack(q, arrays[0].Data, columns, arrays[1], arrays[2])
		if len(got) != len(want) {
			t.Fatalf("%v: %d elements, expected %d", q, len(got), len(want))
		}
		for i := range got {
			if math.Abs(got[i]-float64(want[i])) > 1e-6 {
				t.Fatalf("%v: element %d is %g, expected %g", q, i, got[i], want[i])
			}
		}
	}
}

// TestCompareQuantized compares saved models with what they were saved from: the
// errors are those that were measured when they were saved.
func TestCompareQuantized(t *testing.T) {
	for _, model := range []string{"zimage-ordinary", "flux1-dev-small", "flux2-klein", "qwen-image-ordinary"} {
		dir := filepath.Join("testdata", model, "model")
		source, err := Find(dir)
		if err != nil {
			t.Errorf("%s: %v", model, err)
			continue
		}
		for _, q := range []mlx.Quantization{{Mode: "affine", Bits: 4, Group: 32}, {Mode: "affine", Bits: 3, Group: 64}, {Mode: "mxfp4", Bits: 4, Group: 32}} {
			target := filepath.Join(t.TempDir(), "saved")
			var report *SaveReport
			mlxtest.Do(t, func() {
				if report, err = Save(source, target, SaveOptions{Quantize: &q, KeepDtypes: true}); err != nil {
					t.Fatal(err)
				}
			})
			c := compareFolders(t, target, dir)
			found := map[string]*TensorDifference{}
			for _, part := range c.Components {
				for _, d := range part.Tensors {
					found[part.Name+" "+d.Name] = d
				}
				for _, name := range part.OnlyA {
					t.Errorf("%s, %v: %s has %s alone", model, q, part.Name, name)
				}
			}
			for _, l := range report.Layers {
				d := found[l.Component+" "+l.Name+".weight"]
				if d == nil || d.Mismatch != "" {
					t.Errorf("%s, %v: %s is compared as %+v", model, q, l.Name, d)
					continue
				}
				if math.Abs(float64(d.Relative)-l.Error) > 1e-3*l.Error || !strings.HasPrefix(d.DtypeA, fmt.Sprint(l.Bits, " bits")) && d.DtypeA != l.Mode {
					t.Errorf("%s, %v: %s in %s is off by %g, expected %g", model, q, l.Name, d.DtypeA, d.Relative, l.Error)
				}
				delete(found, l.Component+" "+l.Name+".weight")
			}
			for name, d := range found { // the others stayed as they are
				if !d.Within(0) {
					t.Errorf("%s, %v: %s: %+v", model, q, name, d)
				}
			}
		}
	}
}

func compareFolders(t *testing.T, a, b string) *Comparison {
	t.Helper()
	var both [2]*Weights
	for i, dir := range []string{a, b} {
		s, err := Find(dir)
		if err != nil {
			t.Fatal(err)
		}
		if both[i], err = OpenWeights(s.FS); err != nil {
			t.Fatal(err)
		}
		defer both[i].Close()
	}
	c, err := Compare(context.Background(), both[0], both[1], nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
