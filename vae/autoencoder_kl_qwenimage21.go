package vae

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// KLQwenImage21Config is vae/config.json of diffusers' AutoencoderKLQwenImage21.
type KLQwenImage21Config struct {
	BaseDim            int       `json:"base_dim"`
	DecoderBaseDim     *int      `json:"decoder_base_dim"` // nil: BaseDim
	ZDim               int       `json:"z_dim"`
	DimMult            []int     `json:"dim_mult"`
	NumResBlocks       int       `json:"num_res_blocks"`
	AttnScales         []float64 `json:"attn_scales"`
	TemperalDownsample []bool    `json:"temperal_downsample"`
	LatentsMean        []float64 `json:"latents_mean"`
	LatentsStd         []float64 `json:"latents_std"`
	IsResidual         bool      `json:"is_residual"`
	InChannels         int       `json:"in_channels"`
	OutChannels        int       `json:"out_channels"`
	PatchSize          *int      `json:"patch_size"`
}

// DefaultKLQwenImage21Config returns the values that diffusers uses for fields that a config lacks.
func DefaultKLQwenImage21Config() KLQwenImage21Config {
	decoder := 144
	return KLQwenImage21Config{
		BaseDim: 96, DecoderBaseDim: &decoder, ZDim: 64, DimMult: []int{1, 2, 4, 8, 8}, NumResBlocks: 2,
		TemperalDownsample: []bool{false, true, true, true}, IsResidual: true, InChannels: 4, OutChannels: 4,
		LatentsMean: []float64{
			0.5126, 0.7721, -0.0631, 1.3506, -0.7855, -2.1025, -0.3458, 1.3722,
			1.8873, -1.7177, -0.6510, 0.2732, 0.7562, -0.6163, -1.0277, 3.8363,
			2.0210, 0.0472, 0.9320, 2.0087, 2.4954, -0.1391, -1.4249, 1.8464,
			-0.5236, 1.2826, 3.7046, -1.3035, 2.7286, -1.4518, -1.9036, -1.9955,
			-0.0342, -1.0265, -0.7636, 3.0555, 0.0746, -3.0751, -0.1076, 1.7376,
			-1.0914, -1.9435, -0.2784, -1.3680, 0.4809, -0.4433, 0.3764, 0.5729,
			-2.0595, 1.0960, -1.3260, -2.0211, -5.0179, 0.5275, 4.0162, 1.8505,
			0.3026, 1.9373, 1.4937, 0.2632, 0.5547, -1.7121, -0.1562, 0.0304,
		},
		LatentsStd: []float64{
			3.2001, 3.2936, 3.4321, 3.0091, 3.1061, 4.0379, 4.0705, 3.7910,
			3.0785, 3.6500, 3.9308, 3.0904, 2.8778, 3.7675, 3.7320, 5.0756,
			3.2864, 4.0397, 3.1317, 4.0443, 2.9249, 3.9454, 3.0988, 4.2489,
			3.4896, 3.8513, 3.9323, 3.4719, 3.7498, 4.2830, 3.5694, 4.2467,
			3.9037, 3.2947, 5.0770, 3.5075, 3.2700, 3.4767, 2.8063, 5.1125,
			3.5327, 4.7833, 3.1286, 4.1819, 3.8527, 3.8312, 3.5605, 4.3875,
			3.9624, 4.0168, 3.5643, 4.0550, 5.5614, 4.2963, 4.4080, 3.4959,
			3.8747, 3.7608, 3.5735, 3.1490, 3.7662, 3.6746, 3.4563, 3.8161,
		},
	}
}

