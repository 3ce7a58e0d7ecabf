package vae

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// CoderConfig has the fields about encoder and decoder that the configs of several
// classes share.
type CoderConfig struct {
	InChannels           int      `json:"in_channels"`
	OutChannels          int      `json:"out_channels"`
	DownBlockTypes       []string `json:"down_block_types"`
	UpBlockTypes         []string `json:"up_block_types"`
	BlockOutChannels     []int    `json:"block_out_channels"`
	LayersPerBlock       int      `json:"layers_per_block" layers:"1"`
	ActFn                string   `json:"act_fn"`
	LatentChannels       int      `json:"latent_channels" size:"1"`
	NormNumGroups        int      `json:"norm_num_groups" size:"1"`
	UseQuantConv         bool     `json:"use_quant_conv"`
	UsePostQuantConv     bool     `json:"use_post_quant_conv"`
	MidBlockAddAttention bool     `json:"mid_block_add_attention"`
}

// validate returns an error if the model of a whole config cannot be run. decoder has the widths of the
// decoder's blocks.
func (c *CoderConfig) validate(whole any, decoder []int) error {
	if c.InChannels != 3 || c.OutChannels != 3 {
		return fmt.Errorf("in_channels %d and out_channels %d, expected 3", c.InChannels, c.OutChannels)
	}
	if err := nn.CheckConfig(whole); err != nil {
		return err
	}
	if len(c.BlockOutChannels) == 0 {
		return errors.New("block_out_channels []: expected the channels of each level")
	}
	if len(decoder) != len(c.BlockOutChannels) {
		return fmt.Errorf("decoder_block_out_channels %v, expected as many as block_out_channels %v", decoder, c.BlockOutChannels)
	}
	for i, widths := range [][]int{c.BlockOutChannels, decoder} {
		name := []string{"block_out_channels", "decoder_block_out_channels"}[i]
		if len(widths) > 10 || slices.Max(widths) > nn.MaxDim {
			return fmt.Errorf("%s %v: too large", name, widths)
		}
		for _, channels := range widths {
			if channels < 1 || channels%c.NormNumGroups != 0 {
				return fmt.Errorf("%s %v must be multiples of norm_num_groups %d", name, widths, c.NormNumGroups)
			}
		}
	}
	if c.ActFn != "silu" && c.ActFn != "swish" {
		return fmt.Errorf("act_fn %q, expected silu", c.ActFn)
	}
	if !all(c.DownBlockTypes, "DownEncoderBlock2D", len(c.BlockOutChannels)) || !all(c.UpBlockTypes, "UpDecoderBlock2D",
		len(c.BlockOutChannels)) {
		return fmt.Errorf("down_block_types %v and up_block_types %v: "+
			"expected one DownEncoderBlock2D and UpDecoderBlock2D per block_out_channels", c.DownBlockTypes, c.UpBlockTypes)
	}
	return nil
}

func all(names []string, want string, n int) bool {
	for _, name := range names {
		if name != want {
			return false
		}
	}
	return len(names) == n
}

// coderScale is the size of an image divided by the size of the encoder's output.
func (c *CoderConfig) coderScale() int { return 1 << (len(c.BlockOutChannels) - 1) }

// coder has what all classes share: the encoder, the decoder, and the convolutions that
// some classes have between them and the latents.
type coder struct {
	Encoder       network    `w:"encoder"` // nil for a decoder alone
	Decoder       network    `w:"decoder"`
	QuantConv     *nn.Conv2d `w:"quant_conv"`
	PostQuantConv *nn.Conv2d `w:"post_quant_conv"`

	imageChannels, latentChannels int
	scale                         int  // the size of an image divided by that of the decoder's input
	patch                         int  // the side of a patch of the decoder's input, which is one of the diffusion model's latents
	clamped                       bool // images are clamped to [-1, 1]
	strips                        *strips
}

// A network is an encoder, a decoder or one of its blocks, on [N, H, W, C].
type network interface {
	nn.Layer
	layers() []layer // in the order of their computation
}

