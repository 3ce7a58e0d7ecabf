package lora_test

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/textenc"
)

// A namePattern is how programs name the modules of a LoRA: as prefix + name + suffix, with the
// words of the name separated by a separator instead of dots.
type namePattern struct {
	model, component string // the component is the transformer if it is ""
	from             string // programs that write such names
	prefixes         []string
	separator        string // "." if it is ""
	suffix           string
	// modules has the modules' names, and the parameters whose rows they concatenate, separated by
	// spaces; "swapped" after them exchanges the halves of the rows. nil stands for all linear layers
	// with diffusers' and transformers' names.
	modules []string
}

const (
	dotted = "diffusers (transformer.), PEFT (base_model.model.), ai-toolkit and ComfyUI (diffusion_model.), DiffSynth-Studio and " +
		"SimpleTuner's LyCORIS (no prefix)"
	flat = "sd-scripts and musubi-tuner (lora_unet_), OneTrainer (lora_transformer_), SimpleTuner's LyCORIS (lycoris_), VideoX-Fun " +
		"(lora_unet__)"
)

var (
	dottedPrefixes = []string{
		"", "transformer.", "base_model.model.", "base_model.model.transformer.", "base_model.model.diffusion_model.",
		"diffusion_model.", "model.diffusion_model.", "model.", "unet.", "module.", "pipe.dit.",
	}
	flatPrefixes = []string{"lora_unet_", "lora_transformer_", "lycoris_", "lora_unet__", "lora_transformer__"}
	clipPrefixes = []string{
		"text_encoder.", "text_encoder.text_model.", "base_model.model.text_encoder.text_model.", "text_model.", "clip_l.text_model.",
		"text_encoders.clip_l.transformer.text_model.", "text_encoders.clip_l.text_model.",
	}
	qwen3Prefixes = []string{
		"text_encoder.", "text_encoder.model.", "base_model.model.text_encoder.model.", "text_encoders.qwen3_4b.transformer.model.",
		"text_encoders.qwen3_4b.model.",
	}
)

const (
	flux1Double  = "transformer_blocks.1."
	flux1Single  = "single_transformer_blocks.0."
	flux1QKV     = flux1Double + "attn.to_q " + flux1Double + "attn.to_k " + flux1Double + "attn.to_v"
	flux1TextQKV = flux1Double + "attn.add_q_proj " + flux1Double + "attn.add_k_proj " + flux1Double + "attn.add_v_proj"
	flux1Linear1 = flux1Single + "attn.to_q " + flux1Single + "attn.to_k " + flux1Single + "attn.to_v " + flux1Single + "proj_mlp"
)

// bflEnds are the layers of the original FLUX.1 and FLUX.2 outside of blocks.
func bflEnds(time string) []string {
	return []string{
		"img_in", "x_embedder",
		"txt_in", "context_embedder",
		"time_in.in_layer", time + ".timestep_embedder.linear_1",
		"time_in.out_layer", time + ".timestep_embedder.linear_2",
		"final_layer.linear", "proj_out",
		"final_layer.adaLN_modulation.1", "norm_out.linear swapped",
	}
}

// bflFlux1 are the layers of the original FLUX.1.
func bflFlux1() []string {
	return append(bflEnds("time_text_embed"),
		"guidance_in.in_layer", "time_text_embed.guidance_embedder.linear_1",
		"guidance_in.out_layer", "time_text_embed.guidance_embedder.linear_2",
		"vector_in.in_layer", "time_text_embed.text_embedder.linear_1",
		"vector_in.out_layer", "time_text_embed.text_embedder.linear_2",
		"double_blocks.1.img_attn.qkv", flux1QKV,
		"double_blocks.1.txt_attn.qkv", flux1TextQKV,
		"double_blocks.1.img_attn.proj", flux1Double+"attn.to_out.0",
		"double_blocks.1.txt_attn.proj", flux1Double+"attn.to_add_out",
		"double_blocks.1.img_mlp.0", flux1Double+"ff.net.0.proj",
		"double_blocks.1.img_mlp.2", flux1Double+"ff.net.2",
		"double_blocks.1.txt_mlp.0", flux1Double+"ff_context.net.0.proj",
		"double_blocks.1.txt_mlp.2", flux1Double+"ff_context.net.2",
		"double_blocks.1.img_mod.lin", flux1Double+"norm1.linear",
		"double_blocks.1.txt_mod.lin", flux1Double+"norm1_context.linear",
		"single_blocks.0.linear1", flux1Linear1,
		"single_blocks.0.linear2", flux1Single+"proj_out",
		"single_blocks.0.modulation.lin", flux1Single+"norm.linear")
}

// bflFlux2 are the layers of the original FLUX.2.
func bflFlux2() []string {
	return append(bflEnds("time_guidance_embed"),
		"double_stream_modulation_img.lin", "double_stream_modulation_img.linear",
		"double_stream_modulation_txt.lin", "double_stream_modulation_txt.linear",
		"single_stream_modulation.lin", "single_stream_modulation.linear",
		"double_blocks.1.img_attn.qkv", flux1QKV,
		"double_blocks.1.txt_attn.qkv", flux1TextQKV,
		"double_blocks.1.img_attn.proj", flux1Double+"attn.to_out.0",
		"double_blocks.1.txt_attn.proj", flux1Double+"attn.to_add_out",
		"double_blocks.1.img_mlp.0", flux1Double+"ff.linear_in",
		"double_blocks.1.img_mlp.2", flux1Double+"ff.linear_out",
		"double_blocks.1.txt_mlp.0", flux1Double+"ff_context.linear_in",
		"double_blocks.1.txt_mlp.2", flux1Double+"ff_context.linear_out",
		"single_blocks.0.linear1", flux1Single+"attn.to_qkv_mlp_proj",
		"single_blocks.0.linear2", flux1Single+"attn.to_out")
}

