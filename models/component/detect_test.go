package component_test

import (
	"encoding/json"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/models/component"
)

func TestDetect(t *testing.T) {
	names := func(prefix string, class *component.Class, rules bool) (list []string) {
		for _, table := range class.Original {
			if (len(table.Rules) > 0) == rules {
				for _, name := range table.Signature {
					list = append(list, prefix+name)
				}
				return list
			}
		}
		t.Fatalf("no table for %s", class.Name)
		return nil
	}
	for _, test := range []struct {
		names []string
		want  map[string]string // prefixes by class
	}{
		{names("", component.FluxTransformer2DModel, true), map[string]string{"FluxTransformer2DModel": ""}},
		{names("diffusion_model.", component.FluxTransformer2DModel, false),
			map[string]string{"FluxTransformer2DModel": "diffusion_model."}},
		{names("model.diffusion_model.", component.Flux2Transformer2DModel, true),
			map[string]string{"Flux2Transformer2DModel": "model.diffusion_model."}},
		{names("", component.AutoencoderKLFlux2, true), map[string]string{"AutoencoderKLFlux2": ""}},
		{names("first_stage_model.", component.AutoencoderKL, true), map[string]string{"AutoencoderKL": "first_stage_model."}},
		{names("", component.AutoencoderTiny, true), map[string]string{"AutoencoderTiny": ""}},
		{names("taesd_decoder.", component.AutoencoderTiny, true), map[string]string{"AutoencoderTiny": "taesd_decoder."}},
		{names("vae.", component.AutoencoderTiny, false), map[string]string{"AutoencoderTiny": "vae."}},
		{names("", component.AutoencoderKLQwenImage21, true), map[string]string{"AutoencoderKLQwenImage21": ""}},
		{names("vae.", component.AutoencoderKLQwenImage21, false), map[string]string{"AutoencoderKLQwenImage21": "vae."}},
		{names("", component.AutoencoderKLQwenImage, true), map[string]string{"AutoencoderKLQwenImage": ""}},
		{names("", component.QwenImageTransformer2DModel, true), map[string]string{"QwenImageTransformer2DModel": ""}},
		{names("", component.Qwen25VLForConditionalGeneration, false), map[string]string{"Qwen2_5_VLForConditionalGeneration": ""}},
		{slices.Concat(
			names("model.diffusion_model.", component.ZImageTransformer2DModel, true), names("vae.", component.AutoencoderKL, true),
			names("text_encoders.qwen3_4b.transformer.", component.Qwen3Model, false),
		), map[string]string{
			"ZImageTransformer2DModel": "model.diffusion_model.", "AutoencoderKL": "vae.",
			"Qwen3Model": "text_encoders.qwen3_4b.transformer.",
		}},
		{slices.Concat(
			names("model.diffusion_model.", component.FluxTransformer2DModel, true), names("vae.", component.AutoencoderKL, true),
			names("text_encoders.clip_l.transformer.", component.CLIPTextModel, true),
			names("text_encoders.t5xxl.transformer.", component.T5EncoderModel, true),
		), map[string]string{
			"FluxTransformer2DModel": "model.diffusion_model.", "AutoencoderKL": "vae.",
			"CLIPTextModel": "text_encoders.clip_l.transformer.", "T5EncoderModel": "text_encoders.t5xxl.transformer.",
		}},
	} {
		parts, err := component.Detect(named(test.names), "")
		got := map[string]string{}
		for _, p := range parts {
			got[p.Class.Name] = p.Prefix
		}
		if err != nil || !maps.Equal(got, test.want) {
			t.Errorf("%q: found %v, %v, expected %v", test.names, got, err, test.want)
		}
	}
	if _, err := component.Detect(named(nil), ""); err == nil {
		t.Error("no tensors: no error")
	}
	for _, name := range []string{"lora_unet_a.lora_down.weight", "diffusion_model.a.lora_A.weight", "a.lokr_w1",
		"base_model.model.a.hada_w1_a"} {
		if _, err := component.Detect(named([]string{name}), ""); !errors.Is(err, component.ErrLoRA) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// parseTensors makes a checkpoint of lines of a name, a dtype and a shape.
func parseTensors(text string) *checkpoint.Checkpoint {
	ck := &checkpoint.Checkpoint{Dir: "a test", Tensors: map[string]checkpoint.Tensor{}}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		tensor := checkpoint.Tensor{Name: fields[0], Dtype: checkpoint.Dtype(fields[1]), Shape: []int{}}
		for _, field := range fields[2:] {
			if n, err := strconv.ParseInt(field, 10, 32); err == nil && n >= 0 { // as checkpoint.ParseHeader lets them through
				tensor.Shape = append(tensor.Shape, int(n))
			}
		}
		ck.Tensors[tensor.Name] = tensor
	}
	return ck
}

// FuzzDetect detects components among tensors with any names and shapes, and infers their
// configs, which must not be much larger than the names.
func FuzzDetect(f *testing.F) {
	lists, err := filepath.Glob("testdata/original/*.json")
	if err != nil || len(lists) == 0 {
		f.Fatalf("%d lists, %v", len(lists), err)
	}
	for _, list := range lists {
		var golden map[string]json.RawMessage
		readJSON(f, list, &golden)
		for _, raw := range golden {
			var part struct{ Tensors map[string]string }
			if json.Unmarshal(raw, &part) != nil {
				continue
			}
			var b strings.Builder
			for name, what := range part.Tensors {
				shape, _, _ := strings.Cut(what, " ")
				b.WriteString(name + " F32 " + strings.ReplaceAll(shape, "x", " ") + "\n")
			}
			f.Add(b.String())
			f.Add(strings.ReplaceAll(b.String(), " F32 ", " U32 "))
		}
	}
	for _, class := range []*component.Class{
		component.CLIPTextModel, component.T5EncoderModel, component.Qwen3Model, component.Qwen25VLForConditionalGeneration,
		component.AutoencoderKLQwenImage,
	} {
		for _, table := range class.Tables() {
			f.Add(strings.Join(table.Signature, " BF16 8 8\n") + " BF16 8 8\nscaled_fp8 F32 0\n")
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		ck := parseTensors(text)
		parts, err := component.Detect(ck, "")
		if (err == nil) != (len(parts) > 0) {
			t.Fatalf("%d parts, %v", len(parts), err)
		}
		if err != nil && len(err.Error()) > 2000 {
			t.Errorf("a message of %d bytes", len(err.Error()))
		}
		for _, p := range parts {
			c, err := p.Infer(ck)
			if err == nil {
				data, err := json.Marshal(c)
				if err != nil || len(data) > 4096+64*len(ck.Tensors) {
					t.Errorf("%s: a config of %d bytes, %v", p.Class.Name, len(data), err)
				}
			}
			view, _, err := layout.View(ck, p.Class.Tables(),
				layout.Shapes(ck, p.Table, p.Prefix, func(name string) string { return name }))
			if err == nil && len(view.Tensors) > 5*len(ck.Tensors) {
				t.Errorf("%s: %d tensors of %d", p.Class.Name, len(view.Tensors), len(ck.Tensors))
			}
		}
	})
}

// TestMarks has what stands beside 8-bit weights.
func TestMarks(t *testing.T) {
	text := ""
	for _, name := range []string{"img_in", "vector_in.in_layer", "double_blocks.0.img_mod.lin",
		"final_layer.adaLN_modulation.1", "double_blocks.0.img_attn.qkv"} {
		text += "model.diffusion_model." + name + ".weight F8_E4M3 6 2\n" +
			"model.diffusion_model." + name + ".scale_weight F32\n" +
			"model.diffusion_model." + name + ".scale_input F32\n" +
			"model.diffusion_model." + name + ".comfy_quant U8 20\n"
	}
	ck := parseTensors(text + "model.diffusion_model.scaled_fp8 F8_E4M3 2\n")
	shapes := map[string][]int{}
	for _, name := range []string{"to_q", "to_k", "to_v"} {
		shapes["transformer_blocks.0.attn."+name+".weight"] = []int{2, 2}
	}
	view, _, err := layout.View(ck, component.FluxTransformer2DModel.Tables(), shapes)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{ // how many forms
		"x_embedder.weight": 0, "x_embedder.scale_weight": 0,
		"time_text_embed.text_embedder.linear_1.weight": 0, "time_text_embed.text_embedder.linear_1.scale_weight": 0,
		"transformer_blocks.0.norm1.linear.weight": 0, "transformer_blocks.0.norm1.linear.scale_weight": 0,
		"norm_out.linear.weight": 1, "norm_out.linear.scale_weight": 0,
		"transformer_blocks.0.attn.to_q.weight": 1, "transformer_blocks.0.attn.to_q.scale_weight": 0,
		"transformer_blocks.0.attn.to_k.weight": 1, "transformer_blocks.0.attn.to_k.scale_weight": 0,
		"transformer_blocks.0.attn.to_v.weight": 1, "transformer_blocks.0.attn.to_v.scale_weight": 0,
	}
	got := map[string]int{}
	for name, tensor := range view.Tensors {
		got[name] = len(tensor.Transforms)
	}
	if !maps.Equal(got, want) {
		t.Errorf("found %v, expected %v", got, want)
	}
}

// TestIndexTimestepZero has ComfyUI's mark of Qwen-Image-Edit-2511.
func TestIndexTimestepZero(t *testing.T) {
	class := component.QwenImageTransformer2DModel
	text := ""
	for name, shape := range map[string]string{
		"img_in.weight": "12 16", "txt_in.weight": "12 8", "txt_norm.weight": "8", "proj_out.weight": "16 12",
		"transformer_blocks.0.img_mod.1.weight": "72 12", "transformer_blocks.0.attn.add_q_proj.weight": "12 12",
		"transformer_blocks.0.attn.norm_q.weight": "6",
	} {
		text += "model.diffusion_model." + name + " BF16 " + shape + "\n"
	}
	for mark, want := range map[string]any{"": nil, "model.diffusion_model.__index_timestep_zero__ F32 0\n": true} {
		ck := parseTensors(text + mark)
		parts, err := component.Detect(ck, "")
		if err != nil || len(parts) != 1 || parts[0].Class != class {
			t.Fatalf("%+v, %v", parts, err)
		}
		c, err := parts[0].Infer(ck)
		if err != nil || c.Inferred["zero_cond_t"] != want || c.Inferred["num_attention_heads"] != 2 || c.Inferred["out_channels"] != 4 {
			t.Errorf("mark %q: %v, %v", mark, c.Inferred, err)
		}
		view, _, err := layout.View(ck, class.Tables(), nil)
		if err != nil || len(view.Tensors) != 7 {
			t.Errorf("mark %q: %d tensors, %v", mark, len(view.Tensors), err)
		}
	}
}

// TestInferNumbers has modules of numbers that no list of modules reaches.
func TestInferNumbers(t *testing.T) {
	for _, number := range []string{"9223372036854775807", "1000000000"} {
		ck := parseTensors("encoder.down_blocks." + number + ".resnets.0.conv1.weight F32 8 8 3 3\n")
		_, err := component.Detected{Class: component.AutoencoderKL, Table: &layout.Table{}}.Infer(ck)
		if err == nil || !strings.Contains(err.Error(), "encoder.down_blocks has index "+number) {
			t.Errorf("number %s: error %v", number, err)
		}
	}
}
