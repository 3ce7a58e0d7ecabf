package checkpoint

import (
	"math"
	"testing"
)

// TestEightBitValues compares with the sums over PyTorch's finite values, each
// times its bits.
func TestEightBitValues(t *testing.T) {
	for dtype, want := range map[Dtype]struct {
		finite int
		sum    float64
	}{"F8_E4M3": {254, -692208}, "F8_E5M2": {248, -46137343.96875}} {
		finite, sum := 0, 0.0
		for bits, v := range eightBits[dtype] {
			if v := float64(v); !math.IsNaN(v) && !math.IsInf(v, 0) {
				finite, sum = finite+1, sum+v*float64(bits)
			}
		}
		if finite != want.finite || sum != want.sum {
			t.Errorf("%s: %d finite values with the sum %v, expected %d and %v", dtype, finite, sum, want.finite, want.sum)
		}
	}
}
