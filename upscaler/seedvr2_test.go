package upscaler

import (
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/foreigntest"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/transformer"
	"github.com/gomflux/gomflux/vae"
)

// smallSeedVR2 declares the networks of seedvr2.py in scripts/reference.
func smallSeedVR2(name string) *SeedVR2 {
	c := transformer.DefaultNaDiTConfig()
	c.VidInChannels, c.VidOutChannels, c.TxtInDim, c.Window = 9, 4, 24, [2]int{9, 9}
	if name == "3b" {
		c.VidDim, c.Heads, c.HeadDim, c.RopeDim, c.NumLayers, c.MMLayers, c.MLPDim = 32, 2, 16, 16, 6, 3, 256
	} else {
		c.VidDim, c.Heads, c.HeadDim, c.RopeDim, c.NumLayers, c.MMLayers, c.MLPDim = 48, 2, 24, 12, 4, 4, 192
		c.MLPType, c.RopeType, c.VidOutNorm = "normal", "rope3d", false
	}
	v := vae.DefaultSeedVR2Config()
	v.BlockOutChannels, v.NormNumGroups, v.LatentChannels, v.LayersPerBlock = []int{8, 16, 24, 24}, 4, 4, 1
	m := &SeedVR2{Transformer: transformer.NewNaDiT(c), VAE: vae.NewSeedVR2(v), Text: foreigntest.Signed(1, 1, 5, 24)}
	for _, part := range m.Modules() {
		foreigntest.Fill(part)
	}
	return m
}

// TestSeedVR2 compares whole images with the makers' pipeline.
func TestSeedVR2(t *testing.T) {
	mlxtest.Do(t, func() {
		c := foreigntest.New(t, "testdata/seedvr2.safetensors")
		for _, name := range []string{"3b", "7b"} {
			m, image, blocks := smallSeedVR2(name), foreigntest.Signed(0, 1, 3, 8*16, 8*24), 0
			latents, err := m.Step(m.Latents(image), foreigntest.Signed(2, 1, 4, 16, 24), func(n int) { blocks = n })
			if err != nil || blocks != m.Transformer.Config.NumLayers {
				t.Fatalf("%d blocks: %v", blocks, err)
			}
			c.Add(t, name, m.VAE.Decode(m.VAE.Unscale(latents)))
			c.Add(t, name+", colours of the image", m.Image(latents, image, Wavelet))
		}
		c.Check(t)
		m := smallSeedVR2("3b")
		if _, err := m.Step(foreigntest.Signed(0, 1, 4, 16, 23), foreigntest.Signed(2, 1, 4, 16, 23), nil); err == nil {
			t.Error("latents of an odd width have no error")
		}
	})
}

// TestSeedVR2Memory compares the memory of a run with the estimate.
func TestSeedVR2Memory(t *testing.T) {
	mlxtest.Do(t, func() {
		m := smallSeedVR2("3b")
		peak := func(f func() *mlx.Array) (*mlx.Array, int64) {
			before := mlx.ActiveMemory()
			mlx.ResetPeakMemory()
			y := f()
			mlx.Eval(y)
			return y, int64(mlx.PeakMemory() - before)
		}
		for _, budget := range []int64{0, 1 << 20} {
			for _, side := range []int{128, 256} {
				image := foreigntest.Signed(0, 1, 3, side, side)
				mlx.Eval(image)
				m.VAE.SetBudget(budget)
				want := m.Memory(side, side, mlx.CurrentDevice(), mlx.Float32)
				var all [3]int64
				var latents *mlx.Array
				latents, all[0] = peak(func() *mlx.Array { return m.Latents(image) })
				latents, all[1] = peak(func() *mlx.Array {
					y, err := m.Step(latents, foreigntest.Signed(2, latents.Shape()...), nil)
					if err != nil {
						t.Fatal(err)
					}
					return y
				})
				_, all[2] = peak(func() *mlx.Array { return m.Image(latents, image, Wavelet) })
				if most := slices.Max(all[:]); float64(most) > 1.1*float64(want) || most < want/3 {
					t.Errorf("within %d bytes: %v, estimated %d", budget, all, want)
				}
				t.Logf("%dx%[1]d within %d bytes: %v, estimated %d", side, budget, all, want)
			}
		}
	})
}
