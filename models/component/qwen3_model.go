package component

import (
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/textenc"
)

// Qwen3Model is the text encoder of Z-Image and FLUX.2-klein.
var Qwen3Model = &Class{
	Name: "Qwen3Model", Aliases: []string{Qwen3ForCausalLM}, Library: "transformers", Role: TextEncoder, Folder: "text_encoder", Prefix: "model.",
	MFlux: []*layout.Table{{
		Metadata:  mfluxKey,
		Signature: []string{"embed_tokens.weight", "layers.0.self_attn.q_norm.weight"},
		Rules: slices.Concat(layout.Rename(
			"embed_tokens", "model.embed_tokens",
			"layers", "model.layers",
			"norm", "model.norm",
		), layout.Unused("rotary_emb.inv_freq")),
		Lacks: []string{"lm_head.weight"},
	}},
	Original:   []*layout.Table{qwen3Table("model."), qwen3Table("")}, // a Qwen3ForCausalLM's is what is published
	LoRABeyond: true,
	Infer:      inferQwen3,
	Blocks: func(model any) Stack {
		m := model.(*textenc.Qwen3)
		c := m.Config
		return languageModel(len(m.Layers), c.NumAttentionHeads, c.HiddenSize, c.IntermediateSize)
	},
}

// Qwen3ForCausalLM is the class by which FLUX.2-klein lists its text encoder: the
// model with a head that nothing reads.
const Qwen3ForCausalLM = "Qwen3ForCausalLM"

func qwen3Table(prefix string) *layout.Table {
	return &layout.Table{Prefixes: textPrefixes("qwen3_4b", "qwen3_8b"), Signature: []string{
		prefix + "embed_tokens.weight", prefix + "layers.0.self_attn.q_norm.weight", prefix + "layers.0.mlp.gate_proj.weight",
	}}
}

func inferQwen3(s *layout.Sizes, told, published map[string]any) {
	size := s.Dim("layers.0.self_attn.q_norm.weight", 0)
	told["vocab_size"], told["hidden_size"] = s.Dim("embed_tokens.weight", 0), s.Dim("embed_tokens.weight", 1)
	told["intermediate_size"] = s.Dim("layers.0.mlp.gate_proj.weight", 0)
	told["num_hidden_layers"] = s.Count("layers")
	told["head_dim"] = size
	told["num_attention_heads"] = s.Over("the queries' width", s.Dim("layers.0.self_attn.q_proj.weight", 0), size)
	told["num_key_value_heads"] = s.Over("the keys' width", s.Dim("layers.0.self_attn.k_proj.weight", 0), size)
	told["attention_bias"] = s.Has("layers.0.self_attn.q_proj.bias")
	published["hidden_act"], published["rms_norm_eps"], published["rope_theta"] = "silu", 1e-6, 1e6
}
