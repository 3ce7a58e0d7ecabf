package nn_test

import (
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// TestWeightsOnRequest holds that the weights of attention cost nothing unless a hook reads them.
func TestWeightsOnRequest(t *testing.T) {
	mlxtest.Do(t, func() {
		taps := 0
		m := &struct{ nn.Module }{}
		nn.Bind(m, "attn", &hooks.Points{Func: func(hooks.Tap) (*mlx.Array, error) {
			taps++
			return nil, nil
		}})
		q := mlxtest.Randn(1, 1, 2, 3, 4)
		mlx.Eval(q)
		evaluations := 0
		defer mlx.WatchEval(func() func() {
			evaluations++
			return func() {}
		})()
		m.TapQKV(nn.AttentionOptions{}, q, q, q)
		if evaluations != 0 || taps != 4 {
			t.Errorf("%d evaluations for %d taps, expected 0 for 4", evaluations, taps)
		}
	})
}
