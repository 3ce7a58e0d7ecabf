package vae

import (
	"math"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx/nn"
)

// TestAttendInParts checks that attend equals nn.Attention for every number of queries at a
// time.
func TestAttendInParts(t *testing.T) {
	const queries, keys, width = 23, 17, 8
	mlxtest.Do(t, func() {
		q, k, v := mlxtest.Randn(1, 1, 1, queries, width), mlxtest.Randn(2, 1, 1, keys, width), mlxtest.Randn(3, 1, 1, keys, width)
		want := nn.Attention(q, k, v).Floats()
		for _, step := range []int{0, 1, 5, 22, 23, 100} {
			got := attend(q, k, v, step*keys)
			mlxtest.Same(t, "shape", got.Shape(), []int{1, 1, queries, width})
			for i, g := range got.Floats() {
				if math.Abs(float64(g-want[i])) > 1e-6 {
					t.Fatalf("%d queries at a time: value %d is %v, expected %v", step, i, g, want[i])
				}
			}
		}
	})
}
