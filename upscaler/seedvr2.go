package upscaler

import (
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/transformer"
	"github.com/gomflux/gomflux/vae"
)

// SeedVR2 makes an image sharp that was enlarged by a filter: one step of a diffusion model, from noise and the image's latents.
type SeedVR2 struct {
	Transformer *transformer.NaDiT
	VAE         vae.Autoencoder
	// Text are the embeddings [1, T, txt_in_dim] of the prompt that the model was trained with.
	Text *mlx.Array
	// Points gets the values of a run, if it is set.
	Points *hooks.Points
}

// pureNoise is the time at which the only step begins; it ends at 0.
const pureNoise = 1000

// Multiple is the number of pixels that the sides of images must be multiples of.
func (m *SeedVR2) Multiple() int { return 2 * m.VAE.ScaleFactor() }

// Latents encodes an image [1, 3, H, W] from -1 to 1, in the dtype of the computations: [1, C, h, w].
func (m *SeedVR2) Latents(image *mlx.Array) *mlx.Array {
	return mlx.Scope(func() *mlx.Array {
		mean := m.Points.Value("vae.encode.out", m.VAE.Encode(m.Points.Value("vae.encode.in", image)))
		return m.Points.Value("latents.image", m.VAE.Scale(mean))
	})
}

// Step computes the new latents [1, C, h, w] from those of the image and from noise, float32 [1, C, h, w]. progress, if set, is
// called with the number of blocks that are done.
func (m *SeedVR2) Step(latents, noise *mlx.Array, progress func(blocks int)) (*mlx.Array, error) {
	s, err := m.Transformer.Sequence(latents.Dim(2), latents.Dim(3), m.Text.Dim(1))
	if err != nil {
		return nil, err
	}
	return mlx.Scope(func() *mlx.Array {
		velocity := m.Transformer.Forward(noise, latents, m.Text, pureNoise, s, progress)
		velocity = m.Points.Value("noise_pred", velocity.AsType(mlx.Float32))
		return m.Points.Value("latents", noise.Sub(velocity).AsType(latents.Dtype()))
	}), nil
}

// The ways to give an image the colours of another.
const (
	Wavelet = "wavelet" // its low frequencies, as SeedVR2's makers do
	LAB     = "lab"     // after that also the distribution of its colours
)

// Image decodes latents [1, C, h, w], and gives the image the colours of another, both [1, 3, H, W] from -1 to 1. The result is
// float32.
func (m *SeedVR2) Image(latents, colours *mlx.Array, way string) *mlx.Array {
	image := mlx.Scope(func() *mlx.Array {
		z := m.Points.Value("vae.decode.in", m.VAE.Unscale(latents))
		return m.Points.Value("vae.decode.out", m.VAE.Decode(z)).AsType(mlx.Float32)
	})
	mlx.Eval(image)
	colours = colours.AsType(mlx.Float32)
	image = recoloured(image, colours)
	if way != LAB || !image.AllFinite() {
		return image
	}
	values := image.Contiguous().Floats()
	matchColours(values, colours.Contiguous().Floats())
	return mlx.FromFloat32(values, image.Shape()...)
}

// recoloured returns an image [1, 3, H, W] whose low frequencies are those of another: StableSR's wavelet_reconstruction.
func recoloured(image, colours *mlx.Array) *mlx.Array {
	return mlx.Scope(func() *mlx.Array { return image.Add(lowFrequencies(colours.Sub(image))) })
}

// lowFrequencies blurs [1, C, H, W] five times, with distances that double. Beyond the edges pixels repeat.
func lowFrequencies(x *mlx.Array) *mlx.Array {
	const levels = 5
	for level := range levels {
		for _, axis := range []int{2, 3} {
			n := x.Dim(axis)
			at := func(distance int) *mlx.Array {
				indices := make([]int32, n)
				for i := range indices {
					indices[i] = int32(max(0, min(n-1, i+distance)))
				}
				return x.Take(axis, indices)
			}
			x = mlx.Scope(func() *mlx.Array { return x.Times(2).Add(at(-1 << level)).Add(at(1 << level)).Over(4) })
			mlx.Eval(x)
		}
	}
	return x
}

// Memory estimates the bytes that the parts take, one after the other, for an image without weights and output: the autoencoder
// within its budget, and the transformer.
func (m *SeedVR2) Memory(h, w int, d mlx.Device, dtype mlx.Dtype) int64 {
	c, item := m.Transformer.Config, memory{dtype: dtype}.item()
	pixels := int64(h) * int64(w)
	tokens := pixels/int64(m.Multiple()*m.Multiple()) + int64(m.Text.Dim(1))
	inner := int64(c.Heads) * int64(c.HeadDim)
	// streams and what is added to them; queries, keys and values as they are, rotated and in windows; the feed-forward
	transformer := tokens * item * (6*int64(c.VidDim) + max(24*inner, 4*int64(c.MLPDim)))
	const images = 14 // in float32, for the colours
	return max(m.VAE.EncodeMemory(h, w, d, dtype), m.VAE.DecodeMemory(h, w, d, dtype), transformer, images*3*4*pixels)
}

// Scale is the largest that is asked for: the model works at any size.
func (m *SeedVR2) Scale() int { return 8 }

// Modules are the parts with weights.
func (m *SeedVR2) Modules() []any { return []any{m.Transformer, m.VAE} }
