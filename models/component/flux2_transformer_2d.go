package component

import (
	"regexp"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/transformer"
)

// Flux2Transformer2DModel is the transformer of FLUX.2.
var Flux2Transformer2DModel = &Class{
	Name: "Flux2Transformer2DModel", Library: "diffusers", Role: Transformer, Folder: Transformers,
	MFlux: []*layout.Table{{
		Signature: []string{"time_guidance_embed.linear_1.weight", "double_stream_modulation_img.linear.weight"},
		Rules: layout.Rename(
			"time_guidance_embed.linear_1", "time_guidance_embed.timestep_embedder.linear_1",
			"time_guidance_embed.linear_2", "time_guidance_embed.timestep_embedder.linear_2",
			"transformer_blocks.{}.attn.to_out", "transformer_blocks.{}.attn.to_out.0",
		),
	}},
	Original: []*layout.Table{
		{Prefixes: transformerPrefixes, Rules: flux2Rules(), Signature: []string{
			"img_in.weight",
			"single_stream_modulation.lin.weight",
			"double_blocks.0.img_attn.qkv.weight",
		}},
		{Prefixes: transformerPrefixes, Signature: []string{
			"x_embedder.weight",
			"single_stream_modulation.linear.weight",
			"transformer_blocks.0.attn.to_q.weight",
		}},
	},
	// some programs cut off the first four letters of transformer_blocks
	LoRA: append(joined("transformer_blocks.{}"), layout.Rename("sformer_blocks.{}", "transformer_blocks.{}")...),
	LoRAHint: &lora.Hint{For: "FLUX.2", Shared: fluxNames, Names: regexp.MustCompile(
		`to_qkv_mlp_proj|stream_modulation|time_guidance_embed|ff(_context)?[._]linear_(in|out)`)},
	Infer: inferFlux2,
	Quantization: []QuantizationRule{
		{"x_embedder", 8}, {"context_embedder", 8}, {"time_guidance_embed.*", 8}, {"*_modulation*.linear", 8},
		{"norm_out.linear", 8}, {"proj_out", 8},
	},
	FLOPs: flux2FLOPs,
	Blocks: func(model any) BlockMemory {
		c := model.(*transformer.Flux2).Config
		w := float64(c.NumAttentionHeads * c.AttentionHeadDim)
		return BlockMemory{
			Blocks: c.NumLayers + c.NumSingleLayers, Heads: c.NumAttentionHeads,
			Written: 24.5 * w, Read: 27 * w,
			Live: 35.5 * w, Scores: 0.85, Cast: 1.3,
		}
	},
}

// flux2Rules returns the rules for FLUX.2's original checkpoints (flux2/model.py).
func flux2Rules() []layout.Rule {
	return slices.Concat(
		fluxEnds("time_guidance_embed"),
		layout.Rename(
			"double_stream_modulation_img.lin", "double_stream_modulation_img.linear",
			"double_stream_modulation_txt.lin", "double_stream_modulation_txt.linear",
			"single_stream_modulation.lin", "single_stream_modulation.linear",
		),
		layout.Under("double_blocks.{}", "transformer_blocks.{}", fluxAttention(), layout.Rename(
			"img_mlp.0", "ff.linear_in",
			"img_mlp.2", "ff.linear_out",
			"txt_mlp.0", "ff_context.linear_in",
			"txt_mlp.2", "ff_context.linear_out",
		)),
		layout.Under("single_blocks.{}", "single_transformer_blocks.{}",
			layout.Rename("linear1", "attn.to_qkv_mlp_proj", "linear2", "attn.to_out"),
			qkNorm("norm", "attn.norm_q", "attn.norm_k"),
		),
	)
}

func inferFlux2(s *layout.Sizes, inferred, published map[string]any) {
	width := s.Dim("x_embedder.weight", 0)
	heads, size := s.Heads(width, "transformer_blocks.0.attn.norm_q.weight")
	inferred["in_channels"], inferred["out_channels"] = s.Dim("x_embedder.weight", 1), nil
	inferred["num_layers"], inferred["num_single_layers"] = s.Count("transformer_blocks"), s.Count("single_transformer_blocks")
	inferred["num_attention_heads"], inferred["attention_head_dim"] = heads, size
	inferred["joint_attention_dim"] = s.Dim("context_embedder.weight", 1)
	inferred["timestep_guidance_channels"] = s.Dim("time_guidance_embed.timestep_embedder.linear_1.weight", 1)
	inferred["guidance_embeds"] = s.Has("time_guidance_embed.guidance_embedder.linear_1.weight")
	inferred["mlp_ratio"] = float64(s.Dim("transformer_blocks.0.ff.linear_out.weight", 1)) / float64(width)
	published["patch_size"], published["rope_theta"], published["eps"] = 1, 2000, 1e-6
	layout.Axes(published, "axes_dims_rope", size, 32, 32, 32, 32)
}

// flux2FLOPs returns the FLOPs of FLUX.2's transformer, whose blocks share their
// modulation. Image tokens include those of reference images, which pass through the
// last layer too.
func flux2FLOPs(model any, image, references, text int) float64 {
	c, image := model.(*transformer.Flux2).Config, image+references
	d := float64(c.NumAttentionHeads * c.AttentionHeadDim)
	embedder := float64(c.TimestepGuidanceChannels)*d + d*d
	macs := embedder + 15*d*d
	if c.GuidanceEmbeds {
		macs += embedder
	}
	hidden := float64(int(d * c.MLPRatio))
	macs += jointMACs(d, hidden, image, text, c.NumLayers+c.NumSingleLayers, 3)
	return 2 * (macs + endMACs(d, c.InChannels, c.InChannels, c.JointAttentionDim, image, text))
}
