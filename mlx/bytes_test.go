package mlx_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

func TestBytes(t *testing.T) {
	for d, want := range map[mlx.Dtype][]byte{
		mlx.Bool: {1, 0, 1}, mlx.Uint8: {3, 0, 5}, mlx.Int16: {3, 0, 0, 0, 5, 0}, mlx.Uint32: {3, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0},
		mlx.BFloat16: {0x40, 0x40, 0, 0, 0xa0, 0x40}, mlx.Float16: {0, 0x42, 0, 0, 0, 0x45},
		mlx.Int64: {3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0},
	} {
		mlxtest.Do(t, func() {
			x := mlx.FromInt32([]int32{3, 0, 5}).AsType(d)
			got := x.Bytes()
			if !bytes.Equal(got, want) {
				t.Errorf("%v: found %v, expected %v", d, got, want)
			}
			y := mlx.FromBytes(got, d, 3, 1)
			if y.Dtype() != d || !slices.Equal(y.Shape(), []int{3, 1}) || !bytes.Equal(y.Bytes(), want) {
				t.Errorf("%v: came back as %v %v", d, y, y.Bytes())
			}
		})
	}
	mlxtest.Do(t, func() { // a view has no memory of its own
		x := mlx.FromUint8([]uint8{1, 2, 3, 4, 5, 6}, 2, 3).T()
		mlxtest.Same(t, "transposed", x.Bytes(), []byte{1, 4, 2, 5, 3, 6})
		mlxtest.Same(t, "none", mlx.Zeros(mlx.Float32, 0, 3).Bytes(), []byte{})
	})
	mlxtest.Contains(t, mlxtest.Fail(t, func() { mlx.FromBytes(make([]byte, 3), mlx.Float16) }).Message, "3 bytes for elements of 2")
	mlxtest.Contains(t, mlxtest.Fail(t, func() { mlx.FromBytes(make([]byte, 4), mlx.Float16, 3) }).Message, "2 elements for shape [3]")
}

// TestShapeIsACopy changes the result of Shape.
func TestShapeIsACopy(t *testing.T) {
	mlxtest.Do(t, func() {
		a := mlx.Zeros(mlx.Int32, 2, 3)
		a.Shape()[0] = 7
		if got := a.Shape(); !slices.Equal(got, []int{2, 3}) || a.Dim(0) != 2 || a.Size() != 6 {
			t.Errorf("shape %v, first axis %d, %d elements", got, a.Dim(0), a.Size())
		}
		if s := mlx.Scalar(1, mlx.Float32); s.Ndim() != 0 || s.Size() != 1 || len(s.Shape()) != 0 {
			t.Errorf("scalar of shape %v, %d elements", s.Shape(), s.Size())
		}
	})
}
