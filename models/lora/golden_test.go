package lora_test

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/transformer"
)

// What scripts/reference/run.sh loras models/lora/testdata writes: LoRAs, and what
// diffusers and PEFT make of small models with them.
type goldens struct {
	Models map[string]map[string]struct {
		Class  string          `json:"class"`
		Config json.RawMessage `json:"config"`
	} `json:"models"`
	Cases []goldenCase `json:"cases"`
}

type goldenCase struct {
	Model   string                         `json:"model"`
	File    string                         `json:"file"`
	Scale   float64                        `json:"scale"`
	Changed map[string]map[string]sampling `json:"changed"` // by component and parameter
}

// A sampling is some of a parameter's values, and the largest.
type sampling struct {
	Largest float64   `json:"largest"`
	Samples []float64 `json:"samples"`
}

const testdata = "testdata"

func readGoldens(t testing.TB) (g goldens) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testdata, "cases.json"))
	if err == nil {
		err = json.Unmarshal(text, &g)
	}
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// components declares a model's.
func (g goldens) components(t testing.TB, model string) (out []lora.Component) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(g.Models[model])) {
		m := g.Models[model][name]
		out = append(out, described(name, m.Class, declare(t, m.Class, m.Config)))
	}
	return out
}

// described is a component with all that package component knows of its class.
func described(name, class string, model any) lora.Component {
	c := component.Find(class)
	return lora.Component{
		Name: name, Class: class, Model: model, Tables: c.Tables(), Rules: c.LoRA, UnusedLayers: c.LoRAUnusedLayers, Padded: c.LoRAPadded,
	}
}

// hints are those of all classes.
func hints() (list []lora.Hint) {
	for _, c := range component.All {
		if c.LoRAHint != nil {
			hint := *c.LoRAHint
			hint.Class = c.Name
			list = append(list, hint)
		}
	}
	return list
}

func declare(t testing.TB, class string, config json.RawMessage) any {
	t.Helper()
	read := func(c interface{ Validate() error }) {
		t.Helper()
		if err := json.Unmarshal(config, c); err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
	}
	switch class {
	case "FluxTransformer2DModel":
		c := transformer.DefaultFluxConfig()
		read(&c)
		return transformer.NewFlux(c)
	case "Flux2Transformer2DModel":
		c := transformer.DefaultFlux2Config()
		read(&c)
		return transformer.NewFlux2(c)
	case "ZImageTransformer2DModel":
		c := transformer.DefaultZImageConfig()
		read(&c)
		return transformer.NewZImage(c)
	case "QwenImageTransformer2DModel":
		c := transformer.DefaultQwenImageConfig()
		read(&c)
		return transformer.NewQwenImage(c)
	case "QwenImage21Transformer2DModel":
		c := transformer.DefaultQwenImage21Config()
		read(&c)
		return transformer.NewQwenImage21(c)
	case "Krea2Transformer2DModel":
		c := transformer.DefaultKrea2Config()
		read(&c)
		return transformer.NewKrea2(c)
	case "ErnieImageTransformer2DModel":
		c := transformer.DefaultErnieImageConfig()
		read(&c)
		return transformer.NewErnieImage(c)
	case "CLIPTextModel":
		c := textenc.DefaultCLIPTextConfig()
		read(&c)
		return textenc.NewCLIPText(c, mlx.Float32)
	case "T5EncoderModel":
		c := textenc.DefaultT5Config()
		read(&c)
		return textenc.NewT5Encoder(c, mlx.Float32)
	case "Qwen3Model":
		c := textenc.DefaultQwen3Config()
		read(&c)
		return textenc.NewQwen3(c, []int{c.NumHiddenLayers}, mlx.Float32)
	}
	t.Fatalf("no class %s", class)
	return nil
}

// numbers is the function of this name in the reference.
func numbers(name string, n int) []float32 {
	seed := uint64(0xcbf29ce484222325)
	for _, b := range []byte(name) {
		seed = (seed ^ uint64(b)) * 0x100000001b3
	}
	out := make([]float32, n)
	for i := range out {
		z := seed + uint64(i+1)*0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		out[i] = float32(z>>40)/(1<<23) - 1
	}
	return out
}

// weight is a parameter before it is changed.
func weight(p nn.Parameter) *mlx.Array {
	v := numbers(p.Name, mlxtest.Size(p.Stored()))
	if len(p.Stored()) == 1 && !strings.HasSuffix(p.Name, "bias") {
		for i := range v {
			v[i]++
		}
	}
	return mlx.FromFloat32(v, p.Stored()...)
}

