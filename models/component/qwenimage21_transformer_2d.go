package component

import (
	"regexp"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/transformer"
)

// QwenImage21Transformer2DModel is the transformer of Qwen-Image-2.1.
var QwenImage21Transformer2DModel = &Class{
	Name: "QwenImage21Transformer2DModel", Library: "diffusers", Role: Transformer, Folder: Transformers,
	MFlux: []*layout.Table{{
		Signature: []string{"modulation.layers.1.weight", "txt_in.text_norm.weight"},
		Rules:     layout.Rename("modulation.layers.1", "modulation.1"),
	}},
	Original: []*layout.Table{
		{Prefixes: transformerPrefixes, Rules: fusedQwenImage21(), Signature: []string{
			"img_in.weight",
			"txt_in.text_norm.weight",
			"modulation.1.weight",
			"transformer_blocks.0.img_mlp.gate_up.weight",
		}},
		{Prefixes: transformerPrefixes, Signature: []string{
			"img_in.weight",
			"txt_in.text_norm.weight",
			"modulation.1.weight",
			"transformer_blocks.0.img_mlp.gate_layer.weight",
		}},
	},
	LoRA: append(joined("transformer_blocks.{}"), fusedQwenImage21()...),
	LoRAHint: &lora.Hint{For: "Qwen-Image-2.1", Names: regexp.MustCompile(
		`transformer_blocks[._]\d+[._]img_mlp[._](gate_layer|gate_up|proj|out)`)},
	Infer: inferQwenImage21,
	Quantization: []QuantizationRule{
		{"img_in", 8}, {"txt_in.*", 8}, {"time_text_embed.*", 8}, {"modulation.1", 8}, {"norm_out.linear", 8}, {"proj_out", 8},
	},
	FLOPs: qwenImage21FLOPs,
}

// fusedQwenImage21 returns the rules for the feed-forwards in ComfyUI's files.
func fusedQwenImage21() []layout.Rule {
	return layout.Under("transformer_blocks.{}.img_mlp", "transformer_blocks.{}.img_mlp",
		[]layout.Rule{layout.Fuse("gate_up", "gate_layer", "proj")})
}

func inferQwenImage21(s *layout.Sizes, inferred, published map[string]any) {
	width := s.Dim("img_in.weight", 0)
	heads, size := s.Heads(width, "transformer_blocks.0.attn.norm_q.weight")
	inferred["patch_size"] = 1
	inferred["in_channels"] = s.Dim("img_in.weight", 1)
	inferred["out_channels"] = s.Dim("proj_out.weight", 0)
	inferred["num_layers"] = s.Count("transformer_blocks")
	inferred["num_attention_heads"], inferred["attention_head_dim"] = heads, size
	inferred["context_in_dim"] = s.Dim("txt_in.in_layer.weight", 1)
	inferred["mlp_ratio"] = s.Divide("the width of a feed-forward", s.Dim("transformer_blocks.0.img_mlp.out.weight", 1), width)
	published["eps"], published["causal_condition"] = 1e-6, true
	layout.Axes(published, "axes_dims_rope", size, 16, 56, 56)
}

// qwenImage21FLOPs returns the FLOPs of Qwen-Image-2.1's transformer in a step after the first: of
// the image's tokens alone, which see the prompt's keys and values.
func qwenImage21FLOPs(model any, image, references, text int) float64 {
	c, image := model.(*transformer.QwenImage21).Config, image+references
	d, tokens := float64(c.NumAttentionHeads*c.AttentionHeadDim), float64(image)
	rows := 1.0 // of the time's embedding
	if c.CausalCondition {
		rows = 2
	} else {
		tokens += float64(text)
	}
	macs := rows * (timeFeatures*d + d*d + 4*d*d + d*d)
	macs += float64(c.NumLayers) * (tokens*(4+3*float64(c.MLPRatio))*d*d + 2*tokens*float64(image+text)*d)
	return 2 * (macs + 2*float64(image*c.InChannels)*d)
}
