package component

import (
	"regexp"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/models/lora"
)

// AnimaTextConditioner makes Anima's text embeddings of the tokens of T5 and the output of Qwen3. In the
// files of ComfyUI and mflux it is in the transformer's.
var AnimaTextConditioner = &Class{
	Name: "AnimaTextConditioner", Library: "diffusers", Role: TextEncoder, Folder: "text_conditioner",
	MFlux: []*layout.Table{{Metadata: mfluxKey, Prefixes: []string{animaAdapter + "."}, Prefixed: true, Signature: animaSignature}},
	Original: []*layout.Table{{
		Prefixes:  append(under(animaAdapter+".", append(animaPrefixes, "")...), "text_conditioner."),
		Signature: animaSignature,
	}},
	LoRAHint:     &lora.Hint{For: "Anima", Names: regexp.MustCompile(animaAdapter + `[._]|text_conditioner\.`)},
	Infer:        inferAnima,
	Quantization: []QuantizationRule{{"*", 16}}, // mflux reads no others, since it decides what is drawn
}

var animaSignature = []string{"embed.weight", "blocks.0.cross_attn.q_proj.weight", "out_proj.bias"}

// under appends a name to prefixes.
func under(name string, prefixes ...string) (all []string) {
	for _, p := range prefixes {
		all = append(all, p+name)
	}
	return all
}

func inferAnima(s *layout.Sizes, inferred, published map[string]any) {
	const block = "blocks.0."
	width := s.Dim(block+"self_attn.q_proj.weight", 0)
	inferred["target_vocab_size"], inferred["target_dim"] = s.Dim("embed.weight", 0), s.Dim("embed.weight", 1)
	inferred["model_dim"], inferred["source_dim"] = width, s.Dim(block+"cross_attn.k_proj.weight", 1)
	inferred["num_layers"] = s.Count("blocks")
	inferred["num_attention_heads"], _ = s.Heads(width, block+"self_attn.q_norm.weight")
	inferred["mlp_ratio"] = float64(s.Dim(block+"mlp.0.weight", 0)) / float64(max(width, 1))
	published["min_sequence_length"] = 512
}
