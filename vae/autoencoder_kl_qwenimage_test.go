package vae

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// convolutions3d has the causal 3-D convolutions of a model by their paths. The model's own
// weights are the last slices of these in time.
type convolutions3d map[string]convolution3d

type convolution3d struct{ weight, bias *mlx.Array } // [out, k, k, k, in] and [out]

// complete3d invents the slices in time that a model does not keep.
func complete3d(model any, root string) convolutions3d {
	convolutions, biases := convolutions3d{}, map[string]*mlx.Array{}
	for _, p := range nn.Parameters(model) {
		name, bias := strings.CutSuffix(p.Name, ".bias")
		if bias {
			biases[name] = p.Array
		}
		if p.Transform() != "last,oihw" {
			continue
		}
		w := p.ExpandDims(1)
		times := []*mlx.Array{w}
		for i := 1; i < p.Stored()[2]; i++ {
			times = append([]*mlx.Array{w.Times(-0.5 - float64(i))}, times...)
		}
		c := convolution3d{weight: mlx.Concat(1, times...)}
		mlx.Eval(c.weight)
		convolutions[root+"."+strings.TrimSuffix(name, ".weight")] = c
	}
	for name, c := range convolutions {
		c.bias = biases[strings.TrimPrefix(name, root+".")]
		convolutions[name] = c
	}
	return convolutions
}

// replace returns a hook that computes the convolutions in 3-D. The frames before the first
// are zeros or, if repeat is set, copies of it.
func (c convolutions3d) replace(repeat bool, replaced map[string]int) func(hooks.Tap) (*mlx.Array, error) {
	return func(tap hooks.Tap) (*mlx.Array, error) {
		conv, ok := c[tap.Name]
		if !ok {
			return nil, nil
		}
		replaced[tap.Name]++
		k := conv.weight.Dim(1)
		x := nn.ChannelsLast(tap.Inputs[0].Array).ExpandDims(1)
		before := k - 1
		if repeat {
			x, before = mlx.Concat(1, slices.Repeat([]*mlx.Array{x}, k)...), 0
		}
		x = x.Pad([]int{0, before, k / 2, k / 2, 0}, []int{0, 0, k / 2, k / 2, 0}, 0)
		return nn.ChannelsFirst(x.Conv3d(conv.weight).Squeeze(1).Add(conv.bias)), nil
	}
}

// TestQwenImageIs3D checks that the 2-D convolutions equal the 3-D ones for a single frame.
func TestQwenImageIs3D(t *testing.T) {
	mlxtest.Do(t, func() {
		c := oddQwenImage()
		m := NewKLQwenImage(c)
		fill(m, mlx.Float32)
		points := &hooks.Points{Step: -1}
		nn.Bind(m, "vae", points)
		convolutions := complete3d(m, "vae")
		image, z := mlxtest.Randn(1, 2, 3, 48, 80), mlxtest.Randn(2, 2, c.ZDim, 12, 20)
		run := func(hook func(hooks.Tap) (*mlx.Array, error)) (encoded, decoded []float32) {
			points.Func = hook
			return m.Encode(image).Floats(), m.coder.Decode(z).Floats() // not clamped
		}
		encoded, decoded := run(nil)
		replaced := map[string]int{}
		encoded3d, decoded3d := run(convolutions.replace(false, replaced))
		// conv_in, two per resnet and a shortcut if the widths differ, conv_out, and
		// quant_conv or post_quant_conv
		if want := (1 + 2*5 + 2 + 1 + 1) + (1 + 2*8 + 1 + 1 + 1); len(convolutions) != want || len(replaced) != want {
			t.Errorf("%d convolutions, of which %d were replaced, expected %d", len(convolutions), len(replaced), want)
		}
		for name, n := range replaced {
			if n != 1 {
				t.Errorf("%s was replaced %d times", name, n)
			}
		}
		e, _ := difference(encoded3d, encoded)
		d, _ := difference(decoded3d, decoded)
		t.Logf("latents are off by %.2g, images by %.2g", e, d)
		if !(max(e, d) < 2e-6) {
			t.Errorf("latents are off by %.2g, images by %.2g", e, d)
		}
		// the test can fail: the other slices do matter with earlier frames
		encoded3d, decoded3d = run(convolutions.replace(true, replaced))
		e, _ = difference(encoded3d, encoded)
		d, _ = difference(decoded3d, decoded)
		if min(e, d) < 1e-2 {
			t.Errorf("with an earlier frame, latents are off by %.2g, images by %.2g", e, d)
		}
	})
}

// TestChannelNorm checks that a pixel of any magnitude is divided by the norm of its
// channels.
func TestChannelNorm(t *testing.T) {
	const channels = 5
	for _, test := range []struct {
		dtype     mlx.Dtype
		scale     float64 // of the pixels
		tolerance float64
	}{
		{mlx.Float32, 1, 3e-7},
		{mlx.Float32, 0, 0},
		{mlx.Float32, 1e-8, 3e-7},
		{mlx.Float32, 1e18, 3e-7},
		{mlx.Float16, 2e4, 2e-3}, // its squares overflow float16
		{mlx.BFloat16, 5e7, 1.6e-2},
	} {
		mlxtest.Do(t, func() {
			n := newChannelNorm(channels, 1, 1, 1)
			n.Gamma.Array = mlxtest.Randn(1, channels, 1, 1, 1)
			gamma := n.Gamma.Floats()
			x := mlxtest.Randn(2, 2, 3, 4, channels).Clip(-3, 3).Times(test.scale).AsType(test.dtype)
			y := n.Forward(x)
			if y.Dtype() != test.dtype {
				t.Errorf("%v became %v", test.dtype, y.Dtype())
			}
			values, got := x.AsType(mlx.Float32).Floats(), y.AsType(mlx.Float32).Floats()
			for i, v := range values {
				squares := 0.0
				for _, u := range values[i/channels*channels:][:channels] {
					squares += float64(u) * float64(u)
				}
				want := float64(v) / max(math.Sqrt(squares), 1e-12) * math.Sqrt(channels) * float64(gamma[i%channels])
				if d := math.Abs(float64(got[i]) - want); !(d <= test.tolerance*max(math.Abs(want), 1)) {
					t.Fatalf("%v times %v: value %d is %v, expected %v", test.dtype, test.scale, i, got[i], want)
				}
			}
		})
	}
}

