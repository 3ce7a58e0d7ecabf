package transformer_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/transformer"
)

// qwenImageConfig returns the config of a golden's model.
func (g golden) qwenImageConfig(t testing.TB) transformer.QwenImageConfig {
	t.Helper()
	return configOf(t, g, transformer.DefaultQwenImageConfig())
}

// qwenImage returns a golden's model, with its parameters in dtype.
func (g golden) qwenImage(t testing.TB, dtype mlx.Dtype) (*transformer.QwenImage, *hooks.Points) {
	t.Helper()
	return bound(t, g, transformer.NewQwenImage(g.qwenImageConfig(t)), dtype)
}

// forwardQwenImage runs a case in dtype.
func (c goldenCase) forwardQwenImage(t testing.TB, m *transformer.QwenImage, dtype mlx.Dtype) *mlx.Array {
	t.Helper()
	s, err := m.Sequence(c.Height, c.Width, c.Text, c.References...)
	if err != nil {
		t.Fatal(err)
	}
	s.SplitOver(members)
	channels := m.Config.InChannels / 4
	var tokens []*mlx.Array
	for i, size := range c.References {
		tokens = append(tokens, transformer.Pack(input(fmt.Sprintf("reference %d", i), 1, channels, size[0], size[1])))
	}
	var references *mlx.Array
	if tokens != nil {
		references = mlx.Concat(1, tokens...)
	}
	in := transformer.Inputs{
		Latents: input("latents", c.Batch, channels, c.Height, c.Width).AsType(dtype), Timestep: m.Timestep(c.time()),
		Text: input("text", c.Texts, c.Text, m.Config.JointAttentionDim).Times(c.TextScale), References: references,
	}
	y := transformer.Run(m.Pass(in, s))
	if m.Observed() {
		return y
	}
	in.Projections, in.Timestep = projectionsOf(m.Projections([]float32{0.9, c.time(), 0.1}, dtype), 1, 3), nil
	checkProjected(t, transformer.Run(m.Pass(in, s)), y, dtype)
	return y
}

func TestQwenImage(t *testing.T) {
	for _, g := range readGoldens(t, "qwenimage.json") {
		for _, c := range g.Cases {
			t.Run(g.Kind+" "+c.String(), func(t *testing.T) {
				mlxtest.Do(t, func() {
					m, points := g.qwenImage(t, mlx.Float32)
					out := c.forwardQwenImage(t, m, mlx.Float32)
					mlxtest.Same(t, "shape", out.Shape(), []int{c.Batch, m.Config.InChannels / 4, c.Height, c.Width})
					check(t, "output", out.Floats(), c.Outputs[0], g.tolerance())
					if c.Taps == nil {
						return
					}
					finish := c.observe(t, points, g.tolerance())
					observed := c.forwardQwenImage(t, m, mlx.Float32)
					finish()
					check(t, "output while observed", observed.Floats(), c.Outputs[0], g.tolerance())
				})
			})
		}
	}
}

// TestQwenImageFarPositions compares sines of QwenEmbedRope far from the middle of an image,
// where it matters that the tables are computed in float32: for the first patch of 6002 in a
// row, which is at (0, -1, -3001), and for the text, at 3001.
func TestQwenImageFarPositions(t *testing.T) {
	tables := map[string][]float32{}
	stop := errors.New("stop")
	err := mlxtest.Try(func() {
		m, points := readGoldens(t, "qwenimage.json")[0].qwenImage(t, mlx.Float32)
		s, err := m.Sequence(2, 12004, 1)
		if err != nil {
			t.Fatal(err)
		}
		points.Func = func(tap hooks.Tap) (*mlx.Array, error) {
			if tap.Name != "transformer.pos_embed" {
				return nil, nil
			}
			tables[tap.Point.Key] = tap.Output.Slice(0, 0, 1).Slice(2, 1, 2).Floats()
			if tap.Point.Key == "" {
				return nil, stop
			}
			return nil, nil
		}
		transformer.Run(m.Pass(transformer.Inputs{
			Latents: input("latents", 1, 4, 2, 12004), Timestep: m.Timestep(1), Text: input("text", 1, 1, 20),
		}, s))
	})
	if !errors.Is(err, stop) {
		t.Fatal(err)
	}
	check(t, "image", tables[""], []float32{0, 0, -0.841470957, -0.0463992208, -0.0021544327, 0.702579439, -0.874299407, -0.181264535},
		2e-7)
	check(t, "text", tables["1"],
		[]float32{-0.702579439, -0.986439705, -0.702579439, 0.874299407, 0.181264535, -0.702579439, 0.874299407, 0.181264535}, 2e-7)
}