// Validate returns an error if the model cannot be run with the config.
func (c *KLQwenImage21Config) Validate() error {
	if !c.IsResidual {
		return errors.New("is_residual false, expected true")
	}
	if c.PatchSize != nil && *c.PatchSize != 1 {
		return fmt.Errorf("patch_size %d, expected null", *c.PatchSize)
	}
	if c.InChannels != c.OutChannels || c.InChannels != 3 && c.InChannels != 4 {
		return fmt.Errorf("in_channels %d and out_channels %d, expected both to be 3 or both to be 4", c.InChannels, c.OutChannels)
	}
	// Encoder and decoder have the fields of AutoencoderKLQwenImage; their widths may differ.
	for _, base := range []int{c.BaseDim, c.decoderBase()} {
		shared := KLQwenImageConfig{
			BaseDim: base, ZDim: c.ZDim, DimMult: c.DimMult, NumResBlocks: c.NumResBlocks, AttnScales: c.AttnScales,
			TemperalDownsample: c.TemperalDownsample, InputChannels: 3, LatentsMean: c.LatentsMean, LatentsStd: c.LatentsStd,
		}
		if err := shared.Validate(); err != nil {
			if base != c.BaseDim {
				return fmt.Errorf("decoder_base_dim %d: %w", base, err)
			}
			return err
		}
	}
	for i, s := range c.averages() {
		if s.in*s.factor()%s.out != 0 {
			return fmt.Errorf("encoder.down_blocks.%d has %d input and %d output channels: %d·%d is not a multiple of %d",
				i, s.in, s.out, s.in, s.factor(), s.out)
		}
	}
	for i, s := range c.copies() {
		if s != nil && s.out*s.factor()%s.in != 0 {
			return fmt.Errorf("decoder.up_blocks.%d has %d input and %d output channels: %d·%d is not a multiple of %d",
				i, s.in, s.out, s.out, s.factor(), s.in)
		}
	}
	return nil
}

func (c *KLQwenImage21Config) decoderBase() int {
	if c.DecoderBaseDim == nil {
		return c.BaseDim
	}
	return *c.DecoderBaseDim
}

// averages returns the shortcuts of the encoder's blocks.
func (c *KLQwenImage21Config) averages() []averageShortcut {
	shortcuts := make([]averageShortcut, len(c.DimMult))
	in := c.BaseDim
	for i, u := range c.DimMult {
		s := averageShortcut{in: in, out: c.BaseDim * u, time: 1, space: 1}
		if i < len(c.TemperalDownsample) {
			s.space, s.time = 2, frames(c.TemperalDownsample[i])
		}
		shortcuts[i], in = s, s.out
	}
	return shortcuts
}

// copies returns the shortcuts of the decoder's blocks. There is no shortcut in the last block.
func (c *KLQwenImage21Config) copies() []*copyShortcut {
	shortcuts := make([]*copyShortcut, len(c.DimMult))
	last := len(c.DimMult) - 1
	in := c.decoderBase() * c.DimMult[last]
	for i := range last {
		s := &copyShortcut{in: in, out: c.decoderBase() * c.DimMult[last-i], time: frames(c.TemperalDownsample[last-1-i])}
		shortcuts[i], in = s, s.out
	}
	return shortcuts
}

// frames is how many frames of a video become one.
func frames(temporal bool) int {
	if temporal {
		return 2
	}
	return 1
}

// KLQwenImage21 is diffusers' AutoencoderKLQwenImage21, for images with an alpha channel. Its
// architecture is the video autoencoder of Wan 2.2, with 2-D convolutions. Convolutions over time
// are not used. Arrays lack diffusers' axis of frames.
type KLQwenImage21 struct {
	nn.Module
	coder  `w:"."`
	Config KLQwenImage21Config
}

// NewKLQwenImage21 declares the model of a validated config.
func NewKLQwenImage21(c KLQwenImage21Config) *KLQwenImage21 {
	s := &strips{}
	m := newQwenCoder(imageConv, newQwen21Encoder(c, s), newQwen21Decoder(c, s), c.InChannels, c.ZDim, len(c.TemperalDownsample), s)
	return &KLQwenImage21{coder: m, Config: c}
}

// Unused returns patterns of the convolutions over time.
func (m *KLQwenImage21) Unused() []string {
	return []string{"encoder.down_blocks.*.downsampler.time_conv.*", "decoder.up_blocks.*.upsampler.time_conv.*"}
}

