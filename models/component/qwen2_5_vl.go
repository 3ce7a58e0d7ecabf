package component

import (
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/textenc"
)

// Qwen25VLForConditionalGeneration is the text encoder of Qwen-Image.
var Qwen25VLForConditionalGeneration = &Class{
	Name: "Qwen2_5_VLForConditionalGeneration", Library: "transformers", Role: TextEncoder, Folder: "text_encoder",
	Prefix: "model.", Headed: true,
	MFlux: []*layout.Table{{
		Signature: []string{"encoder.embed_tokens.weight", "encoder.layers.0.self_attn.q_proj.weight"},
		// names of transformers 4 and 5, with and without prefix
		Rules: slices.Concat(layout.Rename(
			"encoder.visual.merger.mlp_0", "visual.merger.mlp.0",
			"encoder.visual.merger.mlp_0", "model.visual.merger.mlp.0",
			"encoder.visual.merger.mlp_1", "visual.merger.mlp.2",
			"encoder.visual.merger.mlp_1", "model.visual.merger.mlp.2",
			"encoder.visual", "visual",
			"encoder.visual", "model.visual",
			"encoder", "model",
			"encoder", "model.language_model",
			"encoder", "language_model",
		), layout.Unused("encoder.rotary_emb.inv_freq", "encoder.layers.{}.self_attn.rotary_emb.inv_freq",
			"encoder.visual.rotary_pos_emb.inv_freq")),
		ChannelsLast: true,
		Lacks:        []string{"lm_head.weight"},
	}},
	// names of transformers 4 and 5
	Original:     decoderTables("self_attn.q_proj.bias", []string{"qwen25_7b"}, "model.", "model.language_model.", "language_model."),
	Infer:        inferQwen25VL,
	Quantization: []QuantizationRule{{"*", 8}},
	LanguageModel: newLanguageModel(textenc.DefaultQwen25VLConfig,
		func(c textenc.Qwen25VLConfig, o LanguageModelOptions) *textenc.CausalLM {
			return textenc.NewQwen25VLForConditionalGeneration(c, o.Vision, o.Dtype)
		}),
	Whole:  "Qwen/Qwen2.5-VL-7B-Instruct",
	Blocks: decoderBlocks,
}

// inferQwen25VL assumes the head sizes of the published model.
func inferQwen25VL(s *layout.Sizes, inferred, published map[string]any) {
	const size = 128
	root := languageRoot(s)
	inferred["vocab_size"], inferred["hidden_size"] = s.Dim(root+"embed_tokens.weight", 0), s.Dim(root+"embed_tokens.weight", 1)
	inferred["intermediate_size"], inferred["num_hidden_layers"] = s.Dim(root+"layers.0.mlp.gate_proj.weight", 0), s.Count(root+"layers")
	if keys := s.Dim(root+"layers.0.self_attn.k_proj.weight", 0); inferred["hidden_size"].(int)%size == 0 && keys%size == 0 {
		published["num_attention_heads"], published["num_key_value_heads"] = inferred["hidden_size"].(int)/size, keys/size
	}
	published["hidden_act"], published["rms_norm_eps"], published["rope_theta"] = "silu", 1e-6, 1e6
	published["image_token_id"] = 151655
	vision := map[string]any{
		"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "hidden_act": "silu", "in_channels": 3,
		"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112,
		"fullatt_block_indexes": []int{7, 15, 23, 31}, "out_hidden_size": inferred["hidden_size"],
	}
	published["vision_config"] = vision
}

// Qwen25VLVision returns the vision encoder inside the text encoder as a component of
// its own.
func Qwen25VLVision(m *textenc.Qwen25VL) Component {
	c := m.Config.Vision
	return Component{Model: m.Visual, Class: &Class{
		Name: "Qwen2_5_VisionTransformerPretrainedModel", Library: "transformers",
		Blocks: func(any) BlockMemory {
			return languageModel(c.Depth, c.NumHeads, c.HiddenSize, c.IntermediateSize)
		},
	}}
}
