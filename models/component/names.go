package component

import (
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
)

// mfluxKey is in the metadata of all files that mflux saves.
const mfluxKey = "mflux_version"

// What files that hold several components put before the names of one's tensors.
var (
	transformerPrefixes = []string{"model.diffusion_model.", "diffusion_model.", "transformer.", "model."}
	autoencoderPrefixes = []string{"vae.", "first_stage_model."}
)

// textPrefixes are those of a text encoder by ComfyUI's name for it.
func textPrefixes(names ...string) (prefixes []string) {
	for _, name := range names {
		prefixes = append(prefixes, "text_encoders."+name+".transformer.", "text_encoders."+name+".", name+".transformer.")
	}
	return append(prefixes, "transformer.", "text_encoder.")
}

// qkNorm are the norms of query and key. Their weights are called scale, and
// weight in the files of newer ComfyUIs.
func qkNorm(other, q, k string) []layout.Rule {
	return layout.Rename(
		other+".query_norm.scale", q+".weight", other+".key_norm.scale", k+".weight",
		other+".query_norm", q, other+".key_norm", k,
	)
}

// fluxEnds are what FLUX.1 and FLUX.2 have before and behind their blocks.
func fluxEnds(embed string) []layout.Rule {
	return append(layout.Rename(
		"img_in", "x_embedder",
		"txt_in", "context_embedder",
		"time_in.in_layer", embed+".timestep_embedder.linear_1",
		"time_in.out_layer", embed+".timestep_embedder.linear_2",
		"guidance_in.in_layer", embed+".guidance_embedder.linear_1",
		"guidance_in.out_layer", embed+".guidance_embedder.linear_2",
		"final_layer.linear", "proj_out",
	), layout.Rule{
		// shift and scale, which diffusers has the other way round
		Other: "final_layer.adaLN_modulation.1", Names: []string{"norm_out.linear"}, Forms: []checkpoint.FormOp{checkpoint.FormSwap},
	})
}

// fluxAttention is that of a block over two streams.
func fluxAttention() []layout.Rule {
	return slices.Concat(
		[]layout.Rule{
			layout.Fuse("img_attn.qkv", "attn.to_q", "attn.to_k", "attn.to_v"),
			layout.Fuse("txt_attn.qkv", "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
		},
		layout.Rename("img_attn.proj", "attn.to_out.0", "txt_attn.proj", "attn.to_add_out"),
		qkNorm("img_attn.norm", "attn.norm_q", "attn.norm_k"),
		qkNorm("txt_attn.norm", "attn.norm_added_q", "attn.norm_added_k"),
	)
}

// joined are the rules of blocks whose projections diffusers can join.
func joined(blocks ...string) (rules []layout.Rule) {
	for _, block := range blocks {
		rules = append(rules,
			layout.Rule{Other: block + ".attn.to_qkv", Names: in(block+".attn", "to_q", "to_k", "to_v")},
			layout.Rule{Other: block + ".attn.to_added_qkv", Names: in(block+".attn", "add_q_proj", "add_k_proj", "add_v_proj")})
	}
	return rules
}

// in puts a module's name before others.
func in(module string, names ...string) (out []string) {
	for _, name := range names {
		out = append(out, module+"."+name)
	}
	return out
}
