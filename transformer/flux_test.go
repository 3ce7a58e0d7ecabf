package transformer_test

import (
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/transformer"
)

// fluxConfig returns the config of a golden's model.
func (g golden) fluxConfig(t testing.TB) transformer.FluxConfig {
	t.Helper()
	return configOf(t, g, transformer.DefaultFluxConfig())
}

// flux returns a golden's model, with its parameters in dtype.
func (g golden) flux(t testing.TB, dtype mlx.Dtype) (*transformer.Flux, *hooks.Points) {
	t.Helper()
	return bound(t, g, transformer.NewFlux(g.fluxConfig(t)), dtype)
}

// forwardFlux runs a case in dtype.
func (c goldenCase) forwardFlux(t testing.TB, m *transformer.Flux, dtype mlx.Dtype) *mlx.Array {
	t.Helper()
	s, err := m.Sequence(c.Height, c.Width, c.Text)
	if err != nil {
		t.Fatal(err)
	}
	s.SplitOver(members)
	var guidance *mlx.Array
	if m.Config.GuidanceEmbeds {
		guidance = m.Guidance(c.Guidance)
	}
	latents := input("latents", c.Batch, m.Config.InChannels/4, c.Height, c.Width).AsType(dtype)
	in := transformer.Inputs{
		Latents: latents, Timestep: m.Timestep(c.time()),
		Text:     input("text", c.Texts, c.Text, m.Config.JointAttentionDim),
		Guidance: guidance, Pooled: input("pooled", c.Texts, m.Config.PooledProjectionDim),
	}
	y := transformer.Run(m.Pass(in, s))
	if m.Observed() || c.Texts > 1 {
		return y
	}
	in.Projections = projectionsOf(m.Projections(in, []float32{0.9, c.time(), 0.1}, dtype), 1, 3)
	in.Timestep, in.Guidance, in.Pooled = nil, nil, nil
	checkProjected(t, transformer.Run(m.Pass(in, s)), y, dtype)
	return y
}

func TestFlux(t *testing.T) {
	for _, g := range readGoldens(t, "flux.json") {
		for _, c := range g.Cases {
			t.Run(g.Kind+" "+c.String(), func(t *testing.T) {
				mlxtest.Do(t, func() {
					m, points := g.flux(t, mlx.Float32)
					out := c.forwardFlux(t, m, mlx.Float32)
					mlxtest.Same(t, "shape", out.Shape(), []int{c.Batch, m.Config.InChannels / 4, c.Height, c.Width})
					check(t, "output", out.Floats(), c.Outputs[0], g.tolerance())
					if c.Taps == nil {
						return
					}
					finish := c.observe(t, points, g.tolerance())
					observed := c.forwardFlux(t, m, mlx.Float32)
					finish()
					check(t, "output while observed", observed.Floats(), c.Outputs[0], g.tolerance())
				})
			})
		}
	}
}
