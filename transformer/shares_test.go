package transformer_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/grouptest"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/transformer"
)

// members is the group over which the forward passes of tests are split; nil for one process.
var members *mlx.Group

// join runs the test in n processes, and reports whether this is one of them.
func join(t *testing.T, n int) bool {
	if !grouptest.Member() {
		grouptest.Run(t, n)
		return false
	}
	mlxtest.Do(t, func() {
		var err error
		if members, err = mlx.JoinGroup("ring"); err != nil {
			t.Fatal(err)
		}
	})
	return true
}

// Members of a group compute the goldens of diffusers together, each a share of the tokens: outputs, and
// the tensors of all modules, are as exact as those of one process. The cases have odd numbers of tokens,
// fewer text tokens than members, reference images, batches, grouped queries, prefixes and KV caches.
func TestSplitGoldens(t *testing.T) {
	n := 2
	if os.Getenv("GOMFLUX_FAULTS") == "all" {
		n = 4
	}
	if join(t, n) {
		for _, family := range []func(*testing.T){TestFlux, TestFlux2, TestQwenImage, TestQwenImage21, TestKrea2, TestCosmos} {
			family(t)
		}
	}
}

// A splitCase is a small model with random weights, and its velocity for a step.
type splitCase struct {
	model   any
	forward func(latents *mlx.Array) *mlx.Array
	latents []int // their shape
}

// splitCases are the models without goldens here. Images and texts have numbers of tokens that no number of members
// divides, but for Z-Image's, which are multiples of 32.
func splitCases(t *testing.T) map[string]func(batch int) splitCase {
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	return map[string]func(batch int) splitCase{
		"Z-Image": func(batch int) splitCase {
			c := transformer.DefaultZImageConfig()
			c.Dim, c.NHeads, c.NKVHeads, c.NLayers, c.NRefinerLayers, c.CapFeatDim = 24, 2, 2, 2, 1, 10
			c.AxesDims = []int{4, 4, 4}
			m := transformer.NewZImage(c)
			return splitCase{m, func(latents *mlx.Array) *mlx.Array {
				s, err := m.Sequence(10, 14, 33)
				must(err)
				s.SplitOver(members)
				in := transformer.Inputs{Latents: latents, Timestep: m.Timestep(0.4), Text: input("text", 33, c.CapFeatDim)}
				return transformer.Run(m.Pass(in, s))
			}, []int{batch, c.InChannels, 10, 14}}
		},
		"ERNIE-Image": func(batch int) splitCase {
			c := transformer.DefaultErnieImageConfig()
			c.HiddenSize, c.NumAttentionHeads, c.NumLayers, c.FFNHiddenSize, c.InChannels, c.OutChannels = 24, 2, 2, 36, 8, 8
			c.TextInDim, c.RopeAxesDim = 10, []int{4, 4, 4}
			m := transformer.NewErnieImage(c)
			return splitCase{m, func(latents *mlx.Array) *mlx.Array {
				s := m.Sequence(3, 5, 7)
				s.SplitOver(members)
				in := transformer.Inputs{Latents: latents, Timestep: m.Timestep(400), Text: input("text", 1, 7, c.TextInDim)}
				return transformer.Run(m.Pass(in, s))
			}, []int{batch, c.InChannels, 3, 5}}
		},
		"FLUX.3": func(batch int) splitCase {
			c := transformer.DefaultFlux3Config()
			c.InChannels, c.CondInChannels, c.NumLayers, c.NumSingleLayers, c.AttentionHeadDim, c.NumAttentionHeads = 8, 8, 2, 2, 16, 2
			c.JointAttentionDim, c.AxesDimsRope = 10, []int{4, 4, 4, 4}
			m := transformer.NewFlux3(c)
			return splitCase{m, func(latents *mlx.Array) *mlx.Array {
				s, err := m.Sequence(3, 5, 7, [2]int{2, 3}, [2]int{3, 1})
				must(err)
				s.SplitOver(members)
				return transformer.Run(m.Pass(transformer.Inputs{
					Latents: latents, Timestep: m.Timestep(0.4),
					Text: input("text", 1, 7, c.JointAttentionDim), References: input("references", 1, 9, c.InChannels),
				}, s))
			}, []int{batch, c.InChannels, 3, 5}}
		},
	}
}

