package transformer

import (
	"fmt"
	"math"
	"testing"

	"github.com/gomflux/gomflux/internal/grouptest"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// TestJointMask checks masks of the joint sequence that hide text tokens from text and image:
// boolean, additive, and Chroma's additive 0 and 1, which only prefer tokens.
func TestJointMask(t *testing.T) {
	const text, image, valid, heads, headDim = 4, 6, 3, 2, 4
	const dim = heads * headDim
	mlxtest.Do(t, func() {
		attention := newJointAttention(heads, headDim, true, 1e-6)
		for i, p := range nn.Parameters(attention) {
			p.Array = mlxtest.Randn(uint64(i+1), p.Stored()...)
		}
		c, x := mlxtest.Randn(100, 1, text, dim), mlxtest.Randn(101, 1, image, dim)
		rope := func(text int) nn.Rope {
			positions := make([][]int, text, text+image)
			for i := range positions {
				positions[i] = make([]int, 1)
			}
			for i := range image {
				positions = append(positions, []int{i + 1})
			}
			return nn.NewFluxRope(positions, []int{headDim}, 100)
		}
		seen := make([]float32, text+image) // 1 for tokens that are not hidden
		for i := range seen {
			if i < valid || i >= text {
				seen[i] = 1
			}
		}
		mask := mlx.FromFloat32(seen, 1, 1, 1, text+image)
		visible := mask.Equal(mlx.Scalar(1, mlx.Float32))
		hidden := mlx.Where(visible, mlx.Scalar(0, mlx.Float32), mlx.Scalar(math.Inf(-1), mlx.Float32))

		wantX, wantC := attention.Forward(x, c.Slice(1, 0, valid), joint{rope: rope(valid)})
		for name, m := range map[string]*mlx.Array{"boolean": visible, "additive": hidden} {
			dx, dc := attention.Forward(x, c, joint{rope: rope(text), mask: m})
			nearly(t, name+", image", dx, wantX)
			nearly(t, name+", text", dc.Slice(1, 0, valid), wantC)
		}
		dx, _ := attention.Forward(x, c, joint{rope: rope(text), mask: mask})
		shifted, _ := attention.Forward(x, c, joint{rope: rope(text), mask: mask.Plus(-1)})
		nearly(t, "0 and 1", dx, shifted) // a constant does not change softmax
		plain, _ := attention.Forward(x, c, joint{rope: rope(text)})
		if distance(dx, plain) < 1e-3 || distance(dx, wantX) < 1e-3 {
			t.Error("a mask of 0 and 1 has no effect")
		}
	})
}

// TestJointMaskDtype checks a boolean mask per query in bfloat16, and that a float32 mask is
// cast.
func TestJointMaskDtype(t *testing.T) {
	mlxtest.Do(t, func() {
		m := &nn.SiLU{}
		q := mlxtest.Randn(1, 1, 2, 3, 4).AsType(mlx.BFloat16)
		mask := mlx.FromFloat32([]float32{1, 0, 0, 1, 1, 0, 1, 1, 1}, 1, 1, 3, 3)
		boolean := mask.Equal(mlx.Scalar(1, mlx.Float32))
		want := nn.CausalAttention(q, q, q)
		nearly(t, "boolean", m.Attend(nn.AttentionOptions{Mask: boolean}, q, q, q).AsType(mlx.Float32), want.AsType(mlx.Float32))
		additive := mask.Plus(-1).Times(1e9)
		nearly(t, "float32", m.Attend(nn.AttentionOptions{Mask: additive}, q, q, q).AsType(mlx.Float32), want.AsType(mlx.Float32))
	})
}

func distance(a, b *mlx.Array) float64 {
	x, y, most := a.Floats(), b.Floats(), 0.0
	for i := range x {
		most = max(most, math.Abs(float64(x[i]-y[i])))
	}
	return most
}

func nearly(t *testing.T, what string, got, want *mlx.Array) {
	t.Helper()
	mlxtest.Same(t, what, got.Shape(), want.Shape())
	if d := distance(got, want); !(d < 1e-5) {
		t.Errorf("%s: off by %g", what, d)
	}
}

// Two processes that split text and image see what a mask shows of all tokens, with a row for every query or one
// for all.
func TestSplitMask(t *testing.T) {
	if !grouptest.Member() {
		grouptest.Run(t, 2)
		return
	}
	const text, image, heads, headDim = 5, 7, 2, 4
	mlxtest.Do(t, func() {
		g, err := mlx.JoinGroup("ring")
		if err != nil {
			t.Fatal(err)
		}
		attention := newJointAttention(heads, headDim, true, 1e-6)
		for i, p := range nn.Parameters(attention) {
			p.Array = mlxtest.Randn(uint64(i+1), p.Stored()...)
		}
		positions := make([][]int, text+image)
		for i := range positions {
			positions[i] = []int{i}
		}
		whole := Hidden{Text: mlxtest.Randn(100, 1, text, heads*headDim), Image: mlxtest.Randn(101, 1, image, heads*headDim)}
		for i, mask := range []*mlx.Array{
			mlxtest.Randn(102, 1, 1, 1, text+image).Times(3), mlxtest.Randn(103, 1, 1, text+image, text+image).Times(3),
		} {
			j := joint{rope: nn.NewFluxRope(positions, []int{headDim}, 100), mask: mask}
			wantX, wantC := attention.Forward(whole.Image, whole.Text, j)
			s := nn.NewShares(g, text, image)
			h := whole.shareOf(s)
			dx, dc := attention.Forward(h.Image, h.Text, j.over(s))
			nearly(t, fmt.Sprint("image ", i), imageOf(s).Whole(dx), wantX)
			nearly(t, fmt.Sprint("text ", i), textOf(s).Whole(dc), wantC)
		}
	})
}