// comfyZImage are the layers of Z-Image whose names in ComfyUI's files and in the original are not diffusers'.
func comfyZImage() []string {
	names := []string{
		"x_embedder", "all_x_embedder.2-1",
		"final_layer.linear", "all_final_layer.2-1.linear",
		"final_layer.adaLN_modulation.1", "all_final_layer.2-1.adaLN_modulation.1",
	}
	for _, stack := range []string{"layers.1", "noise_refiner.0", "context_refiner.0"} {
		a := stack + ".attention."
		names = append(names, a+"qkv", a+"to_q "+a+"to_k "+a+"to_v", a+"out", a+"to_out.0")
	}
	return names
}

// originalKrea2 are the layers of the original Krea 2.
func originalKrea2() []string {
	names := []string{
		"first", "img_in",
		"last.linear", "final_layer.linear",
		"tmlp.0", "time_embed.linear_1",
		"tmlp.2", "time_embed.linear_2",
		"tproj.1", "time_mod_proj",
		"txtmlp.1", "txt_in.linear_1",
		"txtmlp.3", "txt_in.linear_2",
		"txtfusion.projector", "text_fusion.projector",
	}
	for _, block := range [][2]string{
		{"blocks.1", "transformer_blocks.1"}, {"txtfusion.layerwise_blocks.0", "text_fusion.layerwise_blocks.0"},
		{"txtfusion.refiner_blocks.0", "text_fusion.refiner_blocks.0"},
	} {
		for _, layer := range [][2]string{
			{"attn.wq", "attn.to_q"}, {"attn.wk", "attn.to_k"}, {"attn.wv", "attn.to_v"}, {"attn.wo", "attn.to_out.0"},
			{"attn.gate", "attn.to_gate"}, {"mlp.gate", "ff.gate"}, {"mlp.up", "ff.up"}, {"mlp.down", "ff.down"},
		} {
			names = append(names, block[0]+"."+layer[0], block[1]+"."+layer[1])
		}
	}
	return names
}

