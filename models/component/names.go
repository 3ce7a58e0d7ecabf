package component

import (
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
)

// mfluxKey is a metadata key in all files that mflux saves.
const mfluxKey = "mflux_version"

// Prefixes of tensor names in files that contain several components.
var (
	transformerPrefixes = []string{"model.diffusion_model.", "diffusion_model.", "transformer.", "model."}
	autoencoderPrefixes = []string{"vae.", "first_stage_model."}
)

// textPrefixes returns the prefixes of a text encoder, given ComfyUI's names for it.
func textPrefixes(names ...string) []string {
	return append(namedPrefixes(names...), "transformer.", "text_encoder.")
}

// namedPrefixes returns the prefixes with ComfyUI's names for a text encoder.
func namedPrefixes(names ...string) (prefixes []string) {
	for _, name := range names {
		prefixes = append(prefixes, "text_encoders."+name+".transformer.", "text_encoders."+name+".", name+".transformer.")
	}
	return prefixes
}

// qkNorm returns the rules for the norms of queries and keys. Their weights are called
// scale, or weight in files of newer versions of ComfyUI.
func qkNorm(other, q, k string) []layout.Rule {
	return layout.Rename(
		other+".query_norm.scale", q+".weight", other+".key_norm.scale", k+".weight",
		other+".query_norm", q, other+".key_norm", k,
	)
}

// fluxEnds returns the rules for the layers of FLUX.1 and FLUX.2 before and after their
// blocks.
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
		// shift and scale, which diffusers stores in the opposite order
		Other: "final_layer.adaLN_modulation.1", Names: []string{"norm_out.linear"},
		Transforms: []checkpoint.TransformOp{checkpoint.TransformSwap},
	})
}

// fluxAttention returns the rules for the attention of a block with two streams.
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

// joined returns the rules for blocks whose query, key and value projections diffusers
// can fuse.
func joined(blocks ...string) (rules []layout.Rule) {
	for _, block := range blocks {
		rules = append(rules,
			layout.Rule{Other: block + ".attn.to_qkv", Names: in(block+".attn", "to_q", "to_k", "to_v")},
			layout.Rule{Other: block + ".attn.to_added_qkv", Names: in(block+".attn", "add_q_proj", "add_k_proj", "add_v_proj")})
	}
	return rules
}

// in returns names prefixed with the name of their module.
func in(module string, names ...string) (out []string) {
	for _, name := range names {
		out = append(out, module+"."+name)
	}
	return out
}
