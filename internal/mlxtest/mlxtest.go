// Package mlxtest holds what the tests of packages that use MLX share.
package mlxtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
)

// Try runs f on the MLX thread.
func Try(f func()) error {
	return mlx.Do(context.Background(), func() error { f(); return nil })
}

// Do runs f on the MLX thread and fails the test on an error.
func Do(t testing.TB, f func()) {
	t.Helper()
	if err := Try(f); err != nil {
		t.Fatal(err)
	}
}

// Fail runs f on the MLX thread, which must fail with an *mlx.Error.
func Fail(t testing.TB, f func()) *mlx.Error {
	t.Helper()
	err := Try(f)
	var e *mlx.Error
	if !errors.As(err, &e) {
		t.Fatalf("found %v, expected an *mlx.Error", err)
	}
	return e
}

// Random returns n numbers from the standard normal distribution.
func Random(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 7))
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(r.NormFloat64())
	}
	return out
}

// Size is the number of elements of a shape.
func Size(shape []int) int { return checkpoint.Len(shape) }

// Randn is a random array of a shape.
func Randn(seed uint64, shape ...int) *mlx.Array {
	return mlx.FromFloat32(Random(seed, Size(shape)), shape...)
}

// Same fails the test unless got and want have the same elements.
func Same[T comparable](t testing.TB, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: found %v, expected %v", what, got, want)
	}
}

// Contains fails the test unless text has all parts.
func Contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("found %q, expected it to contain %q", text, part)
		}
	}
}