// check compares values with a sampling of what they should be.
func (s sampling) check(t *testing.T, what string, got []float32, tolerance float64) {
	t.Helper()
	largest, worst := 0.0, 0.0
	for _, v := range got {
		largest = max(largest, math.Abs(float64(v)))
	}
	for i, want := range s.Samples {
		v := float64(got[(uint64(i)*2654435761+12345)%uint64(len(got))])
		if d := math.Abs(v-want) / s.Largest; !(d <= worst) {
			worst = d
		}
	}
	if !(worst <= tolerance) || !(math.Abs(largest-s.Largest) <= tolerance*s.Largest) {
		t.Errorf("%s: off by %.2g of the largest, allowed %.2g; the largest is %v, expected %v", what, worst, tolerance, largest, s.Largest)
	}
}

const tolerance = 1e-6

// loadGolden loads a LoRA of testdata: a file, or a folder with a config.
func loadGolden(t *testing.T, name string, scale float64, components []lora.Component) *lora.Set {
	path := filepath.Join(testdata, name)
	if in, _ := filepath.Glob(filepath.Join(path, "*.safetensors")); len(in) == 1 {
		path = in[0]
	}
	set, err := lora.Load([]lora.Spec{{Path: path, Scale: scale}}, components, hints()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	return set
}

// Baked weights are those that the references make, and no others are changed.
func TestBake(t *testing.T) {
	g := readGoldens(t)
	for _, c := range g.Cases {
		t.Run(c.File, func(t *testing.T) {
			components := g.components(t, c.Model)
			set := loadGolden(t, c.File, c.Scale, components)
			mlxtest.Do(t, func() {
				for _, component := range components {
					bake := set.Bake(component.Name, false)
					want := c.Changed[component.Name]
					if bake == nil && len(want) > 0 {
						t.Errorf("%s: nothing to bake, expected %d parameters", component.Name, len(want))
						continue
					}
					left := maps.Clone(want)
					for _, p := range nn.Parameters(component.Model) {
						if bake == nil {
							break
						}
						w := weight(p)
						baked := bake(p, w)
						if sampled, ok := want[p.Name]; ok {
							sampled.check(t, p.Name, baked.Floats(), tolerance)
						} else if baked != w {
							t.Errorf("%s is changed, and not in the reference", p.Name)
						}
						delete(left, p.Name)
					}
					for name := range left {
						t.Errorf("%s: no parameter %s", component.Name, name)
					}
				}
			})
		})
	}
}

// TestAttach checks that adapters compute the same as baked weights.
func TestAttach(t *testing.T) {
	g := readGoldens(t)
	for _, c := range g.Cases {
		t.Run(c.File, func(t *testing.T) {
			components := g.components(t, c.Model)
			set := loadGolden(t, c.File, c.Scale, components)
			mlxtest.Do(t, func() {
				for _, component := range components {
					baked := map[string]*mlx.Array{}
					bake := set.Bake(component.Name, false)
					fixed := set.Bake(component.Name, true) // from here on only what it bakes counts as baked
					for _, p := range nn.Parameters(component.Model) {
						p.Array = weight(p)
						if baked[p.Name] = p.Array; bake != nil {
							baked[p.Name] = bake(p, p.Array)
						}
						if fixed != nil {
							p.Array = fixed(p, p.Array)
						}
					}
					set.Attach(component.Name, component.Model)
					set.Attach(component.Name, component.Model) // in the place of the first ones
					for name, layer := range nn.Linears(component.Model) {
						w := baked[name+".weight"]
						x := mlxtest.Randn(1, 2, 3, w.Dim(1))
						want := x.Matmul(w.T())
						if b := baked[name+".bias"]; b != nil {
							want = want.Add(b)
						}
						all := want.Floats()
						s := sampling{Samples: make([]float64, len(all))}
						for i := range s.Samples {
							s.Samples[i] = float64(all[(uint64(i)*2654435761+12345)%uint64(len(all))])
							s.Largest = max(s.Largest, math.Abs(float64(all[i])))
						}
						s.check(t, name, layer.Forward(x).Floats(), 3*tolerance)
					}
					for _, p := range nn.Parameters(component.Model) {
						if p.Kind() == nn.LinearWeight || strings.HasSuffix(p.Name, ".bias") {
							continue
						}
						mlxtest.Same(t, p.Name, p.Array.Floats(), baked[p.Name].Floats())
					}
					set.Detach(component.Model)
					for name, layer := range nn.Linears(component.Model) {
						if len(layer.Adapters) > 0 {
							t.Errorf("%s still has %d adapters", name, len(layer.Adapters))
						}
					}
				}
			})
		})
	}
}
