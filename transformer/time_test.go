package transformer_test

import (
	"testing"

	"github.com/gomflux/gomflux/mlx"
)

// projectionsOf returns the rows of step i of n from the projections of all steps: its own, and those
// after all of them, which belong to every step.
func projectionsOf(all *mlx.Array, i, n int) *mlx.Array {
	return mlx.Concat(0, all.Slice(0, i, i+1), all.Slice(0, n, all.Dim(0)))
}

// checkProjected compares the output of a pass that got the projections of its time with that of one
// that computed them, whose product has a single row: they may differ by rounding.
func checkProjected(t testing.TB, projected, computed *mlx.Array, dtype mlx.Dtype) {
	t.Helper()
	most := map[mlx.Dtype]float64{mlx.Float32: 2e-6, mlx.Float16: 0.005, mlx.BFloat16: 0.03}[dtype]
	check(t, "with projections of the time", projected.AsType(mlx.Float32).Floats(), computed.AsType(mlx.Float32).Floats(), most)
}