// namePatterns lists the names that programs write for every family.
var namePatterns = slices.Concat(
	[]namePattern{
		{model: "flux", from: "sd-scripts, musubi-tuner (Kontext)", prefixes: flatPrefixes[:1], separator: "_", modules: bflFlux1()},
		{model: "flux",
			from:     "ComfyUI, ai-toolkit's LoKr, OneTrainer (transformer.), fal's Kontext trainer (base_model.model.), BFL (no prefix)",
			prefixes: dottedPrefixes, modules: bflFlux1()},
		{model: "flux", from: "XLabs", prefixes: []string{""}, modules: []string{
			"double_blocks.1.processor.qkv_lora1", flux1QKV,
			"double_blocks.1.processor.qkv_lora2", flux1TextQKV,
			"double_blocks.1.processor.proj_lora1", flux1Double + "attn.to_out.0",
			"double_blocks.1.processor.proj_lora2", flux1Double + "attn.to_add_out",
			"single_blocks.0.processor.qkv", flux1Single + "attn.to_q " + flux1Single + "attn.to_k " + flux1Single + "attn.to_v",
			"single_blocks.0.processor.proj", flux1Single + "proj_out",
		}},
		{model: "flux", from: "DiffSynth-Studio", prefixes: []string{"", "pipe.dit."}, modules: []string{
			"blocks.1.attn.a_to_qkv", flux1QKV,
			"blocks.1.attn.b_to_qkv", flux1TextQKV,
			"blocks.1.attn.a_to_out", flux1Double + "attn.to_out.0",
			"blocks.1.attn.b_to_out", flux1Double + "attn.to_add_out",
			"blocks.1.ff_a.0", flux1Double + "ff.net.0.proj",
			"blocks.1.ff_a.2", flux1Double + "ff.net.2",
			"blocks.1.ff_b.0", flux1Double + "ff_context.net.0.proj",
			"blocks.1.ff_b.2", flux1Double + "ff_context.net.2",
			"blocks.1.norm1_a.linear", flux1Double + "norm1.linear",
			"blocks.1.norm1_b.linear", flux1Double + "norm1_context.linear",
			"single_blocks.0.norm.linear", flux1Single + "norm.linear",
			"single_blocks.0.to_qkv_mlp", flux1Linear1,
			"single_blocks.0.proj_out", flux1Single + "proj_out",
		}},
		{model: "flux", from: "OneTrainer, the format with the original names", prefixes: []string{"transformer."}, modules: []string{
			"double_blocks.1.img_attn.qkv.0", flux1Double + "attn.to_q",
			"double_blocks.1.img_attn.qkv.1", flux1Double + "attn.to_k",
			"double_blocks.1.img_attn.qkv.2", flux1Double + "attn.to_v",
			"double_blocks.1.txt_attn.qkv.0", flux1Double + "attn.add_q_proj",
			"double_blocks.1.txt_attn.qkv.1", flux1Double + "attn.add_k_proj",
			"double_blocks.1.txt_attn.qkv.2", flux1Double + "attn.add_v_proj",
			"single_blocks.0.linear1.0", flux1Single + "attn.to_q",
			"single_blocks.0.linear1.1", flux1Single + "attn.to_k",
			"single_blocks.0.linear1.2", flux1Single + "attn.to_v",
			"single_blocks.0.linear1.3", flux1Single + "proj_mlp",
			"img_in.proj", "x_embedder",
		}},
		{model: "flux", from: "diffusers with fused projections", prefixes: []string{"", "transformer."}, modules: []string{
			"transformer_blocks.1.attn.to_qkv", flux1QKV,
			"transformer_blocks.1.attn.to_added_qkv", flux1TextQKV,
			"single_transformer_blocks.0.attn.to_qkv", flux1Single + "attn.to_q " + flux1Single + "attn.to_k " + flux1Single + "attn.to_v",
		}},
		{model: "flux", from: "mflux", prefixes: []string{"", "transformer."}, modules: []string{
			"transformer_blocks.1.ff.linear1", flux1Double + "ff.net.0.proj",
			"transformer_blocks.1.ff.linear2", flux1Double + "ff.net.2",
			"transformer_blocks.1.ff_context.linear1", flux1Double + "ff_context.net.0.proj",
			"transformer_blocks.1.ff_context.linear2", flux1Double + "ff_context.net.2",
		}},
		{model: "flux", component: "text_encoder", from: "diffusers, PEFT, OneTrainer (clip_l.), ComfyUI", prefixes: clipPrefixes},
		{model: "flux", component: "text_encoder", from: "sd-scripts, OneTrainer (lora_te1_), ComfyUI (lora_te_)", separator: "_",
			prefixes: []string{"lora_te1_text_model_", "lora_te_text_model_", "lora_te1_", "lycoris_text_model_"}},
		{model: "flux", component: "text_encoder_2", from: "diffusers, OneTrainer (t5.), ComfyUI",
			prefixes: []string{"text_encoder_2.", "t5.", "text_encoders.t5xxl.transformer.", "base_model.model.text_encoder_2."}},
		{model: "flux", component: "text_encoder_2", from: "OneTrainer (lora_te2_), sd-scripts (lora_te3_)", separator: "_",
			prefixes: []string{"lora_te2_", "lora_te3_"}},

		{model: "flux2", from: "musubi-tuner, sd-scripts", prefixes: flatPrefixes[:1], separator: "_", modules: bflFlux2()},
		{model: "flux2", from: "ComfyUI, ai-toolkit, Turbo LoRAs (no prefix)", prefixes: dottedPrefixes, modules: bflFlux2()},
		{model: "flux2", from: "exports that cut off the first letters", prefixes: []string{"diffusion_model."}, modules: []string{
			"sformer_blocks.1.attn.to_k", flux1Double + "attn.to_k", "sformer_blocks.1.ff.linear_in", flux1Double + "ff.linear_in",
		}},
		{model: "flux2", from: "diffusers with fused projections", prefixes: []string{"transformer."}, modules: []string{
			"transformer_blocks.1.attn.to_qkv", flux1QKV, "transformer_blocks.1.attn.to_added_qkv", flux1TextQKV,
		}},

		{model: "zimage", from: "ComfyUI, ai-toolkit", prefixes: dottedPrefixes, modules: comfyZImage()},
		{model: "zimage", from: "musubi-tuner's convert_z_image_lora_to_comfy, sd-scripts", prefixes: flatPrefixes, separator: "_",
			modules: comfyZImage()},
		{model: "zimage", from: "Anime-Z", prefixes: []string{"", "diffusion_model."}, modules: []string{
			"layers.1.attention.to.q", "layers.1.attention.to_q", "layers.1.attention.to.k", "layers.1.attention.to_k",
			"layers.1.attention.to.v", "layers.1.attention.to_v",
		}},
		{model: "zimage", component: "text_encoder", from: "diffusers, PEFT, ComfyUI", prefixes: qwen3Prefixes},
		{model: "zimage", component: "text_encoder", from: "sd-scripts (lora_te_), OneTrainer (lora_te1_)", separator: "_",
			prefixes: []string{"lora_te_", "lora_te1_", "lora_te_model_", "lora_te1_model_"}},

		{model: "qwenimage", component: "text_encoder", from: "diffusers, PEFT, ComfyUI", prefixes: []string{
			"text_encoder.model.", "text_encoder.", "text_encoders.qwen25_7b.transformer.model.",
		}},
		{model: "qwenimage", component: "text_encoder", from: "sd-scripts, OneTrainer", separator: "_",
			prefixes: []string{"lora_te_", "lora_te1_model_"}},
		{model: "qwenimage", component: "text_encoder", from: "transformers 4", prefixes: []string{"text_encoder.model.", "text_encoder."},
			modules: []string{
				"layers.1.self_attn.q_proj", "language_model.layers.1.self_attn.q_proj", "layers.0.mlp.up_proj",
				"language_model.layers.0.mlp.up_proj",
			}},
		{model: "qwenimage21", from: "ComfyUI", prefixes: []string{"", "diffusion_model.", "transformer."}, modules: []string{
			"transformer_blocks.1.img_mlp.gate_up", "transformer_blocks.1.img_mlp.gate_layer transformer_blocks.1.img_mlp.proj",
			"transformer_blocks.1.attn.to_qkv",
			"transformer_blocks.1.attn.to_q transformer_blocks.1.attn.to_k transformer_blocks.1.attn.to_v",
		}},

		{model: "krea2", from: "Krea's trainer and ComfyUI (diffusion_model.), ai-toolkit (base_model.model.)", prefixes: dottedPrefixes,
			modules: originalKrea2()},
		{model: "krea2", from: "sd-scripts, musubi-tuner", prefixes: flatPrefixes, separator: "_", modules: originalKrea2()},
	},
	diffusersNames("flux"), diffusersNames("flux2"), diffusersNames("zimage"), diffusersNames("qwenimage"), diffusersNames("qwenimage21"),
	diffusersNames("krea2"), diffusersNames("ernie"),
)