// Models without goldens compute the same together as in one process, up to rounding, in all modules too.
func TestSplitRandom(t *testing.T) {
	if !join(t, 2) {
		return
	}
	cases := splitCases(t)
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		for _, batch := range []int{1, 2} {
			t.Run(fmt.Sprint(name, " ", batch), func(t *testing.T) {
				mlxtest.Do(t, func() {
					c := cases[name](batch)
					taps := map[string][]float32{}
					run := func(over *mlx.Group, hook func(name string, x []float32)) []float32 {
						whole := members
						defer func() { members = whole }()
						members = over
						points := &hooks.Points{Func: func(tap hooks.Tap) (*mlx.Array, error) {
							for tap := range tap.All() {
								hook(tap.FullName(), tap.Output.AsType(mlx.Float32).Floats())
							}
							return nil, nil
						}}
						if hook == nil {
							points.Func = nil
						}
						nn.Bind(c.model, "transformer", points)
						return c.forward(input("latents", c.latents...)).Floats()
					}
					for _, p := range nn.Parameters(c.model) {
						if p.Array = parameter(p.Name, p.Stored(), "", 1); p.Ndim() == 4 {
							p.Array = nn.ChannelsLast(p.Array)
						}
					}
					want := run(nil, func(name string, x []float32) { taps[name] = x })
					seen := 0
					check(t, "output while observed", run(members, func(name string, x []float32) {
						seen++
						if len(x) != len(taps[name]) || !(off(x, taps[name]) < 5e-6) {
							t.Errorf("%s differs from that of one process", name)
						}
					}), want, 2e-6)
					check(t, "output", run(members, nil), want, 2e-6)
					compiled, _ := mlx.CompileUntil(mlx.Unfused, func(in []*mlx.Array) []*mlx.Array {
						return []*mlx.Array{c.forward(in[0])}
					})
					for _, name := range []string{"others", "latents"} { // and nothing of others
						check(t, "compiled, "+name, compiled([]*mlx.Array{input(name, c.latents...)})[0].Floats(),
							c.forward(input(name, c.latents...)).Floats(), 2e-6)
					}
					if seen != len(taps) {
						t.Errorf("%d tensors, of one process %d", seen, len(taps))
					}
				})
			})
		}
	}
}

// splitFaults are mistakes in mlx/nn/shares.go: a text, and what replaces it.
var splitFaults = map[string][2]string{
	"the order of members": {
		"all := s.group.AllGather(x)",
		"all := s.group.AllGather(x)\n\tall = mlx.Concat(0, all.Slice(0, b, size*b), all.Slice(0, 0, b))",
	},
	"keys of the step before": {
		"all := s.group.AllGather(x)",
		"all, now := before[fmt.Sprint(x.Shape())], s.group.AllGather(x)\n\tmlx.Eval(now)\n\tmlx.Keep(now)\n" +
			"\tif before[fmt.Sprint(x.Shape())] = now; all == nil {\n\t\tall = now\n\t}",
	},
}

// Mistakes in what members exchange are found. In CI nothing is planted, since each needs a build of its own.
func TestCodeFaults(t *testing.T) {
	if os.Getenv("GOMFLUX_FAULTS") != "all" {
		t.Skip("GOMFLUX_FAULTS=all plants them")
	}
	for name, fault := range splitFaults {
		t.Run(name, func(t *testing.T) {
			out, err := grouptest.Planted(t, "../mlx/nn/shares.go", "TestSplitRandom", fault[0], fault[1],
				"import (", "import (\n\t\"fmt\"",
				"// NewShares", "var before = map[string]*mlx.Array{}\n\nvar _ = fmt.Sprint\n\n// NewShares")
			found := func(text string) bool { return strings.Contains(out, text) }
			if err == nil || !found("of the largest, allowed") || !found("differs from that of one process") {
				t.Errorf("not found: %v\n%s", err, out)
			}
		})
	}
}
