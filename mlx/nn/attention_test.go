package nn_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// What enters attention is seen in the reference's layout, may be replaced, and
// goes on in ours.
func TestEnter(t *testing.T) {
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprint("length first ", first), func(t *testing.T) {
			mlxtest.Do(t, func() {
				var seen []string
				var weights []float32
				given := mlxtest.Randn(4, 1, 4, 3, 2)
				if first {
					given = mlxtest.Randn(4, 1, 3, 4, 2)
				}
				points := &hooks.Points{Step: 1}
				m := &nn.SiLU{}
				nn.Bind(m, "attn", points)
				enter := func() (q, k, v *mlx.Array) {
					double := func(x *mlx.Array) *mlx.Array { return x.Times(2) }
					return m.Enter(nn.Entry{Rotate: double, LengthFirst: first, Causal: true},
						mlxtest.Randn(1, 1, 4, 3, 2), mlxtest.Randn(2, 1, 2, 3, 2), mlxtest.Randn(3, 1, 2, 3, 2))
				}
				q, k, v := enter()
				mlxtest.Same(t, "q without a hook", q.Floats(), mlxtest.Randn(1, 1, 4, 3, 2).Times(2).Floats())
				points.Func = func(tap hooks.Tap) (*mlx.Array, error) {
					seen = append(seen, fmt.Sprint(tap.FullName(), " ", tap.Output.Shape()))
					switch tap.Point.Key {
					case hooks.Q:
						return given, nil
					case hooks.Weights:
						weights = tap.Output.Floats()
					}
					return nil, nil
				}
				q2, k2, v2 := enter()
				want := given
				qs, ks := "[1 4 3 2]", "[1 2 3 2]"
				if first {
					want = given.Transpose(0, 2, 1, 3)
					qs, ks = "[1 3 4 2]", "[1 3 2 2]"
				}
				mlxtest.Same(t, "q", q2.Floats(), want.Floats())
				mlxtest.Same(t, "k", k2.Floats(), k.Floats())
				mlxtest.Same(t, "v", v2.Floats(), v.Floats())
				mlxtest.Same(t, "taps", seen, []string{
					"attn@1:q.unrotated " + qs, "attn@1:k.unrotated " + ks,
					"attn@1:q " + qs, "attn@1:k " + ks, "attn@1:v " + ks, "attn@1:weights [1 4 3 3]",
				})
				// the weights are those that attention uses
				got := mlx.FromFloat32(weights, 1, 2, 2, 3, 3).Matmul(v.Reshape(1, 2, 1, 3, 2)).Reshape(1, 4, 3, 2)
				near(t, "attention", got.Floats(), wide(nn.CausalAttention(q2, k2, v2).Floats()), 1e-6)
				for i := range 4 {
					if w := weights[9*i : 9*i+9]; w[0] != 1 || w[1] != 0 || w[5] != 0 || math.Abs(float64(w[6]+w[7]+w[8]-1)) > 1e-6 {
						t.Errorf("weights of head %d: %v", i, w)
					}
				}
			})
		})
	}
}

// Padding is seen by nobody: what an additive mask does with more work.
func TestPaddedCausalAttention(t *testing.T) {
	const n, width = 7, 4
	mlxtest.Do(t, func() {
		q, k, v := mlxtest.Randn(1, 1, 4, n, width), mlxtest.Randn(2, 1, 2, n, width), mlxtest.Randn(3, 1, 2, n, width)
		for valid := 1; valid <= n; valid++ {
			var mask []float32
			for from := range n {
				for to := range n {
					if to > from || to >= valid {
						mask = append(mask, -1e9)
					} else {
						mask = append(mask, 0)
					}
				}
			}
			want := mlx.Attention(q, k, v, 0.5, mlx.FromFloat32(mask, 1, 1, n, n))
			got := nn.PaddedCausalAttention(q, k, v, valid)
			mlxtest.Same(t, "shape", got.Shape(), want.Shape())
			near(t, fmt.Sprint(valid, " valid"), got.Floats(), wide(want.Floats()), 1e-6)
		}
	})
}