// diffusersNames are the patterns of all layers of a transformer with diffusers' names.
func diffusersNames(model string) []namePattern {
	return []namePattern{
		{model: model, from: dotted, prefixes: dottedPrefixes},
		{model: model, from: flat, prefixes: flatPrefixes, separator: "_"},
		{model: model, from: "ai-toolkit's PEFT networks", prefixes: []string{"transformer$$"}, separator: "$$"},
		{model: model, from: "SimpleTuner of 2024 for ComfyUI", prefixes: flatPrefixes[:1], separator: "_", suffix: "_"},
	}
}

// patternModels are the components of the goldens' models, and a text encoder with a vision tower.
func patternModels(t testing.TB) map[string][]lora.Component {
	models, g := map[string][]lora.Component{}, readGoldens(t)
	for model := range g.Models {
		models[model] = g.components(t, model)
	}
	models["qwenimage"] = append(models["qwenimage"], described("text_encoder", "Qwen2_5_VLForConditionalGeneration", qwen25VL(t)))
	return models
}

// qwen25VL is a small one, with its vision tower.
func qwen25VL(t testing.TB) any {
	t.Helper()
	text, err := os.ReadFile("../../textenc/testdata/qwen25vl-small/config.json")
	if err != nil {
		t.Fatal(err)
	}
	c := textenc.DefaultQwen25VLConfig()
	if err := c.UnmarshalJSON(text); err != nil {
		t.Fatal(err)
	}
	return textenc.NewQwen25VL(c, true, mlx.Float32)
}

// A layer is a module of a LoRA, with the parameters that it changes.
type layer struct {
	name    string
	params  []nn.Parameter
	swapped bool
}

func (l layer) rows() (n int) {
	for _, p := range l.params {
		n += p.Stored()[0]
	}
	return n
}

func (l layer) columns() int { return l.params[0].Stored()[1] }

// layers returns the modules of a pattern, without a prefix.
func (p namePattern) layers(t *testing.T, component lora.Component) (out []layer) {
	t.Helper()
	byName, modules := map[string]nn.Parameter{}, p.modules
	for _, param := range nn.Parameters(component.Model) {
		if name, ok := strings.CutSuffix(param.Name, ".weight"); ok && len(param.Stored()) == 2 && param.Kind() == nn.LinearWeight {
			byName[name] = param
			if p.modules == nil {
				modules = append(modules, name, name)
			}
		}
	}
	for i := 0; i < len(modules); i += 2 {
		one := layer{name: modules[i]}
		for word := range strings.FieldsSeq(modules[i+1]) {
			if word == "swapped" {
				one.swapped = true
				continue
			}
			param, ok := byName[word]
			if !ok {
				t.Fatalf("%s: no layer %s", p.model, word)
			}
			one.params = append(one.params, param)
		}
		out = append(out, one)
	}
	return out
}

// named returns a module's name in a file.
func (p namePattern) named(prefix, name string) string {
	if p.separator != "" {
		name = strings.ReplaceAll(name, ".", p.separator)
	}
	return prefix + name + p.suffix
}

// TestNames: every layer is found under all of its names, and changed by up·down, in float64.
func TestNames(t *testing.T) {
	models := patternModels(t)
	counts := map[string]int{}
	for _, p := range namePatterns {
		component := "transformer"
		if p.component != "" {
			component = p.component
		}
		components := models[p.model]
		layers := p.layers(t, components[slices.IndexFunc(components, func(c lora.Component) bool { return c.Name == component })])
		for _, prefix := range p.prefixes {
			want := map[string][]float64{}
			var tensors []*checkpoint.Array
			for i, l := range layers {
				name := p.named(prefix, l.name)
				f := nameFormats[i%len(nameFormats)]
				made, delta := f.make(name, l.rows(), l.columns(), nil)
				tensors = append(tensors, made...)
				l.spread(component, delta, want)
			}
			counts[p.model] += len(layers)
			checkChanges(t, fmt.Sprintf("%s, %s: %s", p.model, p.from, prefix), components, save(t, tensors...), want)
		}
	}
	t.Logf("names by model: %v", counts)
}

// spread divides the changed rows of a layer among its parameters.
func (l layer) spread(component string, delta []float64, want map[string][]float64) {
	at := 0
	for _, p := range l.params {
		n := mlxtest.Size(p.Stored())
		part := delta[at : at+n]
		if at += n; l.swapped {
			part = slices.Concat(part[n/2:], part[:n/2])
		}
		want[component+"/"+p.Name] = part
	}
}