func newCoder(c CoderConfig, decoderWidths []int, patch int) coder {
	m := coder{imageChannels: c.InChannels, latentChannels: c.LatentChannels, scale: c.coderScale(), patch: patch, strips: &strips{}}
	m.Encoder, m.Decoder = newEncoder(c, m.strips), newDecoder(c, decoderWidths, m.strips)
	if c.UseQuantConv {
		m.QuantConv = nn.NewConv2d(2*c.LatentChannels, 2*c.LatentChannels, 1, 1, 0)
	}
	if c.UsePostQuantConv {
		m.PostQuantConv = nn.NewConv2d(c.LatentChannels, c.LatentChannels, 1, 1, 0)
	}
	return m
}

// ImageChannels is the number of channels of images.
func (m *coder) ImageChannels() int { return m.imageChannels }

// ScaleFactor is the size of an image divided by the size of the diffusion model's latents.
func (m *coder) ScaleFactor() int { return m.patch * m.scale }

// LatentChannels is the number of channels of the diffusion model's latents.
func (m *coder) LatentChannels() int { return m.patch * m.patch * m.latentChannels }

// Unscaled is [latent_channels, h, w], or twice the height and width for patches of 2x2.
func (m *coder) Unscaled(h, w int) []int { return []int{m.latentChannels, m.patch * h, m.patch * w} }

// Unused returns no patterns: all tensors of a checkpoint are used.
func (m *coder) Unused() []string { return nil }

// Encode encodes images [N, ImageChannels, H, W] from -1 to 1. It returns the mean of their
// unscaled latents [N, latent_channels, h, w].
func (m *coder) Encode(x *mlx.Array) *mlx.Array {
	if m.Encoder == nil {
		mlx.Throw(errors.New("the autoencoder has a decoder, but no encoder"))
	}
	y := m.Encoder.Forward(nn.ChannelsLast(x))
	if m.QuantConv != nil {
		y = m.QuantConv.Forward(y)
	}
	return nn.ChannelsFirst(y.Slice(-1, 0, m.latentChannels))
}

// Decode decodes unscaled latents [N, latent_channels, h, w] to images
// [N, ImageChannels, H, W], from about -1 to 1.
func (m *coder) Decode(z *mlx.Array) *mlx.Array {
	x := nn.ChannelsLast(z)
	if m.PostQuantConv != nil {
		x = m.PostQuantConv.Forward(x)
	}
	y := nn.ChannelsFirst(m.Decoder.Forward(x))
	if m.clamped {
		y = y.Clip(-1, 1)
	}
	return y
}

const normEps = 1e-6 // of every GroupNorm

// A half is the encoder or the decoder of most classes: Encoder and Decoder of diffusers.models.autoencoders.vae, or
// QwenImageEncoder3d and QwenImageDecoder3d, where the last norm and activation have other names.
type half struct {
	nn.Module
	ConvIn       *nn.Conv2d    `w:"conv_in"`
	DownBlocks   []nn.Layer    `w:"down_blocks"` // of an encoder
	MidBlock     *midBlock     `w:"mid_block"`
	UpBlocks     []nn.Layer    `w:"up_blocks"` // of a decoder
	ConvNormOut  *nn.GroupNorm `w:"conv_norm_out"`
	ConvAct      *nn.SiLU      `w:"conv_act"`
	NormOut      *channelNorm  `w:"norm_out"`
	Nonlinearity *nn.SiLU      `w:"nonlinearity"`
	ConvOut      *nn.Conv2d    `w:"conv_out"`

	strips *strips
}

// newGroupHalf declares a half without its levels, whose blocks have group norms. It has in inputs and out outputs; its first
// block has first inputs, the middle mid channels, and the last block last outputs.
func newGroupHalf(c CoderConfig, in, first, mid, last, out int, s *strips) *half {
	return &half{
		ConvIn:      nn.NewConv2d(in, first, 3, 1, 1),
		MidBlock:    newMidBlock(mid, c),
		ConvNormOut: nn.NewGroupNorm(c.NormNumGroups, last, normEps),
		ConvAct:     &nn.SiLU{ChannelsLast: true},
		ConvOut:     nn.NewConv2d(last, out, 3, 1, 1),
		strips:      s,
	}
}

