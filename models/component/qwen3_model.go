package component

import (
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/textenc"
)

// Qwen3Model is the text encoder of Z-Image and FLUX.2-klein.
var Qwen3Model = &Class{
	Name: "Qwen3Model", Aliases: []string{Qwen3ForCausalLM}, Library: "transformers", Role: TextEncoder,
	Folder: "text_encoder", Prefix: "model.",
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
	Original:         []*layout.Table{qwen3Table("model."), qwen3Table("")}, // published files are of Qwen3ForCausalLM
	LoRAUnusedLayers: true,
	Infer:            inferQwen3,
	LanguageModel: func(o LanguageModelOptions) (*textenc.CausalLM, error) {
		c := textenc.DefaultQwen3Config()
		if err := o.Read(&c); err != nil {
			return nil, err
		}
		return textenc.NewQwen3ForCausalLM(c, o.HiddenStates, o.Dtype), nil
	},
	Whole: "Qwen/Qwen3-4B or Qwen/Qwen3-8B",
	Blocks: func(model any) BlockMemory {
		m := model.(*textenc.Qwen3)
		c := m.Config
		return languageModel(len(m.Layers), c.NumAttentionHeads, c.HiddenSize, c.IntermediateSize)
	},
}

// Qwen3ForCausalLM is the class name of the text encoder in FLUX.2-klein: the model
// with a language model head, which is not used to encode prompts.
const Qwen3ForCausalLM = "Qwen3ForCausalLM"

func qwen3Table(prefix string) *layout.Table {
	return &layout.Table{Prefixes: textPrefixes("qwen3_4b", "qwen3_8b"), Signature: []string{
		prefix + "embed_tokens.weight", prefix + "layers.0.self_attn.q_norm.weight", prefix + "layers.0.mlp.gate_proj.weight",
	}}
}

func inferQwen3(s *layout.Sizes, inferred, published map[string]any) {
	size := s.Dim("layers.0.self_attn.q_norm.weight", 0)
	inferred["vocab_size"], inferred["hidden_size"] = s.Dim("embed_tokens.weight", 0), s.Dim("embed_tokens.weight", 1)
	inferred["intermediate_size"] = s.Dim("layers.0.mlp.gate_proj.weight", 0)
	inferred["num_hidden_layers"] = s.Count("layers")
	inferred["head_dim"] = size
	inferred["num_attention_heads"] = s.Divide("the queries' width", s.Dim("layers.0.self_attn.q_proj.weight", 0), size)
	inferred["num_key_value_heads"] = s.Divide("the keys' width", s.Dim("layers.0.self_attn.k_proj.weight", 0), size)
	inferred["attention_bias"] = s.Has("layers.0.self_attn.q_proj.bias")
	published["hidden_act"], published["rms_norm_eps"], published["rope_theta"] = "silu", 1e-6, 1e6
}
