package component

import (
	"maps"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/textenc"
)

// Mistral3ForConditionalGeneration is the text encoder of FLUX.2-dev and ERNIE-Image.
var Mistral3ForConditionalGeneration = &Class{
	Name: "Mistral3ForConditionalGeneration", Aliases: []string{Mistral3Model}, Library: "transformers", Role: TextEncoder,
	Folder: "text_encoder", Prefix: "model.", Headed: true,
	// mflux 0.24 does not have FLUX.2-dev: these are names of transformers 5
	MFlux: []*layout.Table{mistral3OfMFlux("language_model"), Mistral3OfErnieImage},
	// names of transformers 4 and 5, and of ComfyUI, whose files have the tokenizer too
	Original: []*layout.Table{
		mistral3Table("language_model.model."), mistral3Table("model.language_model."), mistral3Table("model."),
	},
	LoRAUnusedLayers: true,
	Infer:            inferMistral3,
	LanguageModel: newLanguageModel(textenc.DefaultMistral3Config,
		func(c textenc.Mistral3Config, o LanguageModelOptions) *textenc.CausalLM {
			return textenc.NewMistral3ForConditionalGeneration(c, o.HiddenStates, o.Dtype)
		}),
	Whole:  "black-forest-labs/FLUX.2-dev",
	Blocks: decoderBlocks,
}

// Mistral3Model is the class name of the text encoder in ERNIE-Image: the model without a head.
const Mistral3Model = "Mistral3Model"

// Ministral3ForCausalLM is the language model that rewrites prompts for ERNIE-Image, in folders of its models.
var Ministral3ForCausalLM = &Class{
	Name: "Ministral3ForCausalLM", Library: "transformers", Role: TextEncoder, Folder: "pe", Prefix: "model.", Standalone: true,
	Original: []*layout.Table{{Prefixes: namedPrefixes("pe"), Prefixed: true, Signature: []string{
		"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.gate_proj.weight",
	}}},
	Infer: func(s *layout.Sizes, inferred, published map[string]any) {
		maps.Copy(inferred, mistralSizes(s, ""))
		maps.Copy(inferred, mistralAssumed)
	},
	LanguageModel: newLanguageModel(textenc.DefaultMinistral3Config,
		func(c textenc.MistralConfig, o LanguageModelOptions) *textenc.CausalLM {
			return textenc.NewMinistral3ForCausalLM(c, o.Dtype)
		}),
	Blocks: decoderBlocks,
	Whole:  "baidu/ERNIE-Image",
}

// Mistral3OfErnieImage is mflux's layout of the text encoder of ERNIE-Image.
var Mistral3OfErnieImage = mistral3OfMFlux("language_model.model")

// mistral3OfMFlux is the layout of a folder of mflux whose language model is in root.
func mistral3OfMFlux(root string) *layout.Table {
	return &layout.Table{
		Metadata:  mfluxKey,
		Signature: []string{root + ".embed_tokens.weight", root + ".layers.0.mlp.gate_proj.weight"},
		Rules: layout.Rename( // the first names are those of published folders
			root+".embed_tokens", "language_model.model.embed_tokens",
			root+".layers", "language_model.model.layers",
			root+".norm", "language_model.model.norm",
			root, "model.language_model",
			root, "language_model",
		),
		Lacks: []string{"lm_head.weight", "language_model.lm_head.weight", "vision_tower.*", "multi_modal_projector.*",
			"model.vision_tower.*", "model.multi_modal_projector.*"},
	}
}

// Ministral3Of3B is the config of the language model of Ministral 3 with 3 billion parameters.
var Ministral3Of3B = map[string]any{
	"model_type": "ministral3", "hidden_size": 3072, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 32,
	"num_key_value_heads": 8, "head_dim": 128,
}

func mistral3Table(prefix string) *layout.Table {
	return &layout.Table{
		Prefixes: textPrefixes("mistral3_24b", "ministral3_3b"),
		Signature: []string{
			prefix + "embed_tokens.weight", prefix + "layers.0.self_attn.q_proj.weight", prefix + "layers.0.mlp.gate_proj.weight",
		},
		Rules: append(layout.Rename(
			prefix+"embed_tokens", "language_model.embed_tokens",
			prefix+"layers", "language_model.layers",
			prefix+"norm", "language_model.norm",
		), layout.Unused("tekken_model")...),
	}
}

// inferMistral3 takes a language model as wide as that of Ministral 3 with 3 billion parameters for one.
func inferMistral3(s *layout.Sizes, inferred, published map[string]any) {
	root := "language_model."
	if s.Has(root + "model.embed_tokens.weight") { // names of published folders, which those of mflux become
		root += "model."
	}
	text := mistralSizes(s, root)
	assumed := maps.Clone(mistralAssumed)
	if text["hidden_size"] == Ministral3Of3B["hidden_size"] {
		assumed["model_type"] = Ministral3Of3B["model_type"]
		delete(assumed, "rope_theta")
	}
	inferred["text_config"], published["text_config"] = text, assumed
}

// mistralAssumed are values of the published models that the shapes of tensors do not tell.
var mistralAssumed = map[string]any{"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e9}

// mistralSizes assumes the head size of the published models.
func mistralSizes(s *layout.Sizes, root string) map[string]any {
	sizes := languageSizes(s, root, 128)
	sizes["hidden_act"], sizes["rms_norm_eps"], sizes["rope_theta"] = "silu", 1e-5, 1e9
	return sizes
}
