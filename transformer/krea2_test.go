package transformer_test

import (
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/transformer"
)

// krea2 returns a golden's model, with its parameters in dtype.
func (g golden) krea2(t testing.TB, dtype mlx.Dtype) (*transformer.Krea2, *hooks.Points) {
	t.Helper()
	return bound(t, g, transformer.NewKrea2(configOf(t, g, transformer.DefaultKrea2Config())), dtype)
}

// krea2Text returns hidden states of the text encoder.
func krea2Text(m *transformer.Krea2, name string, batch, tokens int) *mlx.Array {
	return input(name, batch, tokens, m.Config.NumTextLayers, m.Config.TextHiddenDim)
}

// forwardKrea2 runs a case in dtype. The reference's text may have padding, which ours never has.
func (c goldenCase) forwardKrea2(t testing.TB, m *transformer.Krea2, dtype mlx.Dtype) *mlx.Array {
	t.Helper()
	s, err := m.Sequence(c.Height, c.Width, c.Text)
	if err != nil {
		t.Fatal(err)
	}
	s.SplitOver(members)
	latents := input("latents", c.Batch, m.Config.InChannels/4, c.Height, c.Width).AsType(dtype)
	text := krea2Text(m, "text", c.Texts, c.Text)
	in := transformer.Inputs{Latents: latents, Timestep: m.Timestep(c.time()), Text: text}
	y := transformer.Run(m.Pass(in, s))
	if !m.Observed() {
		in.Text = m.FuseText(text, dtype)
		fused := transformer.Run(m.Pass(in, s))
		check(t, "with fused text", fused.AsType(mlx.Float32).Floats(), y.AsType(mlx.Float32).Floats(), 1e-6)
	}
	return y
}

func TestKrea2(t *testing.T) {
	for _, g := range readGoldens(t, "krea2.json") {
		for _, c := range g.Cases {
			t.Run(g.Kind+" "+c.String(), func(t *testing.T) {
				mlxtest.Do(t, func() {
					m, points := g.krea2(t, mlx.Float32)
					out := c.forwardKrea2(t, m, mlx.Float32)
					mlxtest.Same(t, "shape", out.Shape(), []int{c.Batch, m.Config.InChannels / 4, c.Height, c.Width})
					check(t, "output", out.Floats(), c.Outputs[0], g.tolerance())
					if c.Taps == nil {
						return
					}
					finish := c.observe(t, points, g.tolerance())
					observed := c.forwardKrea2(t, m, mlx.Float32)
					finish()
					check(t, "output while observed", observed.Floats(), c.Outputs[0], g.tolerance())
				})
			})
		}
	}
}

// TestKrea2Batch checks that a batch has the same result as its images one by one.
func TestKrea2Batch(t *testing.T) {
	for _, g := range readGoldens(t, "krea2.json") {
		mlxtest.Do(t, func() {
			m, _ := g.krea2(t, mlx.Float32)
			s, err := m.Sequence(6, 4, 5)
			if err != nil {
				t.Fatal(err)
			}
			latents, text := input("a", 2, m.Config.InChannels/4, 6, 4), krea2Text(m, "b", 2, 5)
			both := transformer.Run(m.Pass(transformer.Inputs{Latents: latents, Timestep: m.Timestep(0.5), Text: text}, s))
			for i := range 2 {
				one := func(x *mlx.Array) *mlx.Array { return x.Slice(0, i, i+1) }
				single := transformer.Run(m.Pass(transformer.Inputs{Latents: one(latents), Timestep: m.Timestep(0.5), Text: one(text)}, s))
				check(t, "picture", one(both).Floats(), single.Floats(), 2e-6)
			}
		})
	}
}