func newEncoder(c CoderConfig, s *strips) *half {
	widths := c.BlockOutChannels
	in, last := widths[0], widths[len(widths)-1]
	e := newGroupHalf(c, c.InChannels, in, last, last, 2*c.LatentChannels, s)
	for i, out := range widths {
		b := &resizeBlock{Resnets: newGroupResnets(c.LayersPerBlock, in, out, c)}
		if i < len(widths)-1 {
			b.Downsamplers = []nn.Layer{&downsample{Conv: nn.NewConv2d(out, out, 3, 2, 0)}}
		}
		e.DownBlocks = append(e.DownBlocks, b)
		in = out
	}
	return e
}

func newDecoder(c CoderConfig, widths []int, s *strips) *half {
	first, in := widths[0], widths[len(widths)-1]
	d := newGroupHalf(c, c.LatentChannels, in, in, first, c.OutChannels, s)
	for i := len(widths) - 1; i >= 0; i-- {
		out := widths[i]
		b := &resizeBlock{Resnets: newGroupResnets(c.LayersPerBlock+1, in, out, c)}
		if i > 0 {
			b.Upsamplers = []nn.Layer{&upsample{Conv: nn.NewConv2d(out, out, 3, 1, 1)}}
		}
		d.UpBlocks = append(d.UpBlocks, b)
		in = out
	}
	return d
}

func (h *half) Forward(x *mlx.Array) *mlx.Array {
	if h.strips.use(&h.Module) {
		return h.strips.run(x, h.layers())
	}
	y := mlx.Scope(func() *mlx.Array {
		return h.MidBlock.Forward(chain(x, append([]nn.Layer{h.ConvIn}, h.DownBlocks...), nn.Layer.Forward))
	})
	y = mlx.Chain(y, h.UpBlocks, nn.Layer.Forward)
	n, act := h.end()
	return h.TapImage(normActConv(n, act, h.ConvOut, y), x)
}

// end returns the norm and the activation before the last convolution.
func (h *half) end() (norm, *nn.SiLU) {
	if h.NormOut != nil {
		return h.NormOut, h.Nonlinearity
	}
	return h.ConvNormOut, h.ConvAct
}

func (h *half) layers() []layer {
	layers := appendBlocks([]layer{convStage(h.ConvIn)}, h.DownBlocks)
	layers = appendBlocks(append(layers, h.MidBlock.layers()...), h.UpBlocks)
	n, _ := h.end()
	return append(layers, stage{norm: n, conv: h.ConvOut, before: 1, after: 1})
}

// chain is [mlx.EvalChain], except on CUDA: there the memory limit of a run bounds what MLX allocates
// ahead, and waiting for every layer takes a fifth of the time.
func chain[T any](x *mlx.Array, layers []T, f func(T, *mlx.Array) *mlx.Array) *mlx.Array {
	if mlx.CurrentDevice().Backend() == mlx.BackendCUDA {
		return mlx.Chain(x, layers, f)
	}
	return mlx.EvalChain(x, layers, f)
}

// fusedOnGPU is [nn.Module.Fused] for an operation that CPUs compute module by module too.
func fusedOnGPU(m *nn.Module, operation string, fused, modules func() *mlx.Array) *mlx.Array {
	if mlx.CurrentDevice() == mlx.CPU && !m.Observed() {
		return modules()
	}
	return m.Fused(operation, fused, modules)
}

// normActConv is the end of encoders and decoders.
func normActConv(n norm, act *nn.SiLU, conv *nn.Conv2d, x *mlx.Array) *mlx.Array {
	return fusedOnGPU(&act.Module, "normActConv",
		func() *mlx.Array { return conv.Forward(n.SiLU(x, nil)) },
		func() *mlx.Array { return mlx.EvalChain(x, []nn.Layer{n, act, conv}, nn.Layer.Forward) })
}

// resizeBlock is DownEncoderBlock2D, UpDecoderBlock2D or QwenImageUpBlock: residual blocks, and what changes the size.
type resizeBlock struct {
	nn.Module
	Resnets      []*resnet  `w:"resnets"`
	Downsamplers []nn.Layer `w:"downsamplers"`
	Upsamplers   []nn.Layer `w:"upsamplers"`
}

