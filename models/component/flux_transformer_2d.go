package component

import (
	"regexp"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/transformer"
)

// FluxTransformer2DModel is the transformer of FLUX.1.
var FluxTransformer2DModel = &Class{
	Name: "FluxTransformer2DModel", Library: "diffusers", Role: Transformer, Folder: Transformers,
	MFlux: []*layout.Table{{
		Signature: []string{"transformer_blocks.0.ff.linear1.weight", "transformer_blocks.0.norm1_context.linear.weight"},
		Rules: layout.Under("transformer_blocks.{}", "transformer_blocks.{}", layout.Rename(
			"ff.linear1", "ff.net.0.proj",
			"ff.linear2", "ff.net.2",
			"ff_context.linear1", "ff_context.net.0.proj",
			"ff_context.linear2", "ff_context.net.2",
		)),
	}},
	Original: []*layout.Table{
		{Prefixes: transformerPrefixes, Rules: fluxRules(), Signature: []string{
			"img_in.weight",
			"vector_in.in_layer.weight",
			"double_blocks.0.img_mod.lin.weight",
		}},
		{Prefixes: transformerPrefixes, Signature: []string{
			"x_embedder.weight",
			"time_text_embed.text_embedder.linear_1.weight",
			"transformer_blocks.0.norm1_context.linear.weight",
		}},
	},
	LoRA: slices.Concat(joined("transformer_blocks.{}", "single_transformer_blocks.{}"), []layout.Rule{
		{Other: "double_blocks.{}.processor.qkv_lora1", Names: in("transformer_blocks.{}.attn", "to_q", "to_k", "to_v")},
		{Other: "double_blocks.{}.processor.qkv_lora2", Names: in("transformer_blocks.{}.attn", "add_q_proj", "add_k_proj", "add_v_proj")},
		{Other: "double_blocks.{}.processor.proj_lora1", Names: in("transformer_blocks.{}.attn", "to_out.0")},
		{Other: "double_blocks.{}.processor.proj_lora2", Names: in("transformer_blocks.{}.attn", "to_add_out")},
		{Other: "single_blocks.{}.processor.qkv", Names: in("single_transformer_blocks.{}.attn", "to_q", "to_k", "to_v")},
		{Other: "single_blocks.{}.processor.proj", Names: in("single_transformer_blocks.{}", "proj_out")},
	}, fluxTrainers()),
	LoRAPadded: []string{"x_embedder"}, // inputs after those of the latents, as in diffusers
	LoRAHint: &lora.Hint{For: "FLUX.1", Shared: fluxNames, Names: regexp.MustCompile(
		`(img|txt)_mod[._]lin[._]|vector_in|modulation[._]lin[._]|proj_mlp|` +
			`blocks[._]\d+[._](norm1?(_context)?[._]linear|ff(_context)?[._](net|linear[12]))`)},
	Infer: inferFlux,
	Quantization: []QuantizationRule{
		{"x_embedder", 8}, {"context_embedder", 8}, {"time_text_embed.*", 8}, {"norm_out.linear", 8}, {"proj_out", 8},
	},
	FLOPs: fluxFLOPs,
	Blocks: func(model any) BlockMemory {
		c := model.(*transformer.Flux).Config
		w := float64(c.NumAttentionHeads * c.AttentionHeadDim)
		return BlockMemory{
			Blocks: c.NumLayers + c.NumSingleLayers, Heads: c.NumAttentionHeads,
			Written: 28 * w, Read: 38 * w,
			Live: 36 * w, Scores: 1, Cast: 0.65,
		}
	},
}

// fluxRules returns the rules for FLUX.1's original checkpoints (flux/model.py).
func fluxRules() []layout.Rule {
	return slices.Concat(
		fluxEnds("time_text_embed"),
		layout.Rename(
			"vector_in.in_layer", "time_text_embed.text_embedder.linear_1",
			"vector_in.out_layer", "time_text_embed.text_embedder.linear_2",
		),
		layout.Under("double_blocks.{}", "transformer_blocks.{}", fluxAttention(), layout.Rename(
			"img_mod.lin", "norm1.linear",
			"txt_mod.lin", "norm1_context.linear",
			"img_mlp.0", "ff.net.0.proj",
			"img_mlp.2", "ff.net.2",
			"txt_mlp.0", "ff_context.net.0.proj",
			"txt_mlp.2", "ff_context.net.2",
		)),
		layout.Under("single_blocks.{}", "single_transformer_blocks.{}",
			[]layout.Rule{layout.Fuse("linear1", "attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")},
			layout.Rename("linear2", "proj_out", "modulation.lin", "norm.linear"),
			qkNorm("norm", "attn.norm_q", "attn.norm_k"),
		),
	)
}

