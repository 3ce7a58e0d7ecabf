package lora_test

import (
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/textenc"
)

// A module is found under all of its names.
func TestNames(t *testing.T) {
	for _, test := range []struct {
		model   string
		out, in int
		names   []string
		want    []string
	}{
		{"flux", 16, 16, []string{
			"transformer_blocks.1.attn.to_out.0", "transformer.transformer_blocks.1.attn.to_out.0",
			"base_model.model.transformer_blocks.1.attn.to_out.0", "base_model.model.transformer.transformer_blocks.1.attn.to_out.0",
			"double_blocks.1.img_attn.proj", "diffusion_model.double_blocks.1.img_attn.proj",
			"model.diffusion_model.double_blocks.1.img_attn.proj",
			"base_model.model.double_blocks.1.img_attn.proj", "unet.double_blocks.1.img_attn.proj", "module.double_blocks.1.img_attn.proj",
			"lora_unet_double_blocks_1_img_attn_proj", "lora_transformer_transformer_blocks_1_attn_to_out_0",
			"lora_unet_transformer_blocks_1_attn_to_out_0", "lycoris_transformer_blocks_1_attn_to_out_0",
		}, []string{"transformer/transformer_blocks.1.attn.to_out.0.weight"}},
		{"flux", 48, 16, []string{
			"transformer.transformer_blocks.0.attn.to_added_qkv", "double_blocks.0.txt_attn.qkv", "lora_unet_double_blocks_0_txt_attn_qkv",
		}, []string{"transformer/transformer_blocks.0.attn.add_k_proj.weight",
			"transformer/transformer_blocks.0.attn.add_q_proj.weight", "transformer/transformer_blocks.0.attn.add_v_proj.weight"}},
		{"flux", 48, 16, []string{"transformer.single_transformer_blocks.0.attn.to_qkv", "single_blocks.0.processor.qkv"},
			[]string{"transformer/single_transformer_blocks.0.attn.to_k.weight",
				"transformer/single_transformer_blocks.0.attn.to_q.weight", "transformer/single_transformer_blocks.0.attn.to_v.weight"}},
		{"flux", 64, 16, []string{"transformer_blocks.0.ff.linear1", "double_blocks.0.img_mlp.0"},
			[]string{"transformer/transformer_blocks.0.ff.net.0.proj.weight"}},
		{"flux", 16, 16, []string{
			"text_encoder.encoder.layers.1.self_attn.q_proj", "text_encoder.text_model.encoder.layers.1.self_attn.q_proj",
			"base_model.model.text_encoder.text_model.encoder.layers.1.self_attn.q_proj",
			"base_model.model.text_model.encoder.layers.1.self_attn.q_proj",
			"lora_te_text_model_encoder_layers_1_self_attn_q_proj", "lora_te1_text_model_encoder_layers_1_self_attn_q_proj",
			"text_encoders.clip_l.transformer.text_model.encoder.layers.1.self_attn.q_proj",
			"text_encoder.text_model.encoder.layers.1.self_attn.to_q",
		}, []string{"text_encoder/encoder.layers.1.self_attn.q_proj.weight"}},
		{"flux", 18, 12, []string{
			"text_encoder_2.encoder.block.1.layer.0.SelfAttention.q", "lora_te2_encoder_block_1_layer_0_SelfAttention_q",
			"lora_te3_encoder_block_1_layer_0_SelfAttention_q", "text_encoders.t5xxl.transformer.encoder.block.1.layer.0.SelfAttention.q",
		}, []string{"text_encoder_2/encoder.block.1.layer.0.SelfAttention.q.weight"}},
		{"flux2", 48, 16, []string{"double_blocks.1.img_attn.qkv", "transformer.transformer_blocks.1.attn.to_qkv",
			"lora_unet_double_blocks_1_img_attn_qkv"},
			[]string{"transformer/transformer_blocks.1.attn.to_k.weight", "transformer/transformer_blocks.1.attn.to_q.weight",
				"transformer/transformer_blocks.1.attn.to_v.weight"}},
		{"flux2", 16, 16, []string{"diffusion_model.sformer_blocks.1.attn.to_k", "lycoris_transformer_blocks_1_attn_to_k"},
			[]string{"transformer/transformer_blocks.1.attn.to_k.weight"}},
		{"flux2", 16, 64, []string{"single_blocks.0.linear2", "transformer.single_transformer_blocks.0.attn.to_out",
			"lora_unet_single_blocks_0_linear2"},
			[]string{"transformer/single_transformer_blocks.0.attn.to_out.weight"}},
		{"zimage", 24, 24, []string{
			"layers.1.attention.to_out.0", "diffusion_model.layers.1.attention.to_out.0", "diffusion_model.layers.1.attention.out",
			"lora_unet_layers_1_attention_out", "lora_unet_layers_1_attention_to_out_0", "transformer.layers.1.attention.to_out.0",
		}, []string{"transformer/layers.1.attention.to_out.0.weight"}},
		{"zimage", 24, 24, []string{"context_refiner.0.attention.to.q", "lora_unet_context_refiner_0_attention_to_q"},
			[]string{"transformer/context_refiner.0.attention.to_q.weight"}},
		{"zimage", 24, 16, []string{"all_x_embedder.2-1", "x_embedder", "lora_unet_x_embedder", "lora_unet_all_x_embedder_2-1"},
			[]string{"transformer/all_x_embedder.2-1.weight"}},
		{"zimage", 20, 12, []string{
			"text_encoder.layers.1.mlp.gate_proj", "text_encoder.model.layers.1.mlp.gate_proj", "lora_te_model_layers_1_mlp_gate_proj",
			"lora_te1_layers_1_mlp_gate_proj", "text_encoders.qwen3_4b.transformer.model.layers.1.mlp.gate_proj",
		}, []string{"text_encoder/layers.1.mlp.gate_proj.weight"}},
		{"qwenimage", 64, 16, []string{
			"transformer_blocks.1.img_mlp.net.0.proj", "diffusion_model.transformer_blocks.1.img_mlp.net.0.proj",
			"lora_unet_transformer_blocks_1_img_mlp_net_0_proj", "transformer.transformer_blocks.1.img_mlp.net.0.proj",
		}, []string{"transformer/transformer_blocks.1.img_mlp.net.0.proj.weight"}},
		{"qwenimage", 32, 32, []string{
			"text_encoder.model.language_model.layers.1.self_attn.q_proj", "text_encoder.model.layers.1.self_attn.q_proj",
			"text_encoders.qwen25_7b.transformer.model.layers.1.self_attn.q_proj", "lora_te_layers_1_self_attn_q_proj",
			"lora_te_model_language_model_layers_1_self_attn_q_proj", "text_encoder.language_model.layers.1.self_attn.q_proj",
		}, []string{"text_encoder/language_model.layers.1.self_attn.q_proj.weight"}},
		{"krea2", 16, 16, []string{
			"blocks.1.attn.gate", "diffusion_model.blocks.1.attn.gate", "base_model.model.blocks.1.attn.gate",
			"transformer.blocks.1.attn.gate", "lora_unet_blocks_1_attn_gate", "transformer.transformer_blocks.1.attn.to_gate",
			"base_model.model.transformer_blocks.1.attn.to_gate",
		}, []string{"transformer/transformer_blocks.1.attn.to_gate.weight"}},
		{"qwenimage", 48, 16, []string{"text_encoder.visual.blocks.0.attn.qkv", "text_encoder.model.visual.blocks.0.attn.qkv",
			"lora_te_visual_blocks_0_attn_qkv"},
			[]string{"text_encoder/visual.blocks.0.attn.qkv.weight"}},
	} {
		for _, name := range test.names {
			components := readGoldens(t).components(t, test.model)
			if test.model == "qwenimage" {
				components = append(components, described("text_encoder", "Qwen2_5_VLForConditionalGeneration", qwen25VL(t)))
			}
			set, err := lora.Load([]lora.Spec{{Path: save(t, tensor(name+".lora.down.weight", 2, test.in),
				tensor(name+".lora.up.weight", test.out, 2)), Scale: 1}}, components, hints()...)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			t.Cleanup(func() { set.Close() })
			changed := map[string]bool{}
			mlxtest.Do(t, func() {
				for _, c := range components {
					if bake := set.Bake(c.Name); bake != nil {
						for _, p := range nn.Parameters(c.Model) {
							if w := weight(p); bake(p, w) != w {
								changed[c.Name+"/"+p.Name] = true
							}
						}
					}
				}
			})
			if got := slices.Sorted(maps.Keys(changed)); !slices.Equal(got, test.want) {
				t.Errorf("%s: found %v, expected %v", name, got, test.want)
			}
		}
	}
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
