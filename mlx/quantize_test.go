package mlx_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// relative is ‖a-b‖/‖b‖.
func relative(a, b *mlx.Array) float64 {
	var diff, norm float64
	y := b.Floats()
	for i, x := range a.Floats() {
		d := float64(x) - float64(y[i])
		diff, norm = diff+d*d, norm+float64(y[i])*float64(y[i])
	}
	return math.Sqrt(diff / norm)
}

func TestQuantize(t *testing.T) {
	for _, q := range []struct {
		mlx.Quantization
		most float64 // largest allowed error, for normally distributed weights
	}{
		{mlx.Quantization{Mode: "affine", Bits: 2, Group: 64}, 0.5},
		{mlx.Quantization{Mode: "affine", Bits: 3, Group: 64}, 0.25},
		{mlx.Quantization{Mode: "affine", Bits: 4, Group: 32}, 0.1},
		{mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}, 0.12},
		{mlx.Quantization{Mode: "affine", Bits: 4, Group: 128}, 0.13},
		{mlx.Quantization{Mode: "affine", Bits: 5, Group: 64}, 0.06},
		{mlx.Quantization{Mode: "affine", Bits: 6, Group: 64}, 0.03},
		{mlx.Quantization{Mode: "affine", Bits: 8, Group: 64}, 0.01},
		{mlx.Quantization{Mode: "mxfp4", Bits: 4, Group: 32}, 0.15},
		{mlx.Quantization{Mode: "mxfp8", Bits: 8, Group: 32}, 0.04},
		{mlx.Quantization{Mode: "nvfp4", Bits: 4, Group: 16}, 0.12},
	} {
		t.Run(fmt.Sprint(q.Quantization), func(t *testing.T) {
			mlxtest.Do(t, func() {
				w := mlx.Normal(mlx.Key(1), mlx.Float32, 24, 256)
				x := mlx.Normal(mlx.Key(2), mlx.Float32, 3, 256)
				packed := w.Quantize(q.Quantization)
				if shape := packed.Packed.Shape(); shape[1] != 256*q.Bits/32 || packed.Scales.Dim(1) != 256/q.Group {
					t.Errorf("quantized to %v, with scales %v", packed.Packed, packed.Scales)
				}
				plain := packed.Dequantize(mlx.Float32)
				e := relative(plain, w)
				t.Logf("error %.4f", e)
				if !(e > 0 && e < q.most) {
					t.Errorf("error %.4f, expected at most %g", e, q.most)
				}
				if e := relative(packed.MatmulT(x), x.Matmul(plain.T())); e > 1e-5 {
					t.Errorf("the products with the quantized and the dequantized matrix differ by %.2g", e)
				}
				if e := relative(packed.TakeRows([]int32{5, 0}).Dequantize(mlx.Float32), plain.TakeRows([]int32{5, 0})); e != 0 {
					t.Errorf("rows are off by %g", e)
				}
			})
		})
	}
}

// TestFromFP8 reads known numbers of the OCP's 8-bit format.
func TestFromFP8(t *testing.T) {
	mlxtest.Do(t, func() {
		got := mlx.FromBytes([]byte{0x00, 0x38, 0xb8, 0x7e, 0x01, 0x80}, mlx.Uint8, 6).FromFP8(mlx.Float32).Floats()
		for i, want := range []float32{0, 1, -1, 448, 1.0 / 512, 0} {
			if got[i] != want {
				t.Errorf("byte %d is %g, expected %g", i, got[i], want)
			}
		}
	})
}
