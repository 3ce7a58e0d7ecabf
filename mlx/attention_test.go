package mlx

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/mlx/internal/host"
)

// TestAttentionInParts computes attention with more scores than the CPU computes at once, here a
// small number.
func TestAttentionInParts(t *testing.T) {
	most := maxScores
	onHost := useHost
	useHost = false
	defer func() { maxScores, useHost = most, onHost }()
	err := Do(context.Background(), func() error {
		if err := Use(CPU); err != nil {
			return err
		}
		values := func(n int, factor float32) []float32 {
			out := make([]float32, n)
			for i := range out {
				out[i] = float32(i*7%11-5) * factor
			}
			return out
		}
		q, k, v := FromFloat32(values(2*4*5*3, 0.3), 2, 4, 5, 3), FromFloat32(values(2*2*6*3, 0.2), 2, 2, 6, 3),
			FromFloat32(values(2*2*6*3, 0.1), 2, 2, 6, 3)
		for _, mask := range []*Array{nil, FromFloat32(values(5*6, 0.5), 5, 6), FromFloat32(values(2*6, 0.5), 2, 1, 1, 6)} {
			maxScores = most
			want := Attention(q, k, v, 0.5, mask).Floats()
			restore := LimitKernels(4 * 2 * 4 * 6 * 3 * 2) // two queries at once
			if rows := queriesAtOnce(q, k); rows != 2 {
				t.Errorf("%d queries at once, expected 2", rows)
			}
			for i, got := range Attention(q, k, v, 0.5, mask).Floats() {
				if max(got-want[i], want[i]-got) > 1e-6 {
					t.Errorf("mask %v, in parts: value %d is %v, expected %v", mask, i, got, want[i])
				}
			}
			restore()
			for _, limit := range []int{1, 2 * 4 * 6 * 2, 2 * 4 * 6 * 4} { // one, two and four queries at once
				maxScores = limit
				got := Attention(q, k, v, 0.5, mask).Floats()
				if !slices.EqualFunc(got, want, func(a, b float32) bool { return max(a-b, b-a) < 1e-6 }) {
					t.Errorf("mask %v, limit %d: %v, expected %v", mask, limit, got, want)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAttentionInHalfPrecision compares attention with large scores in 16 bits with float32: only the
// result is rounded.
func TestAttentionInHalfPrecision(t *testing.T) {
	if !useHost || !host.Vector() {
		t.Skip("MLX computes attention")
	}
	err := Do(context.Background(), func() error {
		if err := Use(CPU); err != nil {
			return err
		}
		for dtype, roundoff := range map[Dtype]float64{Float16: 1.0 / (1 << 11), BFloat16: 1.0 / (1 << 8)} {
			draw := func(shape ...int) *Array { return normal(shape...).Times(3).AsType(dtype) }
			q, k, v, mask := draw(1, 4, 33, 16), draw(1, 2, 47, 16), draw(1, 2, 47, 8), draw(33, 47)
			single := func(a *Array) *Array { return a.AsType(Float32) }
			for name, attend := range map[string]func(q, k, v, mask *Array) *Array{
				"attention": func(q, k, v, _ *Array) *Array { return Attention(q, k, v, 1, nil) },
				"mask":      func(q, k, v, mask *Array) *Array { return Attention(q, k, v, 1, mask) },
				"causal":    func(q, k, v, _ *Array) *Array { return CausalAttention(q, k, v, 1) },
			} {
				want := attend(single(q), single(k), single(v), single(mask)).Floats()
				got := attend(q, k, v, mask)
				if got.Dtype() != dtype {
					t.Errorf("%s: %v, expected %v", name, got.Dtype(), dtype)
				}
				var e, norm float64
				for i, x := range got.AsType(Float32).Floats() {
					e, norm = e+math.Pow(float64(x-want[i]), 2), norm+math.Pow(float64(want[i]), 2)
				}
				if e = math.Sqrt(e / norm); e > roundoff {
					t.Errorf("%s in %v: error %.1e, expected at most %.1e", name, dtype, e, roundoff)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
