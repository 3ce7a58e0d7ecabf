package component

import (
	"regexp"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/transformer"
)

// animaAdapter is the name of Anima's text conditioner in the files of the transformer.
const animaAdapter = "llm_adapter"

// animaPrefixes are those of the transformer's names, of which "net." is that of the original trainer.
var animaPrefixes = append(slices.Clone(transformerPrefixes), "net.")

// CosmosTransformer3DModel is the transformer of Anima.
var CosmosTransformer3DModel = &Class{
	Name: "CosmosTransformer3DModel", Library: "diffusers", Role: Transformer, Folder: Transformers,
	MFlux: []*layout.Table{{Metadata: mfluxKey, Rules: cosmosRules(), Signature: cosmosSignature}},
	Original: []*layout.Table{
		{Prefixes: animaPrefixes, Rules: cosmosRules(), Signature: cosmosSignature},
		{Prefixes: transformerPrefixes, Signature: []string{
			"patch_embed.proj.weight", "time_embed.t_embedder.linear_1.weight", "transformer_blocks.0.norm1.linear_1.weight",
		}},
	},
	LoRAHint: &lora.Hint{For: "Anima", Names: regexp.MustCompile(
		`blocks[._]\d+[._]((self|cross)_attn[._](q|k|v|output)_proj|mlp[._]layer[12]|adaln_modulation_)`)},
	Infer: inferCosmos,
	Quantization: []QuantizationRule{
		{"patch_embed.proj", 16}, {"proj_out", 8},
		// the modulation, of which mflux reads no others
		{"time_embed.*", 16}, {"transformer_blocks.*.norm*", 16}, {"norm_out.*", 16},
	},
	FLOPs: cosmosFLOPs,
}

// cosmosSignature are names of Cosmos-Predict2.
var cosmosSignature = []string{
	"x_embedder.proj.1.weight", "t_embedding_norm.weight", "blocks.0.adaln_modulation_self_attn.1.weight",
}

// cosmosRules returns the rules for the names of Cosmos-Predict2, which ComfyUI's files have too.
func cosmosRules() []layout.Rule {
	rules := layout.Rename(
		"x_embedder.proj.1", "patch_embed.proj",
		"t_embedder.1", "time_embed.t_embedder",
		"t_embedding_norm", "time_embed.norm",
		"final_layer.adaln_modulation.1", "norm_out.linear_1",
		"final_layer.adaln_modulation.2", "norm_out.linear_2",
		"final_layer.linear", "proj_out",
	)
	rules = append(rules, layout.Under("blocks.{}", "transformer_blocks.{}", layout.Rename(
		"adaln_modulation_self_attn.1", "norm1.linear_1",
		"adaln_modulation_self_attn.2", "norm1.linear_2",
		"adaln_modulation_cross_attn.1", "norm2.linear_1",
		"adaln_modulation_cross_attn.2", "norm2.linear_2",
		"adaln_modulation_mlp.1", "norm3.linear_1",
		"adaln_modulation_mlp.2", "norm3.linear_2",
		"mlp.layer1", "ff.net.0.proj",
		"mlp.layer2", "ff.net.2",
	))...)
	for _, attention := range [][2]string{{"self_attn", "attn1"}, {"cross_attn", "attn2"}} {
		rules = append(rules, layout.Under("blocks.{}."+attention[0], "transformer_blocks.{}."+attention[1], layout.Rename(
			"q_proj", "to_q", "k_proj", "to_k", "v_proj", "to_v", "output_proj", "to_out.0", "q_norm", "norm_q", "k_norm", "norm_k",
		))...)
	}
	return append(rules, layout.Unused(animaAdapter, "pos_embedder", "accum_video_sample_counter", "accum_image_sample_counter",
		"accum_iteration", "accum_train_in_hours")...)
}

func inferCosmos(s *layout.Sizes, inferred, published map[string]any) {
	const block, embed = "transformer_blocks.0.", "patch_embed.proj.weight"
	width := s.Dim(embed, 0)
	heads, size := s.Heads(width, block+"attn1.norm_q.weight")
	channels := s.Divide("the size of a patch", s.Dim("proj_out.weight", 0), 4)
	inferred["in_channels"], inferred["out_channels"] = channels, channels
	inferred["concat_padding_mask"] = s.Dim(embed, 1) != 4*channels
	inferred["num_attention_heads"], inferred["attention_head_dim"] = heads, size
	inferred["num_layers"] = s.Count("transformer_blocks")
	inferred["mlp_ratio"] = float64(s.Dim(block+"ff.net.0.proj.weight", 0)) / float64(max(width, 1))
	inferred["text_embed_dim"] = s.Dim(block+"attn2.to_k.weight", 1)
	inferred["adaln_lora_dim"] = s.Dim(block+"norm1.linear_1.weight", 0)
	inferred["patch_size"] = []int{1, 2, 2}
	inferred["extra_pos_embed_type"] = nil
	published["rope_scale"], published["max_size"] = []float64{1, 4, 4}, []int{128, 240, 240}
}

// cosmosFLOPs returns the FLOPs of Cosmos' transformer, whose text no block changes.
func cosmosFLOPs(model any, image, references, text int) float64 {
	c, image := model.(*transformer.Cosmos).Config, image+references
	d, n, t, rank := float64(c.Width()), float64(image), float64(text), float64(c.AdaLNLoRADim)
	in := 4 * float64(c.InChannels)
	if c.ConcatPaddingMask {
		in += 4
	}
	block := n*(4*d*d+2*n*d) + n*(2*d*d+2*t*d) + 2*t*float64(c.TextEmbedDim)*d + 2*n*d*d*c.MLPRatio + 3*(d*rank+3*rank*d)
	macs := n*in*d + 4*d*d + float64(c.NumLayers)*block + 3*d*rank + n*d*4*float64(c.OutChannels)
	return 2 * macs
}
