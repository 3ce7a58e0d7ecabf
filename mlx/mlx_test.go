package mlx_test

import (
	"context"
	"testing"

	"github.com/gomflux/gomflux/mlx"
)

// do runs f on the MLX thread and fails the test on an error.
func do(t testing.TB, f func()) {
	t.Helper()
	if err := mlx.Do(context.Background(), func() error { f(); return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestSmoke(t *testing.T) {
	do(t, func() {
		x := mlx.FromFloat32([]float32{1, 2, 3, 4}, 2, 2)
		t.Log(x.Matmul(x.T()).Floats(), mlx.Version(), mlx.Devices())
	})
	err := mlx.Do(context.Background(), func() error {
		x := mlx.FromFloat32([]float32{1, 2, 3, 4}, 2, 2)
		x.Matmul(mlx.FromFloat32([]float32{1, 2, 3}, 3)).Floats()
		return nil
	})
	t.Log(err)
}