// checkChanges loads a LoRA, bakes it, and compares the changes of all parameters with those wanted. A
// change that is not wanted is an error.
func checkChanges(t *testing.T, what string, components []lora.Component, path string, want map[string][]float64) *lora.Set {
	t.Helper()
	set, err := lora.Load([]lora.Spec{{Path: path, Scale: 1}}, components, hints()...)
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return nil
	}
	defer set.Close()
	for _, warning := range set.Reports()[0].Warnings {
		if !strings.Contains(warning, "a setting of the training: lokr_factor") {
			t.Errorf("%s: warning %s", what, warning)
		}
	}
	left := maps.Clone(want)
	mlxtest.Do(t, func() {
		for _, c := range components {
			bake := set.Bake(c.Name, false)
			for _, p := range nn.Parameters(c.Model) {
				if bake == nil {
					break
				}
				w := weight(p)
				baked := bake(p, w)
				delta, ok := want[c.Name+"/"+p.Name]
				if delete(left, c.Name+"/"+p.Name); !ok {
					if baked != w {
						t.Errorf("%s: %s is changed", what, p.Name)
					}
					continue
				}
				before, largest, worst := w.Floats(), 0.0, 0.0
				for i, v := range baked.Floats() {
					expected := float64(before[i]) + delta[i]
					largest, worst = max(largest, math.Abs(expected)), max(worst, math.Abs(float64(v)-expected))
				}
				if !(worst <= tolerance*largest) {
					t.Errorf("%s: %s is off by %.2g, its largest value is %.2g", what, p.Name, worst, largest)
				}
			}
		}
	})
	if len(left) > 0 {
		t.Errorf("%s: not changed: %v", what, slices.Sorted(maps.Keys(left)))
	}
	return set
}

// A format is how programs store the change of a weight.
type format struct {
	name, from string
	// make returns the tensors of a module and its change [out, in]. w is the weight, which only
	// DoRA needs.
	make func(name string, out, in int, w []float64) ([]*checkpoint.Array, []float64)
}

// matrix is a tensor with its values.
type matrix struct {
	*checkpoint.Array
	rows, columns int
	v             []float64
}

func newMatrix(name string, rows, columns int) matrix {
	a := tensor(name, rows, columns)
	return matrix{a, rows, columns, a.Float64s()}
}

func (a matrix) times(b matrix) matrix {
	out := matrix{rows: a.rows, columns: b.columns, v: make([]float64, a.rows*b.columns)}
	for i := range a.rows {
		for j := range b.columns {
			for k := range a.columns {
				out.v[i*b.columns+j] += a.v[i*a.columns+k] * b.v[k*b.columns+j]
			}
		}
	}
	return out
}

func (a matrix) scaled(s float64) []float64 {
	out := make([]float64, len(a.v))
	for i := range out {
		out[i] = a.v[i] * s
	}
	return out
}

// low is a LoRA with these last words of its names, of rank 3.
func low(down, up string, alpha float64) func(string, int, int, []float64) ([]*checkpoint.Array, []float64) {
	return func(name string, out, in int, _ []float64) ([]*checkpoint.Array, []float64) {
		a, b := newMatrix(name+down, 3, in), newMatrix(name+up, out, 3)
		tensors, scale := []*checkpoint.Array{a.Array, b.Array}, 1.0
		if alpha > 0 {
			tensors, scale = append(tensors, scalar(name+".alpha", alpha)), alpha/3
		}
		return tensors, b.times(a).scaled(scale)
	}
}

// nameFormats are the formats that TestNames uses in turn.
var nameFormats = []format{
	{"PEFT", "diffusers, PEFT, ai-toolkit, Turbo LoRAs of FLUX.2", low(".lora_A.weight", ".lora_B.weight", 0)},
	{"kohya", "sd-scripts, musubi-tuner, OneTrainer, Lightning LoRAs of Qwen-Image", low(".lora_down.weight", ".lora_up.weight", 2)},
	{"an adapter's name", "PEFT, DiffSynth-Studio", low(".lora_A.default.weight", ".lora_B.default.weight", 0)},
	{"dots", "Anime-Z, older diffusers", low(".lora.down.weight", ".lora.up.weight", 4)},
}

