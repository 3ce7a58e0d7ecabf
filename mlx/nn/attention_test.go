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

// Hooks see what attention gets in the reference's layout and may replace it. It
// continues in ours.
func TestTapQKV(t *testing.T) {
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
				double := func(x *mlx.Array) *mlx.Array { return x.Times(2) }
				o := nn.AttentionOptions{Rotate: double, LengthFirst: first, Causal: true}
				enter := func() (q, k, v *mlx.Array) {
					q, k = m.RotateQK(o, mlxtest.Randn(1, 1, 4, 3, 2), mlxtest.Randn(2, 1, 2, 3, 2))
					return m.TapQKV(o, q, k, mlxtest.Randn(3, 1, 2, 3, 2))
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

// Attend computes what its options describe, and hooks see its weights.
func TestAttend(t *testing.T) {
	const n, width = 5, 4
	type arrays struct{ q, k, v, bias, mask *mlx.Array }
	for name, c := range map[string]struct {
		options func(a arrays) nn.AttentionOptions
		attend  func(a arrays) *mlx.Array
	}{
		"plain": {
			func(a arrays) nn.AttentionOptions { return nn.AttentionOptions{} },
			func(a arrays) *mlx.Array { return nn.Attention(a.q, a.k, a.v) },
		},
		"causal": {
			func(a arrays) nn.AttentionOptions { return nn.AttentionOptions{Causal: true} },
			func(a arrays) *mlx.Array { return nn.CausalAttention(a.q, a.k, a.v) },
		},
		"padded": {
			func(a arrays) nn.AttentionOptions { return nn.AttentionOptions{Causal: true, Valid: 3} },
			func(a arrays) *mlx.Array { return nn.PaddedCausalAttention(a.q, a.k, a.v, 3) },
		},
		"bias": {
			func(a arrays) nn.AttentionOptions { return nn.AttentionOptions{Scale: 1, Mask: a.bias} },
			func(a arrays) *mlx.Array { return mlx.Attention(a.q, a.k, a.v, 1, a.bias) },
		},
		"boolean mask": {
			func(a arrays) nn.AttentionOptions { return nn.AttentionOptions{Mask: a.mask} },
			func(a arrays) *mlx.Array { return nn.Attention(a.q, a.k.Slice(2, 0, 2), a.v.Slice(2, 0, 2)) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			mlxtest.Do(t, func() {
				a := arrays{
					q: mlxtest.Randn(1, 1, 4, n, width), k: mlxtest.Randn(2, 1, 2, n, width), v: mlxtest.Randn(3, 1, 2, n, width),
					bias: mlxtest.Randn(4, 1, 4, n, n),
					mask: mlx.FromFloat32([]float32{0, 1, 2, 3, 4}, 1, 1, 1, n).Less(mlx.Scalar(2, mlx.Float32)),
				}
				var weights []float32
				m := &nn.SiLU{}
				nn.Bind(m, "attn", &hooks.Points{Func: func(tap hooks.Tap) (*mlx.Array, error) {
					if tap.Point.Key == hooks.Weights {
						weights = tap.Output.Floats()
					}
					return nil, nil
				}})
				want := wide(c.attend(a).Floats())
				near(t, "Attend", m.Attend(c.options(a), a.q, a.k, a.v).Floats(), want, 1e-6)
				got := mlx.FromFloat32(weights, 1, 2, 2, n, n).Matmul(a.v.Reshape(1, 2, 1, n, width)).Reshape(1, 4, n, width)
				near(t, "with the weights", got.Floats(), want, 1e-6)
			})
		})
	}
}
