package vae

import (
	"fmt"
	"math"
	"testing"

	"github.com/gomflux/gomflux/hooks"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/nn"
)

// fill gives a model random weights that keep what it computes of size 1.
func fill(model any, dtype mlx.Dtype) {
	for i, p := range nn.Parameters(model) {
		s := p.Stored()
		if p.Transform() == "oihw" {
			s = []int{s[0], s[2], s[3], s[1]}
		}
		x := mlxtest.Randn(uint64(i), s...)
		switch fan := mlxtest.Size(s[1:]); {
		case len(s) > 1:
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

// odd are models of each class with widths that are not powers of 2.
func odd(attention bool) map[string]Autoencoder {
	kl := DefaultKLConfig()
	kl.BlockOutChannels, kl.NormNumGroups, kl.LayersPerBlock, kl.MidBlockAddAttention = []int{6, 9, 12}, 3, 2, attention
	kl.DownBlockTypes = []string{"DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D"}
	kl.UpBlockTypes = []string{"UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"}
	flux2 := DefaultKLFlux2Config()
	flux2.BlockOutChannels, flux2.DecoderBlockOutChannels = []int{4, 6, 6, 8}, []int{6, 4, 10, 8}
	flux2.NormNumGroups, flux2.LatentChannels, flux2.LayersPerBlock, flux2.MidBlockAddAttention = 2, 5, 1, attention
	out := map[string]Autoencoder{"AutoencoderKL": NewKL(kl), "AutoencoderKLFlux2": NewKLFlux2(flux2)}
	for _, m := range out {
		fill(m, mlx.Float32)
	}
	return out
}

// difference is the largest difference relative to the largest value.
func difference(got, want []float32) float64 {
	worst, largest := 0.0, 0.0
	for i, w := range want {
		worst, largest = max(worst, math.Abs(float64(got[i]-w))), max(largest, math.Abs(float64(w)))
	}
	return worst / largest
}

// Strips are the whole, however many rows they have.
func TestStripsAreTheWhole(t *testing.T) {
	for _, attention := range []bool{true, false} {
		mlxtest.Do(t, func() {
			for class, m := range odd(attention) {
				for _, size := range [][2]int{{48, 80}, {112, 208}} {
					picture := mlxtest.Randn(1, 2, 3, size[0], size[1])
					m.SetBudget(0)
					latents := m.Encode(picture).Floats()
					own := m.Unscaled(size[0]/m.ScaleFactor(), size[1]/m.ScaleFactor())
					z := mlxtest.Randn(2, append([]int{2}, own...)...)
					decoded := m.Decode(z).Floats()
					for _, budget := range []int64{1, 100e3, 300e3, 1e6, 1 << 40} {
						m.SetBudget(budget)
						e, d := difference(m.Encode(picture).Floats(), latents), difference(m.Decode(z).Floats(), decoded)
						name := fmt.Sprintf("%s, attention=%v, %v, %d bytes", class, attention, size, budget)
						t.Logf("%s: off by %.2g and %.2g", name, e, d)
						if !(max(e, d) < 2e-6) {
							t.Errorf("%s: latents are off by %.2g, pictures by %.2g", name, e, d)
						}
					}
				}
			}
		})
	}
}

// A hook sees every module under a budget too.
func TestStripsWithHook(t *testing.T) {
	mlxtest.Do(t, func() {
		for class, m := range odd(true) {
			seen := map[int64]int{}
			points := &hooks.Points{Step: -1}
			nn.Bind(m, "vae", points)
			for _, budget := range []int64{0, 1} {
				m.SetBudget(budget)
				points.Func = func(hooks.Tap) (*mlx.Array, error) { seen[budget]++; return nil, nil }
				mlx.Eval(m.Encode(mlxtest.Randn(1, 1, 3, 32, 32)), m.Decode(mlxtest.Randn(1, append([]int{1}, m.Unscaled(2, 2)...)...)))
			}
			if seen[0] < 80 || seen[0] != seen[1] {
				t.Errorf("%s: %d modules were seen, %d under a budget", class, seen[0], seen[1])
			}
		}
	})
}