// moreFormats are all other formats of a change.
var moreFormats = []format{
	{"PEFT with alpha", "ComfyUI's and Lightning's exports", low(".lora_A.weight", ".lora_B.weight", 6)},
	{"no weight", "fal", low(".lora_A", ".lora_B", 0)},
	{"_lora", "attention processors of older diffusers", low("_lora.down.weight", "_lora.up.weight", 0)},
	{"lora_linear_layer", "text encoders of older diffusers", low(".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight", 0)},
	{"lora.lora_A", "PEFT inside diffusers' layers", low(".lora.lora_A.weight", ".lora.lora_B.weight", 0)},
	{"1x1 convolution", "LyCORIS' LoCon", func(name string, out, in int, w []float64) ([]*checkpoint.Array, []float64) {
		tensors, delta := low(".lora_down.weight", ".lora_up.weight", 2)(name, out, in, w)
		for _, t := range tensors[:2] {
			t.Shape = append(t.Shape, 1, 1)
		}
		return tensors, delta
	}},
	{"LoKr", "LyCORIS, ai-toolkit", func(name string, out, in int, _ []float64) ([]*checkpoint.Array, []float64) {
		a, b := newMatrix(name+".lokr_w1", 4, 2), newMatrix(name+".lokr_w2", out/4, in/2)
		return []*checkpoint.Array{a.Array, b.Array, scalar(name+".alpha", 1e9)}, kronecker(a, b, 1)
	}},
	{"low-rank LoKr", "LyCORIS, PEFT", func(name string, out, in int, _ []float64) ([]*checkpoint.Array, []float64) {
		a, b := newMatrix(name+".lokr_w1_a", 4, 3), newMatrix(name+".lokr_w1_b", 3, 2)
		c, d := newMatrix(name+".lokr_w2_a", out/4, 2), newMatrix(name+".lokr_w2_b", 2, in/2)
		return []*checkpoint.Array{a.Array, b.Array, c.Array, d.Array, scalar(name+".alpha", 3)}, kronecker(a.times(b), c.times(d), 3./2)
	}},
	{"musubi's LoKr", "musubi-tuner, which also scales whole factors", func(name string, out, in int, _ []float64) ([]*checkpoint.Array,
		[]float64) {
		a, b := newMatrix(name+".lokr_w1", 4, 2), newMatrix(name+".lokr_w2", out/4, in/2)
		factor := &checkpoint.Array{Name: "lokr_factor", Dtype: checkpoint.I64, Data: make([]byte, 8)}
		return []*checkpoint.Array{a.Array, b.Array, scalar(name+".alpha", 3), factor}, kronecker(a, b, 3/float64(max(out/4, in/2)))
	}},
	{"LoHa", "LyCORIS, musubi-tuner", func(name string, out, in int, _ []float64) ([]*checkpoint.Array, []float64) {
		a, b := newMatrix(name+".hada_w1_a", out, 2), newMatrix(name+".hada_w1_b", 2, in)
		c, d := newMatrix(name+".hada_w2_a", out, 2), newMatrix(name+".hada_w2_b", 2, in)
		product, other := a.times(b), c.times(d)
		for i := range product.v {
			product.v[i] *= other.v[i]
		}
		return []*checkpoint.Array{a.Array, b.Array, c.Array, d.Array, scalar(name+".alpha", 3)}, product.scaled(3. / 2)
	}},
	{"difference", "ComfyUI, LyCORIS' full", func(name string, out, in int, _ []float64) ([]*checkpoint.Array, []float64) {
		a := newMatrix(name+".diff", out, in)
		return []*checkpoint.Array{a.Array}, a.v
	}},
	{"DoRA", "PEFT", dora(".lora_magnitude_vector.weight", true, func(n int) []int { return []int{n} })},
	{"DoRA of an adapter", "PEFT", dora(".lora_magnitude_vector.default.weight", true, func(n int) []int { return []int{1, n} })},
	{"magnitude", "InvokeAI's tests", dora(".magnitude", true, func(n int) []int { return []int{n} })},
	{"dora_scale", "LyCORIS, OneTrainer", dora(".dora_scale", true, func(n int) []int { return []int{n, 1} })},
	{"dora_scale of one axis", "InvokeAI's tests", dora(".dora_scale", true, func(n int) []int { return []int{n} })},
	{"dora_scale along the inputs", "LyCORIS", dora(".dora_scale", false, func(n int) []int { return []int{1, n} })},
	{"8-bit floats", "LoRAs that were cast to fp8", eightBit("", 1)},
	{"scaled 8-bit floats", "ComfyUI's scaled fp8", eightBit(".scale_weight", 0.25)},
	{"scaled 8-bit floats, the other name", "ComfyUI, torchao", eightBit(".weight_scale", 2)},
	{"8-bit integers", "ComfyUI's int8_tensorwise", func(name string, out, in int, _ []float64) ([]*checkpoint.Array, []float64) {
		const text = `{"format": "int8_tensorwise"}`
		up := newMatrix(name+".lora_up.weight", out, 3)
		down := matrix{rows: 3, columns: in}
		packed := &checkpoint.Array{Name: name + ".lora_down.weight", Dtype: checkpoint.I8, Shape: []int{3, in}}
		for i := range 3 * in {
			q := int8(i*37%255 - 127)
			packed.Data = append(packed.Data, byte(q))
			down.v = append(down.v, float64(q)/64)
		}
		return []*checkpoint.Array{
			up.Array, packed, filled(name+".lora_down.weight_scale", []float32{1. / 64}),
			{Name: name + ".lora_down.comfy_quant", Dtype: checkpoint.U8, Shape: []int{len(text)}, Data: []byte(text)},
		}, up.times(down).v
	}},
}

func kronecker(a, b matrix, scale float64) []float64 {
	out := make([]float64, len(a.v)*len(b.v))
	for i := range a.rows * b.rows {
		for j := range a.columns * b.columns {
			out[i*a.columns*b.columns+j] = scale * a.v[i/b.rows*a.columns+j/b.columns] * b.v[i%b.rows*b.columns+j%b.columns]
		}
	}
	return out
}

// dora is a LoRA that also sets the norms of the changed weight's rows, or columns.
func dora(suffix string, ofRows bool, shape func(int) []int) func(string, int, int, []float64) ([]*checkpoint.Array, []float64) {
	return func(name string, out, in int, w []float64) ([]*checkpoint.Array, []float64) {
		tensors, delta := low(".lora_A.weight", ".lora_B.weight", 2)(name, out, in, nil)
		n := in
		if ofRows {
			n = out
		}
		norms := tensor(name+suffix, shape(n)...)
		sums := make([]float64, n)
		at := func(i int) int {
			if ofRows {
				return i / in
			}
			return i % in
		}
		for i := range delta {
			delta[i] += w[i]
			sums[at(i)] += delta[i] * delta[i]
		}
		for i := range delta {
			delta[i] = delta[i]*norms.Float64s()[at(i)]/math.Sqrt(sums[at(i)]) - w[i]
		}
		return append(tensors, norms), delta
	}
}

