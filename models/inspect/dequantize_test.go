package inspect

import (
	"math"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// TestDequantize compares the dequantization in Go with that of MLX.
func TestDequantize(t *testing.T) {
	for _, q := range []mlx.Quantization{
		{Mode: "affine", Bits: 2, Group: 64},
		{Mode: "affine", Bits: 3, Group: 32}, {Mode: "affine", Bits: 3, Group: 128}, {Mode: "affine", Bits: 4, Group: 32},
		{Mode: "affine", Bits: 4, Group: 64},
		{Mode: "affine", Bits: 5, Group: 64}, {Mode: "affine", Bits: 6, Group: 32}, {Mode: "affine", Bits: 8, Group: 128},
		{Mode: "mxfp4", Bits: 4, Group: 32}, {Mode: "mxfp8", Bits: 8, Group: 32}, {Mode: "nvfp4", Bits: 4, Group: 16},
	} {
		const rows, columns = 7, 384
		var arrays [3]*checkpoint.Array
		var want []float32
		mlxtest.Do(t, func() {
			packed := mlx.Normal(mlx.Key(1), mlx.Float32, rows, columns).Quantize(q)
			for i, a := range packed.Arrays() {
				arrays[i] = &checkpoint.Array{Dtype: map[bool]checkpoint.Dtype{true: checkpoint.F32,
					false: "U8"}[q.Mode == "affine" && i > 0], Shape: []int{a.Size()}, Data: slices.Clone(a.Bytes())}
			}
			want = packed.Dequantize(mlx.Float32).Floats()
		})
		got := dequantize(q, arrays[0].Data, columns, arrays[1], arrays[2])
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
