package component

import (
	"regexp"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/transformer"
)

// flux3Blocks are the lists of blocks of FLUX.3, with the makers' names.
var flux3Blocks = [][2]string{
	{"content_mode_blocks.image.{}", "mode_blocks.image.{}"},
	{"content_mode_blocks.image_cond.{}", "mode_blocks.image_cond.{}"},
	{"txt_mode_blocks.{}", "txt_mode_blocks.{}"},
	{"single_blocks.{}", "single_transformer_blocks.{}"},
}

// Flux3Transformer2DModel is the transformer of FLUX.3.
var Flux3Transformer2DModel = &Class{
	Name: "Flux3Transformer2DModel", Library: "diffusers", Role: Transformer, Folder: Transformers,
	MFlux: []*layout.Table{{
		Signature: []string{"mode_blocks.image_cond.0.attn.to_out.weight", "early_stream_modulations.txt.linear.weight"},
		Rules: layout.Rename(
			"mode_blocks.image.{}.attn.to_out", "mode_blocks.image.{}.attn.to_out.0",
			"mode_blocks.image_cond.{}.attn.to_out", "mode_blocks.image_cond.{}.attn.to_out.0",
			"txt_mode_blocks.{}.attn.to_out", "txt_mode_blocks.{}.attn.to_out.0",
			"single_transformer_blocks.{}.attn.to_out", "single_transformer_blocks.{}.attn.to_out.0",
		),
	}},
	Original: []*layout.Table{
		{Prefixes: transformerPrefixes, Rules: flux3Rules(), Signature: []string{
			"emb_in.image_cond.weight", "single_stream_modulations.txt.lin.weight", "content_mode_blocks.image.0.q_proj.weight",
		}},
		{Prefixes: transformerPrefixes, Signature: []string{
			"x_embedders.image_cond.weight", "single_stream_modulations.txt.linear.weight", "mode_blocks.image.0.attn.to_q.weight",
		}},
	},
	LoRA: joined("mode_blocks.image.{}", "mode_blocks.image_cond.{}", "txt_mode_blocks.{}", "single_transformer_blocks.{}"),
	LoRAHint: &lora.Hint{For: "FLUX.3", Names: regexp.MustCompile(
		`(content_|txt_)?mode_blocks|single_blocks[._]\d+[._]([qkv]_proj|attn_out|mlp_(in|out))`)},
	Infer: inferFlux3,
	Quantization: []QuantizationRule{
		{"x_embedders.*", 8}, {"context_embedder", 8}, {"*timestep_embedder.*", 8}, {"*_modulations.*", 8}, {"norm_out.linear", 8},
		{"proj_out", 8},
	},
	FLOPs: flux3FLOPs,
}

// flux3Rules returns the rules for FLUX.3's original checkpoints (flux3/model.py).
func flux3Rules() []layout.Rule {
	rules := layout.Rename(
		"emb_in.image", "x_embedders.image",
		"emb_in.image_cond", "x_embedders.image_cond",
		"txt_in", "context_embedder",
		"time_in.in_layer", "timestep_embedder.linear_1",
		"time_in.out_layer", "timestep_embedder.linear_2",
		"ref_time_in.in_layer", "target_timestep_embedder.linear_1",
		"ref_time_in.out_layer", "target_timestep_embedder.linear_2",
		"final_layer.image.linear", "proj_out",
	)
	for _, stream := range []string{"early_stream_modulations.", "single_stream_modulations."} {
		for _, mode := range []string{"image", "image_cond", "txt"} {
			rules = append(rules, layout.Rename(stream+mode+".lin", stream+mode+".linear")...)
		}
	}
	rules = append(rules, layout.Rule{ // shift and scale, which diffusers stores in the opposite order
		Other: "final_layer.image.adaLN_modulation.1", Names: []string{"norm_out.linear"},
		Transforms: []checkpoint.TransformOp{checkpoint.TransformSwap},
	})
	for _, b := range flux3Blocks {
		rules = append(rules, layout.Under(b[0], b[1], layout.Rename(
			"q_proj", "attn.to_q",
			"k_proj", "attn.to_k",
			"v_proj", "attn.to_v",
			"attn_out", "attn.to_out.0",
			"mlp_in", "ff.linear_in",
			"mlp_out", "ff.linear_out",
		), qkNorm("norm", "attn.norm_q", "attn.norm_k"))...)
	}
	return slices.Concat(rules, layout.Unused("repa_projectors.*"))
}

func inferFlux3(s *layout.Sizes, inferred, published map[string]any) {
	width := s.Dim("x_embedders.image.weight", 0)
	heads, size := s.Heads(width, "single_transformer_blocks.0.attn.norm_q.weight")
	inferred["in_channels"], inferred["cond_in_channels"] = s.Dim("x_embedders.image.weight", 1), s.Dim("x_embedders.image_cond.weight", 1)
	inferred["num_layers"], inferred["num_single_layers"] = s.Count("txt_mode_blocks"), s.Count("single_transformer_blocks")
	inferred["num_attention_heads"], inferred["attention_head_dim"] = heads, size
	inferred["joint_attention_dim"] = s.Dim("context_embedder.weight", 1)
	inferred["timestep_channels"] = s.Dim("timestep_embedder.linear_1.weight", 1)
	inferred["flow_map"] = s.Has("target_timestep_embedder.linear_1.weight")
	inferred["mlp_ratio"] = float64(s.Dim("single_transformer_blocks.0.ff.linear_out.weight", 1)) / float64(width)
	published["rope_theta"], published["eps"] = 10000, 1e-6
	layout.Axes(published, "axes_dims_rope", size, 32, 32, 32, 32)
}

// flux3FLOPs returns the FLOPs of FLUX.3's transformer.
func flux3FLOPs(model any, image, references, text int) float64 {
	c := model.(*transformer.Flux3).Config
	d := float64(c.NumAttentionHeads * c.AttentionHeadDim)
	hidden := float64(int(d * c.MLPRatio))
	embedder := float64(c.TimestepChannels)*d + d*d
	macs := 2*embedder + 12*d*d // of t and 0; four modulations
	if c.FlowMap {
		macs += embedder
	}
	if references > 0 { // two modulations more
		macs += 6*d*d + float64(references)*float64(c.CondInChannels)*d
	}
	for _, tokens := range []int{image, references, text} { // each mode for itself
		macs += jointMACs(d, hidden, tokens, 0, c.NumLayers, 3)
	}
	macs += jointMACs(d, hidden, image+references, text, c.NumSingleLayers, 3)
	return 2 * (macs + endMACs(d, c.InChannels, c.InChannels, c.JointAttentionDim, image, text))
}