// Scale converts unscaled latents [..., z_dim, h, w] to the diffusion model's:
// (z - latents_mean)/latents_std.
func (m *KLQwenImage21) Scale(z *mlx.Array) *mlx.Array {
	return z.Sub(perChannel(m.Config.LatentsMean, z.Dtype())).Div(perChannel(m.Config.LatentsStd, z.Dtype()))
}

// Unscale is the inverse of Scale.
func (m *KLQwenImage21) Unscale(z *mlx.Array) *mlx.Array {
	return z.Mul(perChannel(m.Config.LatentsStd, z.Dtype())).Add(perChannel(m.Config.LatentsMean, z.Dtype()))
}

// newQwen21Encoder declares QwenImage21Encoder3d.
func newQwen21Encoder(c KLQwenImage21Config, s *strips) *half {
	last := c.BaseDim * c.DimMult[len(c.DimMult)-1]
	e := newQwenHalf(imageConv, c.InChannels, c.BaseDim, last, last, 2*c.ZDim, s)
	for _, a := range c.averages() {
		b := &shortcutBlock{AvgShortcut: &a, Resnets: newQwenResnets(imageConv, c.NumResBlocks, a.in, a.out)}
		if a.space > 1 {
			b.Downsampler = &qwenResample{Resample: &resampling{Size: &resizing{}, Conv: nn.NewConv2d(a.out, a.out, 3, 2, 0)}}
		}
		e.DownBlocks = append(e.DownBlocks, b)
	}
	return e
}

// newQwen21Decoder declares QwenImage21Decoder3d.
func newQwen21Decoder(c KLQwenImage21Config, s *strips) *half {
	base := c.decoderBase()
	first, in := base*c.DimMult[0], base*c.DimMult[len(c.DimMult)-1]
	d := newQwenHalf(imageConv, c.ZDim, in, in, first, c.OutChannels, s)
	for _, a := range c.copies() {
		b := &shortcutBlock{}
		out := first
		if a != nil {
			out = a.out
			b.AvgShortcut = a
			b.Upsampler = &qwenResample{Resample: &resampling{Size: &resizing{up: true}, Conv: nn.NewConv2d(out, out, 3, 1, 1)}}
		}
		b.Resnets = newQwenResnets(imageConv, c.NumResBlocks+1, in, out)
		d.UpBlocks = append(d.UpBlocks, b)
		in = out
	}
	return d
}

// shortcutBlock is QwenImage21ResidualDownBlock or QwenImage21ResidualUpBlock: residual blocks and
// a change of size, with a shortcut around them that has no weights.
type shortcutBlock struct {
	nn.Module
	AvgShortcut shortcut      `w:"avg_shortcut"` // nil in the last block of the decoder
	Resnets     []*resnet     `w:"resnets"`
	Downsampler *qwenResample `w:"downsampler"`
	Upsampler   *qwenResample `w:"upsampler"`
}

// A shortcut maps the input of a block to the size of its output.
type shortcut interface {
	nn.Layer
	// rows returns rows [lo, hi) of the output for the input x.
	rows(x *mlx.Array, lo, hi int) *mlx.Array
	// channels is the memory that it takes for a pixel of its output, as a number of channels.
	channels() int
}

func (b *shortcutBlock) Forward(x *mlx.Array) *mlx.Array {
	y := chain(x, b.Resnets, (*resnet).Forward)
	if r := b.resampler(); r != nil {
		y = r.Forward(y)
	}
	if b.AvgShortcut != nil {
		y = y.Add(b.AvgShortcut.Forward(x))
	}
	return b.TapImage(y, x)
}

func (b *shortcutBlock) layers() []layer {
	if b.AvgShortcut == nil {
		return appendBlocks(nil, b.Resnets)
	}
	return []layer{b}
}

// resampler returns the layer that changes the size; nil if the block keeps it.
func (b *shortcutBlock) resampler() *qwenResample { return cmp.Or(b.Downsampler, b.Upsampler) }

