package transformer_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/transformer"
)

// qwenImage21 returns a golden's model, with its parameters in dtype.
func (g golden) qwenImage21(t testing.TB, dtype mlx.Dtype) (*transformer.QwenImage21, *hooks.Points) {
	t.Helper()
	return bound(t, g, transformer.NewQwenImage21(configOf(t, g, transformer.DefaultQwenImage21Config())), dtype)
}

// slots returns the image slots of a prompt, which are i.
func slots(prompt string) []bool {
	out := make([]bool, len(prompt))
	for i := range out {
		out[i] = prompt[i] == 'i'
	}
	return out
}

// forwardQwenImage21 runs a case in dtype: one step or, for kv, two.
func (c goldenCase) forwardQwenImage21(t testing.TB, m *transformer.QwenImage21, points *hooks.Points, dtype mlx.Dtype) []*mlx.Array {
	t.Helper()
	s, err := m.Sequence(c.Height, c.Width, slots(c.Prompt), c.References...)
	if err != nil {
		t.Fatal(err)
	}
	s.SplitOver(members)
	var references *mlx.Array
	if n := 4 * strings.Count(c.Prompt, "i"); n > 0 {
		references = input("references", 1, n, m.Config.InChannels)
	}
	points.Step = 0
	latents := input("latents", c.Batch, m.Config.InChannels, c.Height, c.Width).AsType(dtype)
	text := input("text", c.Texts, len(c.Prompt), m.Config.ContextInDim).Times(c.TextScale)
	in := transformer.Inputs{Latents: latents, Timestep: m.Timestep(c.time()), Text: text, References: references}
	if !c.KV {
		return []*mlx.Array{transformer.Run(m.Pass(in, s))}
	}
	first, cache := m.Extract(in, s)
	points.Step, in.Cache = 1, cache
	return []*mlx.Array{first, transformer.Run(m.CachedPass(in, s))}
}

func TestQwenImage21(t *testing.T) {
	for _, g := range readGoldens(t, "qwenimage21.json") {
		for _, c := range g.Cases {
			t.Run(fmt.Sprint(g.Kind, c.Prompt, c), func(t *testing.T) {
				mlxtest.Do(t, func() {
					m, points := g.qwenImage21(t, mlx.Float32)
					for i, x := range c.forwardQwenImage21(t, m, points, mlx.Float32) {
						mlxtest.Same(t, "shape", x.Shape(), []int{c.Batch, m.Config.InChannels, c.Height, c.Width})
						check(t, "output", x.Floats(), c.Outputs[i], g.tolerance())
					}
					if c.Taps == nil {
						return
					}
					finish := c.observe(t, points, g.tolerance())
					observed := c.forwardQwenImage21(t, m, points, mlx.Float32)
					finish()
					for i, x := range observed {
						check(t, "output while observed", x.Floats(), c.Outputs[i], g.tolerance())
					}
				})
			})
		}
	}
}

// TestQwenImage21Compiled compares steps that are compiled with those that are not.
func TestQwenImage21Compiled(t *testing.T) {
	mlxtest.Do(t, func() {
		g := readGoldens(t, "qwenimage21.json")[0]
		c := g.Cases[1]
		m, _ := g.qwenImage21(t, mlx.Float32)
		s, err := m.Sequence(c.Height, c.Width, slots(c.Prompt), c.References...)
		if err != nil {
			t.Fatal(err)
		}
		type outputs struct {
			Velocity *mlx.Array
			Cache    transformer.KVCache
		}
		in := transformer.Inputs{
			Latents:    input("latents", 1, m.Config.InChannels, c.Height, c.Width),
			Timestep:   m.Timestep(c.time()),
			Text:       input("text", 1, len(c.Prompt), m.Config.ContextInDim),
			References: input("references", 1, 36, m.Config.InChannels),
		}
		first := mlx.Named(mlx.Compile, func(in transformer.Inputs) (out outputs) {
			out.Velocity, out.Cache = m.Extract(in, s)
			return out
		})(in)
		check(t, "extract", first.Velocity.Floats(), c.Outputs[0], g.tolerance())
		in.Cache = first.Cache
		later := mlx.Named(mlx.Compile, func(in transformer.Inputs) *mlx.Array {
			return transformer.Run(m.CachedPass(in, s))
		})
		check(t, "cached", later(in).Floats(), c.Outputs[1], g.tolerance())
	})
}