func (b *resizeBlock) Forward(x *mlx.Array) *mlx.Array {
	y := chain(x, b.Resnets, (*resnet).Forward)
	y = chain(y, slices.Concat(b.Downsamplers, b.Upsamplers), nn.Layer.Forward)
	return b.TapImage(y, x)
}

func (b *resizeBlock) layers() []layer {
	return appendBlocks(appendBlocks(appendBlocks(nil, b.Resnets), b.Downsamplers), b.Upsamplers)
}

// downsample is Downsample2D with padding=0: it pads below and on the right.
type downsample struct {
	nn.Module
	Conv *nn.Conv2d `w:"conv"`
}

func (d *downsample) Forward(x *mlx.Array) *mlx.Array {
	padded := x.Pad([]int{0, 0, 0, 0}, []int{0, 1, 1, 0}, 0)
	return d.TapImage(d.Conv.Forward(padded), x)
}

// upsample is Upsample2D: nearest neighbours, then a convolution. With UpscaleConv it is SeedVR2's Upsample3D.
type upsample struct {
	nn.Module
	UpscaleConv *nn.Conv2d `w:"upscale_conv"`
	Conv        *nn.Conv2d `w:"conv"`
}

func (u *upsample) Forward(x *mlx.Array) *mlx.Array {
	return u.TapImage(u.Conv.Forward(u.double(x)), x)
}

// double returns [N, 2H, 2W, C].
func (u *upsample) double(x *mlx.Array) *mlx.Array {
	if u.UpscaleConv == nil {
		return mlx.Upsample(x)
	}
	return shuffled(u.UpscaleConv, x)
}

// midBlock is UNetMidBlock2D: a resnet, then attention and another resnet.
type midBlock struct {
	nn.Module
	Attentions []nn.Layer `w:"attentions"`
	Resnets    []*resnet  `w:"resnets"`
}

func newMidBlock(channels int, c CoderConfig) *midBlock {
	b := &midBlock{Resnets: newGroupResnets(2, channels, channels, c)}
	if c.MidBlockAddAttention {
		b.Attentions = []nn.Layer{&attention{
			GroupNorm: nn.NewGroupNorm(c.NormNumGroups, channels, normEps),
			ToQ:       nn.NewLinear(channels, channels, true),
			ToK:       nn.NewLinear(channels, channels, true),
			ToV:       nn.NewLinear(channels, channels, true),
			ToOut:     []*nn.Linear{nn.NewLinear(channels, channels, true)},
		}}
	}
	return b
}

func (b *midBlock) Forward(x *mlx.Array) *mlx.Array {
	y := b.Resnets[0].Forward(x)
	for _, a := range b.Attentions {
		y = a.Forward(y)
	}
	return b.TapImage(b.Resnets[1].Forward(y), x)
}

func (b *midBlock) layers() []layer {
	layers := appendBlocks([]layer{b.Resnets[0]}, b.Attentions)
	return append(layers, b.Resnets[1])
}

// resnet is ResnetBlock2D without a time embedding, or QwenImageResidualBlock.
type resnet struct {
	nn.Module
	Norm1        norm       `w:"norm1"`
	Conv1        *nn.Conv2d `w:"conv1"`
	Norm2        norm       `w:"norm2"`
	Conv2        *nn.Conv2d `w:"conv2"`
	Nonlinearity *nn.SiLU   `w:"nonlinearity"`
	ConvShortcut nn.Layer   `w:"conv_shortcut"`
}

// A newConv declares a convolution with a bias and stride 1, given the numbers of its input and
// output channels, its kernel's size and its padding.
type newConv func(in, out, kernel, padding int) *nn.Conv2d

// imageConv is newConv for plain 2-D convolutions.
func imageConv(in, out, kernel, padding int) *nn.Conv2d {
	return nn.NewConv2d(in, out, kernel, 1, padding)
}

