package family

import (
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/transformer"
)

// usual are methods of a family as most have them.
type usual struct{}

func (usual) Fits(h, w, tokens int) error { return nil }

func (usual) Sigmas(steps int) []float32 { return scheduler.LinearSigmas64(steps) }

func (usual) Mu(c *scheduler.FlowMatchEulerConfig, tokens, _ int) float64 { return c.Mu(tokens) }

// Guide is negative + scale·(positive - negative), classifier-free guidance as
// most pipelines count it.
func (usual) Guide(positive, negative *mlx.Array, scale float64) *mlx.Array {
	return negative.Add(positive.Sub(negative).Times(scale))
}

// patches are methods of a family whose transformer sees the autoencoder's
// latents in patches of 2×2, and which is a packer.
type patches struct {
	channels int // of a patch, the transformer's in_channels
}

func (p patches) LatentShape(h, w int) []int { return []int{p.channels / 4, h, w} }

func (patches) Multiple() int { return 2 }

func (p patches) Packed(h, w int) []int { return []int{1, h / 2 * (w / 2), p.channels} }

func (patches) Unpack(x *mlx.Array, h, w int) *mlx.Array {
	return transformer.Unpack(x, h/2, w/2).Squeeze(0)
}

// constantShift is a scheduler's config that shifts sigmas by a constant.
func constantShift(shift float64) map[string]any {
	return map[string]any{"shift": shift, "use_dynamic_shifting": false}
}

// shiftBySize is a scheduler's config that shifts sigmas by the picture's size, as
// models of Black Forest Labs have it.
var shiftBySize = map[string]any{
	"shift": 3.0, "use_dynamic_shifting": true,
	"base_shift": 0.5, "max_shift": 1.15, "base_image_seq_len": 256, "max_image_seq_len": 4096,
}

// predictWith is a predictor by a function whose first result is the velocity.
// It gets the latents in a dtype, what time makes of the timestep, and what is
// the same at every step.
func predictWith(forward func([]*mlx.Array) []*mlx.Array, dtype mlx.Dtype, time func(timestep float32) *mlx.Array, same ...*mlx.Array) Predictor {
	return func(latents *mlx.Array, timestep float32) *mlx.Array {
		in := append([]*mlx.Array{latents.AsType(dtype), time(timestep)}, same...)
		return forward(in)[0].AsType(mlx.Float32)
	}
}

// fraction makes a function of times from 0 to 1 one of timesteps.
func fraction(time func(t float32) *mlx.Array) func(timestep float32) *mlx.Array {
	return func(timestep float32) *mlx.Array { return time(timestep / 1000) }
}

// referenceTokens are the reference pictures as a transformer gets them: the
// height and width of each one's latents, and behind each other the tokens
// [1, n, d] that pack makes of its latents [1, C, h, w]; nil without pictures.
func (c *Conditions) referenceTokens(pack func(*mlx.Array) *mlx.Array) (sizes [][2]int, tokens []*mlx.Array) {
	for _, x := range c.References {
		sizes = append(sizes, [2]int{x.Dim(1), x.Dim(2)})
		tokens = append(tokens, pack(x.ExpandDims(0)))
	}
	if len(tokens) == 0 {
		return nil, nil
	}
	return sizes, []*mlx.Array{mlx.Concat(1, tokens...)}
}

// optional is an input that may be left out at the end.
func optional(in []*mlx.Array, i int) *mlx.Array {
	if i < len(in) {
		return in[i]
	}
	return nil
}
