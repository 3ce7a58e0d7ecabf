package vae

import (
	"fmt"
	"math"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// inMemory is the shape that a parameter has when it is loaded.
func inMemory(p nn.Parameter) []int {
	s := p.Stored()
	switch p.Transform() {
	case "oihw":
		return []int{s[0], s[2], s[3], s[1]}
	case "last,oihw":
		return []int{s[0], s[3], s[4], s[1]}
	}
	return s
}

// fill sets random weights that keep activations at a magnitude of about 1.
func fill(model any, dtype mlx.Dtype) {
	for i, p := range nn.Parameters(model) {
		s := inMemory(p)
		x := mlxtest.Randn(uint64(i), s...)
		switch fan := mlxtest.Size(s[1:]); {
		case len(s) > 1 && fan > 1:
			x = x.Over(math.Sqrt(float64(fan)))
		case p.Name == "bn.running_var":
			x = x.Square().Plus(0.5)
		default:
			x = x.Times(0.2).Plus(0.5)
		}
		p.Array = x.AsType(dtype)
		mlx.Eval(p.Array)
		mlx.Keep(p.Array)
	}
}

// oddModels returns a model of each class, with widths that are not powers of 2.
func oddModels(attention bool) map[string]Autoencoder {
	kl := DefaultKLConfig()
	kl.BlockOutChannels, kl.NormNumGroups, kl.LayersPerBlock, kl.MidBlockAddAttention = []int{6, 9, 12}, 3, 2, attention
	kl.DownBlockTypes = []string{"DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D"}
	kl.UpBlockTypes = []string{"UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"}
	flux2 := DefaultKLFlux2Config()
	flux2.BlockOutChannels, flux2.DecoderBlockOutChannels = []int{4, 6, 6, 8}, []int{6, 4, 10, 8}
	flux2.NormNumGroups, flux2.LatentChannels, flux2.LayersPerBlock, flux2.MidBlockAddAttention = 2, 5, 1, attention
	tiny := DefaultTinyConfig()
	tiny.EncoderBlockOutChannels, tiny.DecoderBlockOutChannels = []int{5, 5, 5, 5}, []int{6, 6, 6, 6}
	tiny.LatentChannels, tiny.UseMidblockGN = 3, true
	out := map[string]Autoencoder{
		"AutoencoderKL": NewKL(kl), "AutoencoderKLFlux2": NewKLFlux2(flux2), "AutoencoderTiny": NewTiny(tiny),
	}
	if attention { // which these classes always have
		out["AutoencoderKLQwenImage"] = NewKLQwenImage(oddQwenImage())
		out["AutoencoderKLQwenImage21"] = NewKLQwenImage21(oddQwenImage21())
	}
	for _, m := range out {
		fill(m, mlx.Float32)
	}
	return out
}

func oddQwenImage() KLQwenImageConfig {
	c := DefaultKLQwenImageConfig()
	c.BaseDim, c.DimMult, c.NumResBlocks, c.TemperalDownsample = 7, []int{1, 2, 1}, 1, []bool{true, false}
	c.ZDim, c.LatentsMean, c.LatentsStd = 5, c.LatentsMean[:5], c.LatentsStd[:5]
	return c
}

// oddQwenImage21 has shortcuts of several sizes of groups and numbers of copies.
func oddQwenImage21() KLQwenImage21Config {
	c := DefaultKLQwenImage21Config()
	decoder := 7
	c.BaseDim, c.DecoderBaseDim, c.DimMult, c.NumResBlocks = 6, &decoder, []int{2, 1, 2, 2}, 1
	c.TemperalDownsample = []bool{false, true, false}
	c.ZDim, c.LatentsMean, c.LatentsStd = 5, c.LatentsMean[:5], c.LatentsStd[:5]
	return c
}

// difference returns the largest difference relative to the largest value, and the norm of
// the differences relative to the norm of the values.
func difference(got, want []float32) (most, l2 float64) {
	var worst, largest, sum, squares float64
	for i, w := range want {
		d := math.Abs(float64(got[i] - w))
		worst, largest = max(worst, d), max(largest, math.Abs(float64(w)))
		sum, squares = sum+d*d, squares+float64(w)*float64(w)
	}
	return worst / largest, math.Sqrt(sum / squares)
}

// TestStrips checks that computing in strips of any number of rows changes nothing. With
// the smallest budget a strip is one row.
func TestStrips(t *testing.T) {
	for _, test := range []struct {
		attention bool
		images    int
		size      [2]int
		budgets   []int64
	}{
		{true, 2, [2]int{48, 80}, []int64{1, 50e3, 200e3, 1 << 40}},
		{false, 1, [2]int{112, 208}, []int64{1, 100e3, 300e3, 1 << 40}},
		{true, 1, [2]int{208, 112}, []int64{300e3, 1e6}},
	} {
		mlxtest.Do(t, func() {
			for class, m := range oddModels(test.attention) {
				h, w := test.size[0], test.size[1]
				image := mlxtest.Randn(1, test.images, m.ImageChannels(), h, w)
				z := mlxtest.Randn(2, append([]int{test.images}, m.Unscaled(h/m.ScaleFactor(), w/m.ScaleFactor())...)...)
				latents, decoded := m.Encode(image).Floats(), m.Decode(z).Floats()
				largest := float32(0) // real models return images from -1 to 1
				for _, v := range decoded {
					largest = max(largest, v, -v)
				}
				for _, budget := range test.budgets {
					m.SetBudget(budget)
					e, _ := difference(m.Encode(image).Floats(), latents)
					got := m.Decode(z).Floats()
					d, _ := difference(got, decoded)
					moved := 0
					for i := range got {
						switch a, b := eightBits(got[i]/largest), eightBits(decoded[i]/largest); {
						case max(a-b, b-a) > 1:
							t.Fatalf("%s: value %d of the image is %d, expected %d", class, i, a, b)
						case a != b:
							moved++
						}
					}
					what := fmt.Sprintf("%s, attention %v, %dx%d, %d bytes: latents are off by %.2g, images by %.2g, %d values of 8 bits",
						class, test.attention, h, w, budget, e, d, moved)
					t.Log(what)
					if !(max(e, d) < 2e-6) || moved*10000 > len(got) {
						t.Error(what)
					}
				}
			}
		})
	}
}

// eightBits returns a value of an image as it is stored in a file.
func eightBits(v float32) int { return int(math.RoundToEven((float64(v)/2 + 0.5) * 255)) }

// TestStripsOfOddSize checks that strips drop the same rows and columns as the whole image
// if its sides are not multiples of the scale.
func TestStripsOfOddSize(t *testing.T) {
	mlxtest.Do(t, func() {
		m := oddModels(true)["AutoencoderKL"]
		image := mlxtest.Randn(1, 1, 3, 47, 33)
		want := m.Encode(image)
		m.SetBudget(30e3)
		got := m.Encode(image)
		mlxtest.Same(t, "shape", got.Shape(), want.Shape())
		if d, _ := difference(got.Floats(), want.Floats()); !(d < 2e-6) {
			t.Errorf("off by %.2g", d)
		}
	})
}

// TestStripsOfKernels checks that strips have no more rows than a kernel may compute, whatever the budget,
// and that the image is the same.
func TestStripsOfKernels(t *testing.T) {
	mlxtest.Do(t, func() {
		m := oddModels(true)["AutoencoderKLFlux2"].(*KLFlux2)
		z := mlxtest.Randn(2, append([]int{1}, m.Unscaled(4, 6)...)...)
		want := m.Decode(z).Floats()
		m.SetBudget(1 << 40)
		defer mlx.LimitKernels(1e6)()
		last, in := m.Decoder.(*half).UpBlocks[3].(*resizeBlock).Resnets[0], size{64, 96, 6}
		first, _ := last.stages()
		model := m.strips.memoryModel(mlx.CurrentDevice(), mlx.Float32)
		out := first.size(in)
		if rows := model.rows(first, in); mlx.CurrentDevice() == mlx.CPU && (rows >= 64 || rows*out.w*out.c*in.c*9*2 > 1e6) {
			t.Errorf("%d rows at a time of %v", rows, out)
		}
		if d, _ := difference(m.Decode(z).Floats(), want); !(d < 2e-6) {
			t.Errorf("off by %.2g", d)
		}
	})
}

// TestNoSeams checks that the differences from an image computed as a whole are no larger
// at the borders of strips than elsewhere.
func TestNoSeams(t *testing.T) {
	mlxtest.Do(t, func() {
		const h, w = 112, 208
		budget := int64(1.2e6)
		if mlx.ConvolvesOnHost() { // with fewer temporaries
			budget = 0.4e6
		}
		m := oddModels(true)["AutoencoderKLFlux2"].(*KLFlux2)
		z := mlxtest.Randn(2, append([]int{1}, m.Unscaled(h/16, w/16)...)...)
		want := m.Decode(z).Floats()
		m.SetBudget(budget)
		got := m.Decode(z).Floats()

		border := map[int]bool{}
		in := size{h, w, 6} // of the last block
		last := m.Decoder.(*half).UpBlocks[3].(*resizeBlock).Resnets[0]
		first, second := last.stages()
		layers := m.Decoder.layers()
		for _, s := range []stage{first, second, layers[len(layers)-1].(stage)} {
			step := m.strips.memoryModel(mlx.CurrentDevice(), mlx.Float32).rows(s, in)
			for row := step; row < h; row += step {
				border[row-1], border[row] = true, true
			}
		}
		var sum, n [2]float64
		for i := range got {
			at := 0
			if border[i/w%h] {
				at = 1
			}
			sum[at] += math.Abs(float64(got[i] - want[i]))
			n[at]++
		}
		inside, edges := sum[0]/n[0], sum[1]/n[1]
		t.Logf("off by %.3g on %d rows at borders, by %.3g elsewhere", edges, len(border), inside)
		if len(border) < 10 || len(border) > h/2 || edges > 1.2*inside { // on CUDA both are 0
			t.Errorf("off by %.3g on %d rows at borders, by %.3g elsewhere", edges, len(border), inside)
		}
	})
}

// TestMemory checks that Decode and Encode take about as much memory as estimated, and stay
// within the budget.
func TestMemory(t *testing.T) {
	const h, w = 96, 64
	mlxtest.Do(t, func() {
		if mlx.CurrentDevice() != mlx.CPU {
			t.Skip("a GPU frees arrays later")
		}
		c := DefaultKLFlux2Config()
		c.BlockOutChannels, c.DecoderBlockOutChannels = []int{32, 64, 64, 64}, []int{16, 32, 64, 96}
		c.NormNumGroups, c.LatentChannels, c.LayersPerBlock = 8, 4, 1
		m := NewKLFlux2(c)
		fill(m, mlx.BFloat16)
		for _, size := range [][2]int{{0, 0}, {1, 1}, {17, 33}, {1 << 20, 1 << 20}} {
			if n, e := m.DecodeMemory(size[0], size[1], mlx.GPU, mlx.BFloat16),
				m.EncodeMemory(size[0], size[1], mlx.CPU, mlx.Float32); n <= 0 || e <= 0 {
				t.Errorf("%v: estimates are %d and %d bytes", size, n, e)
			}
		}
		q := DefaultKLQwenImageConfig()
		q.BaseDim, q.DimMult = 24, []int{1, 2, 3, 3}
		qwen := NewKLQwenImage(q)
		fill(qwen, mlx.BFloat16)
		q21, decoder := DefaultKLQwenImage21Config(), 24
		q21.BaseDim, q21.DecoderBaseDim, q21.DimMult = 16, &decoder, []int{1, 2, 4, 4, 4}
		qwen21 := NewKLQwenImage21(q21)
		fill(qwen21, mlx.BFloat16)
		latents21 := append([]int{1}, qwen21.Unscaled(h/16, w/16)...)
		tiny := NewTiny(DefaultTinyConfig())
		fill(tiny, mlx.BFloat16)
		for what, f := range map[string]struct {
			Autoencoder
			run      func(*mlx.Array) *mlx.Array
			in       []int
			estimate func(h, w int, d mlx.Device, dtype mlx.Dtype) int64
		}{
			"decode":                   {m, m.Decode, append([]int{1}, m.Unscaled(h/16, w/16)...), m.DecodeMemory},
			"encode":                   {m, m.Encode, []int{1, 3, h, w}, m.EncodeMemory},
			"decode of Qwen-Image":     {qwen, qwen.Decode, append([]int{1}, qwen.Unscaled(h/8, w/8)...), qwen.DecodeMemory},
			"decode of Qwen-Image-2.1": {qwen21, qwen21.Decode, latents21, qwen21.DecodeMemory},
			"encode of Qwen-Image-2.1": {qwen21, qwen21.Encode, []int{1, 4, h, w}, qwen21.EncodeMemory},
			"decode of TAESD":          {tiny, tiny.Decode, append([]int{1}, tiny.Unscaled(h/8, w/8)...), tiny.DecodeMemory},
			"encode of TAESD":          {tiny, tiny.Encode, []int{1, 3, h, w}, tiny.EncodeMemory},
			"encode of Qwen-Image":     {qwen, qwen.Encode, []int{1, 3, h, w}, qwen.EncodeMemory},
		} {
			x := mlxtest.Randn(1, f.in...)
			mlx.Eval(x)
			peak := func(budget int64) int64 {
				f.SetBudget(budget)
				mlx.ResetPeakMemory()
				before := mlx.ActiveMemory()
				mlx.WithScope(func() { mlx.Eval(f.run(x)) })
				n := int64(mlx.PeakMemory() - before)
				estimate := f.estimate(h, w, mlx.CPU, mlx.Float32)
				t.Logf("%s, budget %d: %d bytes, estimated %d", what, budget, n, estimate)
				if float64(n) > 1.05*float64(estimate) || float64(n) < 0.85*float64(estimate) {
					t.Errorf("%s, budget %d: %d bytes, estimated %d", what, budget, n, estimate)
				}
				return n
			}
			whole, least := peak(0), peak(1)
			// package host takes hardly any temporaries, so strips, which it adds to an output, save little
			if !mlx.ConvolvesOnHost() && 3*least > whole || float64(least) > 1.1*float64(whole) {
				t.Errorf("%s: %d bytes row by row, %d for the whole", what, least, whole)
			}
			for _, budget := range []int64{300e3, 1e6} {
				if n := peak(budget); n > least+budget {
					t.Errorf("%s: %d bytes with a budget of %d, %d row by row", what, n, budget, least)
				}
			}
		}
	})
}

// TestStripsWithHook checks that a hook sees every module under a budget too.
func TestStripsWithHook(t *testing.T) {
	mlxtest.Do(t, func() {
		for class, m := range oddModels(true) {
			seen := map[int64]int{}
			points := &hooks.Points{Step: -1}
			nn.Bind(m, "vae", points)
			for _, budget := range []int64{0, 1} {
				m.SetBudget(budget)
				points.Func = func(hooks.Tap) (*mlx.Array, error) { seen[budget]++; return nil, nil }
				image, z := mlxtest.Randn(1, 1, m.ImageChannels(), 32, 32), mlxtest.Randn(1, append([]int{1}, m.Unscaled(2, 2)...)...)
				mlx.Eval(m.Encode(image), m.Decode(z))
			}
			if seen[0] < 80 || seen[0] != seen[1] {
				t.Errorf("%s: %d modules were seen, %d under a budget", class, seen[0], seen[1])
			}
		}
	})
}
