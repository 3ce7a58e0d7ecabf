package component

import (
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/textenc"
)

// CLIPTextModel is the first text encoder of FLUX.1.
var CLIPTextModel = &Class{
	Name: "CLIPTextModel", Library: "transformers", Role: TextEncoder, Folder: "text_encoder", Prefix: "text_model.",
	MFlux: []*layout.Table{{
		Metadata:  mfluxKey,
		Signature: []string{"text_model.embeddings.token_embedding.weight"},
		// names of transformers 4 and 5
		Rules: layout.Rename(
			"text_model.embeddings", "text_model.embeddings",
			"text_model.embeddings", "embeddings",
			"text_model.encoder", "text_model.encoder",
			"text_model.encoder", "encoder",
			"text_model.final_layer_norm", "text_model.final_layer_norm",
			"text_model.final_layer_norm", "final_layer_norm",
		),
		Lacks: []string{"text_projection.weight", "*position_ids"},
	}},
	Original: []*layout.Table{clipTable("text_model."), clipTable("")}, // transformers 5 writes names without it
	LoRA: layout.Under("encoder.layers.{}.self_attn", "encoder.layers.{}.self_attn", layout.Rename( // what diffusers wrote once
		"to_q", "q_proj", "to_k", "k_proj", "to_v", "v_proj", "to_out", "out_proj",
	)),
	Infer: inferCLIP,
	Blocks: func(model any) BlockMemory {
		c := model.(*textenc.CLIPText).Config
		return languageModel(c.NumHiddenLayers, c.NumAttentionHeads, c.HiddenSize, c.IntermediateSize)
	},
}

func clipTable(prefix string) *layout.Table {
	return &layout.Table{Prefixes: textPrefixes("clip_l"), Rules: layout.Unused("logit_scale"), Signature: []string{
		prefix + "embeddings.token_embedding.weight", prefix + "encoder.layers.0.self_attn.q_proj.weight",
		prefix + "final_layer_norm.weight",
	}}
}

func inferCLIP(s *layout.Sizes, inferred, published map[string]any) {
	width := s.Dim("embeddings.token_embedding.weight", 1)
	inferred["vocab_size"], inferred["hidden_size"] = s.Dim("embeddings.token_embedding.weight", 0), width
	inferred["max_position_embeddings"] = s.Dim("embeddings.position_embedding.weight", 0)
	inferred["intermediate_size"] = s.Dim("encoder.layers.0.mlp.fc1.weight", 0)
	inferred["num_hidden_layers"] = s.Count("encoder.layers")
	if width%64 == 0 {
		published["num_attention_heads"] = width / 64
	}
	published["hidden_act"], published["layer_norm_eps"] = "quick_gelu", 1e-5
	published["eos_token_id"] = 2 // stands for the token with the highest id
}