// fluxNames matches names in LoRAs for FLUX.1 and for FLUX.2.
var fluxNames = regexp.MustCompile(`double_blocks|single_blocks|single_transformer_blocks|` + jointNames.String())

// jointNames matches names of attention in the blocks of FLUX.1, FLUX.2 and Qwen-Image.
var jointNames = regexp.MustCompile(`transformer_blocks[._]\d+[._]attn[._](add_[qkv]_proj|to_add)`)

// fluxTrainers returns the rules for LoRAs of DiffSynth-Studio and of OneTrainer.
func fluxTrainers() []layout.Rule {
	diffsynth := slices.Concat(
		layout.Under("blocks.{}", "transformer_blocks.{}", layout.Rename(
			"attn.a_to_out", "attn.to_out.0",
			"attn.b_to_out", "attn.to_add_out",
			"ff_a.0", "ff.net.0.proj",
			"ff_a.2", "ff.net.2",
			"ff_b.0", "ff_context.net.0.proj",
			"ff_b.2", "ff_context.net.2",
			"norm1_a.linear", "norm1.linear",
			"norm1_b.linear", "norm1_context.linear",
		), []layout.Rule{
			layout.Fuse("attn.a_to_qkv", "attn.to_q", "attn.to_k", "attn.to_v"),
			layout.Fuse("attn.b_to_qkv", "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
		}),
		layout.Under("single_blocks.{}", "single_transformer_blocks.{}",
			layout.Rename("proj_out", "proj_out", "norm.linear", "norm.linear"),
			[]layout.Rule{layout.Fuse("to_qkv_mlp", "attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")}),
	)
	oneTrainer := slices.Concat( // the layers that the original layout fuses, with their numbers
		layout.Under("double_blocks.{}", "transformer_blocks.{}.attn", layout.Rename(
			"img_attn.qkv.0", "to_q", "img_attn.qkv.1", "to_k", "img_attn.qkv.2", "to_v",
			"txt_attn.qkv.0", "add_q_proj", "txt_attn.qkv.1", "add_k_proj", "txt_attn.qkv.2", "add_v_proj",
		)),
		layout.Under("single_blocks.{}", "single_transformer_blocks.{}", layout.Rename(
			"linear1.0", "attn.to_q", "linear1.1", "attn.to_k", "linear1.2", "attn.to_v", "linear1.3", "proj_mlp",
		)),
		layout.Rename("img_in.proj", "x_embedder"),
	)
	return append(diffsynth, oneTrainer...)
}

func inferFlux(s *layout.Sizes, inferred, published map[string]any) {
	width := s.Dim("x_embedder.weight", 0)
	heads, size := s.Heads(width, "transformer_blocks.0.attn.norm_q.weight")
	in, out := s.Dim("x_embedder.weight", 1), s.Dim("proj_out.weight", 0)
	inferred["in_channels"], inferred["out_channels"] = in, nil
	if out != in {
		inferred["out_channels"] = out
	}
	inferred["num_layers"], inferred["num_single_layers"] = s.Count("transformer_blocks"), s.Count("single_transformer_blocks")
	inferred["num_attention_heads"], inferred["attention_head_dim"] = heads, size
	inferred["joint_attention_dim"] = s.Dim("context_embedder.weight", 1)
	inferred["pooled_projection_dim"] = s.Dim("time_text_embed.text_embedder.linear_1.weight", 1)
	inferred["guidance_embeds"] = s.Has("time_text_embed.guidance_embedder.linear_1.weight")
	published["patch_size"] = 1
	layout.Axes(published, "axes_dims_rope", size, 16, 56, 56)
}

// fluxFLOPs returns the FLOPs of FLUX.1's transformer. An image token is a 2x2 patch of
// latents.
func fluxFLOPs(model any, image, references, text int) float64 {
	c, image := model.(*transformer.Flux).Config, image+references
	d := float64(c.NumAttentionHeads * c.AttentionHeadDim)
	embed := timeFeatures*d + d*d
	macs := embed + float64(c.PooledProjectionDim)*d + d*d
	if c.GuidanceEmbeds {
		macs += embed
	}
	macs += float64(c.NumLayers)*12*d*d + float64(c.NumSingleLayers)*3*d*d // modulation
	macs += jointMACs(d, 4*d, image, text, c.NumLayers+c.NumSingleLayers, 2)
	return 2 * (macs + endMACs(d, c.InChannels, c.Predicted(), c.JointAttentionDim, image, text))
}
