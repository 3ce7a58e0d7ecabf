package mlx_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
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

// fail runs f on the MLX thread, which must fail with an *mlx.Error.
func fail(t testing.TB, f func()) *mlx.Error {
	t.Helper()
	err := mlx.Do(context.Background(), func() error { f(); return nil })
	var e *mlx.Error
	if !errors.As(err, &e) {
		t.Fatalf("found %v, expected an *mlx.Error", err)
	}
	return e
}

// random returns n numbers from the standard normal distribution.
func random(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 7))
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(r.NormFloat64())
	}
	return out
}

// randn is a random array of a shape.
func randn(seed uint64, shape ...int) *mlx.Array {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return mlx.FromFloat32(random(seed, n), shape...)
}

// near compares with a tolerance relative to the largest expected value.
func near(t testing.TB, what string, got []float32, want []float64, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: found %d elements, expected %d", what, len(got), len(want))
	}
	largest := 0.0
	for _, w := range want {
		if !math.IsInf(w, 0) {
			largest = max(largest, math.Abs(w))
		}
	}
	for i, w := range want {
		g := float64(got[i])
		if g == w || math.IsNaN(g) && math.IsNaN(w) {
			continue
		}
		if d := math.Abs(g - w); !(d <= tolerance*max(largest, 1e-3)) {
			t.Fatalf("%s: element %d of %d is %v, expected %v (largest %.3g, off by %.2g of it, allowed %.2g)",
				what, i, len(want), g, w, largest, d/largest, tolerance)
		}
	}
}

func same[T comparable](t testing.TB, what string, got, want []T) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: found %v, expected %v", what, got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%s: found %v, expected %v", what, got, want)
		}
	}
}

// line is where it is called, as an Error would say it.
func line(t testing.TB) (file string, number int) {
	_, file, number, ok := runtime.Caller(1)
	if !ok {
		t.Fatal("no caller")
	}
	return filepath.Base(filepath.Dir(file)) + "/" + filepath.Base(file), number
}

// place is " (dir/file.go:line)" as error messages end.
func place(file string, number int) string {
	return " (" + file + ":" + strconv.Itoa(number) + ")"
}

func TestMain(m *testing.M) {
	if mode := os.Getenv("GOMFLUX_TEST_HELPER"); mode != "" {
		os.Exit(helper(mode))
	}
	os.Exit(m.Run())
}

func contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("found %q, expected it to contain %q", text, part)
		}
	}
}
