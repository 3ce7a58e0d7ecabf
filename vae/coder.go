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
	LayersPerBlock       int      `json:"layers_per_block"`
	ActFn                string   `json:"act_fn"`
	LatentChannels       int      `json:"latent_channels"`
	NormNumGroups        int      `json:"norm_num_groups"`
	UseQuantConv         bool     `json:"use_quant_conv"`
	UsePostQuantConv     bool     `json:"use_post_quant_conv"`
	MidBlockAddAttention bool     `json:"mid_block_add_attention"`
}

// validate returns an error if the model cannot be run. decoder has the widths of the
// decoder's blocks.
func (c *CoderConfig) validate(decoder []int) error {
	if c.InChannels != 3 || c.OutChannels != 3 {
		return fmt.Errorf("in_channels %d and out_channels %d, expected 3", c.InChannels, c.OutChannels)
	}
	if c.LayersPerBlock < 1 || c.LatentChannels < 1 || c.NormNumGroups < 1 || len(c.BlockOutChannels) == 0 {
		return errors.New("layers_per_block, latent_channels, norm_num_groups and block_out_channels must be positive")
	}
	if len(decoder) != len(c.BlockOutChannels) {
		return fmt.Errorf("decoder_block_out_channels %v, expected as many as block_out_channels %v", decoder, c.BlockOutChannels)
	}
	for i, widths := range [][]int{c.BlockOutChannels, decoder} {
		name := []string{"block_out_channels", "decoder_block_out_channels"}[i]
		if c.LayersPerBlock > nn.MaxLayers || c.LatentChannels > nn.MaxDim || len(widths) > 10 || slices.Max(widths) > nn.MaxDim {
			return fmt.Errorf("layers_per_block %d, latent_channels %d, %s %v: too large", c.LayersPerBlock, c.LatentChannels, name, widths)
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
// some classes have between them and the latents. Each class declares these modules as
// its own fields too, which name their weights.
type coder struct {
	encoder, decoder      network
	quant, postQuant      *nn.Conv2d // nil if the class has no such layer
	imageChannels         int
	latentChannels, scale int
	strips                *strips
}

// A network is an encoder, a decoder or one of its blocks, on [N, H, W, C].
type network interface {
	nn.Layer
	layers() []layer // in the order of their computation
}

func newCoder(c CoderConfig, decoderWidths []int) (coder, *encoder, *decoder) {
	m := coder{imageChannels: c.InChannels, latentChannels: c.LatentChannels, scale: c.coderScale(), strips: &strips{}}
	e, d := newEncoder(c, m.strips), newDecoder(c, decoderWidths, m.strips)
	m.encoder, m.decoder = e, d
	if c.UseQuantConv {
		m.quant = nn.NewConv2d(2*c.LatentChannels, 2*c.LatentChannels, 1, 1, 0)
	}
	if c.UsePostQuantConv {
		m.postQuant = nn.NewConv2d(c.LatentChannels, c.LatentChannels, 1, 1, 0)
	}
	return m, e, d
}

// ImageChannels is the number of channels of images.
func (m *coder) ImageChannels() int { return m.imageChannels }

// ScaleFactor is the size of an image divided by the size of its latents.
func (m *coder) ScaleFactor() int { return m.scale }

// LatentChannels is the number of channels of the latents.
func (m *coder) LatentChannels() int { return m.latentChannels }

// Unscaled is [latent_channels, h, w].
func (m *coder) Unscaled(h, w int) []int { return []int{m.latentChannels, h, w} }

// Encode encodes images [N, ImageChannels, H, W] from -1 to 1. It returns the mean of their
// unscaled latents [N, latent_channels, h, w].
func (m *coder) Encode(x *mlx.Array) *mlx.Array {
	y := m.encoder.Forward(nn.ChannelsLast(x))
	if m.quant != nil {
		y = m.quant.Forward(y)
	}
	return nn.ChannelsFirst(y.Slice(-1, 0, m.latentChannels))
}

// Decode decodes unscaled latents [N, latent_channels, h, w] to images
// [N, ImageChannels, H, W], from about -1 to 1, not clamped.
func (m *coder) Decode(z *mlx.Array) *mlx.Array {
	x := nn.ChannelsLast(z)
	if m.postQuant != nil {
		x = m.postQuant.Forward(x)
	}
	return nn.ChannelsFirst(m.decoder.Forward(x))
}

const normEps = 1e-6 // of every GroupNorm

// encoder is diffusers.models.autoencoders.vae.Encoder.
type encoder struct {
	nn.Module
	ConvIn      *nn.Conv2d     `w:"conv_in"`
	DownBlocks  []*resizeBlock `w:"down_blocks"`
	MidBlock    *midBlock      `w:"mid_block"`
	ConvNormOut *nn.GroupNorm  `w:"conv_norm_out"`
	ConvAct     *nn.SiLU       `w:"conv_act"`
	ConvOut     *nn.Conv2d     `w:"conv_out"`

	strips *strips
}

func newEncoder(c CoderConfig, s *strips) *encoder {
	widths := c.BlockOutChannels
	last := widths[len(widths)-1]
	e := &encoder{
		ConvIn:      nn.NewConv2d(c.InChannels, widths[0], 3, 1, 1),
		MidBlock:    newMidBlock(last, c),
		ConvNormOut: nn.NewGroupNorm(c.NormNumGroups, last, normEps),
		ConvAct:     &nn.SiLU{ChannelsLast: true},
		ConvOut:     nn.NewConv2d(last, 2*c.LatentChannels, 3, 1, 1),
		strips:      s,
	}
	in := widths[0]
	for i, out := range widths {
		b := &resizeBlock{Resnets: newGroupResnets(c.LayersPerBlock, in, out, c)}
		if i < len(widths)-1 {
			b.Downsamplers = []block{&downsample{Conv: nn.NewConv2d(out, out, 3, 2, 0)}}
		}
		e.DownBlocks = append(e.DownBlocks, b)
		in = out
	}
	return e
}

func (e *encoder) Forward(x *mlx.Array) *mlx.Array {
	if e.strips.use(&e.Module) {
		return e.strips.run(x, e.layers())
	}
	y := mlx.Chain(e.ConvIn.Forward(x), e.DownBlocks, (*resizeBlock).Forward)
	y = e.MidBlock.Forward(y)
	return e.TapImage(normActConv(e.ConvNormOut, e.ConvAct, e.ConvOut, y), x)
}

func (e *encoder) layers() []layer {
	layers := []layer{convStage(e.ConvIn)}
	for _, b := range e.DownBlocks {
		layers = append(layers, b.layers()...)
	}
	layers = append(layers, e.MidBlock.layers()...)
	return append(layers, stage{norm: e.ConvNormOut, conv: e.ConvOut, before: 1, after: 1})
}

// decoder is diffusers.models.autoencoders.vae.Decoder.
type decoder struct {
	nn.Module
	ConvIn      *nn.Conv2d     `w:"conv_in"`
	MidBlock    *midBlock      `w:"mid_block"`
	UpBlocks    []*resizeBlock `w:"up_blocks"`
	ConvNormOut *nn.GroupNorm  `w:"conv_norm_out"`
	ConvAct     *nn.SiLU       `w:"conv_act"`
	ConvOut     *nn.Conv2d     `w:"conv_out"`

	strips *strips
}

func newDecoder(c CoderConfig, widths []int, s *strips) *decoder {
	first, last := widths[0], widths[len(widths)-1]
	d := &decoder{
		ConvIn:      nn.NewConv2d(c.LatentChannels, last, 3, 1, 1),
		MidBlock:    newMidBlock(last, c),
		ConvNormOut: nn.NewGroupNorm(c.NormNumGroups, first, normEps),
		ConvAct:     &nn.SiLU{ChannelsLast: true},
		ConvOut:     nn.NewConv2d(first, c.OutChannels, 3, 1, 1),
		strips:      s,
	}
	in := last
	for i := len(widths) - 1; i >= 0; i-- {
		out := widths[i]
		b := &resizeBlock{Resnets: newGroupResnets(c.LayersPerBlock+1, in, out, c)}
		if i > 0 {
			b.Upsamplers = []block{&upsample{Conv: nn.NewConv2d(out, out, 3, 1, 1)}}
		}
		d.UpBlocks = append(d.UpBlocks, b)
		in = out
	}
	return d
}

func (d *decoder) Forward(x *mlx.Array) *mlx.Array {
	if d.strips.use(&d.Module) {
		return d.strips.run(x, d.layers())
	}
	y := mlx.Scope(func() *mlx.Array { return d.MidBlock.Forward(d.ConvIn.Forward(x)) })
	y = mlx.Chain(y, d.UpBlocks, (*resizeBlock).Forward)
	return d.TapImage(normActConv(d.ConvNormOut, d.ConvAct, d.ConvOut, y), x)
}

func (d *decoder) layers() []layer {
	layers := append([]layer{convStage(d.ConvIn)}, d.MidBlock.layers()...)
	for _, b := range d.UpBlocks {
		layers = append(layers, b.layers()...)
	}
	return append(layers, stage{norm: d.ConvNormOut, conv: d.ConvOut, before: 1, after: 1})
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
	Resnets      []*resnet `w:"resnets"`
	Downsamplers []block   `w:"downsamplers"`
	Upsamplers   []block   `w:"upsamplers"`
}

func (b *resizeBlock) Forward(x *mlx.Array) *mlx.Array {
	y := chain(x, b.Resnets, (*resnet).Forward)
	y = chain(y, slices.Concat(b.Downsamplers, b.Upsamplers), block.Forward)
	return b.TapImage(y, x)
}

func (b *resizeBlock) layers() []layer {
	return appendLayers(appendLayers(appendLayers(nil, b.Resnets), b.Downsamplers), b.Upsamplers)
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
	Attentions []block   `w:"attentions"`
	Resnets    []*resnet `w:"resnets"`
}

func newMidBlock(channels int, c CoderConfig) *midBlock {
	b := &midBlock{Resnets: newGroupResnets(2, channels, channels, c)}
	if c.MidBlockAddAttention {
		b.Attentions = []block{&attention{
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
	layers := appendLayers([]layer{b.Resnets[0]}, b.Attentions)
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

// A block is a module that can be computed in strips.
type block interface {
	nn.Layer
	layer
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
