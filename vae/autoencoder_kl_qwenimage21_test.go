package vae

import (
	"math"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// TestShortcuts compares the shortcuts with their definition for videos: an image is the last
// frame, and the frames before it are zeros.
func TestShortcuts(t *testing.T) {
	const n, h, w = 2, 3, 5
	mlxtest.Do(t, func() {
		for _, c := range []struct{ in, out, time, space int }{
			{6, 6, 1, 1}, {12, 6, 1, 1}, {6, 6, 1, 2}, {6, 12, 1, 2}, {6, 24, 1, 2}, {12, 6, 1, 2}, {6, 6, 2, 2}, {6, 12, 2, 2},
			{4, 16, 2, 2}, {3, 24, 2, 2}, {9, 6, 1, 2}, {9, 6, 2, 2}, {6, 3, 2, 2},
		} {
			x := mlxtest.Randn(1, n, c.space*h, c.space*w, c.in)
			values := x.Floats()
			a := &averageShortcut{in: c.in, out: c.out, time: c.time, space: c.space}
			group := c.in * a.factor() / c.out
			var want []float32
			for i := range n * h * w * c.out {
				image, row, column, channel := i/(c.out*w*h), i/(c.out*w)%h, i/c.out%w, i%c.out
				sum := 0.0
				for k := channel * group; k < (channel+1)*group; k++ {
					if k/(c.space*c.space)%c.time == c.time-1 {
						y, x := c.space*row+k/c.space%c.space, c.space*column+k%c.space
						sum += float64(values[((image*c.space*h+y)*c.space*w+x)*c.in+k/a.factor()])
					}
				}
				want = append(want, float32(sum/float64(group)))
			}
			if d, _ := difference(a.Forward(x).Floats(), want); !(d < 1e-6) {
				t.Errorf("average of %+v: off by %.2g", c, d)
			}
		}
		for _, c := range []struct{ in, out, time int }{
			{6, 6, 1}, {6, 3, 1}, {6, 12, 1}, {8, 2, 1}, {6, 6, 2}, {6, 3, 2}, {8, 2, 2}, {16, 2, 2}, {6, 9, 1},
		} {
			x := mlxtest.Randn(1, n, h, w, c.in)
			values := x.Floats()
			s := &copyShortcut{in: c.in, out: c.out, time: c.time}
			copies := c.out * s.factor() / c.in
			var want []float32
			for i := range n * 2 * h * 2 * w * c.out {
				image, row, column, channel := i/(c.out*4*w*h), i/(c.out*2*w)%(2*h), i/c.out%(2*w), i%c.out
				k := ((channel*c.time+c.time-1)*2+row%2)*2 + column%2
				want = append(want, values[((image*h+row/2)*w+column/2)*c.in+k/copies])
			}
			if d, _ := difference(s.Forward(x).Floats(), want); d != 0 {
				t.Errorf("copies of %+v: off by %.2g", c, d)
			}
			whole := s.Forward(x)
			for lo := range 2 * h {
				for hi := lo + 1; hi <= 2*h; hi++ {
					if d, _ := difference(s.rows(x, lo, hi).Floats(), whole.Slice(1, lo, hi).Floats()); d != 0 {
						t.Errorf("copies of %+v, rows %d to %d: off by %.2g", c, lo, hi, d)
					}
				}
			}
		}
	})
}

// TestKLQwenImage21Scale checks that Unscale is the inverse of Scale, and that images have an alpha
// channel.
func TestKLQwenImage21Scale(t *testing.T) {
	mlxtest.Do(t, func() {
		m := NewKLQwenImage21(DefaultKLQwenImage21Config())
		z := mlxtest.Randn(1, 2, m.LatentChannels(), 3, 5)
		if d, _ := difference(m.Unscale(m.Scale(z)).Floats(), z.Floats()); !(d < 1e-6) {
			t.Errorf("off by %.2g", d)
		}
		one := mlx.Full(1, mlx.Float32, 1, m.LatentChannels(), 1, 1)
		if got, want := m.Scale(one).Floats()[3], (1-1.3506)/3.0091; math.Abs(float64(got)-want) > 1e-6 {
			t.Errorf("channel 3 of 1 is %v, expected %v", got, want)
		}
		if m.ImageChannels() != 4 {
			t.Errorf("%d channels, expected 4", m.ImageChannels())
		}
	})
}

func TestKLQwenImage21Validate(t *testing.T) {
	number := func(v int) *int { return &v }
	for _, c := range []struct {
		change func(*KLQwenImage21Config)
		want   string // "" if it can be run
	}{
		{func(c *KLQwenImage21Config) {}, ""},
		{func(c *KLQwenImage21Config) { c.DecoderBaseDim = nil }, ""},
		{func(c *KLQwenImage21Config) { c.InChannels, c.OutChannels = 3, 3 }, ""},
		{func(c *KLQwenImage21Config) { c.PatchSize = number(1) }, ""},
		{func(c *KLQwenImage21Config) { c.PatchSize = number(2) }, "patch_size 2, expected null"},
		{func(c *KLQwenImage21Config) { c.IsResidual = false }, "is_residual false, expected true"},
		{func(c *KLQwenImage21Config) { c.OutChannels = 3 }, "in_channels 4 and out_channels 3, expected both"},
		{func(c *KLQwenImage21Config) { c.InChannels, c.OutChannels = 5, 5 }, "in_channels 5 and out_channels 5, expected both"},
		{func(c *KLQwenImage21Config) { c.AttnScales = []float64{0.5} }, "attn_scales [0.5], expected []"},
		{func(c *KLQwenImage21Config) { c.ZDim = 0 }, "z_dim 0: expected 1 to 1048576"},
		{func(c *KLQwenImage21Config) { c.DimMult = nil }, "dim_mult []: expected 1 to 10 levels"},
		{func(c *KLQwenImage21Config) { c.BaseDim = -1 }, "base_dim -1: expected 1 to 1048576"},
		{func(c *KLQwenImage21Config) { c.DecoderBaseDim = number(0) }, "decoder_base_dim 0: "},
		{func(c *KLQwenImage21Config) { c.DecoderBaseDim = number(1 << 30) }, "decoder_base_dim 1073741824: "},
		{func(c *KLQwenImage21Config) { c.DimMult[1] = 9 },
			"encoder.down_blocks.1 has 96 input and 864 output channels: 96·8 is not a multiple of 864"},
		{func(c *KLQwenImage21Config) { c.DimMult = []int{1, 1, 1, 1, 3} },
			"encoder.down_blocks.4 has 96 input and 288 output channels: 96·1 is not a multiple of 288"},
		{func(c *KLQwenImage21Config) {
			c.DimMult = []int{1, 1, 1, 16, 16}
			c.TemperalDownsample[3] = false
			c.TemperalDownsample[2] = false
		},
			"encoder.down_blocks.3 has 96 input and 1536 output channels: 96·4 is not a multiple of 1536"},
		{func(c *KLQwenImage21Config) { c.DimMult = []int{4, 1, 1, 1, 1} }, ""},
		{func(c *KLQwenImage21Config) {
			c.DimMult, c.TemperalDownsample = []int{1, 1, 8, 8, 8}, []bool{false, false, true, true}
		}, "decoder.up_blocks.3 has 1152 input and 144 output channels: 144·4 is not a multiple of 1152"},
		{func(c *KLQwenImage21Config) { c.LatentsStd[3] = 0 }, "has a zero"},
		{func(c *KLQwenImage21Config) { c.LatentsMean = nil }, "0 numbers in latents_mean and 64 in latents_std, expected z_dim 64"},
	} {
		config := DefaultKLQwenImage21Config()
		c.change(&config)
		switch err := config.Validate(); {
		case err == nil && c.want != "":
			t.Errorf("%+v: no error, expected %q", config, c.want)
		case err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%+v: found %q, expected %q", config, err, c.want)
		}
	}
}
