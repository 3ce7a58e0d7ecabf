package nn_test

import (
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Every section has the columns of the table of its own axis.
func TestMRope(t *testing.T) {
	const theta = 1e6
	positions := [][]int{{0, 0, 0}, {1, 5, 2}, {3, 3, 700}, {40000, 7, 1}}
	sections := []int{2, 3, 1, 2} // the fourth has the first axis again
	mlxtest.Do(t, func() {
		got := nn.NewMRope(positions, sections, theta)
		from := 0
		for i, n := range sections {
			var axis [][]int
			for _, p := range positions {
				axis = append(axis, []int{p[i%3]})
			}
			want := nn.NewQwenImageRope(axis, []int{16}, theta)
			columns := func(x *mlx.Array) []float32 { return x.Slice(1, from, from+n).Floats() }
			mlxtest.Same(t, "cos", columns(got.Cos), columns(want.Cos))
			mlxtest.Same(t, "sin", columns(got.Sin), columns(want.Sin))
			from += n
		}
		mlxtest.Same(t, "shape", got.Cos.Shape(), []int{4, 8})
	})
}
