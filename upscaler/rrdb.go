package upscaler

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// RRDBConfig has the arguments of BasicSR's RRDBNet, with num_up in addition. They follow from the shapes of the
// tensors.
type RRDBConfig struct {
	NumInCh   int `json:"num_in_ch"` // of images
	NumOutCh  int `json:"num_out_ch"`
	NumFeat   int `json:"num_feat"`
	NumBlock  int `json:"num_block"`
	NumGrowCh int `json:"num_grow_ch"`
	Shuffle   int `json:"shuffle"` // 2 or 4 if the network sees pixels of k×k as channels, else 1
	NumUp     int `json:"num_up"`  // how often it doubles the size
}

// DefaultRRDBConfig returns the config of ESRGAN and of Real-ESRGAN x4.
func DefaultRRDBConfig() RRDBConfig {
	return RRDBConfig{NumInCh: 3, NumOutCh: 3, NumFeat: 64, NumBlock: 23, NumGrowCh: 32, Shuffle: 1, NumUp: 2}
}

// Validate returns an error if the network cannot be run with the config.
func (c *RRDBConfig) Validate() error {
	switch {
	case c.NumInCh != c.NumOutCh || c.NumInCh != 1 && c.NumInCh != 3 && c.NumInCh != 4:
		return fmt.Errorf("num_in_ch %d and num_out_ch %d, expected 1, 3 or 4 of both", c.NumInCh, c.NumOutCh)
	case c.NumFeat < 1 || c.NumFeat > nn.MaxDim || c.NumGrowCh < 1 || c.NumGrowCh > nn.MaxDim:
		return fmt.Errorf("num_feat %d and num_grow_ch %d, expected 1 to %d", c.NumFeat, c.NumGrowCh, nn.MaxDim)
	case c.NumBlock < 1 || c.NumBlock > nn.MaxLayers:
		return fmt.Errorf("num_block %d, expected 1 to %d", c.NumBlock, nn.MaxLayers)
	case c.NumUp < 0 || c.NumUp > 3:
		return fmt.Errorf("num_up %d, expected 0 to 3", c.NumUp)
	case c.Shuffle != 1 && c.Shuffle != 2 && c.Shuffle != 4 || c.Shuffle > 1<<c.NumUp:
		return fmt.Errorf("shuffle %d with num_up %d, expected 1, 2 or 4, and at most %d", c.Shuffle, c.NumUp, 1<<c.NumUp)
	}
	return nil
}

// RRDBNet is the network of ESRGAN and Real-ESRGAN: residual blocks of dense blocks at the size of the input, then
// convolutions of the doubled size.
type RRDBNet struct {
	nn.Module
	ConvFirst *nn.Conv2d `w:"conv_first"`
	Body      []*rrdb    `w:"body"`
	ConvBody  *nn.Conv2d `w:"conv_body"`
	ConvUp1   *nn.Conv2d `w:"conv_up1"` // nil for a size that is doubled less often
	ConvUp2   *nn.Conv2d `w:"conv_up2"`
	ConvUp3   *nn.Conv2d `w:"conv_up3"`
	ConvHR    *nn.Conv2d `w:"conv_hr"`
	ConvLast  *nn.Conv2d `w:"conv_last"`
	Config    RRDBConfig
}

// rrdb is RRDB, a residual block of dense blocks.
type rrdb struct {
	nn.Module
	RDB1 *denseBlock `w:"rdb1"`
	RDB2 *denseBlock `w:"rdb2"`
	RDB3 *denseBlock `w:"rdb3"`
}

// denseBlock is ResidualDenseBlock.
type denseBlock struct {
	nn.Module
	Conv1 *nn.Conv2d `w:"conv1"`
	Conv2 *nn.Conv2d `w:"conv2"`
	Conv3 *nn.Conv2d `w:"conv3"`
	Conv4 *nn.Conv2d `w:"conv4"`
	Conv5 *nn.Conv2d `w:"conv5"`

	stacked []*mlx.Array // the last result of stack
}

const (
	residualScale = 0.2 // of what a block adds
	negativeSlope = 0.2 // of LeakyReLU
	// denseRadius and upRadius are how many rows around a pixel have an influence on it in a dense block, and in what
	// follows the blocks: 2ⁿ+1 rows of an image that is doubled n times.
	denseRadius, upRadius = 5, 2
)

// NewRRDBNet declares the network of a validated config.
func NewRRDBNet(c RRDBConfig) *RRDBNet {
	conv := func(in, out int) *nn.Conv2d { return nn.NewConv2d(in, out, 3, 1, 1) }
	nf, gc := c.NumFeat, c.NumGrowCh
	dense := func() *denseBlock {
		return &denseBlock{Conv1: conv(nf, gc), Conv2: conv(nf+gc, gc), Conv3: conv(nf+2*gc, gc), Conv4: conv(nf+3*gc, gc),
			Conv5: conv(nf+4*gc, nf)}
	}
	m := &RRDBNet{ConvFirst: conv(c.NumInCh*c.Shuffle*c.Shuffle, nf), ConvBody: conv(nf, nf), ConvHR: conv(nf, nf),
		ConvLast: conv(nf, c.NumOutCh), Config: c}
	for range c.NumBlock {
		m.Body = append(m.Body, &rrdb{RDB1: dense(), RDB2: dense(), RDB3: dense()})
	}
	for _, up := range []**nn.Conv2d{&m.ConvUp1, &m.ConvUp2, &m.ConvUp3}[:c.NumUp] {
		*up = conv(nf, nf)
	}
	return m
}