// TestQwenImageBatch checks that a batch has the same result as its images one by one.
func TestQwenImageBatch(t *testing.T) {
	for _, g := range readGoldens(t, "qwenimage.json") {
		mlxtest.Do(t, func() {
			m, _ := g.qwenImage(t, mlx.Float32)
			s, err := m.Sequence(6, 4, 5, [2]int{2, 6}, [2]int{4, 2})
			if err != nil {
				t.Fatal(err)
			}
			channels := m.Config.InChannels
			latents, text, references := input("a", 2, channels/4, 6, 4), input("b", 2, 5, m.Config.JointAttentionDim),
				input("c", 2, 5, channels)
			both := transformer.Run(m.Pass(transformer.Inputs{
				Latents: latents, Timestep: m.Timestep(0.5), Text: text, References: references,
			}, s))
			for i := range 2 {
				one := func(x *mlx.Array) *mlx.Array { return x.Slice(0, i, i+1) }
				single := transformer.Run(m.Pass(transformer.Inputs{
					Latents: one(latents), Timestep: m.Timestep(0.5), Text: one(text), References: one(references),
				}, s))
				check(t, "picture", one(both).Floats(), single.Floats(), 2e-6)
			}
		})
	}
}

// TestQwenImageTrace checks that the model can be compiled (see TestTrace).
func TestQwenImageTrace(t *testing.T) {
	for _, g := range readGoldens(t, "qwenimage.json") {
		mlxtest.Do(t, func() {
			m, _ := g.qwenImage(t, mlx.Float32)
			s, err := m.Sequence(6, 10, 7, [2]int{4, 2})
			if err != nil {
				t.Fatal(err)
			}
			forward := mlx.Named(mlx.Compile, func(in transformer.Inputs) *mlx.Array { return transformer.Run(m.Pass(in, s)) })
			latents := input("latents", 2, m.Config.InChannels/4, 6, 10)
			text, references := input("text", 1, 7, m.Config.JointAttentionDim), input("references", 1, 2, m.Config.InChannels)
			out := forward(transformer.Inputs{Latents: latents, Timestep: m.Timestep(1), Text: text, References: references})
			mlxtest.Same(t, "shape", out.Shape(), latents.Shape())
		})
	}
}

// TestQwenImageHalf checks that results in half precision are close to those in float32.
func TestQwenImageHalf(t *testing.T) {
	for _, h := range []struct {
		dtype mlx.Dtype
		most  float64
	}{{mlx.BFloat16, 0.05}, {mlx.Float16, 0.01}} {
		for _, g := range readGoldens(t, "qwenimage.json") {
			mlxtest.Do(t, func() {
				m, _ := g.qwenImage(t, h.dtype)
				for _, c := range g.Cases {
					out := c.forwardQwenImage(t, m, h.dtype)
					if out.Dtype() != h.dtype {
						t.Errorf("found %v", out)
					}
					check(t, g.Kind+" in "+h.dtype.String(), out.AsType(mlx.Float32).Floats(), c.Outputs[0], h.most)
				}
			})
		}
	}
}

func TestQwenImageConfigErrors(t *testing.T) {
	for want, change := range map[string]func(*transformer.QwenImageConfig){
		"":                             func(*transformer.QwenImageConfig) {},
		"use_layer3d_rope and zero":    func(c *transformer.QwenImageConfig) { c.UseLayer3DRope, c.ZeroCondT = true, true },
		"guidance_embeds true":         func(c *transformer.QwenImageConfig) { c.GuidanceEmbeds = true },
		"patch_size 1":                 func(c *transformer.QwenImageConfig) { c.PatchSize = 1 },
		"in_channels 6":                func(c *transformer.QwenImageConfig) { c.InChannels = 6 },
		"out_channels 64: expected 16": func(c *transformer.QwenImageConfig) { c.OutChannels = nil },
		"out_channels 16: expected 32": func(c *transformer.QwenImageConfig) { c.InChannels = 128 },
		"joint_attention_dim 0":        func(c *transformer.QwenImageConfig) { c.JointAttentionDim = 0 },
		"num_layers 1001":              func(c *transformer.QwenImageConfig) { c.NumLayers = 1001 },
		"num_attention_heads -1":       func(c *transformer.QwenImageConfig) { c.NumAttentionHeads = -1 },
		"axes_dims_rope [16 112]":      func(c *transformer.QwenImageConfig) { c.AxesDimsRope = []int{16, 112} },
	} {
		c := transformer.DefaultQwenImageConfig()
		change(&c)
		checkError(t, want, c.Validate())
	}
}

func TestQwenImageSequenceErrors(t *testing.T) {
	mlxtest.Do(t, func() {
		m := transformer.NewQwenImage(readGoldens(t, "qwenimage.json")[0].qwenImageConfig(t))
		for _, size := range [][2]int{{7, 4}, {4, 7}, {0, 4}, {4, -2}} {
			_, err := m.Sequence(size[0], size[1], 3)
			checkError(t, "expected even sides", err)
			_, err = m.Sequence(4, 4, 3, [2]int{2, 2}, size)
			checkError(t, fmt.Sprintf("latents of %d×%d", size[0], size[1]), err)
		}
	})
}
