package textenc_test

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/hostiletest"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/textenc"
)

func qwen3VLConfig(t *testing.T, folder string) textenc.Qwen3VLConfig {
	c := textenc.DefaultQwen3VLConfig()
	config(t, folder, &c)
	return c
}

func openQwen3VL(t *testing.T, folder string, vision bool, h how) *textenc.Qwen3VL {
	t.Helper()
	c := qwen3VLConfig(t, folder)
	if h.eps != 0 {
		c.Text.RMSNormEps = h.eps
	}
	var states []int
	for _, i := range readGolden(t, folder+"/golden.safetensors")["states"].Int32s() {
		states = append(states, int(i))
	}
	m := textenc.NewQwen3VL(c, states, h.dtype)
	if vision {
		m = m.WithVision()
	}
	fsys, err := checkpoint.OpenFolder(filepath.Join("testdata", folder))
	if err != nil {
		t.Fatal(err)
	}
	ck, err := checkpoint.OpenCheckpoint(fsys, ".")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	err = nn.Load(m, ck, nn.LoadOptions{
		Name: "text_encoder.model", Points: h.points, Dtype: h.dtype, Prefixes: []string{"model."}, Ignore: m.Unused(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

var qwen3VL = []struct {
	folder string
	eps    float64 // a wrong epsilon, which must change the result
}{
	{"qwen3vl-published", 0},
	{"qwen3vl-small", 1e-6},
	{"qwen3vl-whole", 0},
}

func TestQwen3VLAgainstTransformers(t *testing.T) {
	for _, m := range qwen3VL {
		t.Run(m.folder, func(t *testing.T) {
			mlxtest.Do(t, func() {
				g := readGolden(t, m.folder+"/golden.safetensors")
				exact := openQwen3VL(t, m.folder, true, how{dtype: mlx.Float32})
				half := openQwen3VL(t, m.folder, true, how{dtype: mlx.BFloat16})
				text := openQwen3VL(t, m.folder, false, how{dtype: mlx.Float32})
				near := func(what string, got, want *mlx.Array) {
					t.Helper()
					d := off(t, what, got, want)
					t.Logf("%s: off by %.2g", what, d)
					if !(d <= 2e-6) {
						t.Errorf("%s is off by %.2g", what, d)
					}
				}
				for run, n := range qwenVLRuns {
					ids, images := g.inputs(t, m.folder, run)
					want, got := g[run+".output"], exact.ForwardImages(ids, images)
					near(run, got, want)
					if n == 0 {
						mlxtest.Same(t, "without a vision tower", text.Forward(ids).Floats(), got.Floats())
					} else {
						features, deepstack := exact.Visual.Forward(images, mlx.Float32)
						near(run+", features", features, g[run+".features"])
						for i, x := range deepstack {
							near(fmt.Sprintf("%s, features %d", run, i), x, g[fmt.Sprintf("%s.deepstack.%d", run, i)])
						}
						if n := len(exact.Config.Vision.DeepstackVisualIndexes); len(deepstack) != n {
							t.Errorf("%d features, expected %d", len(deepstack), n)
						}
					}
					rounded := half.ForwardImages(ids, images)
					d := off(t, run+" in bfloat16", rounded, want)
					t.Logf("%s: bfloat16 is off by %.2g", run, d)
					if rounded.Dtype() != mlx.BFloat16 || !(d <= 0.05) {
						t.Errorf("%s: %v is off by %.2g", run, rounded, d)
					}
				}
				if m.eps != 0 {
					ids, images := g.inputs(t, m.folder, "two")
					wrong := openQwen3VL(t, m.folder, true, how{dtype: mlx.Float32, eps: m.eps}).ForwardImages(ids, images)
					if d := off(t, "output with a wrong epsilon", wrong, g["two.output"]); !(d > 1e-4) {
						t.Errorf("a wrong epsilon changes only %.2g", d)
					}
				}
			})
		})
	}
}

// TestQwen3VLModules checks that every module has the name and the output of transformers'
// module.
func TestQwen3VLModules(t *testing.T) {
	testQwenVLModules(t, "qwen3vl-published", func(h how) func([]int32, []textenc.VisionInput) *mlx.Array {
		return openQwen3VL(t, "qwen3vl-published", true, h).ForwardImages
	})
}

// TestQwen3VLPadding checks that no token depends on later ones, so padding can be left out.
func TestQwen3VLPadding(t *testing.T) {
	mlxtest.Do(t, func() {
		const folder = "qwen3vl-small"
		g := readGolden(t, folder+"/golden.safetensors")
		m := openQwen3VL(t, folder, true, how{dtype: mlx.Float32})
		for _, run := range []string{"text", "two"} {
			ids, images := g.inputs(t, folder, run)
			bare := m.ForwardImages(ids, images)
			padded := m.ForwardImages(append(slices.Clone(ids), 39, 39, 1, 39), images)
			if d := off(t, run, padded.Slice(1, 0, len(ids)), bare); !(d <= 1e-6) {
				t.Errorf("%s: with padding off by %.2g", run, d)
			}
		}
	})
}

// TestQwen3VLStates checks that each hidden state is the same whichever others are asked for,
// and that layers after the last one are left out.
func TestQwen3VLStates(t *testing.T) {
	mlxtest.Do(t, func() {
		const folder = "qwen3vl-small" // 3 layers, with features of images after each
		c := qwen3VLConfig(t, folder)
		open := func(states ...int) *textenc.Qwen3VL {
			m := textenc.NewQwen3VL(c, states, mlx.Float32).WithVision()
			loadEncoder(t, folder, m, how{dtype: mlx.Float32}, nil, m.Unused())
			return m
		}
		g := readGolden(t, folder+"/golden.safetensors")
		ids, images := g.inputs(t, folder, "two")
		whole, numbers := g["two.output"], g["states"].Int32s()
		if len(numbers) != 4 {
			t.Fatalf("states %v", numbers)
		}
		for i, n := range numbers {
			m := open(int(n))
			want := whole.Slice(2, i*c.Text.HiddenSize, (i+1)*c.Text.HiddenSize)
			if d := off(t, "state", m.ForwardImages(ids, images), want); !(d <= 2e-6) {
				t.Errorf("state %d alone is off by %.2g", n, d)
			}
			layers := int(n)
			if n == textenc.LastBeforeNorm {
				layers = c.Text.NumHiddenLayers
			}
			if norm := m.LanguageModel.Norm != nil; len(m.LanguageModel.Layers) != layers || norm != (int(n) == c.Text.NumHiddenLayers) {
				t.Errorf("state %d: %d layers, norm %v", n, len(m.LanguageModel.Layers), norm)
			}
		}
	})
}

// TestQwen3VLFloat16 checks that in float16 the residual streams of language model and vision
// encoder hold values beyond its range.
func TestQwen3VLFloat16(t *testing.T) {
	mlxtest.Do(t, func() {
		const folder = "qwen3vl-published"
		g := readGolden(t, folder+"/golden.safetensors")
		ids, images := g.inputs(t, folder, "two")
		forward := func(dtype mlx.Dtype, gain float64) (out *mlx.Array, largest map[string]float64) {
			largest = map[string]float64{}
			points := &hooks.Points{Step: -1, Func: func(tap hooks.Tap) (*mlx.Array, error) {
				for _, v := range tap.Output.AsType(mlx.Float32).Floats() {
					largest[tap.FullName()] = max(largest[tap.FullName()], math.Abs(float64(v)))
				}
				return nil, nil
			}}
			m := openQwen3VL(t, folder, true, how{dtype: dtype, points: points})
			text, vision := m.LanguageModel.Layers[0].MLP, m.Visual.(*textenc.Qwen3Vision).Blocks[0].MLP.(*textenc.Qwen3VisionMLP)
			for _, l := range []*nn.Linear{text.GateProj, text.UpProj, vision.FC1, vision.FC2} {
				w := &l.Weight
				w.Array = w.Times(gain)
			}
			return m.ForwardImages(ids, images), largest
		}
		for _, gain := range []float64{1, 6000} {
			want, _ := forward(mlx.Float32, gain)
			got, largest := forward(mlx.Float16, gain)
			d := off(t, "float16", got, want)
			text, vision := largest["text_encoder.model.language_model.layers.0"], largest["text_encoder.model.visual.blocks.0"]
			t.Logf("float16 is off by %.2g where values reach %.2g and %.2g", d, text, vision)
			if got.Dtype() != mlx.Float32 || !(d <= 2e-2) {
				t.Errorf("%v is off by %.2g", got, d)
			}
			if gain > 1 && !(min(text, vision) >= 5e7) {
				t.Errorf("values reach only %.2g and %.2g", text, vision)
			}
		}
	})
}

func TestQwen3VLBadInputs(t *testing.T) {
	var m, text *textenc.Qwen3VL
	var one []textenc.VisionInput
	var ids []int32
	mlxtest.Do(t, func() {
		const folder = "qwen3vl-small"
		m, text = openQwen3VL(t, folder, true, how{dtype: mlx.Float32}), openQwen3VL(t, folder, false, how{dtype: mlx.Float32})
		ids, one = readGolden(t, folder+"/golden.safetensors").inputs(t, folder, "one")
	})
	short := one[0]
	short.Pixels = short.Pixels[1:]
	for name, c := range map[string]struct {
		m      *textenc.Qwen3VL
		ids    []int32
		images []textenc.VisionInput
		want   string
	}{
		"no ids":             {m, nil, nil, "no token ids"},
		"no vision tower":    {text, ids, one, "images for a Qwen3-VL without its vision encoder"},
		"no tokens":          {m, []int32{1, 2}, one, "Qwen3-VL: 1 images without image tokens"},
		"too few tokens":     {m, ids[:6], one, "fewer image tokens than the 10 features"},
		"too many tokens":    {m, append(slices.Clone(ids), 37), one, "more image tokens than the images have features"},
		"too few pixels":     {m, ids, []textenc.VisionInput{short}, "3839 values for an image of 10x4 patches, expected 96 for each"},
		"outside vocabulary": {m, []int32{1, 40}, nil, "token id 40"},
	} {
		t.Run(name, func(t *testing.T) {
			err := mlxtest.Try(func() { c.m.ForwardImages(c.ids, c.images) })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("found %v, expected %q", err, c.want)
			}
		})
	}
	c := qwen3VLConfig(t, "qwen3vl-small")
	if _, err := c.ExpandImages([]int32{37, 1, 37}, one); err == nil || !strings.Contains(err.Error(),
		"2 image tokens in the prompt for 1 images") {
		t.Errorf("found %v", err)
	}
	p := openProcessor(t, "qwen3vl-whole")
	if err := p.Fits(&c); err == nil || !strings.Contains(err.Error(), "{5 3 3}") || !strings.Contains(err.Error(), "{4 2 2}") {
		t.Errorf("found %v for another model's image processor", err)
	}
}

func FuzzQwen3VLConfig(f *testing.F) {
	hostiletest.FuzzConfig(f,
		func() *textenc.Qwen3VLConfig { c := textenc.DefaultQwen3VLConfig(); return &c },
		func(c *textenc.Qwen3VLConfig) {
			m := textenc.NewQwen3VL(*c, []int{textenc.LastBeforeNorm, c.Text.NumHiddenLayers - 1}, 0)
			if c.Vision != nil {
				m = m.WithVision()
			}
			nn.Bind(m, "model", nil)
		},
		"testdata/qwen3vl-published/config.json", "testdata/qwen3vl-small/config.json", "testdata/qwen3vl-whole/config.json")
}

func TestQwen3VLConfigs(t *testing.T) {
	vision := func(fields string) string { return `{"vision_config": {"out_hidden_size": 4096` + fields + `}}` }
	text := func(fields string) string { return `{"text_config": {` + fields + `}}` }
	for _, c := range []struct{ text, want string }{
		{`{}`, ""}, // text only
		{`{"vision_config": null}`, ""},
		{vision(``), ""},
		{vision(`, "deepstack_visual_indexes": []`), ""},
		{vision(`, "rope_parameters": {"rope_type": "axial", "rope_theta": 100}`), ""},
		{text(`"num_key_value_heads": null`), ""},
		{text(`"rope_theta": 5e6, "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": true}`), ""},
		{text(`"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}`), ""},
		{`{"vision_config": {}}`, "vision_config: out_hidden_size 3584 must be hidden_size 4096"},
		{text(`"vocab_size": 0`), "vocab_size 0: expected 1 to 1048576"},
		{text(`"num_hidden_layers": 1001`), "num_hidden_layers 1001: expected 1 to 1000"},
		{text(`"num_key_value_heads": 3`), "num_attention_heads 32 must be a multiple of num_key_value_heads 3"},
		{text(`"attention_bias": true`), "attention_bias true"},
		{text(`"hidden_act": "gelu"`), `hidden_act "gelu", expected silu`},
		{text(`"head_dim": 7`), "head_dim 7: expected an even number"},
		{text(`"rope_scaling": {"rope_type": "yarn"}`), `rope_type "yarn", expected default`},
		{text(`"rope_parameters": {"rope_theta": 0}`), "rope_theta 0 must be positive"},
		{text(`"rope_parameters": {"mrope_section": [8, 8]}`), "mrope_section [8 8], expected three numbers"},
		{text(`"rope_parameters": {"mrope_section": [8, 8, -1]}`), "mrope_section [8 8 -1]: must not be negative"},
		{vision(`, "depth": 0`), "vision_config: depth 0: expected 1 to 1000"},
		{vision(`, "depth": 1001`), "depth 1001: expected 1 to 1000"},
		{vision(`, "num_heads": 15`), "hidden_size 1152 must be num_heads 15 times a multiple of 4"},
		{vision(`, "hidden_act": "silu"`), `hidden_act "silu", expected gelu_pytorch_tanh`},
		{vision(`, "in_channels": 4`), "in_channels 4, expected 3"},
		{vision(`, "patch_size": 0`), "patch size 0"},
		{vision(`, "num_position_embeddings": 0`), "num_position_embeddings 0: expected 1 to 1048576"},
		{vision(`, "deepstack_visual_indexes": [8, 27]`), "deepstack_visual_indexes [8 27]: expected different numbers from 0 to 26"},
		{vision(`, "deepstack_visual_indexes": [-1]`), "deepstack_visual_indexes [-1]"},
		{vision(`, "deepstack_visual_indexes": [8, 8]`), "deepstack_visual_indexes [8 8]"},
		{vision(`, "rope_parameters": {"rope_type": "linear"}`), `rope_type "linear", expected axial`},
		{vision(`, "rope_parameters": {"rope_theta": -1}`), "rope_theta -1 must be positive"},
	} {
		t.Run(c.text, func(t *testing.T) {
			config := textenc.DefaultQwen3VLConfig()
			if err := json.Unmarshal([]byte(c.text), &config); err != nil {
				t.Fatal(err)
			}
			switch err := config.Validate(); {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("found %v, expected %q", err, c.want)
			}
		})
	}
}
