package nn

import (
	"math"

	"github.com/gomflux/gomflux/mlx"
)

// Rope is a table of rotary position embeddings: cos and sin of the angle of
// every position (rows) and pair of features (columns), float32 [L, D/2], and how it rotates
// heads of D features in image transformers.
type Rope struct {
	Cos, Sin *mlx.Array
	Layout   mlx.RopeLayout
	Shared   bool // it has the positions of a process's share of the tokens
}

func (r Rope) table() mlx.RopeTable { return mlx.RopeTable{Cos: r.Cos, Sin: r.Sin, Layout: r.Layout} }

// NewRope computes the table for positions with several axes. Axis a rotates dims[a]
// features, the i-th pair of them by position·theta^(-2i/dims[a]); the axes follow each
// other along the features. Angles are computed in
// float64 and rounded to float32 before cos and sin, as diffusers does for
// Z-Image.
func NewRope(positions [][]int, dims []int, theta float64) Rope {
	return newRope(positions, dims, theta, frequency64, round32)
}

// NewFluxRope is [NewRope] with angles that are not rounded, as diffusers does for
// FLUX.1 and FLUX.2.
func NewFluxRope(positions [][]int, dims []int, theta float64) Rope {
	return newRope(positions, dims, theta, frequency64, func(angle float64) float64 { return angle })
}

// NewHalvedFluxRope is [NewFluxRope] for positions that are counted in halves, as FLUX.3's are.
func NewHalvedFluxRope(positions [][]int, dims []int, theta float64) Rope {
	return newRope(positions, dims, theta, frequency64, func(angle float64) float64 { return angle / 2 })
}

// NewQwenImageRope is [NewRope] with frequencies rounded to float32 as well, as
// diffusers does for Qwen-Image.
func NewQwenImageRope(positions [][]int, dims []int, theta float64) Rope {
	return newRope(positions, dims, theta, frequency32, round32)
}

// frequency64 is theta^(-2i/d).
func frequency64(theta float64, i, d int) float64 { return math.Pow(theta, -2*float64(i)/float64(d)) }

// frequency32 is 1/theta^(2i/d), rounded where float32 arithmetic rounds.
func frequency32(theta float64, i, d int) float64 {
	exponent := float32(2*i) / float32(d)
	return float64(1 / float32(math.Pow(theta, float64(exponent))))
}

func round32(x float64) float64 { return float64(float32(x)) }

func newRope(positions [][]int, dims []int, theta float64, frequency func(theta float64, i, d int) float64,
	round func(angle float64) float64) Rope {
	var pairs []ropePair
	for axis, d := range dims {
		for i := range d / 2 {
			pairs = append(pairs, ropePair{axis, frequency(theta, i, d)})
		}
	}
	return newTable(positions, pairs, round)
}

// A ropePair is a pair of features that is rotated by an axis of the positions, starting again with the first axis after the
// last.
type ropePair struct {
	axis      int
	frequency float64
}

func newTable(positions [][]int, pairs []ropePair, round func(angle float64) float64) Rope {
	n := len(positions) * len(pairs)
	cos, sin := make([]float32, 0, n), make([]float32, 0, n)
	for _, p := range positions {
		for _, pair := range pairs {
			s, c := math.Sincos(round(float64(p[pair.axis%len(p)]) * pair.frequency))
			cos, sin = append(cos, float32(c)), append(sin, float32(s))
		}
	}
	return Rope{Cos: mlx.FromFloat32(cos, len(positions), len(pairs)), Sin: mlx.FromFloat32(sin, len(positions), len(pairs))}
}

// NewScaledRope is [NewRope] with one axis and given frequencies, whose cos and sin are multiplied by a
// factor, as transformers does for language models with YaRN.
func NewScaledRope(positions [][]int, frequencies []float32, factor float64) Rope {
	at := func(_ float64, i, _ int) float64 { return float64(frequencies[i]) }
	r := newRope(positions, []int{2 * len(frequencies)}, 0, at, round32)
	if factor != 1 {
		r.Cos, r.Sin = r.Cos.Times(factor), r.Sin.Times(factor)
	}
	return r
}

// Concat returns the table of the positions of r followed by those of s.
func (r Rope) Concat(s Rope) Rope {
	return Rope{Cos: mlx.Concat(0, r.Cos, s.Cos), Sin: mlx.Concat(0, r.Sin, s.Sin), Layout: r.Layout}
}

// Batched returns the table of B sequences of L positions each, for x [B, H, L, D], from that of all
// their positions. A table of L positions stays as it is: it is that of every sequence.
func (r Rope) Batched(length int) Rope {
	if r.Cos.Dim(0) == length {
		return r
	}
	shape := []int{-1, 1, length, r.Cos.Dim(1)}
	return Rope{Cos: r.Cos.Reshape(shape...), Sin: r.Sin.Reshape(shape...), Layout: r.Layout}
}

// Interleaved rotates the pairs (2i, 2i+1) of x [B, H, L, D], in float32, as the
// image transformers do, or as the table's layout says.
func (r Rope) Interleaved(x *mlx.Array) *mlx.Array { return r.table().Rotate(x) }

// HalfSplit rotates the pairs (i, i+D/2) of x [B, H, L, D], in float32, as the
// language models do. D is twice the number of columns; features after it stay as they are.
func (r Rope) HalfSplit(x *mlx.Array) *mlx.Array {
	if d := 2 * r.Cos.Dim(-1); d < x.Dim(-1) {
		return mlx.Concat(-1, r.HalfSplit(x.Slice(3, 0, d)), x.Slice(3, d, x.Dim(3)))
	}
	return mlx.RotateHalves(x, r.Cos, r.Sin)
}