// Channels is the number of channels of images.
func (m *RRDBNet) Channels() int { return m.Config.NumInCh }

// Scale is the height or width of the output divided by that of the input.
func (m *RRDBNet) Scale() int { return (1 << m.Config.NumUp) / m.Config.Shuffle }

// Radius is that of all convolutions: 349 rows for 23 blocks.
func (m *RRDBNet) Radius() int {
	return m.Config.Shuffle * (2 + 3*denseRadius*len(m.Body) + upRadius)
}

func (m *RRDBNet) multiple() int { return m.Config.Shuffle }

// Forward enlarges images [N, C, H, W].
func (m *RRDBNet) Forward(x *mlx.Array) *mlx.Array {
	var parts []*mlx.Array
	m.enlarge(nn.ChannelsLast(x), 1<<62, func(y *mlx.Array) { parts = append(parts, y) }, func(float64) {})
	y := nn.ChannelsFirst(mlx.Concat(1, parts...))
	return m.Tap(y.Slice(2, 0, x.Dim(2)*m.Scale()), x)
}

func (m *RRDBNet) enlarge(x *mlx.Array, limit int64, emit func(*mlx.Array), done func(float64)) {
	width, use := x.Dim(2)*m.Scale(), memory{mlx.CurrentDevice(), x.Dtype(), limit}
	if m.Config.Shuffle > 1 {
		x = unshuffle(x, m.Config.Shuffle)
	}
	slope := func(c int) *mlx.Array { return mlx.Full(negativeSlope, x.Dtype(), c) }
	first := m.ConvFirst.Forward(x)
	h, w := x.Dim(1), x.Dim(2)
	denseRows, upRows := m.steps(h, w, use)
	grown := slope(m.Config.NumGrowCh)
	y := first
	parts := len(m.Body) + ceilDiv(h, upRows)
	for i, block := range mlx.Layers(m.Body, &y) {
		in := y
		y = block.forward(in, grown, denseRows)
		mlx.AsyncEval(y)
		mlx.Eval(in) // waits for the block before, while a GPU has the next one
		done(float64(i) / float64(parts))
	}
	y = mlx.Scope(func() *mlx.Array { return first.Add(strips(y, denseRows, 1, m.ConvBody.Forward)) })
	mlx.Eval(y)
	wide := slope(m.Config.NumFeat)
	for lo := 0; lo < h; lo += upRows {
		hi := min(lo+upRows, h)
		from, to := around(lo, hi, upRadius, 1, h)
		up := 1 << m.Config.NumUp
		emit(mlx.Scope(func() *mlx.Array {
			return rows(m.up(rows(y, from, to), wide), (lo-from)*up, (hi-from)*up).Slice(2, 0, width)
		}))
		done(float64(len(m.Body)+ceilDiv(hi, upRows)) / float64(parts))
		mlx.StopPoint()
	}
}

// up computes what follows the blocks.
func (m *RRDBNet) up(x, slope *mlx.Array) *mlx.Array {
	for _, conv := range []*nn.Conv2d{m.ConvUp1, m.ConvUp2, m.ConvUp3}[:m.Config.NumUp] {
		in := x
		x = mlx.Scope(func() *mlx.Array { return leaky(&m.Module, conv, mlx.Upsample(in), slope) })
	}
	return m.ConvLast.Forward(leaky(&m.Module, m.ConvHR, x, slope))
}

func (b *rrdb) forward(x, slope *mlx.Array, step int) *mlx.Array {
	y := mlx.Chain(x, []*denseBlock{b.RDB1, b.RDB2, b.RDB3}, func(d *denseBlock, y *mlx.Array) *mlx.Array {
		forward := d.prepare(y.Dtype(), slope)
		return strips(y, step, denseRadius, forward)
	})
	rows := func(x *mlx.Array) *mlx.Array { return x.Reshape(1, -1, x.Dim(3)) }
	scale := mlx.Full(residualScale, x.Dtype(), 1, 1, x.Dim(3))
	return b.TapImage(mlx.GatedSum(rows(x), scale, rows(y)).Reshape(x.Shape()...), x)
}

// fannedOn reports whether dense blocks convolve each output once, by the weights of all layers that read it, instead of
// joining those that a layer reads. On an H200 that takes 0.8 times as long. Tests change it.
var fannedOn = func(d mlx.Device) bool { return d != mlx.CPU }

