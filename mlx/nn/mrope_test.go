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

// Pairs of height and width alternate with those of time until their sections end.
func TestInterleavedMRope(t *testing.T) {
	const theta = 1e6
	positions := [][]int{{0, 0, 0}, {1, 5, 2}, {3, 3, 700}, {40000, 7, 1}}
	axes := []int{0, 1, 2, 0, 1, 2, 0, 1, 0, 0} // of 10 pairs with the sections 4, 3 and 2
	mlxtest.Do(t, func() {
		got := nn.NewInterleavedMRope(positions, [3]int{4, 3, 2}, len(axes), theta)
		mlxtest.Same(t, "shape", got.Cos.Shape(), []int{4, 10})
		for i, a := range axes {
			var axis [][]int
			for _, p := range positions {
				axis = append(axis, []int{p[a]})
			}
			want := nn.NewQwenImageRope(axis, []int{20}, theta)
			column := func(x *mlx.Array) []float32 { return x.Slice(1, i, i+1).Floats() }
			mlxtest.Same(t, "cos", column(got.Cos), column(want.Cos))
			mlxtest.Same(t, "sin", column(got.Sin), column(want.Sin))
		}
		plain := nn.NewQwenImageRope([][]int{{0}, {9}}, []int{20}, theta)
		text := nn.NewInterleavedMRope([][]int{{0, 0, 0}, {9, 9, 9}}, [3]int{4, 3, 2}, len(axes), theta)
		mlxtest.Same(t, "cos of text", text.Cos.Floats(), plain.Cos.Floats())
	})
}
