package mlx_test

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
)

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

// callSite returns the file and line of the call, as an Error has them.
func callSite(t testing.TB) (file string, number int) {
	_, file, number, ok := runtime.Caller(1)
	if !ok {
		t.Fatal("no caller")
	}
	return filepath.Base(filepath.Dir(file)) + "/" + filepath.Base(file), number
}

// place returns the end of an error message, " (dir/file.go:line)".
func place(file string, number int) string {
	return " (" + file + ":" + strconv.Itoa(number) + ")"
}

func TestMain(m *testing.M) {
	if mode := os.Getenv("GOMFLUX_TEST_HELPER"); mode != "" {
		os.Exit(helper(mode))
	}
	os.Exit(m.Run())
}
