package layout

import (
	"fmt"
	"path"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// The tables of "mflux" are of the folders that mflux-save writes (mflux 0.24.0,
// mflux/models/*/weights): the names of its modules, which are diffusers' but for
// what follows, with the channels of convolutions last.

func init() {
	for _, t := range mflux {
		t.Name = "mflux"
	}
	register(mflux...)
}

// mfluxKey is in the metadata of all files that mflux saves.
const mfluxKey = "mflux_version"

var mflux = []*Table{
	{
		Class:     "FluxTransformer2DModel",
		Signature: []string{"transformer_blocks.0.ff.linear1.weight", "transformer_blocks.0.norm1_context.linear.weight"},
		Rules: under("transformer_blocks.{}", "transformer_blocks.{}", rename(
			"ff.linear1", "ff.net.0.proj",
			"ff.linear2", "ff.net.2",
			"ff_context.linear1", "ff_context.net.0.proj",
			"ff_context.linear2", "ff_context.net.2",
		)),
	},
	{
		Class:     "Flux2Transformer2DModel",
		Signature: []string{"time_guidance_embed.linear_1.weight", "double_stream_modulation_img.linear.weight"},
		Rules: rename(
			"time_guidance_embed.linear_1", "time_guidance_embed.timestep_embedder.linear_1",
			"time_guidance_embed.linear_2", "time_guidance_embed.timestep_embedder.linear_2",
			"transformer_blocks.{}.attn.to_out", "transformer_blocks.{}.attn.to_out.0",
		),
	},
	{
		Class:     "ZImageTransformer2DModel",
		Signature: []string{"t_embedder.linear1.weight", "cap_embedder.1.weight"},
		Rules: rename(
			"t_embedder.linear1", "t_embedder.mlp.0",
			"t_embedder.linear2", "t_embedder.mlp.2",
			"all_final_layer.{}-{}.adaLN_modulation.0", "all_final_layer.{}-{}.adaLN_modulation.1",
		),
	},
	{
		Class:     "QwenImageTransformer2DModel",
		Signature: []string{"transformer_blocks.0.img_mod_linear.weight", "transformer_blocks.0.attn.add_q_proj.weight"},
		Rules: under("transformer_blocks.{}", "transformer_blocks.{}", rename(
			"attn.attn_to_out.0", "attn.to_out.0",
			"img_mod_linear", "img_mod.1",
			"txt_mod_linear", "txt_mod.1",
			"img_ff.mlp_in", "img_mlp.net.0.proj",
			"img_ff.mlp_out", "img_mlp.net.2",
			"txt_ff.mlp_in", "txt_mlp.net.0.proj",
			"txt_ff.mlp_out", "txt_mlp.net.2",
		)),
	},
	{
		Class:     "CLIPTextModel",
		Metadata:  mfluxKey,
		Signature: []string{"text_model.embeddings.token_embedding.weight"},
		// what transformers 4 saves, and 5
		Rules: rename(
			"text_model.embeddings", "text_model.embeddings",
			"text_model.embeddings", "embeddings",
			"text_model.encoder", "text_model.encoder",
			"text_model.encoder", "encoder",
			"text_model.final_layer_norm", "text_model.final_layer_norm",
			"text_model.final_layer_norm", "final_layer_norm",
		),
	},
	{
		Class:     "T5EncoderModel",
		Signature: []string{"t5_blocks.0.attention.SelfAttention.q.weight"},
		Rules: slices.Concat(rename(
			"shared", "shared",
			"shared", "encoder.embed_tokens",
			"final_layer_norm", "encoder.final_layer_norm",
			t5Bias(0), "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
		), []Rule{
			{Other: t5Bias("{}")},
		}, rename(
			"t5_blocks.{}.attention", "encoder.block.{}.layer.0",
			"t5_blocks.{}.ff", "encoder.block.{}.layer.1",
		)),
	},
	{
		Class:     "Qwen3Model",
		Metadata:  mfluxKey,
		Signature: []string{"embed_tokens.weight", "layers.0.self_attn.q_norm.weight"},
		Rules: slices.Concat(rename(
			"embed_tokens", "model.embed_tokens",
			"layers", "model.layers",
			"norm", "model.norm",
		), unused("rotary_emb.inv_freq")),
	},
	{
		Class:     "Qwen2_5_VLForConditionalGeneration",
		Signature: []string{"encoder.embed_tokens.weight", "encoder.layers.0.self_attn.q_proj.weight"},
		// what transformers 4 saves, and 5, with its prefix and without
		Rules: slices.Concat(rename(
			"encoder.visual.merger.mlp_0", "visual.merger.mlp.0",
			"encoder.visual.merger.mlp_0", "model.visual.merger.mlp.0",
			"encoder.visual.merger.mlp_1", "visual.merger.mlp.2",
			"encoder.visual.merger.mlp_1", "model.visual.merger.mlp.2",
			"encoder.visual", "visual",
			"encoder.visual", "model.visual",
			"encoder", "model",
			"encoder", "model.language_model",
			"encoder", "language_model",
		), unused("encoder.rotary_emb.inv_freq", "encoder.layers.{}.self_attn.rotary_emb.inv_freq", "encoder.visual.rotary_pos_emb.inv_freq")),
		ChannelsLast: true,
	},
	{
		Class:     "AutoencoderKL", // of FLUX.1
		Signature: []string{"decoder.conv_in.conv2d.weight", "encoder.conv_in.conv2d.weight"},
		Rules: rename(
			"encoder.conv_in.conv2d", "encoder.conv_in",
			"encoder.conv_norm_out.norm", "encoder.conv_norm_out",
			"encoder.conv_out.conv2d", "encoder.conv_out",
			"decoder.conv_in.conv2d", "decoder.conv_in",
			"decoder.conv_norm_out.norm", "decoder.conv_norm_out",
			"decoder.conv_out.conv2d", "decoder.conv_out",
		),
		ChannelsLast: true,
	},
	{
		Class:     "AutoencoderKL", // of Z-Image
		Signature: []string{"decoder.conv_in.conv.weight", "encoder.conv_in.conv2d.weight"},
		Rules: rename(
			"encoder.conv_in.conv2d", "encoder.conv_in",
			"encoder.conv_norm_out.norm", "encoder.conv_norm_out",
			"encoder.conv_out.conv2d", "encoder.conv_out",
			"decoder.conv_in.conv", "decoder.conv_in",
			"decoder.conv_norm_out.norm", "decoder.conv_norm_out",
			"decoder.conv_out.conv", "decoder.conv_out",
		),
		ChannelsLast: true,
	},
	{
		Class:     "AutoencoderKLFlux2",
		Signature: []string{"decoder.mid_block.attentions.0.to_out.weight", "bn.running_mean"},
		Rules: rename(
			"encoder.mid_block.attentions.0.to_out", "encoder.mid_block.attentions.0.to_out.0",
			"decoder.mid_block.attentions.0.to_out", "decoder.mid_block.attentions.0.to_out.0",
		),
		ChannelsLast: true,
	},
	{
		Class:        "AutoencoderKLQwenImage",
		Signature:    []string{"decoder.conv_in.conv3d.weight", "decoder.up_block0.resnets.0.conv1.conv3d.weight"},
		Rules:        mfluxQwenVAE(),
		ChannelsLast: true,
	},
}

// unused makes rules of what other programs do not have.
func unused(others ...string) (rules []Rule) {
	for _, other := range others {
		rules = append(rules, Rule{Other: other})
	}
	return rules
}

// t5Bias is a module that mflux keeps in every block, and transformers in the
// first.
func t5Bias(block any) string {
	return fmt.Sprintf("t5_blocks.%v.attention.SelfAttention.relative_attention_bias", block)
}

// mfluxQwenVAE are the rules of an autoencoder whose levels are of two residual
// blocks in the encoder: mflux numbers them by level, diffusers one after the
// other.
func mfluxQwenVAE() (rules []Rule) {
	norm := func(module string, ones int) Rule {
		forms := slices.Repeat([]checkpoint.FormOp{checkpoint.FormExpand}, ones)
		return Rule{Other: module + ".weight", Names: []string{module + ".gamma"}, Forms: forms}
	}
	block := slices.Concat(rename(
		"conv1.conv3d", "conv1",
		"conv2.conv3d", "conv2",
		"skip_conv.conv3d", "conv_shortcut",
	), []Rule{norm("norm1", 3), norm("norm2", 3)})
	sample := rename("resample_conv", "resample.1", "time_conv.conv3d", "time_conv")

	rules = rename("quant_conv.conv3d", "quant_conv", "post_quant_conv.conv3d", "post_quant_conv")
	for _, part := range []string{"encoder", "decoder"} {
		rules = slices.Concat(rules,
			rename(part+".conv_in.conv3d", part+".conv_in", part+".conv_out.conv3d", part+".conv_out"),
			[]Rule{norm(part+".norm_out", 3), norm(part+".mid_block.attentions.0.norm", 2)},
			under(part+".mid_block.resnets.{}", part+".mid_block.resnets.{}", block),
		)
	}
	for i := range 11 {
		other := fmt.Sprintf("encoder.down_blocks.%d", i/3)
		name := fmt.Sprintf("encoder.down_blocks.%d", i)
		if i%3 == 2 {
			rules = append(rules, under(other+".downsamplers.0", name, sample)...)
		} else {
			rules = append(rules, under(fmt.Sprintf("%s.resnets.%d", other, i%3), name, block)...)
		}
	}
	return slices.Concat(rules,
		under("decoder.up_block{}.resnets.{}", "decoder.up_blocks.{}.resnets.{}", block),
		under("decoder.up_block{}.upsamplers.0", "decoder.up_blocks.{}.upsamplers.0", sample),
	)
}

// MFlux is the table of a class by which mflux saves it, nil for one that it does
// not know: of the autoencoders that two pipelines have, each has its own.
func MFlux(class, pipeline string) *Table {
	i := slices.IndexFunc(mflux, func(t *Table) bool { return t.Class == class })
	if i < 0 {
		return nil
	}
	if class == "AutoencoderKL" && pipeline == "ZImagePipeline" {
		i++
	}
	return mflux[i]
}

// Again lists what mflux has more than once, of all of its names: under what other
// names it has a tensor of one name. It keeps T5's table of relative positions,
// which transformers has in the first block, in every one.
func (t *Table) Again(names []string) map[string][]string {
	if t.Class != "T5EncoderModel" || t.Name != "mflux" {
		return nil
	}
	again := map[string][]string{}
	for _, name := range names {
		numbers, ok := match("t5_blocks.{}.attention.layer_norm.weight", name)
		if ok && numbers[0] != "0" {
			again[t5Bias(0)+".weight"] = append(again[t5Bias(0)+".weight"], t5Bias(numbers[0])+".weight")
		}
	}
	return again
}

// mfluxLacks are names of tensors that mflux does not have, since it needs none of
// them, by class.
var mfluxLacks = map[string][]string{
	"CLIPTextModel":                      {"text_projection.weight", "*position_ids"},
	"T5EncoderModel":                     {"decoder.*", "lm_head.weight"},
	"Qwen3Model":                         {"lm_head.weight"},
	"Qwen2_5_VLForConditionalGeneration": {"lm_head.weight"},
	"AutoencoderKLFlux2":                 {"bn.num_batches_tracked"},
}

// Lacks says of a tensor of diffusers that mflux does not have it.
func (t *Table) Lacks(name string) bool {
	return t.Name == "mflux" && slices.ContainsFunc(mfluxLacks[t.Class], func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}
