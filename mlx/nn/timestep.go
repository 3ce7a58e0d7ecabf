package nn

import (
	"math"

	"github.com/gomflux/gomflux/mlx"
)

// TimestepEmbedding is [cos(t·f) | sin(t·f)] with f_i = 10000^(-2i/dim), float32
// [1, dim], computed on the host (diffusers get_timestep_embedding with
// flip_sin_to_cos=True and downscale_freq_shift=0).
func TimestepEmbedding(t float32, dim int) *mlx.Array { return ScaledTimestepEmbedding(t, 1, dim) }

// ScaledTimestepEmbedding is [TimestepEmbedding] of scale·t with angles scale·(t·f),
// which are rounded differently (the argument scale of get_timestep_embedding).
func ScaledTimestepEmbedding(t, scale float32, dim int) *mlx.Array {
	half := dim / 2
	emb := make([]float32, dim)
	for i := range half {
		// rounded where float32 arithmetic rounds: t is up to 1000, so the last
		// bits of f matter
		exponent := float32(-math.Log(10000)) * float32(i) / float32(half)
		f := float32(math.Exp(float64(exponent)))
		if half == 128 && (i == 12 || i == 106) {
			f = math.Nextafter32(f, 1) // torch's exp, which all models are trained with, rounds these two up
		}
		angle := scale * (t * f)
		emb[i] = float32(math.Cos(float64(angle)))
		emb[half+i] = float32(math.Sin(float64(angle)))
	}
	return mlx.FromFloat32(emb, 1, dim)
}