// prepare returns a function that computes the convolutions, each of the input and the outputs of those before.
func (d *denseBlock) prepare(dtype mlx.Dtype, slope *mlx.Array) func(x *mlx.Array) *mlx.Array {
	if !fannedOn(mlx.CurrentDevice()) || d.Observed() {
		return func(x *mlx.Array) *mlx.Array {
			all := x
			for _, conv := range d.convs()[:4] {
				all = mlx.Concat(3, all, leaky(&d.Module, conv, all, slope))
			}
			return d.TapImage(x.Add(d.Conv5.Forward(all).Times(residualScale)), x)
		}
	}
	if d.stacked == nil || d.stacked[0].Dtype() != dtype {
		d.forget()
		d.stacked = mlx.Scopes(func() []*mlx.Array { return d.stack(dtype) })
		mlx.Keep(d.stacked...)
	}
	weights, biases := d.stacked[:5], d.stacked[5:]
	return func(x *mlx.Array) *mlx.Array {
		var sums [5][]mlx.Columns // the parts of the outputs
		in := x
		for i, weight := range weights {
			y, from := in.Conv2d(weight, 1, 1), 0
			for j := i; from < y.Dim(3); j++ {
				size := biases[j].Dim(0)
				sums[j] = append(sums[j], mlx.Columns{X: y, From: from, Size: size})
				from += size
			}
			if i < len(weights)-1 {
				in = mlx.SumColumns(sums[i], biases[i], nil, slope)
			} else {
				in = mlx.SumColumns(sums[i], biases[i], x, nil)
			}
		}
		return in
	}
}

func (d *denseBlock) convs() []*nn.Conv2d {
	return []*nn.Conv2d{d.Conv1, d.Conv2, d.Conv3, d.Conv4, d.Conv5}
}

func (d *denseBlock) forget() {
	for _, a := range d.stacked {
		a.Free()
	}
	d.stacked = nil
}

// Forget frees the weights that dense blocks keep. [nn.Free] calls it.
func (m *RRDBNet) Forget() {
	for _, b := range m.Body {
		b.RDB1.forget()
		b.RDB2.forget()
		b.RDB3.forget()
	}
}

// stack returns the weights by which the input, or the output of the convolution before, is convolved, those of all
// convolutions that read it, and then the biases. Those of the last convolution are times residualScale.
func (d *denseBlock) stack(dtype mlx.Dtype) []*mlx.Array {
	var weights, biases []*mlx.Array
	convs := d.convs()
	for i, conv := range convs {
		weight, bias := conv.As(mlx.Float32)
		if i == len(convs)-1 {
			weight, bias = weight.Times(residualScale), bias.Times(residualScale)
		}
		weights, biases = append(weights, weight), append(biases, bias.AsType(dtype).Contiguous())
	}
	from := 0
	for i, weight := range weights {
		to := weight.Dim(3)
		var readers []*mlx.Array
		for _, w := range weights[i:] {
			readers = append(readers, w.Slice(3, from, to))
		}
		weights[i], from = mlx.Concat(0, readers...).AsType(dtype), to
	}
	return append(weights, biases...)
}

// steps returns how many rows of h×w pixels the dense blocks, and what follows them, compute at a time.
func (m *RRDBNet) steps(h, w int, use memory) (dense, up int) {
	if m.Observed() { // once, as a hook expects it
		return h, h
	}
	c := m.Config
	wide := float64(18 * c.NumFeat * w)
	dense = use.step(h, denseRadius, m.denseBytes(w, use), wide*float64(c.NumFeat+4*c.NumGrowCh))
	return dense, use.step(h, upRadius, m.upBytes(w, use), wide*float64(c.NumFeat)*float64(int(1)<<(2*c.NumUp)))
}

// denseBytes and upBytes are the temporaries of a row.
func (m *RRDBNet) denseBytes(w int, use memory) int64 {
	all := m.Config.NumFeat + 4*m.Config.NumGrowCh
	made := 2 * all
	if fannedOn(use.device) {
		made = 5*all - 9*m.Config.NumGrowCh
	}
	return int64(w) * (int64(made+2*m.Config.NumFeat)*use.item() + use.unfolded(all, m.Config.NumFeat))
}

func (m *RRDBNet) upBytes(w int, use memory) int64 {
	c := m.Config.NumFeat
	return int64(w) << (2 * m.Config.NumUp) * (int64(3*c)*use.item() + use.unfolded(c, c))
}

func (m *RRDBNet) memory(h, w int, use memory) int64 {
	inside := int64(h) * int64(w) * int64(m.Channels()) * 2 * use.item() // the image, and as the network sees it
	h, w = ceilDiv(h, m.Config.Shuffle), ceilDiv(w, m.Config.Shuffle)
	dense, up := m.steps(h, w, use)
	const kept = 5    // the input of all blocks, of one, and of a dense block, its output, and a sum
	var stacked int64 // what blocks keep of their weights
	if nf, gc := int64(m.Config.NumFeat), int64(m.Config.NumGrowCh); fannedOn(use.device) {
		stacked = int64(3*9*len(m.Body)) * (gc*(4*nf+6*gc) + nf*(nf+4*gc)) * use.item()
	}
	features := kept * int64(m.Config.NumFeat) * int64(h) * int64(w) * use.item()
	return inside + features + stacked + max(int64(min(h, dense+2*denseRadius))*m.denseBytes(w, use),
		int64(min(h, up+2*upRadius))*m.upBytes(w, use))
}
