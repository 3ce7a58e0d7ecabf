package stepcache_test

import (
	"math"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/stepcache"
)

// TestEasy follows the rule by hand: with an input of 2 values that moves by 1 in each evaluation
// and an output of 10 times the input, the relative change of an output is 10/(10·input).
func TestEasy(t *testing.T) {
	mlxtest.Do(t, func() {
		c := &stepcache.Cache{Rule: stepcache.Rule{Name: stepcache.Easy, Threshold: 0.35}}
		defer c.Free()
		calls := 0
		predict := stepcache.Predictions(c, func(x *mlx.Array, _ int) *mlx.Array {
			calls++
			return x.Times(10)
		})
		const n = 20
		var skipped []int
		for i := range n {
			c.Part = float64(i) / n
			x := float32(5 + i)
			out := mlx.Scope(func() *mlx.Array { return predict(mlx.FromFloat32([]float32{x, -x}, 1, 2), i) })
			want := 10 * x
			if c.Reused {
				skipped = append(skipped, i)
				want = x + 9*(5+float32(slices.Max(computed(skipped, i))))
			}
			if got := out.Floats(); math.Abs(float64(got[0]-want)) > 1e-3 || got[0] != -got[1] {
				t.Errorf("evaluation %d: %v, expected %g", i, got, want)
			}
		}
		// 3 is 15 % of 20: 10/70 + 10/71 is less than 0.35, and with 10/72 it is more, and so on
		if want := []int{3, 4, 6, 7, 8, 10, 11, 12, 13, 15, 16, 17, 18}; !slices.Equal(skipped, want) || calls != n-len(want) {
			t.Errorf("skipped %v in %d calls, expected %v", skipped, calls, want)
		}
	})
}

// computed returns the evaluations before i that are not skipped.
func computed(skipped []int, i int) (out []int) {
	for k := range i {
		if !slices.Contains(skipped, k) {
			out = append(out, k)
		}
	}
	return out
}
