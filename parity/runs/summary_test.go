package runs_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/parity/runs"
)

// TestSummarize compares the statistics of the device with those of the host.
func TestSummarize(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	make32 := func(n int, f func(i int) float64) *mlx.Array {
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(f(i))
		}
		return mlx.FromFloat32(values, n)
	}
	normal := func(scale, shift float64) func(int) float64 {
		return func(int) float64 { return shift + scale*random.NormFloat64() }
	}
	nan, inf := math.NaN(), math.Inf(1)
	odd := func(i int) float64 {
		return []float64{nan, inf, -inf, random.NormFloat64()}[i%7%4]
	}
	mlxtest.Do(t, func() {
		for name, x := range map[string]*mlx.Array{
			"empty":                       mlx.Zeros(mlx.Float32, 0, 4),
			"scalar":                      mlx.Scalar(-2.5, mlx.Float32),
			"small":                       make32(7, normal(1, 0)),
			"a block":                     make32(4096, normal(1, 0)),
			"blocks and a rest":           make32(3*4096+5, normal(1, 3)),
			"many blocks":                 make32(1<<20, normal(3, 100)),
			"several parts":               mlx.Normal(mlx.Key(1), mlx.BFloat16, 2*4096*4096+5000),
			"constant":                    make32(9000, func(int) float64 { return 0.1 }),
			"tiny":                        make32(9000, normal(1e-30, 0)),
			"nearly constant":             make32(9000, normal(1e-3, 1e3)),
			"the second block huge":       make32(8192, func(i int) float64 { return random.NormFloat64() * []float64{1, 1e30}[i/4096] }),
			"the second block not finite": make32(8192, func(i int) float64 { return []float64{1, inf}[i/8191] }),
			"zero":                        mlx.Zeros(mlx.Float32, 2, 64, 64),
			"one":                         make32(10000, func(i int) float64 { return float64(i / 9999) }),
			"NaN":                         make32(5000, func(int) float64 { return nan }),
			"infinite":                    make32(5000, func(i int) float64 { return []float64{inf, -inf}[i%2] }),
			"some not finite":             make32(20000, odd),
			"a block not finite":          make32(9000, func(i int) float64 { return []float64{nan, 1, 2}[i/4096] }),
			"negative with a NaN":         make32(5000, func(i int) float64 { return []float64{nan, -1, -2}[min(i, 1+i%2)] }),
			"positive with a NaN":         make32(5000, func(i int) float64 { return []float64{nan, 1, 2}[min(i, 1+i%2)] }),
			"denormal":                    make32(5000, func(i int) float64 { return 1.4e-45 * float64(i%3) }),
			"huge":                        make32(9000, normal(1e30, -2e30)),
			"largest":                     make32(9000, func(i int) float64 { return math.MaxFloat32 * float64(1-i%2*2) }),
			"unequal blocks":              make32(3*4096, func(i int) float64 { return []float64{1e30, 1e-30, 5}[i/4096] }),
			"float16":                     make32(9000, normal(2e4, 0)).AsType(mlx.Float16),
			"bfloat16":                    make32(9000, normal(1e38, 0)).AsType(mlx.BFloat16),
			"transposed":                  make32(9000, normal(1, 0)).Reshape(90, 100).Transpose(1, 0),
			"int32":                       mlx.FromInt32(slices.Repeat([]int32{math.MaxInt32, math.MinInt32, 7}, 5000), 15000),
			"uint8":                       mlx.FromUint8(slices.Repeat([]uint8{0, 255, 7}, 5000), 3, 5000),
			"bool":                        make32(5000, normal(1, 0)).Less(mlx.Scalar(0.5, mlx.Float32)),
		} {
			compareStats(t, name, x)
		}
	})
}

func compareStats(t *testing.T, name string, x *mlx.Array) {
	t.Helper()
	host, err := runs.FromArray(name, x)
	if err != nil {
		t.Fatal(err)
	}
	got, first, err := runs.Summarize(x, 10)
	if err != nil {
		t.Fatal(err)
	}
	want := host.Stats()
	same := func(a, b checkpoint.Float) bool { return a == b || a != a && b != b }
	// the host adds float64 values, the device blocks of float32 values
	size := max(math.Abs(float64(want.Min)), math.Abs(float64(want.Max)))
	near := func(a, b checkpoint.Float, most float64) bool {
		return same(a, b) || math.Abs(float64(a-b)) <= most*size
	}
	if !same(got.Min, want.Min) || !same(got.Max, want.Max) || !near(got.Mean, want.Mean, 1e-8) || !near(got.Std, want.Std, 1e-7) ||
		got.NaN != want.NaN || got.Inf != want.Inf {
		t.Errorf("%s: found %+v, expected %+v", name, got, want)
	}
	wantFirst := host.First(10)
	if len(first) != len(wantFirst) {
		t.Fatalf("%s: first %v, expected %v", name, first, wantFirst)
	}
	for i, v := range wantFirst {
		if !same(checkpoint.Float(first[i]), checkpoint.Float(v)) {
			t.Errorf("%s: first %v, expected %v", name, first, wantFirst)
		}
	}
}

// BenchmarkSummarize compares both ways.
func BenchmarkSummarize(b *testing.B) {
	for name, f := range map[string]func(*mlx.Array){
		"device": func(x *mlx.Array) { runs.Summarize(x, 10) },
		"host": func(x *mlx.Array) {
			if t, err := runs.FromArray("", x); err == nil {
				t.Stats()
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			mlxtest.Do(b, func() {
				x := mlx.Normal(mlx.Key(1), mlx.Float32, 1024, 4096)
				mlx.Eval(x)
				for b.Loop() {
					f(x)
				}
			})
		})
	}
}
