package transformer_test

import (
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/transformer"
)

// TestFluxBatch checks that a batch has the same result as its images one by one.
func TestFluxBatch(t *testing.T) {
	g := readGoldens(t, "flux.json")[1]
	mlxtest.Do(t, func() {
		m, _ := g.flux(t, mlx.Float32)
		s, err := m.Sequence(6, 4, 5, [2]int{4, 2})
		if err != nil {
			t.Fatal(err)
		}
		latents, text, pooled, references := input("a", 2, 6, 6, 4), input("b", 2, 5, 14), input("c", 2, 10), input("d", 1, 2, 24)
		in := transformer.Inputs{Timestep: m.Timestep(0.5), References: references}
		in.Latents, in.Text, in.Guidance, in.Pooled = latents, text, m.Guidance(3), pooled
		both := transformer.Run(m.Pass(in, s))
		for i := range 2 {
			one := func(x *mlx.Array) *mlx.Array { return x.Slice(0, i, i+1) }
			in.Latents, in.Text, in.Pooled = one(latents), one(text), one(pooled)
			single := transformer.Run(m.Pass(in, s))
			check(t, "picture", one(both).Floats(), single.Floats(), 2e-6)
		}
	})
}

func TestFlux2Batch(t *testing.T) {
	g := readGoldens(t, "flux2.json")[1]
	mlxtest.Do(t, func() {
		m, _ := g.flux2(t, mlx.Float32)
		s, err := m.Sequence(3, 4, 5, [2]int{2, 2})
		if err != nil {
			t.Fatal(err)
		}
		latents, text, references := input("a", 2, 8, 3, 4), input("b", 2, 5, 18), input("c", 2, 4, 8)
		run := func(of func(*mlx.Array) *mlx.Array) []*mlx.Array {
			in := transformer.Inputs{Latents: of(latents), Timestep: m.Timestep(0.9), Text: of(text), References: of(references)}
			first, cache := m.Extract(in, s)
			in.Timestep, in.Cache = m.Timestep(0.5), cache
			return []*mlx.Array{transformer.Run(m.Pass(in, s)), first, transformer.Run(m.CachedPass(in, s))}
		}
		both := run(func(x *mlx.Array) *mlx.Array { return x })
		for i := range 2 {
			one := func(x *mlx.Array) *mlx.Array { return x.Slice(0, i, i+1) }
			for j, single := range run(one) {
				check(t, []string{"plain", "extract", "cached"}[j], one(both[j]).Floats(), single.Floats(), 2e-6)
			}
		}
	})
}

// TestTrace checks that the transformers can be compiled, with the kv variant's cache among
// the results and inputs. (It evaluates nothing, for which MLX would call a C++ compiler for
// half a minute. Package models compares images of compiled models.)
func TestTrace(t *testing.T) {
	mlxtest.Do(t, func() {
		g := readGoldens(t, "flux.json")[1]
		m, _ := g.flux(t, mlx.Float32)
		s, err := m.Sequence(6, 10, 7)
		if err != nil {
			t.Fatal(err)
		}
		forward := mlx.Named(mlx.Compile, func(in transformer.Inputs) *mlx.Array { return transformer.Run(m.Pass(in, s)) })
		latents := input("latents", 2, 6, 6, 10)
		out := forward(transformer.Inputs{
			Latents: latents, Timestep: m.Timestep(1), Text: input("text", 1, 7, 14),
			Guidance: m.Guidance(3), Pooled: input("pooled", 1, 10),
		})
		mlxtest.Same(t, "flux", out.Shape(), latents.Shape())
	})
	mlxtest.Do(t, func() {
		g := readGoldens(t, "flux2.json")[1]
		m, _ := g.flux2(t, mlx.Float32)
		s, err := m.Sequence(3, 5, 7, [2]int{2, 3})
		if err != nil {
			t.Fatal(err)
		}
		type outputs struct {
			Velocity *mlx.Array
			Cache    transformer.KVCache
		}
		extract := mlx.Named(mlx.Compile, func(in transformer.Inputs) (out outputs) {
			out.Velocity, out.Cache = m.Extract(in, s)
			return out
		})
		cached := mlx.Named(mlx.Compile, func(in transformer.Inputs) *mlx.Array {
			return transformer.Run(m.CachedPass(in, s))
		})
		latents := input("latents", 2, 8, 3, 5)
		in := transformer.Inputs{
			Latents: latents, Timestep: m.Timestep(1), Text: input("text", 1, 7, 18), References: input("references", 1, 6, 8),
		}
		first := extract(in)
		mlxtest.Same(t, "extract", first.Velocity.Shape(), latents.Shape())
		keys := first.Cache.Keys
		mlxtest.Same(t, "keys of the last layer", keys[len(keys)-1].Shape(), []int{2, 3, 6, 14})
		in.References, in.Cache = nil, first.Cache
		mlxtest.Same(t, "cached", cached(in).Shape(), latents.Shape())
	})
}

