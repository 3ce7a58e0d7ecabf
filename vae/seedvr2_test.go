package vae

import (
	"fmt"
	"testing"

	"github.com/gomflux/gomflux/internal/foreigntest"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// TestSeedVR2Is3D compares the output of every module, which is computed in 2-D, with the makers' code, which computes in 3-D.
func TestSeedVR2Is3D(t *testing.T) {
	mlxtest.Do(t, func() {
		config := DefaultSeedVR2Config()
		config.BlockOutChannels, config.NormNumGroups, config.LatentChannels, config.LayersPerBlock = []int{8, 16, 24, 24}, 4, 4, 1
		m, points := NewSeedVR2(config), &hooks.Points{}
		foreigntest.Fill(m)
		nn.Bind(m, "vae", points)
		c := foreigntest.New(t, "testdata/seedvr2.safetensors")
		points.Func = c.Watch(t, nil)
		image, latents := foreigntest.Signed(0, 1, 3, 48, 80), foreigntest.Signed(0, 1, 4, 6, 10)
		c.Add(t, "latents", m.Encode(image))
		c.Add(t, "image", m.Decode(latents))
		c.Check(t)
		points.Func = nil
		for _, budget := range []int64{0, 1} { // at once, and in strips of one row
			m.SetBudget(budget)
			for name, out := range map[string]*mlx.Array{"latents": m.Encode(image), "image": m.Decode(latents)} {
				if c.Add(t, name, out); c.First() != "" {
					t.Errorf("%s within %d bytes: off by %.2g", name, budget, c.Differences[name])
				}
			}
		}
	})
}

// TestSeedVR2PublishedSize checks the number of parameters of seedvr2_ema_vae_fp16.safetensors, which has 478.1 MiB.
func TestSeedVR2PublishedSize(t *testing.T) {
	n := 0
	for _, p := range nn.Parameters(NewSeedVR2(DefaultSeedVR2Config())) {
		n += mlxtest.Size(p.Stored())
	}
	if size := fmt.Sprintf("%.1f", 2*float64(n)/(1<<20)); size != "478.1" {
		t.Errorf("%d parameters: %s MiB", n, size)
	}
}
