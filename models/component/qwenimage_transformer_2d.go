package component

import (
	"regexp"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/transformer"
)

// QwenImageTransformer2DModel is the transformer of Qwen-Image.
var QwenImageTransformer2DModel = &Class{
	Name: "QwenImageTransformer2DModel", Library: "diffusers", Role: Transformer, Folder: Transformers,
	MFlux: []*layout.Table{{
		Signature: []string{"transformer_blocks.0.img_mod_linear.weight", "transformer_blocks.0.attn.add_q_proj.weight"},
		Rules: layout.Under("transformer_blocks.{}", "transformer_blocks.{}", layout.Rename(
			"attn.attn_to_out.0", "attn.to_out.0",
			"img_mod_linear", "img_mod.1",
			"txt_mod_linear", "txt_mod.1",
			"img_ff.mlp_in", "img_mlp.net.0.proj",
			"img_ff.mlp_out", "img_mlp.net.2",
			"txt_ff.mlp_in", "txt_mlp.net.0.proj",
			"txt_ff.mlp_out", "txt_mlp.net.2",
		)),
	}},
	Original: []*layout.Table{
		{Prefixes: transformerPrefixes, Rules: layout.Unused(indexTimestepZero), Signature: []string{
			"img_in.weight",
			"txt_norm.weight",
			"transformer_blocks.0.img_mod.1.weight",
			"transformer_blocks.0.attn.add_q_proj.weight",
		}},
	},
	LoRA: joined("transformer_blocks.{}"),
	LoRAHint: &lora.Hint{For: "Qwen-Image", Shared: jointNames, Names: regexp.MustCompile(
		`transformer_blocks[._]\d+[._](img|txt)_m(lp|od)`)},
	Infer: inferQwenImage,
	Quantization: []QuantizationRule{
		{"img_in", 8}, {"txt_in", 8}, {"time_text_embed.*", 8}, {"transformer_blocks.*.img_mod.1", 8},
		{"norm_out.linear", 8}, {"proj_out", 8},
	},
	FLOPs: qwenImageFLOPs,
	Blocks: func(model any) BlockMemory {
		c := model.(*transformer.QwenImage).Config
		w := float64(c.NumAttentionHeads * c.AttentionHeadDim)
		return BlockMemory{
			Blocks: c.NumLayers, Heads: c.NumAttentionHeads,
			Written: 17 * w, Read: 23 * w,
			Live: 36.5 * w, Scores: 1, Cast: 0.12, CastAlone: 0.6,
		}
	},
}

// indexTimestepZero is an empty tensor in ComfyUI's files. It marks a Qwen-Image-Edit
// that sees reference images at timestep zero (zero_cond_t).
const indexTimestepZero = "__index_timestep_zero__"

func inferQwenImage(s *layout.Sizes, inferred, published map[string]any) {
	width := s.Dim("img_in.weight", 0)
	heads, size := s.Heads(width, "transformer_blocks.0.attn.norm_q.weight")
	inferred["patch_size"] = 2
	inferred["in_channels"] = s.Dim("img_in.weight", 1)
	inferred["out_channels"] = s.Divide("the size of a patch", s.Dim("proj_out.weight", 0), 4)
	inferred["num_layers"] = s.Count("transformer_blocks")
	inferred["num_attention_heads"], inferred["attention_head_dim"] = heads, size
	inferred["joint_attention_dim"] = s.Dim("txt_in.weight", 1)
	inferred["guidance_embeds"] = false
	if s.Has(indexTimestepZero) {
		inferred["zero_cond_t"] = true
	}
	if s.Has("time_text_embed.addition_t_embedding.weight") {
		inferred["use_additional_t_cond"] = true
		inferred["use_layer3d_rope"] = true // Qwen-Image-Layered has both
	}
	layout.Axes(published, "axes_dims_rope", size, 16, 56, 56)
}

// qwenImageFLOPs returns the FLOPs of Qwen-Image's transformer.
func qwenImageFLOPs(model any, image, references, text int) float64 {
	c, image := model.(*transformer.QwenImage).Config, image+references
	d := float64(c.NumAttentionHeads * c.AttentionHeadDim)
	times := 1.0
	if c.ZeroCondT { // reference images have a timestep of their own
		times = 2
	}
	macs := times * (timeFeatures*d + d*d)
	macs += float64(c.NumLayers) * (times + 1) * 6 * d * d // modulation of image and text
	macs += jointMACs(d, 4*d, image, text, c.NumLayers, 2)
	return 2 * (macs + endMACs(d, c.InChannels, c.InChannels, c.JointAttentionDim, image, text))
}