// TestHalf checks that results in half precision are close to those in float32.
func TestHalf(t *testing.T) {
	for _, c := range []struct {
		dtype mlx.Dtype
		most  float64
	}{{mlx.BFloat16, 0.05}, {mlx.Float16, 0.01}} {
		mlxtest.Do(t, func() {
			g := readGoldens(t, "flux.json")[0]
			m, _ := g.flux(t, c.dtype)
			out := g.Cases[0].forwardFlux(t, m, c.dtype)
			if out.Dtype() != c.dtype {
				t.Errorf("found %v", out)
			}
			check(t, "flux in "+c.dtype.String(), out.AsType(mlx.Float32).Floats(), g.Cases[0].Outputs[0], c.most)
			for _, g := range readGoldens(t, "flux2.json")[:1] {
				m, points := g.flux2(t, c.dtype)
				for _, k := range g.Cases[2:5] {
					for i, out := range k.forwardFlux2(t, m, points, c.dtype) {
						if out.Dtype() != c.dtype {
							t.Errorf("found %v", out)
						}
						check(t, "flux2 in "+c.dtype.String(), out.AsType(mlx.Float32).Floats(), k.Outputs[i], c.most)
					}
				}
			}
		})
	}
}

func TestFluxConfigErrors(t *testing.T) {
	for want, change := range map[string]func(*transformer.FluxConfig){
		"":                             func(c *transformer.FluxConfig) { c.OutChannels = new(int) },
		"patch_size 2":                 func(c *transformer.FluxConfig) { c.PatchSize = 2 },
		"in_channels 6":                func(c *transformer.FluxConfig) { c.InChannels = 6 },
		"out_channels 128":             func(c *transformer.FluxConfig) { n := 128; c.OutChannels = &n },
		"out_channels 63":              func(c *transformer.FluxConfig) { n := 63; c.InChannels, c.OutChannels = 384, &n },
		"pooled_projection_dim":        func(c *transformer.FluxConfig) { c.PooledProjectionDim = 0 },
		"joint_attention_dim 1048577":  func(c *transformer.FluxConfig) { c.JointAttentionDim = nn.MaxDim + 1 },
		"num_layers -1":                func(c *transformer.FluxConfig) { c.NumLayers = -1 },
		"num_single_layers 1001":       func(c *transformer.FluxConfig) { c.NumSingleLayers = 1001 },
		"num_attention_heads 0":        func(c *transformer.FluxConfig) { c.NumAttentionHeads = 0 },
		"axes_dims_rope [16 55 57]":    func(c *transformer.FluxConfig) { c.AxesDimsRope = []int{16, 55, 57} },
		"axes_dims_rope [16 56]":       func(c *transformer.FluxConfig) { c.AxesDimsRope = []int{16, 56} },
		"sum to attention_head_dim 64": func(c *transformer.FluxConfig) { c.AttentionHeadDim = 64 },
	} {
		c := transformer.DefaultFluxConfig()
		change(&c)
		checkError(t, want, c.Validate())
	}
}

func TestFlux2ConfigErrors(t *testing.T) {
	for want, change := range map[string]func(*transformer.Flux2Config){
		"":                             func(c *transformer.Flux2Config) { c.OutChannels = new(int) },
		"patch_size 2":                 func(c *transformer.Flux2Config) { c.PatchSize = 2 },
		"in_channels 0":                func(c *transformer.Flux2Config) { c.InChannels = 0 },
		"out_channels 64":              func(c *transformer.Flux2Config) { n := 64; c.OutChannels = &n },
		"joint_attention_dim 0":        func(c *transformer.Flux2Config) { c.JointAttentionDim = 0 },
		"timestep_guidance_channels 7": func(c *transformer.Flux2Config) { c.TimestepGuidanceChannels = 7 },
		"mlp_ratio 0.0001":             func(c *transformer.Flux2Config) { c.MLPRatio = 1e-4 },
		"mlp_ratio 0:":                 func(c *transformer.Flux2Config) { c.MLPRatio = 0 },
		"rope_theta -1":                func(c *transformer.Flux2Config) { c.RopeTheta = -1 },
		"4 axes must sum":              func(c *transformer.Flux2Config) { c.AxesDimsRope = []int{32, 48, 48} },
	} {
		c := transformer.DefaultFlux2Config()
		c.GuidanceEmbeds = false
		change(&c)
		checkError(t, want, c.Validate())
	}
}

func checkError(t *testing.T, want string, err error) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("found %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("found %v, expected %q", err, want)
	}
}

func TestSequenceErrors(t *testing.T) {
	mlxtest.Do(t, func() {
		flux := transformer.NewFlux(readGoldens(t, "flux.json")[0].fluxConfig(t))
		for _, size := range [][2]int{{7, 4}, {4, 7}, {0, 4}, {4, -2}} {
			_, err := flux.Sequence(size[0], size[1], 3)
			checkError(t, "expected even sides", err)
			_, err = flux.Sequence(4, 4, 3, size)
			checkError(t, "expected even sides", err)
		}
		flux2 := transformer.NewFlux2(readGoldens(t, "flux2.json")[0].flux2Config(t))
		_, err := flux2.Sequence(0, 4, 3)
		checkError(t, "latents of 0×4", err)
		_, err = flux2.Sequence(4, 4, 3, [2]int{1, 2}, [2]int{3, 0})
		checkError(t, "latents of 3×0", err)
	})
	checkError(t, "KV cache with keys of 2 layers and values of 2, expected 4", mlxtest.Try(func() {
		m, _ := readGoldens(t, "flux2.json")[0].flux2(t, mlx.Float32)
		cache := transformer.KVCache{Keys: make([]*mlx.Array, 2), Values: make([]*mlx.Array, 2)}
		s, err := m.Sequence(1, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		m.CachedPass(transformer.Inputs{
			Latents: input("latents", 1, 12, 1, 1), Timestep: m.Timestep(1), Text: input("text", 1, 1, 20), Cache: cache,
		}, s)
	}))
}