// BenchmarkQwenImageDecode measures the decoder of Qwen-Image for an image of 128x128, with
// 2-D and 3-D convolutions in turn.
func BenchmarkQwenImageDecode(b *testing.B) {
	mlxtest.Do(b, func() {
		c := DefaultKLQwenImageConfig()
		d := newQwenDecoder(c, &strips{})
		for _, p := range nn.Parameters(d) {
			s := inMemory(p)
			p.Array = mlx.Full(1/float64(mlxtest.Size(s[1:])), mlx.CurrentDevice().ComputeDtype(), s...)
			mlx.Eval(p.Array)
		}
		points, replaced := &hooks.Points{Step: -1}, map[string]int{}
		nn.Bind(d, "decoder", points)
		z := mlxtest.Randn(1, 1, 16, 16, c.ZDim).AsType(mlx.CurrentDevice().ComputeDtype())
		run := func(hook func(hooks.Tap) (*mlx.Array, error)) time.Duration {
			points.Func = hook
			start := time.Now()
			mlx.WithScope(func() { mlx.Eval(d.Forward(z)) })
			return time.Since(start)
		}
		in2d := func(hooks.Tap) (*mlx.Array, error) { return nil, nil }
		in3d := complete3d(d, "decoder").replace(false, replaced)
		run(in2d)
		run(in3d)
		if len(replaced) != 1+2*14+1+1 { // conv_in, the resnets with one shortcut, conv_out
			b.Fatalf("%d convolutions were replaced", len(replaced))
		}
		var sum2d, sum3d time.Duration
		b.ResetTimer()
		for range b.N {
			sum2d += run(in2d)
			sum3d += run(in3d)
		}
		b.ReportMetric(sum2d.Seconds()/float64(b.N), "s/2d")
		b.ReportMetric(sum3d.Seconds()/float64(b.N), "s/3d")
		b.ReportMetric(sum3d.Seconds()/sum2d.Seconds(), "3d/2d")
	})
}

func TestKLQwenImageValidate(t *testing.T) {
	for _, c := range []struct {
		change func(*KLQwenImageConfig)
		want   string // "" if it can be run
	}{
		{func(c *KLQwenImageConfig) {}, ""},
		{func(c *KLQwenImageConfig) { c.AttnScales = []float64{} }, ""},
		{func(c *KLQwenImageConfig) { c.AttnScales = []float64{0.5} }, "attn_scales [0.5], expected []"},
		{func(c *KLQwenImageConfig) { c.InputChannels = 4 }, ""},
		{func(c *KLQwenImageConfig) { c.InputChannels = 5 }, "input_channels 5, expected 3"},
		{func(c *KLQwenImageConfig) { c.ZDim = 0 }, "z_dim 0: expected 1 to 1048576"},
		{func(c *KLQwenImageConfig) { c.DimMult = nil }, "dim_mult []: expected 1 to 10 levels"},
		{func(c *KLQwenImageConfig) { c.NumResBlocks = 0 }, "num_res_blocks 0: expected 1 to 1000"},
		{func(c *KLQwenImageConfig) { c.NumResBlocks = 1 << 30 }, "num_res_blocks 1073741824: expected 1 to 1000"},
		{func(c *KLQwenImageConfig) { c.BaseDim = 1 << 30 }, "base_dim 1073741824: expected 1 to 1048576"},
		{func(c *KLQwenImageConfig) { c.DimMult[3] = 1 << 60 }, "expected products from 2 to 1048576"},
		{func(c *KLQwenImageConfig) { c.DimMult[1] = -1 }, "expected products from 2 to 1048576"},
		{func(c *KLQwenImageConfig) { c.BaseDim = 1 }, "dim_mult [1 2 4 4] of base_dim 1: expected products from 2"},
		{func(c *KLQwenImageConfig) { c.TemperalDownsample = []bool{true} },
			"temperal_downsample [true], expected one less than dim_mult [1 2 4 4]"},
		{func(c *KLQwenImageConfig) { c.LatentsMean = nil }, "0 numbers in latents_mean and 16 in latents_std, expected z_dim 16"},
		{func(c *KLQwenImageConfig) { c.ZDim = 4 }, "expected z_dim 4"},
		{func(c *KLQwenImageConfig) { c.LatentsStd[3] = 0 }, "has a zero"},
	} {
		config := DefaultKLQwenImageConfig()
		c.change(&config)
		switch err := config.Validate(); {
		case err == nil && c.want != "":
			t.Errorf("%+v: no error, expected %q", config, c.want)
		case err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%+v: found %q, expected %q", config, err, c.want)
		}
	}
}
