package mlx_test

import (
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

type namedPair struct{ Left, Right *mlx.Array }

type namedInputs struct {
	X       *mlx.Array
	Missing *mlx.Array
	Cache   []*mlx.Array
	Pair    namedPair
}

type namedOutputs struct {
	Sum   *mlx.Array
	None  *mlx.Array
	Cache []*mlx.Array
}

// TestNamed checks that every input and output keeps its name, whichever others are nil.
func TestNamed(t *testing.T) {
	number := func(v float64) *mlx.Array { return mlx.Scalar(v, mlx.Float32) }
	for name, compile := range map[string]func(func([]*mlx.Array) []*mlx.Array) func([]*mlx.Array) []*mlx.Array{
		"compiled": mlx.Compile,
		"as it is": func(f func([]*mlx.Array) []*mlx.Array) func([]*mlx.Array) []*mlx.Array { return f },
	} {
		t.Run(name, func(t *testing.T) {
			compiles(t)
			mlxtest.Do(t, func() {
				structures := 0
				counted := func(f func([]*mlx.Array) []*mlx.Array) func([]*mlx.Array) []*mlx.Array {
					structures++
					return compile(f)
				}
				// a number with a digit for each input
				f := mlx.Named(counted, func(in namedInputs) namedOutputs {
					sum := in.X
					add := func(a *mlx.Array, factor float64) {
						if a != nil {
							sum = sum.Add(a.Times(factor))
						}
					}
					add(in.Missing, 10)
					for i, a := range in.Cache {
						add(a, []float64{100, 1000}[i])
					}
					add(in.Pair.Left, 1e4)
					add(in.Pair.Right, 1e5)
					return namedOutputs{Sum: sum, Cache: append([]*mlx.Array{nil, in.X.Neg()}, in.Cache...)}
				})
				for _, c := range []struct {
					in         namedInputs
					sum        float32
					structures int
				}{
					{namedInputs{X: number(1)}, 1, 1},
					{namedInputs{X: number(1), Missing: number(2)}, 21, 2},
					{namedInputs{X: number(1), Pair: namedPair{Left: number(5)}}, 50001, 3},
					{namedInputs{X: number(2), Pair: namedPair{Right: number(6)}}, 600002, 4},
					{namedInputs{X: number(3)}, 3, 4},
					{namedInputs{X: number(1), Cache: []*mlx.Array{number(3)}}, 301, 5},
					{namedInputs{X: number(1), Cache: []*mlx.Array{nil, number(4)}}, 4001, 6},
					{namedInputs{X: number(1), Cache: []*mlx.Array{number(3), number(4)}, Pair: namedPair{number(5), number(6)}},
						654301, 7},
					{namedInputs{X: number(9), Missing: number(8)}, 89, 7},
				} {
					x := c.in.X
					out := f(c.in)
					if got := out.Sum.Item(); got != c.sum || structures != c.structures {
						t.Errorf("found %v and %d structures, expected %v and %d", got, structures, c.sum, c.structures)
					}
					if out.None != nil || len(out.Cache) != 2+len(c.in.Cache) || out.Cache[0] != nil || out.Cache[1].Item() != -x.Item() {
						t.Errorf("found %v", out)
						continue
					}
					for i, a := range c.in.Cache {
						if b := out.Cache[2+i]; (a == nil) != (b == nil) || a != nil && a.Item() != b.Item() {
							t.Errorf("cache %d: found %v, expected %v", i, b, a)
						}
					}
					if c.in.X != x {
						t.Error("the inputs were changed")
					}
				}
			})
		})
	}
}

// TestNamedSingle checks a single array as input and output.
func TestNamedSingle(t *testing.T) {
	compiles(t)
	mlxtest.Do(t, func() {
		f := mlx.Named(mlx.Compile, func(x *mlx.Array) *mlx.Array { return x.Plus(1) })
		mlxtest.Same(t, "output", f(mlx.FromFloat32([]float32{1, 2})).Floats(), []float32{2, 3})
	})
}

func TestNamedErrors(t *testing.T) {
	for want, f := range map[string]func(){
		"int in the inputs": func() { mlx.Named(mlx.Compile, func(in struct{ N int }) *mlx.Array { return nil })(struct{ N int }{}) },
		"field x of": func() {
			mlx.Named(mlx.Compile, func(in struct{ x *mlx.Array }) *mlx.Array { return nil })(struct{ x *mlx.Array }{})
		},
	} {
		err := mlxtest.Try(f)
		if err == nil {
			t.Fatalf("no error, expected %q", want)
		}
		mlxtest.Contains(t, err.Error(), want)
	}
}