// TestQwenImage21Prefix changes the latents: keys and values of the prompt and the reference images
// must not see them.
func TestQwenImage21Prefix(t *testing.T) {
	mlxtest.Do(t, func() {
		g := readGoldens(t, "qwenimage21.json")[0]
		c := g.Cases[1]
		m, _ := g.qwenImage21(t, mlx.Float32)
		s, err := m.Sequence(c.Height, c.Width, slots(c.Prompt), c.References...)
		if err != nil {
			t.Fatal(err)
		}
		var keys [][]float32
		for _, name := range []string{"latents", "other latents"} {
			_, cache := m.Extract(transformer.Inputs{
				Latents:    input(name, 1, m.Config.InChannels, c.Height, c.Width),
				Timestep:   m.Timestep(float32(len(name)) / 20),
				Text:       input("text", 1, len(c.Prompt), m.Config.ContextInDim),
				References: input("references", 1, 36, m.Config.InChannels),
			}, s)
			mlxtest.Same(t, "keys", cache.Keys[1].Shape(), []int{1, 2, 45, 16})
			keys = append(keys, cache.Keys[1].Floats())
		}
		check(t, "keys of the second block", keys[1], keys[0], 1e-6)
	})
}

func TestQwenImage21Sequence(t *testing.T) {
	c := transformer.DefaultQwenImage21Config()
	c.NumLayers, c.AttentionHeadDim, c.NumAttentionHeads, c.AxesDimsRope = 0, 6, 1, []int{2, 2, 2}
	mlxtest.Do(t, func() {
		m := transformer.NewQwenImage21(c)
		for _, test := range []struct {
			h, w       int
			prompt     string
			references [][2]int
			err        string
		}{
			{4, 4, "ti", nil, "more reference images than there are"},
			{4, 4, "tit", [][2]int{{2, 4}}, "1 image slots for a reference image of 2×4 latents, expected 2"},
			{4, 4, "t", [][2]int{{2, 4}}, "no image slots for 1 reference images"},
			{4, 4, "ti", [][2]int{{2, 2}, {2, 2}}, "no image slots for 1 reference images"},
			{3, 4, "t", nil, "latents of 3×4: expected even sides"},
			{4, 2050, "t", nil, "latents of 4×2050: expected even sides of at most 2048"},
			{4, 4, strings.Repeat("t", 8192), nil, "position 8192"},
			{4, 4, strings.Repeat("t", 8191), nil, ""},
			{4, 4, "", nil, ""},
		} {
			_, err := m.Sequence(test.h, test.w, slots(test.prompt), test.references...)
			if test.err == "" && err == nil {
				continue
			}
			checkError(t, test.err, err)
		}
	})
}

func TestQwenImage21Config(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:                              "",
		`{"patch_size": 2}`:               "patch_size 2: expected 1",
		`{"in_channels": 0}`:              "in_channels 0",
		`{"out_channels": 16}`:            "out_channels 16: expected in_channels, 64",
		`{"context_in_dim": -1}`:          "context_in_dim -1",
		`{"mlp_ratio": 0}`:                "mlp_ratio 0",
		`{"eps": 2}`:                      "eps 2",
		`{"axes_dims_rope": [16, 56]}`:    "3 axes must sum to attention_head_dim 128",
		`{"num_attention_heads": 100000}`: "num_attention_heads 100000",
	} {
		c := transformer.DefaultQwenImage21Config()
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		checkError(t, want, c.Validate())
	}
}
