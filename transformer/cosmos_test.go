package transformer_test

import (
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/transformer"
)

// cosmos returns a golden's model, with its parameters in dtype.
func (g golden) cosmos(t testing.TB, dtype mlx.Dtype) (*transformer.Cosmos, *hooks.Points) {
	t.Helper()
	return bound(t, g, transformer.NewCosmos(configOf(t, g, transformer.DefaultCosmosConfig())), dtype)
}

// forwardCosmos runs a case in dtype.
func (c goldenCase) forwardCosmos(t testing.TB, m *transformer.Cosmos, dtype mlx.Dtype) *mlx.Array {
	t.Helper()
	s, err := m.Sequence(c.Height, c.Width)
	if err != nil {
		t.Fatal(err)
	}
	s.SplitOver(members)
	latents := input("latents", c.Batch, m.Config.InChannels, c.Height, c.Width).AsType(dtype)
	text := input("text", c.Texts, c.Text, m.Config.TextEmbedDim)
	return transformer.Run(m.Pass(transformer.Inputs{Latents: latents, Timestep: m.Timestep(c.time()), Text: text}, s))
}

func TestCosmos(t *testing.T) {
	for _, g := range readGoldens(t, "cosmos.json") {
		for _, c := range g.Cases {
			t.Run(g.Kind+" "+c.String(), func(t *testing.T) {
				mlxtest.Do(t, func() {
					m, points := g.cosmos(t, mlx.Float32)
					out := c.forwardCosmos(t, m, mlx.Float32)
					mlxtest.Same(t, "shape", out.Shape(), []int{c.Batch, m.Config.InChannels, c.Height, c.Width})
					check(t, "output", out.Floats(), c.Outputs[0], g.tolerance())
					if c.Taps == nil {
						return
					}
					finish := c.observe(t, points, g.tolerance())
					observed := c.forwardCosmos(t, m, mlx.Float32)
					finish()
					check(t, "output while observed", observed.Floats(), c.Outputs[0], g.tolerance())
				})
			})
		}
	}
}

// TestCosmosBatch checks that a batch has the same result as its images one by one.
func TestCosmosBatch(t *testing.T) {
	for _, g := range readGoldens(t, "cosmos.json") {
		mlxtest.Do(t, func() {
			m, _ := g.cosmos(t, mlx.Float32)
			s, err := m.Sequence(6, 4)
			if err != nil {
				t.Fatal(err)
			}
			latents, text := input("a", 2, m.Config.InChannels, 6, 4), input("b", 2, 5, m.Config.TextEmbedDim)
			both := transformer.Run(m.Pass(transformer.Inputs{Latents: latents, Timestep: m.Timestep(0.5), Text: text}, s))
			for i := range 2 {
				one := func(x *mlx.Array) *mlx.Array { return x.Slice(0, i, i+1) }
				single := transformer.Run(m.Pass(transformer.Inputs{Latents: one(latents), Timestep: m.Timestep(0.5), Text: one(text)}, s))
				check(t, "picture", one(both).Floats(), single.Floats(), 2e-6)
			}
		})
	}
}

// TestCosmosTrace checks that the model can be compiled (see TestTrace).
func TestCosmosTrace(t *testing.T) {
	for _, g := range readGoldens(t, "cosmos.json") {
		mlxtest.Do(t, func() {
			m, _ := g.cosmos(t, mlx.Float32)
			s, err := m.Sequence(6, 10)
			if err != nil {
				t.Fatal(err)
			}
			forward := mlx.Named(mlx.Compile, func(in transformer.Inputs) *mlx.Array { return transformer.Run(m.Pass(in, s)) })
			latents := input("latents", 2, m.Config.InChannels, 6, 10)
			out := forward(transformer.Inputs{Latents: latents, Timestep: m.Timestep(1), Text: input("text", 1, 7, m.Config.TextEmbedDim)})
			mlxtest.Same(t, "shape", out.Shape(), latents.Shape())
		})
	}
}

// TestCosmosHalf checks that results in half precision are close to those in float32.
func TestCosmosHalf(t *testing.T) {
	for _, h := range []struct {
		dtype mlx.Dtype
		most  float64
	}{{mlx.BFloat16, 0.05}, {mlx.Float16, 0.01}} {
		for _, g := range readGoldens(t, "cosmos.json") {
			mlxtest.Do(t, func() {
				m, _ := g.cosmos(t, h.dtype)
				for _, c := range g.Cases {
					out := c.forwardCosmos(t, m, h.dtype)
					if out.Dtype() != h.dtype {
						t.Errorf("found %v", out)
					}
					check(t, g.Kind+" in "+h.dtype.String(), out.AsType(mlx.Float32).Floats(), c.Outputs[0], h.most)
				}
			})
		}
	}
}

func TestCosmosConfigErrors(t *testing.T) {
	for want, change := range map[string]func(*transformer.CosmosConfig){
		"":                              func(*transformer.CosmosConfig) {},
		"in_channels 0":                 func(c *transformer.CosmosConfig) { c.InChannels = 0 },
		"out_channels 17":               func(c *transformer.CosmosConfig) { c.OutChannels = 17 },
		"text_embed_dim 0":              func(c *transformer.CosmosConfig) { c.TextEmbedDim = 0 },
		"adaln_lora_dim -1":             func(c *transformer.CosmosConfig) { c.AdaLNLoRADim = -1 },
		"mlp_ratio 0":                   func(c *transformer.CosmosConfig) { c.MLPRatio = 0 },
		"attention_head_dim 16":         func(c *transformer.CosmosConfig) { c.AttentionHeadDim = 16 },
		"patch_size [1 1 1]":            func(c *transformer.CosmosConfig) { c.PatchSize = []int{1, 1, 1} },
		"max_size [128]":                func(c *transformer.CosmosConfig) { c.MaxSize = []int{128} },
		"rope_scale [1 0 1]":            func(c *transformer.CosmosConfig) { c.RopeScale = []float64{1, 0, 1} },
		"use_crossattn_projection true": func(c *transformer.CosmosConfig) { c.UseCrossattnProjection = true },
		"img_context_dim_in 3":          func(c *transformer.CosmosConfig) { n := 3; c.ImgContextDimIn = &n },
		"num_layers 1001":               func(c *transformer.CosmosConfig) { c.NumLayers = 1001 },
		"num_attention_heads 9999999":   func(c *transformer.CosmosConfig) { c.NumAttentionHeads, c.MLPRatio = 9999999, 1e-4 },
	} {
		c := transformer.DefaultCosmosConfig()
		c.ExtraPosEmbedType = nil
		change(&c)
		checkError(t, want, c.Validate())
	}
	c := transformer.DefaultCosmosConfig()
	checkError(t, "extra_pos_embed_type", c.Validate())
}

func TestCosmosSequenceErrors(t *testing.T) {
	mlxtest.Do(t, func() {
		c := transformer.DefaultCosmosConfig()
		c.MaxSize = []int{8, 12, 20}
		m := transformer.NewCosmos(c)
		for _, size := range [][2]int{{7, 4}, {4, 7}, {0, 4}, {4, -2}} {
			_, err := m.Sequence(size[0], size[1])
			checkError(t, "expected even sides", err)
		}
		_, err := m.Sequence(20, 22)
		checkError(t, "expected at most 20", err)
	})
}