// The weights that hooks see are those of attention, whatever goes into them.
func TestWeights(t *testing.T) {
	const n, width = 5, 4
	for name, c := range map[string]struct {
		entry  nn.Entry
		attend func(bias, q, k, v *mlx.Array) *mlx.Array
	}{
		"plain":  {nn.Entry{}, func(_, q, k, v *mlx.Array) *mlx.Array { return nn.Attention(q, k, v) }},
		"causal": {nn.Entry{Causal: true}, func(_, q, k, v *mlx.Array) *mlx.Array { return nn.CausalAttention(q, k, v) }},
		"padded": {nn.Entry{Causal: true, Keys: 3}, func(_, q, k, v *mlx.Array) *mlx.Array { return nn.PaddedCausalAttention(q, k, v, 3) }},
		"bias":   {nn.Entry{Scale: 1}, func(bias, q, k, v *mlx.Array) *mlx.Array { return mlx.Attention(q, k, v, 1, bias) }},
	} {
		t.Run(name, func(t *testing.T) {
			mlxtest.Do(t, func() {
				q, k, v, bias := mlxtest.Randn(1, 1, 4, n, width), mlxtest.Randn(2, 1, 2, n, width), mlxtest.Randn(3, 1, 2, n, width), mlxtest.Randn(4, 1, 4, n, n)
				var weights []float32
				m := &nn.SiLU{}
				nn.Bind(m, "attn", &hooks.Points{Func: func(tap hooks.Tap) (*mlx.Array, error) {
					if tap.Point.Key == hooks.Weights {
						weights = tap.Output.Floats()
					}
					return nil, nil
				}})
				if c.entry.Scale != 0 {
					c.entry.Bias = bias
				}
				m.Enter(c.entry, q, k, v)
				got := mlx.FromFloat32(weights, 1, 2, 2, n, n).Matmul(v.Reshape(1, 2, 1, n, width)).Reshape(1, 4, n, width)
				near(t, "attention", got.Floats(), wide(c.attend(bias, q, k, v).Floats()), 1e-6)
			})
		})
	}
}

// What is arranged comes behind the rotation, with a hook and without, and the
// hook sees it as attention gets it.
func TestEnterArranged(t *testing.T) {
	mlxtest.Do(t, func() {
		points := &hooks.Points{}
		m := &nn.SiLU{}
		nn.Bind(m, "attn", points)
		more := mlxtest.Randn(4, 1, 2, 1, 2)
		enter := func() (q, k, v *mlx.Array) {
			return m.Enter(nn.Entry{
				Rotate: func(x *mlx.Array) *mlx.Array { return x.Times(2) },
				Arrange: func(q, k, v *mlx.Array) (*mlx.Array, *mlx.Array, *mlx.Array) {
					return q.Slice(2, 1, 3), mlx.Concat(2, k, more), mlx.Concat(2, more, v)
				},
			}, mlxtest.Randn(1, 1, 2, 3, 2), mlxtest.Randn(2, 1, 2, 3, 2), mlxtest.Randn(3, 1, 2, 3, 2))
		}
		if m.Observed() {
			t.Error("observed without a hook")
		}
		q, k, v := enter()
		mlxtest.Same(t, "q", q.Floats(), mlxtest.Randn(1, 1, 2, 3, 2).Slice(2, 1, 3).Times(2).Floats())
		mlxtest.Same(t, "k", k.Floats(), mlx.Concat(2, mlxtest.Randn(2, 1, 2, 3, 2).Times(2), more).Floats())
		mlxtest.Same(t, "v", v.Floats(), mlx.Concat(2, more, mlxtest.Randn(3, 1, 2, 3, 2)).Floats())
		var seen []string
		points.Func = func(tap hooks.Tap) (*mlx.Array, error) {
			seen = append(seen, fmt.Sprint(tap.FullName(), " ", tap.Output.Shape()))
			return nil, nil
		}
		if !m.Observed() {
			t.Error("not observed with a hook")
		}
		q2, k2, v2 := enter()
		mlxtest.Same(t, "q", q2.Floats(), q.Floats())
		mlxtest.Same(t, "k", k2.Floats(), k.Floats())
		mlxtest.Same(t, "v", v2.Floats(), v.Floats())
		mlxtest.Same(t, "taps", seen, []string{
			"attn@0:q.unrotated [1 2 3 2]", "attn@0:k.unrotated [1 2 3 2]",
			"attn@0:q [1 2 2 2]", "attn@0:k [1 2 4 2]", "attn@0:v [1 2 4 2]", "attn@0:weights [1 2 2 4]",
		})
	})
}
