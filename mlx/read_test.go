package mlx_test

import (
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// TestReads checks that elements are read in row-major order, whatever their order in memory.
func TestReads(t *testing.T) {
	// 0 … 11 as [3, 4], in every dtype that models and images have
	for _, dtype := range []mlx.Dtype{mlx.Float32, mlx.BFloat16, mlx.Float16, mlx.Int32, mlx.Uint8, mlx.Int64, mlx.Uint32} {
		t.Run(dtype.String(), func(t *testing.T) {
			cases := []struct {
				name string
				view func(x *mlx.Array) *mlx.Array
				want []int32
			}{
				{"whole", func(x *mlx.Array) *mlx.Array { return x }, []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
				{"transposed", func(x *mlx.Array) *mlx.Array { return x.T() }, []int32{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}},
				{"permuted", func(x *mlx.Array) *mlx.Array { return x.Reshape(3, 2, 2).Transpose(2, 0, 1) },
					[]int32{0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11}},
				{"rows", func(x *mlx.Array) *mlx.Array { return x.Slice(0, 1, 3) }, []int32{4, 5, 6, 7, 8, 9, 10, 11}},
				{"columns", func(x *mlx.Array) *mlx.Array { return x.Slice(1, 1, 3) }, []int32{1, 2, 5, 6, 9, 10}},
				{"last column", func(x *mlx.Array) *mlx.Array { return x.Slice(-1, 3, 4) }, []int32{3, 7, 11}},
				{"columns, transposed", func(x *mlx.Array) *mlx.Array { return x.Slice(1, 1, 3).T() }, []int32{1, 5, 9, 2, 6, 10}},
				{"split", func(x *mlx.Array) *mlx.Array { return x.Split(2, 1)[1] }, []int32{2, 3, 6, 7, 10, 11}},
				{"broadcast", func(x *mlx.Array) *mlx.Array { return x.Slice(1, 2, 3).BroadcastTo(2, 3, 2) },
					[]int32{2, 2, 6, 6, 10, 10, 2, 2, 6, 6, 10, 10}},
				{"expanded", func(x *mlx.Array) *mlx.Array { return x.Slice(1, 0, 1).ExpandDims(1).Squeeze(-1).T() }, []int32{0, 4, 8}},
				{"one", func(x *mlx.Array) *mlx.Array { return x.Slice(0, 2, 3).Slice(1, 3, 4) }, []int32{11}},
				{"scalar", func(x *mlx.Array) *mlx.Array { return x.Slice(0, 2, 3).Slice(1, 1, 2).Reshape() }, []int32{9}},
				{"empty", func(x *mlx.Array) *mlx.Array { return x.Slice(1, 2, 2) }, []int32{}},
			}
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					floats, bytes := make([]float32, len(c.want)), make([]uint8, len(c.want))
					for i, n := range c.want {
						floats[i], bytes[i] = float32(n), uint8(n)
					}
					view := func() *mlx.Array {
						return c.view(mlx.Arange(0, 12, 1, mlx.Float32).AsType(dtype).Reshape(3, 4))
					}
					mlxtest.Do(t, func() {
						lazy := view()
						if lazy.Dtype() != dtype {
							t.Fatalf("found %v", lazy)
						}
						mlxtest.Same(t, "Floats", lazy.Floats(), floats)
						mlxtest.Same(t, "Int32s", lazy.Int32s(), c.want)
						mlxtest.Same(t, "Uint8s", view().Uint8s(), bytes)
						evaluated := view()
						mlx.Eval(evaluated)
						mlxtest.Same(t, "Floats after Eval", evaluated.Floats(), floats)
						if len(c.want) == 1 {
							mlxtest.Same(t, "Item", []float32{view().Item()}, floats)
						}
						if n := lazy.Size(); n != len(c.want) {
							t.Errorf("found size %d, expected %d", n, len(c.want))
						}
					})
				})
			}
		})
	}
}

