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
