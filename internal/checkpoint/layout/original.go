package layout

import (
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// What models' makers publish beside diffusers' folders, and what ComfyUI has: one
// file for a component, or one for all, in which each has names that begin in its
// own way. Where nothing but these beginnings differs, a table has no rules.
const original = "original"

// IndexTimestepZero is a tensor without elements by which ComfyUI knows a
// Qwen-Image-Edit that sees its pictures at time zero (zero_cond_t).
const IndexTimestepZero = "__index_timestep_zero__"

var (
	transformerPrefixes = []string{"model.diffusion_model.", "diffusion_model.", "transformer.", "model."}
	vaePrefixes         = []string{"vae.", "first_stage_model."}
)

// textPrefixes are those of a text encoder by ComfyUI's name for it.
func textPrefixes(names ...string) (prefixes []string) {
	for _, name := range names {
		prefixes = append(prefixes, "text_encoders."+name+".transformer.", "text_encoders."+name+".", name+".transformer.")
	}
	return append(prefixes, "transformer.", "text_encoder.")
}

func init() {
	add := func(class string, prefixes []string, rules []Rule, signature ...string) {
		register(&Table{Name: original, Class: class, Prefixes: prefixes, Signature: signature, Rules: rules})
	}

	add("FluxTransformer2DModel", transformerPrefixes, fluxRules(),
		"img_in.weight", "vector_in.in_layer.weight", "double_blocks.0.img_mod.lin.weight")
	add("FluxTransformer2DModel", transformerPrefixes, nil,
		"x_embedder.weight", "time_text_embed.text_embedder.linear_1.weight", "transformer_blocks.0.norm1_context.linear.weight")

	add("Flux2Transformer2DModel", transformerPrefixes, flux2Rules(),
		"img_in.weight", "single_stream_modulation.lin.weight", "double_blocks.0.img_attn.qkv.weight")
	add("Flux2Transformer2DModel", transformerPrefixes, nil,
		"x_embedder.weight", "single_stream_modulation.linear.weight", "transformer_blocks.0.attn.to_q.weight")

	// Lumina 2, whose names are alike otherwise, has adaLN_modulation.1.
	add("ZImageTransformer2DModel", transformerPrefixes, zimageRules(),
		"x_embedder.weight", "cap_embedder.1.weight", "layers.0.adaLN_modulation.0.weight", "layers.0.attention.qkv.weight")
	add("ZImageTransformer2DModel", transformerPrefixes, nil,
		"all_x_embedder.2-1.weight", "cap_embedder.1.weight", "layers.0.attention.to_q.weight")

	add("QwenImageTransformer2DModel", transformerPrefixes, unused(IndexTimestepZero),
		"img_in.weight", "txt_norm.weight", "transformer_blocks.0.img_mod.1.weight", "transformer_blocks.0.attn.add_q_proj.weight")

	const batchNorm = "bn.running_mean"
	flux2 := rename("encoder.quant_conv", "quant_conv", "decoder.post_quant_conv", "post_quant_conv")
	for levels := maxLevels; levels > 0; levels-- { // the first that fits counts, and those with more levels have the names of fewer
		top := fmt.Sprintf("decoder.up.%d.block.0.norm1.weight", levels-1)
		add("AutoencoderKLFlux2", vaePrefixes, append(klRules(levels), flux2...), top, "decoder.mid.attn_1.q.weight", batchNorm)
		add("AutoencoderKL", vaePrefixes, klRules(levels), top, "decoder.mid.attn_1.q.weight")
	}
	const inner, attention = "decoder.up_blocks.0.resnets.0.norm1.weight", "decoder.mid_block.attentions.0.to_q.weight"
	add("AutoencoderKLFlux2", vaePrefixes, nil, inner, attention, batchNorm)
	add("AutoencoderKL", vaePrefixes, nil, inner, attention)

	for levels := maxLevels; levels > 1; levels-- {
		for blocks := 1; blocks <= 3; blocks++ {
			add("AutoencoderKLQwenImage", vaePrefixes, wanRules(levels, blocks), "decoder.middle.0.residual.0.gamma",
				fmt.Sprintf("decoder.upsamples.%d.resample.1.weight", blocks+1),
				fmt.Sprintf("decoder.upsamples.%d.residual.0.gamma", levels*(blocks+2)-2))
		}
	}
	add("AutoencoderKLQwenImage", vaePrefixes, nil, "decoder.up_blocks.0.resnets.0.norm1.gamma", "decoder.mid_block.attentions.0.to_qkv.weight")

	clip := textPrefixes("clip_l")
	for _, own := range []string{"text_model.", ""} { // transformers 5 writes names without it
		add("CLIPTextModel", clip, unused("logit_scale"),
			own+"embeddings.token_embedding.weight", own+"encoder.layers.0.self_attn.q_proj.weight", own+"final_layer_norm.weight")
	}
	add("T5EncoderModel", textPrefixes("t5xxl"), unused("spiece_model", "logit_scale"),
		"encoder.block.0.layer.0.SelfAttention.q.weight", "encoder.final_layer_norm.weight")
	for _, own := range []string{"model.", ""} { // a Qwen3ForCausalLM's, which is what is published
		add("Qwen3Model", textPrefixes("qwen3_4b", "qwen3_8b"), nil,
			own+"embed_tokens.weight", own+"layers.0.self_attn.q_norm.weight", own+"layers.0.mlp.gate_proj.weight")
	}
	for _, own := range []string{"model.", "model.language_model.", "language_model."} { // of transformers 4 and 5
		add("Qwen2_5_VLForConditionalGeneration", textPrefixes("qwen25_7b"), nil,
			own+"embed_tokens.weight", own+"layers.0.self_attn.q_proj.bias", own+"layers.0.mlp.gate_proj.weight")
	}
}

// maxLevels bounds the levels of an autoencoder. Published ones have four.
const maxLevels = 6

// rename makes a rule of every pair: a name there, and diffusers'.
func rename(pairs ...string) (rules []Rule) {
	for i := 0; i < len(pairs); i += 2 {
		rules = append(rules, Rule{Other: pairs[i], Names: []string{pairs[i+1]}})
	}
	return rules
}

// fuse is the rule of a module that has the rows of several.
func fuse(other string, names ...string) Rule { return Rule{Other: other, Names: names} }

// under puts modules' names before both sides of rules.
func under(other, name string, rules ...[]Rule) (out []Rule) {
	for _, r := range slices.Concat(rules...) {
		names := make([]string, len(r.Names))
		for i := range names {
			names[i] = name + "." + r.Names[i]
		}
		out = append(out, Rule{Other: other + "." + r.Other, Names: names, Forms: r.Forms})
	}
	return out
}

// qkNorm are the norms of query and key. Their weights are called scale, and
// weight in the files of newer ComfyUIs.
func qkNorm(other, q, k string) []Rule {
	return rename(
		other+".query_norm.scale", q+".weight", other+".key_norm.scale", k+".weight",
		other+".query_norm", q, other+".key_norm", k,
	)
}

// fluxEnds are what FLUX.1 and FLUX.2 have before and behind their blocks.
func fluxEnds(embed string) []Rule {
	return append(rename(
		"img_in", "x_embedder",
		"txt_in", "context_embedder",
		"time_in.in_layer", embed+".timestep_embedder.linear_1",
		"time_in.out_layer", embed+".timestep_embedder.linear_2",
		"guidance_in.in_layer", embed+".guidance_embedder.linear_1",
		"guidance_in.out_layer", embed+".guidance_embedder.linear_2",
		"final_layer.linear", "proj_out",
	), Rule{
		// shift and scale, which diffusers has the other way round
		Other: "final_layer.adaLN_modulation.1", Names: []string{"norm_out.linear"}, Forms: []checkpoint.FormOp{checkpoint.FormSwap},
	})
}

// fluxAttention is that of a block over two streams.
func fluxAttention() []Rule {
	return slices.Concat(
		[]Rule{
			fuse("img_attn.qkv", "attn.to_q", "attn.to_k", "attn.to_v"),
			fuse("txt_attn.qkv", "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
		},
		rename("img_attn.proj", "attn.to_out.0", "txt_attn.proj", "attn.to_add_out"),
		qkNorm("img_attn.norm", "attn.norm_q", "attn.norm_k"),
		qkNorm("txt_attn.norm", "attn.norm_added_q", "attn.norm_added_k"),
	)
}

// fluxRules are those of FLUX.1 as its makers have it (flux/model.py).
func fluxRules() []Rule {
	return slices.Concat(
		fluxEnds("time_text_embed"),
		rename(
			"vector_in.in_layer", "time_text_embed.text_embedder.linear_1",
			"vector_in.out_layer", "time_text_embed.text_embedder.linear_2",
		),
		under("double_blocks.{}", "transformer_blocks.{}", fluxAttention(), rename(
			"img_mod.lin", "norm1.linear",
			"txt_mod.lin", "norm1_context.linear",
			"img_mlp.0", "ff.net.0.proj",
			"img_mlp.2", "ff.net.2",
			"txt_mlp.0", "ff_context.net.0.proj",
			"txt_mlp.2", "ff_context.net.2",
		)),
		under("single_blocks.{}", "single_transformer_blocks.{}",
			[]Rule{fuse("linear1", "attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")},
			rename("linear2", "proj_out", "modulation.lin", "norm.linear"),
			qkNorm("norm", "attn.norm_q", "attn.norm_k"),
		),
	)
}

// flux2Rules are those of FLUX.2 as its makers have it (flux2/model.py).
func flux2Rules() []Rule {
	return slices.Concat(
		fluxEnds("time_guidance_embed"),
		rename(
			"double_stream_modulation_img.lin", "double_stream_modulation_img.linear",
			"double_stream_modulation_txt.lin", "double_stream_modulation_txt.linear",
			"single_stream_modulation.lin", "single_stream_modulation.linear",
		),
		under("double_blocks.{}", "transformer_blocks.{}", fluxAttention(), rename(
			"img_mlp.0", "ff.linear_in",
			"img_mlp.2", "ff.linear_out",
			"txt_mlp.0", "ff_context.linear_in",
			"txt_mlp.2", "ff_context.linear_out",
		)),
		under("single_blocks.{}", "single_transformer_blocks.{}",
			rename("linear1", "attn.to_qkv_mlp_proj", "linear2", "attn.to_out"),
			qkNorm("norm", "attn.norm_q", "attn.norm_k"),
		),
	)
}

// zimageRules are those of Z-Image as ComfyUI has it.
func zimageRules() []Rule {
	rules := rename(
		"x_embedder", "all_x_embedder.2-1",
		"final_layer.linear", "all_final_layer.2-1.linear",
		"final_layer.adaLN_modulation.1", "all_final_layer.2-1.adaLN_modulation.1",
	)
	for _, stack := range []string{"noise_refiner", "context_refiner", "layers"} {
		attention := stack + ".{}.attention"
		rules = append(rules, under(attention, attention,
			[]Rule{fuse("qkv", "to_q", "to_k", "to_v")},
			rename("out", "to_out.0", "q_norm", "norm_q", "k_norm", "norm_k"),
		)...)
	}
	return append(rules, unused("norm_final")...)
}

// klRules are those of an autoencoder of latent diffusion (ldm's
// diffusionmodules/model.py), which counts the levels of the decoder from the
// largest picture down.
func klRules(levels int) []Rule {
	resnet := rename("norm1", "norm1", "conv1", "conv1", "norm2", "norm2", "conv2", "conv2", "nin_shortcut", "conv_shortcut")
	attention := rename("norm", "group_norm")
	for _, pair := range [][2]string{{"q", "to_q"}, {"k", "to_k"}, {"v", "to_v"}, {"proj_out", "to_out.0"}} {
		attention = append(attention, Rule{ // a convolution with a kernel of 1
			Other: pair[0] + ".weight", Names: []string{pair[1] + ".weight"}, Forms: []checkpoint.FormOp{checkpoint.FormSqueeze},
		})
		attention = append(attention, rename(pair[0], pair[1])...)
	}
	rules := slices.Concat(
		under("encoder.down.{}.block.{}", "encoder.down_blocks.{}.resnets.{}", resnet),
		rename("encoder.down.{}.downsample.conv", "encoder.down_blocks.{}.downsamplers.0.conv"),
	)
	for _, side := range []string{"encoder", "decoder"} {
		rules = slices.Concat(rules,
			under(side+".mid.block_1", side+".mid_block.resnets.0", resnet),
			under(side+".mid.block_2", side+".mid_block.resnets.1", resnet),
			under(side+".mid.attn_1", side+".mid_block.attentions.0", attention),
			rename(side+".norm_out", side+".conv_norm_out"),
		)
	}
	for level := range levels {
		up, block := fmt.Sprintf("decoder.up.%d", levels-1-level), fmt.Sprintf("decoder.up_blocks.%d", level)
		rules = slices.Concat(rules,
			under(up+".block.{}", block+".resnets.{}", resnet),
			rename(up+".upsample.conv", block+".upsamplers.0.conv"),
		)
	}
	return rules
}

// wanRules are those of Wan's autoencoder (wan/modules/vae.py), of which
// Qwen-Image has one: the blocks of all levels of a side, some residual ones and
// one between levels, are in one list.
func wanRules(levels, blocks int) []Rule {
	resnet := rename(
		"residual.0", "norm1", "residual.2", "conv1", "residual.3", "norm2", "residual.6", "conv2", "shortcut", "conv_shortcut",
	)
	resample := rename("resample.1", "resample.1", "time_conv", "time_conv")
	rules := slices.Concat(
		rename("conv1", "quant_conv", "conv2", "post_quant_conv"),
		under("encoder.downsamples.{}", "encoder.down_blocks.{}", resnet, resample),
	)
	for _, side := range []string{"encoder", "decoder"} {
		rules = slices.Concat(rules,
			rename(side+".conv1", side+".conv_in", side+".head.0", side+".norm_out", side+".head.2", side+".conv_out"),
			under(side+".middle.0", side+".mid_block.resnets.0", resnet),
			rename(side+".middle.1", side+".mid_block.attentions.0"),
			under(side+".middle.2", side+".mid_block.resnets.1", resnet),
		)
	}
	at := 0
	for level := range levels {
		for i := range blocks + 1 {
			rules = append(rules, under(fmt.Sprintf("decoder.upsamples.%d", at), fmt.Sprintf("decoder.up_blocks.%d.resnets.%d", level, i), resnet)...)
			at++
		}
		if level < levels-1 {
			rules = append(rules, under(fmt.Sprintf("decoder.upsamples.%d", at), fmt.Sprintf("decoder.up_blocks.%d.upsamplers.0", level), resample)...)
			at++
		}
	}
	return rules
}
