package component

import (
	"fmt"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/textenc"
)

// Qwen35ForConditionalGeneration is the language model that rewrites prompts for Qwen-Image-2.1 and
// FLUX.3.
var Qwen35ForConditionalGeneration = &Class{
	Name: "Qwen3_5ForConditionalGeneration", Aliases: []string{"Qwen3_5ForCausalLM"}, Library: "transformers", Role: TextEncoder,
	Folder: "text_encoder", Prefix: "model.", Headed: true, Standalone: true,
	Original: decoderTables("linear_attn.in_proj_qkv.weight", []string{"qwen35_4b", "qwen35_9b"},
		"model.language_model.", "language_model.", "model.", ""),
	Infer: inferQwen35,
	LanguageModel: newLanguageModel(textenc.DefaultQwen35Config, func(c textenc.Qwen35Config, o LanguageModelOptions) *textenc.CausalLM {
		return textenc.NewQwen35ForConditionalGeneration(c, o.Vision && c.Vision != nil, o.Dtype)
	}),
	Blocks:    decoderBlocks,
	Whole:     "Qwen/Qwen3.5-9B",
	Processor: func(p *textenc.Qwen2VLImageProcessor) { Qwen3VLForConditionalGeneration.Processor(p) },
}

// inferQwen35 assumes the sizes of keys of linear attention, the rotary embedding and the vision encoder of
// the published models.
func inferQwen35(s *layout.Sizes, inferred, published map[string]any) {
	root := languageRoot(s)
	const keySize = 128
	linear, layers := root+"layers.0.linear_attn.", s.Count(root+"layers")
	inferred["vocab_size"], inferred["hidden_size"] = s.Dim(root+"embed_tokens.weight", 0), s.Dim(root+"embed_tokens.weight", 1)
	inferred["intermediate_size"], inferred["num_hidden_layers"] = s.Dim(root+"layers.0.mlp.gate_proj.weight", 0), layers
	values, size := s.Dim(linear+"A_log", 0), s.Dim(linear+"norm.weight", 0)
	inferred["linear_num_value_heads"], inferred["linear_value_head_dim"] = values, size
	inferred["linear_conv_kernel_dim"] = s.Dim(linear+"conv1d.weight", 2)
	published["linear_key_head_dim"] = keySize
	published["linear_num_key_heads"] = (s.Dim(linear+"conv1d.weight", 0) - values*size) / 2 / keySize
	for i, kind := range layerKinds(s, root, layers) {
		if attention := layerName(root, i) + "self_attn."; kind == "full_attention" {
			head := s.Dim(attention+"q_norm.weight", 0)
			inferred["head_dim"] = head
			inferred["num_attention_heads"] = s.Divide("the queries' width", s.Dim(attention+"q_proj.weight", 0), 2*head)
			inferred["num_key_value_heads"] = s.Divide("the keys' width", s.Dim(attention+"k_proj.weight", 0), head)
			break
		}
	}
	inferred["layer_types"] = layerKinds(s, root, layers)
	inferred["tie_word_embeddings"] = !s.Has("lm_head.weight")
	published["hidden_act"], published["rms_norm_eps"] = "silu", 1e-6
	published["rope_parameters"] = map[string]any{
		"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": []int{11, 11, 10},
	}
	published["image_token_id"] = 248056
}

func layerName(root string, layer int) string { return fmt.Sprintf("%slayers.%d.", root, layer) }

// layerKinds returns layer_types.
func layerKinds(s *layout.Sizes, root string, layers int) []string {
	kinds := make([]string, layers)
	for i := range kinds {
		if kinds[i] = "linear_attention"; s.Has(layerName(root, i) + "self_attn.q_norm.weight") {
			kinds[i] = "full_attention"
		}
	}
	return kinds
}
