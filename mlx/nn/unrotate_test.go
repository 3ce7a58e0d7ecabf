package nn

import (
	"math"
	"testing"

	"github.com/gomflux/gomflux/internal/hadamard"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// TestUnrotate compares the product of matrices, in which GPUs undo a rotation, with the product
// factor by factor.
func TestUnrotate(t *testing.T) {
	for _, group := range []int{4, 16, 256} {
		values := mlxtest.Random(1, 6*512)
		var got []float32
		mlxtest.Do(t, func() { got = unrotate(mlx.FromFloat32(values, 6, 512), group).Floats() })
		hadamard.Multiply(values, group)
		for i, want := range values {
			if math.Abs(float64(got[i]-want)) > 1e-5 {
				t.Fatalf("group %d: number %d is %g, expected %g", group, i, got[i], want)
			}
		}
	}
}
