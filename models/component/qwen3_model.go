package component

import (
	"maps"
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
	// published files are of Qwen3ForCausalLM
	Original:         decoderTables("self_attn.q_norm.weight", []string{"qwen3_4b", "qwen3_8b"}, "model.", ""),
	LoRAUnusedLayers: true,
	Infer:            inferQwen3,
	LanguageModel: newLanguageModel(textenc.DefaultQwen3Config, func(c textenc.Qwen3Config, o LanguageModelOptions) *textenc.CausalLM {
		return textenc.NewQwen3ForCausalLM(c, o.HiddenStates, o.Dtype)
	}),
	Whole:  "Qwen/Qwen3-4B or Qwen/Qwen3-8B",
	Blocks: decoderBlocks,
}

// Qwen3ForCausalLM is the class name of the text encoder in FLUX.2-klein: the model
// with a language model head, which is not used to encode prompts.
const Qwen3ForCausalLM = "Qwen3ForCausalLM"

func inferQwen3(s *layout.Sizes, inferred, published map[string]any) {
	maps.Copy(inferred, languageSizes(s, "", s.Dim("layers.0.self_attn.q_norm.weight", 0)))
	inferred["attention_bias"] = s.Has("layers.0.self_attn.q_proj.bias")
	published["hidden_act"], published["rms_norm_eps"], published["rope_theta"] = "silu", 1e-6, 1e6
}
