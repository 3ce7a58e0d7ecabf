package nn_test

import (
	"math"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// TestLinearInParts checks that a product whose rows are computed in parts is the same.
func TestLinearInParts(t *testing.T) {
	const rows, in, out = 7, 6, 5
	mlxtest.Do(t, func() {
		if mlx.CurrentDevice() != mlx.CPU {
			t.Skip("only kernels on the CPU can be limited")
		}
		for _, bias := range []bool{false, true} {
			for _, shape := range [][]int{{1, rows, in}, {2, rows, in}, {rows, in}, {in}} {
				l := nn.NewLinear(in, out, bias)
				l.Weight.Array = mlxtest.Randn(1, out, in)
				if bias {
					l.Bias.Array = mlxtest.Randn(2, out)
				}
				x := mlxtest.Randn(3, shape...)
				made := mlx.Made()
				want := l.Forward(x)
				whole := mlx.Made() - made
				restore := mlx.LimitKernels(2 * in * out * 3)
				made = mlx.Made()
				got := l.Forward(x)
				parts := mlx.Made() - made
				restore()
				if (parts > whole) != (len(shape) > 1) {
					t.Errorf("%v: %d operations, %d in parts", shape, whole, parts)
				}
				mlxtest.Same(t, "shape", got.Shape(), want.Shape())
				for i, v := range got.Floats() {
					if w := want.Floats()[i]; math.Abs(float64(v-w)) > 1e-6 {
						t.Fatalf("%v, bias %v: value %d is %v, expected %v", shape, bias, i, v, w)
					}
				}
			}
		}
	})
}
