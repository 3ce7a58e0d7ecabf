package mlx_test

import (
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

func TestWatchEval(t *testing.T) {
	var seen string
	mlxtest.Do(t, func() {
		x := mlx.Full(1, mlx.Float32, 2)
		stop := mlx.WatchEval(func() func() {
			seen += "<"
			return func() { seen += ">" }
		})
		mlx.Eval() // nothing
		mlx.Eval(x)
		x.Plus(1).Floats()
		inner := mlx.WatchEval(func() func() { return func() { seen += "i" } })
		mlx.Eval(x)
		inner()
		mlx.Eval(x)
		stop()
		mlx.Eval(x)
	})
	if want := "<><>i<>"; seen != want {
		t.Errorf("found %q, expected %q", seen, want)
	}
}

// TestWatchHost holds that an operation on the host is an evaluation around those of its inputs.
func TestWatchHost(t *testing.T) {
	if !mlx.ConvolvesOnHost() {
		t.Skip("nothing is computed on the host")
	}
	mlxtest.Do(t, func() {
		if err := mlx.Use(mlx.CPU); err != nil {
			t.Fatal(err)
		}
		image := mlxtest.Randn(1, 1, 8, 8, 16)
		mlx.Eval(image)
		for name, f := range map[string]func(){
			"silu":      func() { image.SiLU() },
			"conv":      func() { image.Conv2d(mlxtest.Randn(2, 16, 3, 3, 16), 1, 1) },
			"attention": func() { mlx.Attention(image, image, image, 1, nil) },
			"group":     func() { image.GroupStatisticsOnHost(4, 1e-6) },
		} {
			level, deepest := 0, 0
			stop := mlx.WatchEval(func() func() {
				level++
				deepest = max(deepest, level)
				return func() { level-- }
			})
			f()
			stop()
			if level != 0 || deepest != 2 {
				t.Errorf("%s: evaluations nested %d deep, and %d have not ended", name, deepest, level)
			}
		}
	})
}

// TestWatchEvalFails holds that the end of an evaluation is reported even if it fails.
func TestWatchEvalFails(t *testing.T) {
	ended := false
	mlxtest.Fail(t, func() {
		defer mlx.WatchEval(func() func() { return func() { ended = true } })()
		x := mlx.Full(1, mlx.Float32, 2)
		x.Free()
		mlx.Eval(x)
	})
	if !ended {
		t.Error("the end was not reported")
	}
}
