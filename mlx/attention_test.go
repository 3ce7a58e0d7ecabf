package mlx

import (
	"context"
	"slices"
	"testing"
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
