package vae

import (
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// KLQwenImageConfig is vae/config.json of diffusers' AutoencoderKLQwenImage.
type KLQwenImageConfig struct {
	BaseDim            int       `json:"base_dim" size:"1"`
	ZDim               int       `json:"z_dim" size:"1"`
	DimMult            []int     `json:"dim_mult"`
	NumResBlocks       int       `json:"num_res_blocks" layers:"1"`
	AttnScales         []float64 `json:"attn_scales"`
	TemperalDownsample []bool    `json:"temperal_downsample"`
	InputChannels      int       `json:"input_channels"`
	LatentsMean        []float64 `json:"latents_mean"`
	LatentsStd         []float64 `json:"latents_std"`
}

// DefaultKLQwenImageConfig returns the values that diffusers uses for fields that a config lacks.
func DefaultKLQwenImageConfig() KLQwenImageConfig {
	return KLQwenImageConfig{
		BaseDim: 96, ZDim: 16, DimMult: []int{1, 2, 4, 4}, NumResBlocks: 2, TemperalDownsample: []bool{false, true, true}, InputChannels: 3,
		LatentsMean: []float64{
			-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
			0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
		},
		LatentsStd: []float64{
			2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
			3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160,
		},
	}
}

// Validate returns an error if the model cannot be run with the config.
func (c *KLQwenImageConfig) Validate() error {
	if c.InputChannels != 3 && c.InputChannels != 4 {
		return fmt.Errorf("input_channels %d, expected 3, or 4 for RGB and alpha", c.InputChannels)
	}
	if err := nn.CheckConfig(c); err != nil {
		return err
	}
	if n := len(c.DimMult); n < 1 || n > 10 {
		return fmt.Errorf("dim_mult %v: expected 1 to 10 levels", c.DimMult)
	}
	for _, u := range c.DimMult {
		if u < 1 || u > nn.MaxDim/c.BaseDim || u*c.BaseDim < 2 {
			return fmt.Errorf("dim_mult %v of base_dim %d: expected products from 2 to %d", c.DimMult, c.BaseDim, nn.MaxDim)
		}
	}
	if len(c.AttnScales) > 0 { // diffusers 0.42 fails on it too: its encoder passes attention a cache
		return fmt.Errorf("attn_scales %v, expected []", c.AttnScales)
	}
	if len(c.TemperalDownsample) != len(c.DimMult)-1 {
		return fmt.Errorf("temperal_downsample %v, expected one less than dim_mult %v", c.TemperalDownsample, c.DimMult)
	}
	if len(c.LatentsMean) != c.ZDim || len(c.LatentsStd) != c.ZDim {
		return fmt.Errorf("%d numbers in latents_mean and %d in latents_std, expected z_dim %d", len(c.LatentsMean), len(c.LatentsStd),
			c.ZDim)
	}
	if slices.Contains(c.LatentsStd, 0) {
		return fmt.Errorf("latents_std %v has a zero", c.LatentsStd)
	}
	return nil
}

// widths returns the channels of each level of encoder and decoder.
func (c *KLQwenImageConfig) widths() []int {
	widths := make([]int, len(c.DimMult))
	for i, u := range c.DimMult {
		widths[i] = c.BaseDim * u
	}
	return widths
}

// KLQwenImage is diffusers' AutoencoderKLQwenImage for images. That is a video
// autoencoder, and an image is a video of one frame: its causal 3-D convolutions see
// zeros instead of earlier frames. So they are computed as 2-D convolutions with the
// last slice of their weights (see [nn.NewCausalConv3d]), and convolutions over time
// alone are left out. Arrays lack diffusers' axis of frames.
type KLQwenImage struct {
	nn.Module
	coder  `w:"."`
	Config KLQwenImageConfig
}

// NewKLQwenImage declares the model of a validated config.
func NewKLQwenImage(c KLQwenImageConfig) *KLQwenImage {
	s := &strips{}
	m := newQwenCoder(nn.NewCausalConv3d, newQwenEncoder(c, s), newQwenDecoder(c, s), c.InputChannels, c.ZDim, len(c.TemperalDownsample), s)
	return &KLQwenImage{coder: m, Config: c}
}

// newQwenCoder declares an autoencoder of so many levels after the first.
func newQwenCoder(conv newConv, encoder, decoder *half, image, z, levels int, s *strips) coder {
	return coder{
		Encoder: encoder, Decoder: decoder, QuantConv: conv(2*z, 2*z, 1, 0), PostQuantConv: conv(z, z, 1, 0),
		imageChannels: image, latentChannels: z, scale: 1 << levels, patch: 1, clamped: true, strips: s,
	}
}

// Unused returns patterns of the convolutions over time.
func (m *KLQwenImage) Unused() []string {
	return []string{"encoder.down_blocks.*.time_conv.*", "decoder.up_blocks.*.upsamplers.0.time_conv.*"}
}

// Scale converts unscaled latents [..., z_dim, h, w] to the diffusion model's:
// (z - latents_mean)/latents_std.
func (m *KLQwenImage) Scale(z *mlx.Array) *mlx.Array {
	return z.Sub(perChannel(m.Config.LatentsMean, z.Dtype())).Div(perChannel(m.Config.LatentsStd, z.Dtype()))
}

// Unscale is the inverse of Scale. As in diffusers' pipelines, latents are divided
// by the reciprocal of latents_std.
func (m *KLQwenImage) Unscale(z *mlx.Array) *mlx.Array {
	std := perChannel(m.Config.LatentsStd, z.Dtype())
	return z.Div(mlx.Scalar(1, z.Dtype()).Div(std)).Add(perChannel(m.Config.LatentsMean, z.Dtype()))
}

// perChannel returns one number per channel as an array [C, 1, 1].
func perChannel(numbers []float64, dtype mlx.Dtype) *mlx.Array {
	values := make([]float32, len(numbers))
	for i, v := range numbers {
		values[i] = float32(v)
	}
	return mlx.FromFloat32(values, len(values), 1, 1).AsType(dtype)
}

// newQwenHalf declares a half without its levels, whose blocks have [channelNorm]; see [newGroupHalf].
func newQwenHalf(conv newConv, in, first, mid, last, out int, s *strips) *half {
	return &half{
		ConvIn:       conv(in, first, 3, 1),
		MidBlock:     newQwenMidBlock(conv, mid),
		NormOut:      newChannelNorm(last, 1, 1, 1),
		Nonlinearity: &nn.SiLU{ChannelsLast: true},
		ConvOut:      conv(last, out, 3, 1),
		strips:       s,
	}
}

func newQwenEncoder(c KLQwenImageConfig, s *strips) *half {
	widths := c.widths()
	last := widths[len(widths)-1]
	e := newQwenHalf(nn.NewCausalConv3d, c.InputChannels, c.BaseDim, last, last, 2*c.ZDim, s)
	in := c.BaseDim
	for i, out := range widths {
		for _, r := range newQwenResnets(nn.NewCausalConv3d, c.NumResBlocks, in, out) {
			e.DownBlocks = append(e.DownBlocks, r)
		}
		if i < len(widths)-1 {
			e.DownBlocks = append(e.DownBlocks, &qwenResample{Resample: &resampling{
				Size: &resizing{}, Conv: nn.NewConv2d(out, out, 3, 2, 0),
			}})
		}
		in = out
	}
	return e
}

func newQwenDecoder(c KLQwenImageConfig, s *strips) *half {
	widths := c.widths()
	first, in := widths[0], widths[len(widths)-1]
	d := newQwenHalf(nn.NewCausalConv3d, c.ZDim, in, in, first, c.InputChannels, s)
	for i := len(widths) - 1; i >= 0; i-- {
		out := widths[i]
		b := &resizeBlock{Resnets: newQwenResnets(nn.NewCausalConv3d, c.NumResBlocks+1, in, out)}
		if i > 0 {
			b.Upsamplers = []nn.Layer{&qwenResample{Resample: &resampling{
				Size: &resizing{up: true}, Conv: nn.NewConv2d(out, out/2, 3, 1, 1),
			}}}
		}
		d.UpBlocks = append(d.UpBlocks, b)
		in = out / 2
	}
	return d
}

func newQwenMidBlock(conv newConv, channels int) *midBlock {
	return &midBlock{
		Resnets: newQwenResnets(conv, 2, channels, channels),
		Attentions: []nn.Layer{&qwenAttention{
			Norm:  newChannelNorm(channels, 1, 1),
			ToQKV: nn.NewConv2d(channels, 3*channels, 1, 1, 0),
			Proj:  nn.NewConv2d(channels, channels, 1, 1, 0),
		}},
	}
}

func newQwenResnets(conv newConv, n, in, out int) []*resnet {
	perPixel := func(channels int) norm { return newChannelNorm(channels, 1, 1, 1) }
	return newResnets(n, in, out, conv, perPixel, func() nn.Layer { return &identity{} })
}

// identity is torch.nn.Identity.
type identity struct{ nn.Module }

func (i *identity) Forward(x *mlx.Array) *mlx.Array { return i.TapImage(x, x) }

// channelNorm is QwenImageRMS_norm: every pixel of [N, H, W, C], divided by the norm of
// its channels, times √C·gamma.
type channelNorm struct {
	nn.Module
	Gamma nn.Param `w:"gamma"`
}

// newChannelNorm declares a norm. Its gamma has axes of size 1 after that of the
// channels.
func newChannelNorm(channels int, ones ...int) *channelNorm {
	return &channelNorm{Gamma: nn.NewParam(append([]int{channels}, ones...)...)}
}

func (n *channelNorm) Forward(x *mlx.Array) *mlx.Array {
	return n.TapImage(n.normalize(x), x)
}

// Statistics returns the zero value: each pixel has its own statistics.
func (n *channelNorm) Statistics(*mlx.Array, int) nn.Statistics { return nn.Statistics{} }

// ApplySiLU normalises any rows and applies SiLU.
func (n *channelNorm) ApplySiLU(x *mlx.Array, _ nn.Statistics) *mlx.Array {
	return n.normalize(x).SiLU()
}

// SiLU returns silu(norm(x + before)).
func (n *channelNorm) SiLU(x, before *mlx.Array) *mlx.Array {
	if before != nil {
		x = mlx.AddBias(x, before, nil)
	}
	return n.normalize(x).SiLU()
}

// normalize normalises any rows. diffusers clamps the norm to at least 1e-12. Here the
// square of that is added to the sum of squares, since MLX's norm does so in one pass;
// only pixels with a norm below 1e-9 differ.
func (n *channelNorm) normalize(x *mlx.Array) *mlx.Array {
	return x.RMSNorm(n.Gamma.As(x.Dtype()).Reshape(-1), float32(1e-24/float64(x.Dim(3))))
}

// qwenResample is QwenImageResample on a single frame.
type qwenResample struct {
	nn.Module
	Resample *resampling `w:"resample"`
}

// resampling doubles the size of an image, or pads the image and halves its size.
type resampling struct {
	nn.Module
	Size *resizing  `w:"0"`
	Conv *nn.Conv2d `w:"1"`
}

// resizing is QwenImageUpsample (nearest neighbours) if up is set, else the ZeroPad2d of
// one row below and one column on the right.
type resizing struct {
	nn.Module
	up bool
}

func (r *qwenResample) Forward(x *mlx.Array) *mlx.Array {
	return r.TapImage(r.Resample.Forward(x), x)
}

func (r *resampling) Forward(x *mlx.Array) *mlx.Array {
	return r.TapImage(r.Conv.Forward(r.Size.Forward(x)), x)
}

func (r *resizing) Forward(x *mlx.Array) *mlx.Array {
	if r.up {
		return r.TapImage(mlx.Upsample(x), x)
	}
	return r.TapImage(x.Pad([]int{0, 0, 0, 0}, []int{0, 1, 1, 0}, 0), x)
}

func (r *qwenResample) stage() stage {
	if r.Resample.Size.up {
		return stage{double: mlx.Upsample, conv: r.Resample.Conv, before: 1, after: 1}
	}
	return stage{conv: r.Resample.Conv, after: 1}
}

// qwenAttention is QwenImageAttentionBlock, with one head of all channels, over all
// pixels.
type qwenAttention struct {
	nn.Module
	Norm  *channelNorm `w:"norm"`
	ToQKV *nn.Conv2d   `w:"to_qkv"`
	Proj  *nn.Conv2d   `w:"proj"`
}

func (a *qwenAttention) Forward(x *mlx.Array) *mlx.Array { return a.strip(x, &strips{}) }

func (a *qwenAttention) strip(x *mlx.Array, s *strips) *mlx.Array {
	n, c := x.Dim(0), x.Dim(3)
	qkv := a.ToQKV.Forward(a.Norm.Forward(s.whole(x))).Reshape(n, 1, -1, 3*c).Split(3, -1)
	q, k, v := a.TapQKV(nn.AttentionOptions{}, s.own(2, qkv[0]), qkv[1], qkv[2])
	y := a.Proj.Forward(attend(q, k, v, scores(s.limit())).Reshape(x.Shape()...))
	return a.TapImage(x.Add(y), x)
}

func (a *qwenAttention) memory(in size, m memoryModel) (int64, size) { return attentionMemory(in, m) }