// newResnets declares n residual blocks, of which the first changes the number of channels. same is the shortcut of a
// block that does not, nil for none.
func newResnets(n, in, out int, conv newConv, newNorm func(channels int) norm, same func() nn.Layer) []*resnet {
	resnets := make([]*resnet, n)
	for i := range resnets {
		r := &resnet{
			Norm1: newNorm(in), Conv1: conv(in, out, 3, 1), Norm2: newNorm(out), Conv2: conv(out, out, 3, 1),
			Nonlinearity: &nn.SiLU{ChannelsLast: true},
		}
		switch {
		case in != out:
			r.ConvShortcut = conv(in, out, 1, 0)
		case same != nil:
			r.ConvShortcut = same()
		}
		resnets[i], in = r, out
	}
	return resnets
}

// newGroupResnets declares residual blocks with group norms.
func newGroupResnets(n, in, out int, c CoderConfig) []*resnet {
	groups := func(channels int) norm { return nn.NewGroupNorm(c.NormNumGroups, channels, normEps) }
	return newResnets(n, in, out, imageConv, groups, nil)
}

func (r *resnet) Forward(x *mlx.Array) *mlx.Array {
	shortcut := func() *mlx.Array {
		if r.ConvShortcut == nil {
			return x
		}
		return r.ConvShortcut.Forward(x)
	}
	return r.TapImage(fusedOnGPU(&r.Module, "resnet.Forward", func() *mlx.Array {
		// the next operation adds the bias of a convolution
		y := r.Conv1.Plain(r.Norm1.SiLU(x, nil))
		y = r.Conv2.Plain(r.Norm2.SiLU(y, r.Conv1.Bias.As(x.Dtype())))
		return mlx.AddBias(y, r.Conv2.Bias.As(x.Dtype()), shortcut())
	}, func() *mlx.Array {
		y := mlx.EvalChain(x, []nn.Layer{r.Norm1, r.Nonlinearity, r.Conv1, r.Norm2, r.Nonlinearity, r.Conv2}, nn.Layer.Forward)
		return shortcut().Add(y)
	}), x)
}

// attention is Attention with one head of all channels, over all pixels.
type attention struct {
	nn.Module
	GroupNorm *nn.GroupNorm `w:"group_norm"`
	ToQ       *nn.Linear    `w:"to_q"`
	ToK       *nn.Linear    `w:"to_k"`
	ToV       *nn.Linear    `w:"to_v"`
	ToOut     []*nn.Linear  `w:"to_out"`
}

func (a *attention) Forward(x *mlx.Array) *mlx.Array { return a.strip(x, &strips{}) }

func (a *attention) strip(x *mlx.Array, s *strips) *mlx.Array {
	all := s.whole(x)
	n, h, w, c := all.Dim(0), all.Dim(1), all.Dim(2), all.Dim(3)
	y := a.GroupNorm.ForwardTokens(all.Reshape(n, h*w, c), h, w)
	q, k, v := nn.Heads(a.ToQ.Forward(s.own(1, y)), 1), nn.Heads(a.ToK.Forward(y), 1), nn.Heads(a.ToV.Forward(y), 1)
	q, k, v = a.TapQKV(nn.AttentionOptions{}, q, k, v)
	y = a.ToOut[0].Forward(nn.MergeHeads(attend(q, k, v, scores(s.limit()))))
	return a.TapImage(x.Add(y.Reshape(x.Shape()...)), x)
}

// maxScores limits the number of attention scores that are computed at a time: 256 MB
// in float32. An image of 768x768 pixels has more of them. At 2048x2048 their number
// overflows MLX's 32-bit count, and MLX crashes on CUDA.
const maxScores = 1 << 26

// attend is nn.Attention, computed for as many queries at a time as limit allows. The
// limit is a number of scores.
func attend(q, k, v *mlx.Array, limit int) *mlx.Array {
	n, step := q.Dim(2), max(1, limit/k.Dim(2))
	if n <= step {
		return nn.Attention(q, k, v)
	}
	var parts []*mlx.Array
	for i := 0; i < n; i += step {
		queries := []*mlx.Array{q.Slice(2, i, min(i+step, n))}
		parts = append(parts, mlx.EvalChain(k, queries, func(q, k *mlx.Array) *mlx.Array { return nn.Attention(q, k, v) }))
	}
	return mlx.Concat(2, parts...)
}
