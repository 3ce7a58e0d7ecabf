package transformer_test

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/transformer"
)

// A largeModel is a model whose weights are scaled so that its streams are beyond the range of
// float16. The residual stream of the published Qwen-Image reaches tens of millions.
type largeModel struct {
	// gains are factors of the weights whose names match.
	gains []gain
	// streams matches the names of modules that return a residual stream.
	streams string
	// least is the smallest expected maximum of a stream.
	least float64
	// forward makes a model and returns its velocity. The model is passed to prepare first.
	forward func(t *testing.T, dtype mlx.Dtype, prepare func(model any, points *hooks.Points)) *mlx.Array
}

type gain struct {
	names  string // a regular expression
	factor float64
}

// jointGains are those of models of two streams.
var jointGains = []gain{
	{`\.(to_v|add_v_proj)\.|\.net\.0\.proj\.|\.proj_mlp\.|\.linear_in\.`, 30},
	{`\.net\.2\.|\.to_out\.0\.|\.to_add_out\.|blocks\.\d+\.proj_out\.|\.linear_out\.|blocks\.\d+\.attn\.to_out\.weight`, 1300},
	{`_mod\.1\.|\.norm1(_context)?\.linear\.|blocks\.\d+\.norm\.linear\.|_modulation(_\w+)?\.linear\.`, 100},
}

func largeModels(t *testing.T) map[string]largeModel {
	const blocks = `^transformer\.(single_)?transformer_blocks\.\d+$`
	models := map[string]largeModel{
		"Z-Image": {streams: `^transformer\.(layers|noise_refiner|context_refiner)\.\d+$`, least: 7e4, gains: []gain{
			{`\.(to_v|w1|w3)\.`, 30}, {`\.(w2|to_out\.0)\.`, 1300}, {`\.(ffn|attention)_norm2\.`, 40000},
		}, forward: forwardLargeZImage},
	}
	for i, g := range readGoldens(t, "qwenimage.json") {
		c := g.Cases[1]
		c.TextScale = 1e7
		models[fmt.Sprintf("Qwen-Image %d", i)] = largeModel{gains: jointGains, streams: blocks, least: 5e7,
			forward: func(t *testing.T, dtype mlx.Dtype, prepare func(any, *hooks.Points)) *mlx.Array {
				m, points := g.qwenImage(t, mlx.Float16)
				prepare(m, points)
				return c.forwardQwenImage(t, m, dtype)
			}}
	}
	flux, flux2 := readGoldens(t, "flux.json")[0], readGoldens(t, "flux2.json")[0]
	models["FLUX.1"] = largeModel{gains: jointGains, streams: blocks, least: 5e7,
		forward: func(t *testing.T, dtype mlx.Dtype, prepare func(any, *hooks.Points)) *mlx.Array {
			m, points := flux.flux(t, mlx.Float16)
			prepare(m, points)
			return flux.Cases[0].forwardFlux(t, m, dtype)
		}}
	models["FLUX.2"] = largeModel{gains: jointGains, streams: blocks, least: 5e7,
		forward: func(t *testing.T, dtype mlx.Dtype, prepare func(any, *hooks.Points)) *mlx.Array {
			m, points := flux2.flux2(t, mlx.Float16)
			prepare(m, points)
			return flux2.Cases[0].forwardFlux2(t, m, points, dtype)[0]
		}}
	krea2 := readGoldens(t, "krea2.json")[0]
	models["Krea 2"] = largeModel{streams: `blocks\.\d+$`, least: 7e4, gains: []gain{
		{`\.(to_v|gate|up)\.`, 30}, {`\.(down|to_out\.0)\.`, 1300},
	}, forward: func(t *testing.T, dtype mlx.Dtype, prepare func(any, *hooks.Points)) *mlx.Array {
		m, points := krea2.krea2(t, mlx.Float16)
		prepare(m, points)
		return krea2.Cases[0].forwardKrea2(t, m, dtype)
	}}
	return models
}

func forwardLargeZImage(t *testing.T, dtype mlx.Dtype, prepare func(any, *hooks.Points)) *mlx.Array {
	c := transformer.DefaultZImageConfig()
	c.Dim, c.NHeads, c.NKVHeads, c.AxesDims, c.CapFeatDim = 32, 2, 2, []int{4, 6, 6}, 24
	c.InChannels, c.NLayers, c.NRefinerLayers = 4, 2, 1
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	m, points := transformer.NewZImage(c), &hooks.Points{}
	nn.Bind(m, "transformer", points)
	for _, p := range nn.Parameters(m) {
		p.Array = parameter(p.Name, p.Stored(), "", 1).AsType(mlx.Float16)
	}
	prepare(m, points)
	s, err := m.Sequence(6, 8, 5)
	if err != nil {
		t.Fatal(err)
	}
	in := transformer.Inputs{Latents: input("latents", 1, 4, 6, 8).AsType(dtype), Timestep: m.Timestep(0.3)}
	in.Text = input("text", 5, 24).Times(1e7)
	y := transformer.Run(m.Pass(in, s))
	if !m.Observed() {
		in.Text = m.RefineCaption(in.Text, s, dtype)
		refined := transformer.Run(m.Pass(in, s))
		check(t, "with a refined caption", refined.AsType(mlx.Float32).Floats(), y.AsType(mlx.Float32).Floats(), 1e-6)
	}
	return y
}

// TestLargeValues checks that float16 is as close to float32 with such streams as without, with
// hooks and without.
func TestLargeValues(t *testing.T) {
	for name, l := range largeModels(t) {
		t.Run(name, func(t *testing.T) {
			mlxtest.Do(t, func() {
				want := l.run(t, mlx.Float32, true)
				check(t, "with hooks", l.run(t, mlx.Float16, true), want, 0.01)
				check(t, "without", l.run(t, mlx.Float16, false), want, 0.01)
			})
		})
	}
}

// run returns the velocity. With hooks it checks all streams.
func (l largeModel) run(t *testing.T, dtype mlx.Dtype, hooked bool) []float32 {
	streams := regexp.MustCompile(l.streams)
	seen := 0
	y := l.forward(t, dtype, func(model any, points *hooks.Points) {
		for _, p := range nn.Parameters(model) {
			for _, g := range l.gains {
				if regexp.MustCompile(g.names).MatchString(p.Name) {
					p.Array = p.Array.Times(g.factor)
				}
			}
		}
		if !hooked {
			return
		}
		points.Func = func(tap hooks.Tap) (*mlx.Array, error) {
			largest := 0.0
			for i, v := range tap.Output.AsType(mlx.Float32).Floats() {
				if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
					return nil, fmt.Errorf("element %d in %v is %v", i, dtype, v)
				}
				largest = max(largest, math.Abs(float64(v)))
			}
			if !streams.MatchString(tap.Name) {
				return nil, nil
			}
			seen++
			if !(largest > l.least) || tap.Output.Dtype() != mlx.Float32 {
				t.Errorf("%s: the largest value is %.2g in %v, expected more than %.2g", tap.FullName(), largest,
					tap.Output.Dtype(), l.least)
			}
			for _, in := range tap.Inputs {
				if strings.HasSuffix(in.Key, "hidden_states") && in.Dtype() != mlx.Float32 {
					t.Errorf("%s gets %v", tap.FullName(), in)
				}
			}
			return nil, nil
		}
	})
	if hooked && seen == 0 {
		t.Error("no streams")
	}
	return y.AsType(mlx.Float32).Floats()
}