// TestKrea2Trace checks that the model can be compiled (see TestTrace).
func TestKrea2Trace(t *testing.T) {
	for _, g := range readGoldens(t, "krea2.json") {
		mlxtest.Do(t, func() {
			m, _ := g.krea2(t, mlx.Float32)
			s, err := m.Sequence(6, 10, 7)
			if err != nil {
				t.Fatal(err)
			}
			forward := mlx.Named(mlx.Compile, func(in transformer.Inputs) *mlx.Array { return transformer.Run(m.Pass(in, s)) })
			latents := input("latents", 2, m.Config.InChannels/4, 6, 10)
			out := forward(transformer.Inputs{Latents: latents, Timestep: m.Timestep(1), Text: krea2Text(m, "text", 1, 7)})
			mlxtest.Same(t, "shape", out.Shape(), latents.Shape())
		})
	}
}

// TestKrea2Half checks that results in half precision are close to those in float32.
func TestKrea2Half(t *testing.T) {
	for _, h := range []struct {
		dtype mlx.Dtype
		most  float64
	}{{mlx.BFloat16, 0.05}, {mlx.Float16, 0.01}} {
		for _, g := range readGoldens(t, "krea2.json") {
			mlxtest.Do(t, func() {
				m, _ := g.krea2(t, h.dtype)
				for _, c := range g.Cases {
					out := c.forwardKrea2(t, m, h.dtype)
					if out.Dtype() != h.dtype {
						t.Errorf("found %v", out)
					}
					check(t, g.Kind+" in "+h.dtype.String(), out.AsType(mlx.Float32).Floats(), c.Outputs[0], h.most)
				}
			})
		}
	}
}

func TestKrea2ConfigErrors(t *testing.T) {
	for want, change := range map[string]func(*transformer.Krea2Config){
		"":                              func(*transformer.Krea2Config) {},
		"in_channels 6":                 func(c *transformer.Krea2Config) { c.InChannels = 6 },
		"intermediate_size 0":           func(c *transformer.Krea2Config) { c.IntermediateSize = 0 },
		"timestep_embed_dim 255":        func(c *transformer.Krea2Config) { c.TimestepEmbedDim = 255 },
		"num_text_layers 0":             func(c *transformer.Krea2Config) { c.NumTextLayers = 0 },
		"num_key_value_heads 0":         func(c *transformer.Krea2Config) { c.NumKeyValueHeads = 0 },
		"multiple of num_key_value":     func(c *transformer.Krea2Config) { c.NumKeyValueHeads = 36 },
		"text_num_attention_heads 12":   func(c *transformer.Krea2Config) { c.TextNumAttentionHeads = 12 },
		"text_num_key_value_heads 3":    func(c *transformer.Krea2Config) { c.TextNumKeyValueHeads = 3 },
		"num_refiner_text_blocks -1":    func(c *transformer.Krea2Config) { c.NumRefinerTextBlocks = -1 },
		"num_layerwise_text_blocks 100": func(c *transformer.Krea2Config) { c.NumLayerwiseTextBlocks = 1001 },
		"rope_theta 0":                  func(c *transformer.Krea2Config) { c.RopeTheta = 0 },
		"norm_eps -1":                   func(c *transformer.Krea2Config) { c.NormEps = -1 },
		"num_layers 1001":               func(c *transformer.Krea2Config) { c.NumLayers = 1001 },
		"num_attention_heads -12":       func(c *transformer.Krea2Config) { c.NumAttentionHeads = -12 },
		"axes_dims_rope [32 96]":        func(c *transformer.Krea2Config) { c.AxesDimsRope = []int{32, 96} },
	} {
		c := transformer.DefaultKrea2Config()
		change(&c)
		checkError(t, want, c.Validate())
	}
}

func TestKrea2SequenceErrors(t *testing.T) {
	mlxtest.Do(t, func() {
		m := transformer.NewKrea2(transformer.DefaultKrea2Config())
		for _, size := range [][2]int{{7, 4}, {4, 7}, {0, 4}, {4, -2}} {
			_, err := m.Sequence(size[0], size[1], 3)
			checkError(t, "expected even sides", err)
		}
	})
}