func TestReadBool(t *testing.T) {
	mlxtest.Do(t, func() {
		even := mlx.Arange(0, 6, 1, mlx.Int32).Reshape(3, 2).Less(mlx.FromInt32([]int32{3}))
		if even.Dtype() != mlx.Bool {
			t.Errorf("found %v, expected a bool", even)
		}
		mlxtest.Same(t, "Uint8s", even.T().Uint8s(), []uint8{1, 1, 0, 1, 0, 0})
		mlxtest.Same(t, "Floats", even.T().Floats(), []float32{1, 1, 0, 1, 0, 0})
		mlxtest.Same(t, "Int32s", even.T().Int32s(), []int32{1, 1, 0, 1, 0, 0})
	})
}

// TestReadsAreCopies checks that elements that were read are a copy, which outlives the
// array.
func TestReadsAreCopies(t *testing.T) {
	var host []float32
	mlxtest.Do(t, func() {
		x := mlx.Full(1, mlx.Float32, 1000)
		host = x.Floats()
		host[0] = 7
		mlxtest.Same(t, "element", x.Slice(0, 0, 1).Floats(), []float32{1})
	})
	mlxtest.Do(t, func() { mlx.Eval(mlx.Full(2, mlx.Float32, 1000)) }) // takes the freed memory
	for i, v := range host[1:] {
		if v != 1 {
			t.Fatalf("element %d became %v after its job", i+1, v)
		}
	}
}

func TestFromDataCopies(t *testing.T) {
	mlxtest.Do(t, func() {
		floats, ints, bytes := []float32{1, 2}, []int32{1, 2}, []uint8{1, 2}
		f, i, b := mlx.FromFloat32(floats), mlx.FromInt32(ints), mlx.FromUint8(bytes)
		floats[0], ints[0], bytes[0] = 9, 9, 9
		mlxtest.Same(t, "floats", f.Floats(), []float32{1, 2})
		mlxtest.Same(t, "ints", i.Int32s(), []int32{1, 2})
		mlxtest.Same(t, "bytes", b.Uint8s(), []uint8{1, 2})
		if f.Dtype() != mlx.Float32 || i.Dtype() != mlx.Int32 || b.Dtype() != mlx.Uint8 {
			t.Errorf("found %v, %v, %v", f, i, b)
		}
		empty := mlx.FromFloat32(nil, 0, 3)
		mlxtest.Same(t, "empty shape", empty.Shape(), []int{0, 3})
		mlxtest.Same(t, "empty", empty.Floats(), []float32{})
		scalar := mlx.FromFloat32([]float32{5}, []int{}...)
		mlxtest.Same(t, "scalar", scalar.Shape(), []int{})
		mlxtest.Same(t, "vector", mlx.FromFloat32([]float32{5, 6}).Shape(), []int{2})
	})
}

// TestReadUint8s checks that bytes are read before or after they are computed, and only if they are in order.
func TestReadUint8s(t *testing.T) {
	mlxtest.Do(t, func() {
		x := mlx.Arange(0, 6, 1, mlx.Float32).AsType(mlx.Uint8).Reshape(2, 3)
		for range 2 {
			found := make([]uint8, 8)
			if n := x.ReadUint8s(found); n != 6 {
				t.Errorf("%d bytes", n)
			}
			mlxtest.Same(t, "bytes", found, []uint8{0, 1, 2, 3, 4, 5, 0, 0})
			x = x.Plus(0)
			mlx.AsyncEval(x)
		}
	})
	for _, view := range []func(x *mlx.Array) *mlx.Array{(*mlx.Array).T, func(x *mlx.Array) *mlx.Array { return x.AsType(mlx.Int32) }} {
		mlxtest.Fail(t, func() { view(mlx.FromUint8([]uint8{1, 2, 3, 4}, 2, 2)).ReadUint8s(make([]uint8, 4)) })
	}
}