// eightBit is a LoRA of 8-bit floats, also its alpha, with a scale unless suffix is "".
func eightBit(suffix string, scale float64) func(string, int, int, []float64) ([]*checkpoint.Array, []float64) {
	return func(name string, out, in int, _ []float64) ([]*checkpoint.Array, []float64) {
		values := checkpoint.EightBits(checkpoint.F8E4M3)
		cast := func(name string, shape ...int) (*checkpoint.Array, []float64) {
			a := &checkpoint.Array{Name: name, Dtype: checkpoint.F8E4M3, Shape: shape}
			var v []float64
			for i := range mlxtest.Size(shape) {
				b := byte(i*53%90) | byte(i%2)<<7 // below 4
				a.Data, v = append(a.Data, b), append(v, scale*float64(values[b]))
			}
			return a, v
		}
		down, a := cast(name+".lora_down.weight", 3, in)
		up, b := cast(name+".lora_up.weight", out, 3)
		alpha := &checkpoint.Array{Name: name + ".alpha", Dtype: checkpoint.F8E4M3, Data: []byte{0x40}} // 2
		tensors := []*checkpoint.Array{down, up, alpha}
		if suffix != "" {
			for _, module := range []string{".lora_down", ".lora_up"} {
				tensors = append(tensors, filled(name+module+suffix, []float32{float32(scale)}))
			}
			tensors = append(tensors, &checkpoint.Array{Name: "scaled_fp8", Dtype: checkpoint.F8E4M3, Shape: []int{2}, Data: make([]byte,
				2)})
		}
		return tensors, matrix{rows: out, columns: 3, v: b}.times(matrix{rows: 3, columns: in, v: a}).scaled(2. / 3)
	}
}

// TestFormats: every format changes a layer of every model as its formula says, in float64.
func TestFormats(t *testing.T) {
	models := patternModels(t)
	for model, module := range map[string]string{
		"flux": "transformer_blocks.1.ff.net.2", "flux2": "single_transformer_blocks.0.attn.to_out", "zimage": "layers.1.attention.to_k",
		"qwenimage": "transformer_blocks.1.img_mlp.net.2", "qwenimage21": "transformer_blocks.0.attn.to_v",
		"krea2": "transformer_blocks.1.attn.to_gate", "ernie": "layers.1.self_attention.to_v",
	} {
		for _, f := range slices.Concat(nameFormats, moreFormats) {
			for _, p := range nn.Parameters(declared(models[model], "transformer")) {
				if p.Name != module+".weight" {
					continue
				}
				var before []float64
				mlxtest.Do(t, func() {
					for _, v := range weight(p).Floats() {
						before = append(before, float64(v))
					}
				})
				tensors, delta := f.make("transformer."+module, p.Stored()[0], p.Stored()[1], before)
				checkChanges(t, model+", "+f.name, models[model], saveAny(t, tensors...),
					map[string][]float64{"transformer/" + p.Name: delta})
			}
		}
	}
}

