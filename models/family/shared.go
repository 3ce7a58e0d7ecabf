package family

import (
	"fmt"
	"image"
	"math"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/transformer"
)

// defaultMethods has the methods of Pipeline that most families share.
type defaultMethods struct{ fromNegative }

func (defaultMethods) Fits(h, w, tokens int) error { return nil }

// ReferenceName returns the word of most editors.
func (defaultMethods) ReferenceName() string { return "image" }

func (defaultMethods) Sigmas(steps int) []float32 { return scheduler.LinearSigmas64(steps) }

func (defaultMethods) Mu(shift scheduler.DynamicShift, tokens, _ int) float64 {
	return shift.Mu(tokens)
}

// fromNegative has classifier-free guidance as in most pipelines. It needs a scale above 1 to have an
// effect.
type fromNegative struct{}

// Guide returns negative + scale·(positive - negative).
func (fromNegative) Guide(positive, negative *mlx.Array, g Guidance) *mlx.Array {
	return negative.Add(positive.Sub(negative).Times(g.Scale))
}

func (fromNegative) Guidance(g Guidance) (bool, error) { return g.Scale > 1, nil }

// fromPositive has classifier-free guidance that starts from the positive prediction.
type fromPositive struct{}

// Guide returns positive + scale·(positive - negative).
func (fromPositive) Guide(positive, negative *mlx.Array, g Guidance) *mlx.Array {
	return positive.Add(positive.Sub(negative).Times(g.Scale))
}

func (fromPositive) Guidance(g Guidance) (bool, error) { return g.Scale > 0, nil }

// MaskLatents takes the pixel at the top left of each position (torch's nearest interpolation).
func (defaultMethods) MaskLatents(mask *image.Gray, h, w int) []float32 {
	out := make([]float32, 0, h*w)
	size := mask.Rect.Size()
	for y := range h {
		for x := range w {
			out = append(out, float32(mask.GrayAt(x*size.X/w, y*size.Y/h).Y)/255)
		}
	}
	return out
}

// withoutGuidance returns an error for a guidance scale above that which has no effect. models names
// those of the family that have guidance.
func withoutGuidance(scale, without float64, models string) error {
	if !(scale > without) {
		return nil
	}
	return fmt.Errorf("guidance %g: this model is distilled and has no guidance (leave it out, or set it to %g; %s guidance)",
		scale, without, models)
}

// ownSigmas is the noise schedule of a model that is made for a few steps, before the scheduler shifts
// it; without sigmas it is evenly spaced.
type ownSigmas []float32

func (s ownSigmas) validate(option string) error {
	for i, sigma := range s {
		if !(sigma > 0 && sigma <= 1) || i > 0 && sigma >= s[i-1] {
			return fmt.Errorf("%s %v: expected falling numbers from 1 to above 0", option, s)
		}
	}
	return nil
}

// Sigmas returns the noise schedule. For another number of steps than the model's, which diffusers
// ignores, it is evenly spaced between the model's sigmas, as in mflux.
func (s ownSigmas) Sigmas(steps int) []float32 {
	n := len(s)
	if n == 0 {
		return defaultMethods{}.Sigmas(steps)
	}
	ends := append(slices.Clone(s), 0)
	sigmas := make([]float32, steps)
	for i := range sigmas {
		at, rest := i*n/steps, i*n%steps
		part := float64(rest) / float64(steps)
		sigmas[i] = float32(float64(ends[at])*(1-part) + float64(ends[at+1])*part)
	}
	return sigmas
}

// megapixelReferences has methods of [Editor] and [Cropper] of a family that reduces reference images to a megapixel, if
// they are larger, and crops them.
type megapixelReferences struct{}

func (r megapixelReferences) ReferenceSize(size image.Point, multiple int) image.Point {
	size = r.Uncropped(size)
	return image.Pt(size.X/multiple*multiple, size.Y/multiple*multiple)
}

// Uncropped returns the size of an image after it is reduced.
func (megapixelReferences) Uncropped(size image.Point) image.Point {
	const most = 1024 * 1024
	area := size.X * size.Y
	if area <= most {
		return size
	}
	scale := math.Sqrt(most / float64(area))
	return image.Pt(int(float64(size.X)*scale), int(float64(size.Y)*scale))
}

// EditSize returns the size of the first image.
func (r megapixelReferences) EditSize(sizes []image.Point, multiple int) image.Point {
	return r.ReferenceSize(sizes[0], multiple)
}

// unpatched has LatentShape for a family whose transformer takes the autoencoder's latents as they are.
type unpatched struct {
	channels int // the transformer's in_channels
}

func (p unpatched) LatentShape(h, w int) []int { return []int{p.channels, h, w} }

// pack takes latents [1, C, h, w] to tokens [1, h·w, C].
func (unpatched) pack(x *mlx.Array) *mlx.Array { return x.Reshape(1, x.Dim(1), -1).Transpose(0, 2, 1) }

// latentTokens is unpatched for a NoisePacker.
type latentTokens struct{ unpatched }

func (p latentTokens) PackedShape(h, w int) []int { return []int{1, h * w, p.channels} }

func (latentTokens) Unpack(x *mlx.Array, h, w int) *mlx.Array {
	return x.Transpose(0, 2, 1).Reshape(-1, h, w)
}

// patches has the methods of a family whose transformer takes the autoencoder's latents in patches
// of 2×2. It is a NoisePacker.
type patches struct {
	channels int // of a patch, the transformer's in_channels
}

func (p patches) LatentShape(h, w int) []int { return []int{p.channels / 4, h, w} }

func (patches) Multiple() int { return 2 }

func (p patches) PackedShape(h, w int) []int { return []int{1, h / 2 * (w / 2), p.channels} }

func (patches) Unpack(x *mlx.Array, h, w int) *mlx.Array {
	return transformer.Unpack(x, h/2, w/2).Squeeze(0)
}

// referenceTokens returns the height and width of the latents of each reference
// image, and the tokens [1, n, d] of all, which pack makes from latents [1, C, h, w];
// nil without reference images.
func (c *Conditioning) referenceTokens(pack func(*mlx.Array) *mlx.Array) (sizes [][2]int, tokens *mlx.Array) {
	var all []*mlx.Array
	for _, x := range c.References {
		sizes = append(sizes, [2]int{x.Dim(1), x.Dim(2)})
		all = append(all, pack(x.ExpandDims(0)))
	}
	if len(all) == 0 {
		return nil, nil
	}
	return sizes, mlx.Concat(1, all...)
}
