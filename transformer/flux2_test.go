package transformer_test

import (
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/transformer"
)

// flux2Config returns the config of a golden's model.
func (g golden) flux2Config(t testing.TB) transformer.Flux2Config {
	t.Helper()
	return configOf(t, g, transformer.DefaultFlux2Config())
}

// flux2 returns a golden's model, with its parameters in dtype.
func (g golden) flux2(t testing.TB, dtype mlx.Dtype) (*transformer.Flux2, *hooks.Points) {
	t.Helper()
	return bound(t, g, transformer.NewFlux2(g.flux2Config(t)), dtype)
}

// forwardFlux2 runs a case in dtype: one step or, for kv, two.
func (c goldenCase) forwardFlux2(t testing.TB, m *transformer.Flux2, points *hooks.Points, dtype mlx.Dtype) []*mlx.Array {
	t.Helper()
	s, err := m.Sequence(c.Height, c.Width, c.Text, c.References...)
	if err != nil {
		t.Fatal(err)
	}
	s.SplitOver(members)
	n := 0
	for _, size := range c.References {
		n += size[0] * size[1]
	}
	var references *mlx.Array
	if n > 0 {
		references = input("references", 1, n, m.Config.InChannels)
	}
	points.Step = 0
	latents := input("latents", c.Batch, m.Config.InChannels, c.Height, c.Width).AsType(dtype)
	time, text := m.Timestep(c.time()), input("text", c.Texts, c.Text, m.Config.JointAttentionDim)
	in := transformer.Inputs{Latents: latents, Timestep: time, Text: text, References: references}
	if !c.KV {
		return []*mlx.Array{transformer.Run(m.Pass(in, s))}
	}
	first, cache := m.Extract(in, s)
	points.Step = 1
	in.References, in.Cache = nil, cache
	return []*mlx.Array{first, transformer.Run(m.CachedPass(in, s))}
}

func TestFlux2(t *testing.T) {
	for _, g := range readGoldens(t, "flux2.json") {
		for _, c := range g.Cases {
			t.Run(g.Kind+" "+c.String(), func(t *testing.T) {
				mlxtest.Do(t, func() {
					m, points := g.flux2(t, mlx.Float32)
					out := c.forwardFlux2(t, m, points, mlx.Float32)
					for i, x := range out {
						mlxtest.Same(t, "shape", x.Shape(), []int{c.Batch, m.Config.InChannels, c.Height, c.Width})
						check(t, "output", x.Floats(), c.Outputs[i], g.tolerance())
					}
					if c.Taps == nil {
						return
					}
					finish := c.observe(t, points, g.tolerance())
					observed := c.forwardFlux2(t, m, points, mlx.Float32)
					finish()
					for i, x := range observed {
						check(t, "output while observed", x.Floats(), c.Outputs[i], g.tolerance())
					}
				})
			})
		}
	}
}
