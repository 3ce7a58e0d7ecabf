package mlx_test

import (
	"context"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// BenchmarkAdd measures the overhead of an operation in Go and mlx-c, without computing it.
func BenchmarkAdd(b *testing.B) {
	mlxtest.Do(b, func() {
		x := mlx.Zeros(mlx.Float32, 8, 8)
		b.ReportAllocs()
		b.ResetTimer()
		for range b.N {
			x.Add(x).Free()
		}
	})
}

func BenchmarkScope(b *testing.B) {
	mlxtest.Do(b, func() {
		x := mlx.Zeros(mlx.Float32, 8, 8)
		b.ResetTimer()
		for range b.N {
			mlx.Scope(func() *mlx.Array { return x.Add(x).Mul(x) }).Free()
		}
	})
}

// BenchmarkDo measures a round trip to the MLX thread.
func BenchmarkDo(b *testing.B) {
	nothing := func() error { return nil }
	for range b.N {
		if err := mlx.Do(context.Background(), nothing); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCall(b *testing.B) {
	mlxtest.Do(b, func() {
		b.ResetTimer()
		for range b.N {
			mlx.Call(func() {})
		}
	})
}

func BenchmarkMatmul1024(b *testing.B) {
	mlxtest.Do(b, func() {
		x := mlxtest.Randn(1, 1024, 1024)
		mlx.Eval(x)
		b.ResetTimer()
		for range b.N {
			mlx.WithScope(func() { y := x.Matmul(x); mlx.Eval(y) })
		}
		b.ReportMetric(2*1024*1024*1024*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
	})
}
