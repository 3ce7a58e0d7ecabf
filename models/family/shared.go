package family

import (
	"image"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/transformer"
)

// defaultMethods has the methods of Pipeline that most families share.
type defaultMethods struct{}

func (defaultMethods) Fits(h, w, tokens int) error { return nil }

func (defaultMethods) Sigmas(steps int) []float32 { return scheduler.LinearSigmas64(steps) }

func (defaultMethods) Mu(shift scheduler.DynamicShift, tokens, _ int) float64 {
	return shift.Mu(tokens)
}

// Guide returns negative + scale·(positive - negative): classifier-free guidance as in most
// pipelines.
func (defaultMethods) Guide(positive, negative *mlx.Array, scale float64) *mlx.Array {
	return negative.Add(positive.Sub(negative).Times(scale))
}

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

// constantShift returns a scheduler's config that shifts sigmas by a constant.
func constantShift(shift float64) map[string]any {
	return map[string]any{"shift": shift, "use_dynamic_shifting": false}
}

// shiftBySize is a scheduler's config that shifts sigmas by the image's size, as in the models of
// Black Forest Labs.
var shiftBySize = map[string]any{
	"shift": 3.0, "use_dynamic_shifting": true,
	"base_shift": 0.5, "max_shift": 1.15, "base_image_seq_len": 256, "max_image_seq_len": 4096,
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

// The configs of components that several families have.
var (
	// kl16 is an autoencoder with 16 channels, as FLUX.1 and Z-Image have it.
	kl16 = map[string]any{
		"block_out_channels": []int{128, 256, 512, 512}, "layers_per_block": 2, "latent_channels": 16,
		"down_block_types": slices.Repeat([]string{"DownEncoderBlock2D"}, 4),
		"up_block_types":   slices.Repeat([]string{"UpDecoderBlock2D"}, 4),
		"scaling_factor":   0.3611, "shift_factor": 0.1159, "use_quant_conv": false, "use_post_quant_conv": false,
	}
	qwen3Of4B = qwen3(2560, 9728)
	qwen3Of8B = qwen3(4096, 12288)
)

// qwen3 returns the config of a Qwen3 of 36 layers.
func qwen3(hidden, intermediate int) map[string]any {
	return map[string]any{
		"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": 36, "num_attention_heads": 32,
		"num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1e6,
	}
}