// saveAny is save for tensors of any dtype, which checkpoint does not write.
func saveAny(t testing.TB, list ...*checkpoint.Array) string {
	t.Helper()
	header, data := map[string]any{}, []byte{}
	for _, a := range list {
		header[a.Name] = map[string]any{
			"dtype": a.Dtype, "shape": append([]int{}, a.Shape...), "data_offsets": []int{len(data), len(data) + len(a.Data)},
		}
		data = append(data, a.Data...)
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "my.safetensors")
	file := slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text, data)
	if err := os.WriteFile(path, file, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// otherFamilies are names of LoRAs for models that gomflux does not run, and what they are said to be for.
var otherFamilies = []struct{ model, from, names string }{
	{"Stable Diffusion or SDXL", "sd-scripts, SD 1.5",
		"lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q lora_te_text_model_encoder_layers_0_mlp_fc1"},
	{"Stable Diffusion or SDXL", "diffusers, SD 1.5", "unet.up_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k"},
	{"Stable Diffusion or SDXL", "LCM and Hyper LoRAs", "lora_unet_mid_block_attentions_0_proj_in"},
	{"Stable Diffusion XL", "sd-scripts",
		"lora_unet_input_blocks_4_1_transformer_blocks_1_attn1_to_q lora_te2_text_model_encoder_layers_0_mlp_fc1"},
	{"Stable Diffusion XL", "diffusers", "unet.down_blocks.2.attentions.0.transformer_blocks.9.ff.net.2"},
	{"Stable Cascade", "OneTrainer", "lora_prior_unet_down_blocks_0_1_attention_attn_out_proj"},
	{"Stable Diffusion 3", "sd-scripts", "lora_unet_joint_blocks_0_context_block_attn_qkv"},
	{"AuraFlow", "diffusers", "transformer.joint_transformer_blocks.0.attn.to_q"},
	{"HiDream", "diffusers, ai-toolkit", "diffusion_model.double_stream_blocks.0.block.attn1.to_q"},
	{"Chroma", "ComfyUI", "diffusion_model.distilled_guidance_layer.in_proj diffusion_model.double_blocks.0.img_attn.qkv"},
	{"FLUX.3", "diffusers' converter", "diffusion_model.content_mode_blocks.0.q_proj diffusion_model.single_blocks.0.mlp_in"},
	{"HunyuanVideo or HunyuanImage", "musubi-tuner", "lora_unet_double_blocks_0_img_mlp_fc1 lora_unet_single_blocks_0_modulation_linear"},
	{"HunyuanVideo or HunyuanImage", "the original", "transformer.double_blocks.0.img_attn_qkv"},
	{"HunyuanVideo or HunyuanImage", "FramePack of musubi-tuner", "lora_unet_context_embedder_token_refiner_refiner_blocks_0_attn_to_q"},
	{"Anima", "sd-scripts",
		"lora_unet_blocks_0_cross_attn_k_proj lora_unet_blocks_0_adaln_modulation_cross_attn_1 lora_unet_blocks_0_mlp_layer1"},
	{"Anima", "LyCORIS, ComfyUI", "diffusion_model.blocks.0.self_attn.output_proj"},
	{"Anima", "diffusers' converter", "diffusion_model.llm_adapter.blocks.0.cross_attn.q_proj"},
	{"Wan", "musubi-tuner", "lora_unet_blocks_0_cross_attn_k lora_unet_blocks_0_ffn_0"},
	{"Wan", "ComfyUI, lightx2v", "diffusion_model.blocks.0.self_attn.norm_q diffusion_model.blocks.0.cross_attn.k_img"},
	{"Wan", "VideoX-Fun", "lora_unet__blocks_0_self_attn_q"},
	{"Wan", "diffusers", "transformer.blocks.0.attn2.add_k_proj"},
	{"LTX-2", "ComfyUI", "diffusion_model.transformer_blocks.0.audio_attn1.to_q"},
	{"LTX-Video, PixArt, Sana, Mochi or CogVideoX", "diffusers, ComfyUI", "transformer.transformer_blocks.0.attn1.to_q"},
	{"LTX-Video, PixArt, Sana, Mochi or CogVideoX", "ComfyUI", "diffusion_model.patchify_proj"},
	{"Ideogram 4", "diffusers' converter", "diffusion_model.layers.0.attention.o"},
	{"Kandinsky", "musubi-tuner", "lora_unet_visual_transformer_blocks_0_self_attention_to_query"},
	{"Lumina 2 or OmniGen 2", "diffusers", "transformer.layers.0.attn.to_q"},
}

// TestOtherFamilies: a LoRA for another model is refused by every model, with the name of its own.
func TestOtherFamilies(t *testing.T) {
	for model, components := range patternModels(t) {
		for _, test := range otherFamilies {
			var tensors []*checkpoint.Array
			for name := range strings.FieldsSeq(test.names) {
				tensors = append(tensors, pair(name, 4, 1, 4)...)
			}
			_, err := lora.Load([]lora.Spec{{Path: save(t, tensors...), Scale: 1}}, components, hints()...)
			if err == nil || !strings.Contains(err.Error(), " seems to be for "+test.model+":") && !strings.HasSuffix(err.Error(),
				" for "+test.model) {
				t.Errorf("%s on %s: found %v, expected that it is for %s", test.names, model, err, test.model)
			}
		}
	}
}

// families are the names of the models in messages.
var families = map[string]string{
	"flux": "FLUX.1", "flux2": "FLUX.2", "zimage": "Z-Image", "qwenimage": "Qwen-Image", "qwenimage21": "Qwen-Image-2.1", "krea2": "Krea 2",
	"ernie": "ERNIE-Image",
}

// TestFamilies: names of one of the families are never said to be for another, and names that are
// wrong, but like those of the model, for none.
func TestFamilies(t *testing.T) {
	models := patternModels(t)
	wrong := strings.NewReplacer("blocks.0", "blocks.99", "blocks.1", "blocks.99", "layers.1", "layers.99")
	seen := map[string]bool{}
	for _, p := range namePatterns {
		own := models[p.model]
		for _, l := range p.layers(t, own[slices.IndexFunc(own, func(c lora.Component) bool {
			return c.Name == cmp.Or(p.component,
				"transformer")
		})]) {
			for _, prefix := range p.prefixes[:1] {
				if form := p.model + " " + anyNumber.ReplaceAllString(p.named(prefix, l.name), "$1"); seen[form] {
					continue
				} else {
					seen[form] = true
				}
				for model, components := range models {
					name := p.named(prefix, l.name)
					if model == p.model {
						name = p.named(prefix, wrong.Replace(l.name))
					}
					found := lora.GuessModel([]string{name + ".lora_A.weight"}, hints(), []string{transformerOf(components)})
					names := strings.Split(strings.ReplaceAll(found, " or ", ", "), ", ")
					if found != "" && (model == p.model || !slices.Contains(names, families[p.model])) {
						t.Errorf("%s of %s on %s is said to be for %s", name, p.model, model, found)
					}
				}
			}
		}
	}
}

var anyNumber = regexp.MustCompile(`([._])\d+`)

// transformerOf returns the class of a model's transformer.
func transformerOf(components []lora.Component) string {
	return components[slices.IndexFunc(components, func(c lora.Component) bool { return c.Name == "transformer" })].Class
}
