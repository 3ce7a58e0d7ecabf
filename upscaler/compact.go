package upscaler

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// CompactConfig has the arguments of SRVGGNetCompact, with its default activation, PReLU. They follow from the
// shapes of the tensors.
type CompactConfig struct {
	NumInCh  int `json:"num_in_ch"`
	NumOutCh int `json:"num_out_ch"`
	NumFeat  int `json:"num_feat"`
	NumConv  int `json:"num_conv"` // between the first and the last convolution
	Upscale  int `json:"upscale"`
}

// DefaultCompactConfig returns the default arguments.
func DefaultCompactConfig() CompactConfig {
	return CompactConfig{NumInCh: 3, NumOutCh: 3, NumFeat: 64, NumConv: 16, Upscale: 4}
}

// Validate returns an error if the network cannot be run with the config.
func (c *CompactConfig) Validate() error {
	switch {
	case c.NumInCh != c.NumOutCh || c.NumInCh != 1 && c.NumInCh != 3 && c.NumInCh != 4:
		return fmt.Errorf("num_in_ch %d and num_out_ch %d, expected 1, 3 or 4 of both", c.NumInCh, c.NumOutCh)
	case c.NumFeat < 1 || c.NumFeat > nn.MaxDim:
		return fmt.Errorf("num_feat %d, expected 1 to %d", c.NumFeat, nn.MaxDim)
	case c.NumConv < 0 || c.NumConv > nn.MaxLayers:
		return fmt.Errorf("num_conv %d, expected 0 to %d", c.NumConv, nn.MaxLayers)
	case c.Upscale < 1 || c.Upscale > 8:
		return fmt.Errorf("upscale %d, expected 1 to 8", c.Upscale)
	}
	return nil
}

// Compact is SRVGGNetCompact: convolutions at the size of the input, the last of which has the pixels of the output
// as channels, added to the enlarged input.
type Compact struct {
	nn.Module
	Body   []nn.Layer `w:"body"`
	Config CompactConfig
}

// prelu is torch.nn.PReLU on [N, H, W, C].
type prelu struct {
	nn.Module
	Weight nn.Param `w:"weight"`
}

func (p *prelu) Forward(x *mlx.Array) *mlx.Array {
	return p.TapImage(x.LeakyReLU(p.Weight.As(x.Dtype())), x)
}

// NewCompact declares the network of a validated config.
func NewCompact(c CompactConfig) *Compact {
	m := &Compact{Config: c}
	in := c.NumInCh
	for range 1 + c.NumConv {
		m.Body = append(m.Body, nn.NewConv2d(in, c.NumFeat, 3, 1, 1), &prelu{Weight: nn.NewParam(c.NumFeat)})
		in = c.NumFeat
	}
	m.Body = append(m.Body, nn.NewConv2d(in, c.NumOutCh*c.Upscale*c.Upscale, 3, 1, 1))
	return m
}

// Channels is the number of channels of images.
func (m *Compact) Channels() int { return m.Config.NumInCh }

// Scale is the height or width of the output divided by that of the input.
func (m *Compact) Scale() int { return m.Config.Upscale }

// Radius is the number of convolutions.
func (m *Compact) Radius() int { return m.Config.NumConv + 2 }

func (m *Compact) multiple() int { return 1 }

// Forward enlarges images [N, C, H, W].
func (m *Compact) Forward(x *mlx.Array) *mlx.Array {
	return m.Tap(nn.ChannelsFirst(m.forward(nn.ChannelsLast(x))), x)
}

func (m *Compact) forward(x *mlx.Array) *mlx.Array {
	last := len(m.Body) - 1
	y := x
	for i := range mlx.Layers(make([]struct{}, last/2), &y) {
		conv, act := m.Body[2*i].(*nn.Conv2d), m.Body[2*i+1].(*prelu)
		y = m.Fused("LeakyConv2d", func() *mlx.Array {
			weight, bias := conv.As(y.Dtype())
			return y.LeakyConv2d(weight, bias, act.Weight.As(y.Dtype()), conv.Padding)
		}, func() *mlx.Array { return act.Forward(conv.Forward(y)) })
	}
	return shuffle(m.Body[last].Forward(y), m.Config.Upscale).Add(nearest(x, m.Config.Upscale))
}

func (m *Compact) enlarge(x *mlx.Array, limit int64, emit func(*mlx.Array), done func(float64)) {
	h, use := x.Dim(1), memory{mlx.CurrentDevice(), x.Dtype(), limit}
	step := m.step(h, x.Dim(2), use)
	for lo := 0; lo < h; lo += step {
		hi := min(lo+step, h)
		from, to := around(lo, hi, m.Radius(), 1, h)
		emit(mlx.Scope(func() *mlx.Array {
			return rows(m.forward(rows(x, from, to)), (lo-from)*m.Scale(), (hi-from)*m.Scale())
		}))
		done(float64(hi) / float64(h))
		mlx.StopPoint()
	}
}

func (m *Compact) step(h, w int, use memory) int {
	if m.Observed() {
		return h
	}
	return use.step(h, m.Radius(), m.bytes(w, use), float64(18*w*m.Config.NumFeat)*float64(max(m.Config.NumFeat, m.outputs())))
}

func (m *Compact) outputs() int { return m.Config.NumOutCh * m.Config.Upscale * m.Config.Upscale }

// bytes are the temporaries of a row.
func (m *Compact) bytes(w int, use memory) int64 {
	c := m.Config.NumFeat
	return int64(w) * (int64(max(3*c, c+4*m.outputs()))*use.item() + use.unfolded(c, max(c, m.outputs())))
}

func (m *Compact) memory(h, w int, use memory) int64 {
	image := int64(h) * int64(w) * int64(m.Channels()) * use.item()
	return image + int64(min(h, m.step(h, w, use)+2*m.Radius()))*m.bytes(w, use)
}