func (b *shortcutBlock) strip(x *mlx.Array, s *strips) *mlx.Array {
	y := mlx.EvalChain(x, b.Resnets, func(r *resnet, x *mlx.Array) *mlx.Array { return r.strip(x, s) })
	add := func(y *mlx.Array, lo, hi int) *mlx.Array { return y.Add(b.AvgShortcut.rows(x, lo, hi)) }
	if r := b.resampler(); r != nil {
		return r.stage().stripThen(y, s, add)
	}
	return add(y, 0, y.Dim(1))
}

func (b *shortcutBlock) memory(in size, m memoryModel) (int64, size) {
	most, at := int64(0), in
	for i, r := range b.Resnets {
		n, out := r.memory(at, m)
		if i > 0 {
			n += in.bytes(m.item()) // for the shortcut
		}
		most, at = max(most, n), out
	}
	held := in.bytes(m.item())
	r := b.resampler()
	if r != nil {
		s := r.stage()
		s.residual = b.AvgShortcut.channels()
		n, out := s.memory(at, m)
		most, at = max(most, n+held), out
	}
	if m.budget == noBudget || r == nil {
		most = max(most, held+at.bytes(m.item())+size{at.h, at.w, b.AvgShortcut.channels()}.bytes(m.item()))
	}
	if m.budget == noBudget && m.device != mlx.CPU {
		most *= 2 // of both branches at once: 6.1 GiB for 1024x1024 in bfloat16 with CUDA
	}
	return most, at
}

// averageShortcut is QwenImage21AvgDown3D: every output is the mean of several channels of several
// pixels. In a video these are pixels of 2 frames where time is 2, and the frame before an image is
// black.
type averageShortcut struct {
	nn.Module
	in, out, time, space int
}

func (a *averageShortcut) factor() int { return a.time * a.space * a.space }

func (a *averageShortcut) Forward(x *mlx.Array) *mlx.Array {
	n, h, w := x.Dim(0), x.Dim(1)/a.space, x.Dim(2)/a.space
	y := x.Reshape(n, h, a.space, w, a.space, a.in).Transpose(0, 1, 3, 5, 2, 4)
	if a.time > 1 {
		y = y.ExpandDims(4).Pad([]int{0, 0, 0, 0, a.time - 1, 0, 0}, []int{0, 0, 0, 0, 0, 0, 0}, 0)
	}
	return a.TapImage(y.Reshape(n, h, w, a.out, a.in*a.factor()/a.out).Mean(-1).Squeeze(-1), x)
}

func (a *averageShortcut) rows(x *mlx.Array, lo, hi int) *mlx.Array {
	return a.Forward(slice(x, a.space*lo, a.space*hi))
}

func (a *averageShortcut) channels() int { return 2*a.in*a.factor() + a.out }

// copyShortcut is QwenImage21DupUp3D: every pixel becomes 2x2, whose channels are copies of its
// channels. In a video a pixel becomes those of 2 frames where time is 2, and an image is the second.
type copyShortcut struct {
	nn.Module
	in, out, time int
}

func (c *copyShortcut) factor() int { return 4 * c.time }

func (c *copyShortcut) Forward(x *mlx.Array) *mlx.Array {
	n, h, w := x.Dim(0), x.Dim(1), x.Dim(2)
	copies := c.out * c.factor() / c.in // of each channel
	channels := make([]int32, 0, 4*c.out)
	for place := range 4 { // in the 2x2 pixels
		for channel := range c.out {
			channels = append(channels, int32((4*(channel*c.time+c.time-1)+place)/copies))
		}
	}
	y := x.Take(-1, channels).Reshape(n, h, w, 2, 2, c.out).Transpose(0, 1, 3, 2, 4, 5)
	return c.TapImage(y.Reshape(n, 2*h, 2*w, c.out), x)
}

func (c *copyShortcut) rows(x *mlx.Array, lo, hi int) *mlx.Array {
	first := lo / 2
	return slice(c.Forward(slice(x, first, (hi+1)/2)), lo-2*first, hi-2*first)
}

func (c *copyShortcut) channels() int { return 2 * c.out }
