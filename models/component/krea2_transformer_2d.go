package component

import (
	"regexp"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/transformer"
)

// Krea2Transformer2DModel is the transformer of Krea 2.
var Krea2Transformer2DModel = &Class{
	Name: "Krea2Transformer2DModel", Library: "diffusers", Role: Transformer, Folder: Transformers,
	MFluxAtRoot: true,
	MFlux: []*layout.Table{{
		Signature: []string{"tproj.linear.weight", "txtfusion.projector.weight"},
		Rules: krea2Rules(
			"tmlp.linear_in", "time_embed.linear_1",
			"tmlp.linear_out", "time_embed.linear_2",
			"tproj.linear", "time_mod_proj",
			"txtmlp.norm.scale", "txt_in.norm.weight",
			"txtmlp.linear_in", "txt_in.linear_1",
			"txtmlp.linear_out", "txt_in.linear_2",
		),
	}},
	Original: []*layout.Table{
		{Prefixes: transformerPrefixes, Signature: []string{"tproj.1.weight", "txtfusion.projector.weight"}, Rules: krea2Rules(
			"tmlp.0", "time_embed.linear_1",
			"tmlp.2", "time_embed.linear_2",
			"tproj.1", "time_mod_proj",
			"txtmlp.0.scale", "txt_in.norm.weight",
			"txtmlp.1", "txt_in.linear_1",
			"txtmlp.3", "txt_in.linear_2",
		)},
		{Prefixes: transformerPrefixes, Signature: []string{
			"img_in.weight",
			"time_mod_proj.weight",
			"text_fusion.projector.weight",
		}},
	},
	LoRAHint: &lora.Hint{For: "Krea 2", Names: regexp.MustCompile(
		`te?xt_?fusion|blocks[._]\d+[._](attn[._](w[qkvo]|(to_)?gate)|(ff|mlp)[._](gate|up|down))[._]`)},
	Infer: inferKrea2,
	Quantization: []QuantizationRule{
		{"text_fusion.projector", 16}, {"img_in", 8}, {"txt_in.*", 8}, {"time_embed.*", 8}, {"time_mod_proj", 8},
		{"final_layer.linear", 8},
	},
	FLOPs: krea2FLOPs,
	Untapped: []Untapped{{
		regexp.MustCompile(`^transformer(\..*)?@\d+(#\d+)?:in\.((encoder_)?attention_mask|3)$`),
		"mask of the padding, which is left out here",
	}},
}

// krea2Rules returns the rules for Krea 2's original checkpoints, and for the folders of mflux,
// which differ in some names.
func krea2Rules(names ...string) []layout.Rule {
	rules := append(layout.Rename(names...), layout.Rename(
		"first", "img_in",
		"last.linear", "final_layer.linear",
		"last.norm.scale", "final_layer.norm.weight",
		"last.modulation.lin", "final_layer.scale_shift_table",
		"txtfusion.projector", "text_fusion.projector",
	)...)
	for _, blocks := range [][2]string{
		{"blocks.{}", "transformer_blocks.{}"},
		{"txtfusion.layerwise_blocks.{}", "text_fusion.layerwise_blocks.{}"},
		{"txtfusion.refiner_blocks.{}", "text_fusion.refiner_blocks.{}"},
	} {
		rules = append(rules, layout.Under(blocks[0], blocks[1], layout.Rename(
			"attn.wq", "attn.to_q",
			"attn.wk", "attn.to_k",
			"attn.wv", "attn.to_v",
			"attn.wo", "attn.to_out.0",
			"attn.gate", "attn.to_gate",
			"attn.qknorm.qnorm.scale", "attn.norm_q.weight",
			"attn.qknorm.knorm.scale", "attn.norm_k.weight",
			"mlp", "ff",
			"prenorm.scale", "norm1.weight",
			"postnorm.scale", "norm2.weight",
		))...)
	}
	rules = append(rules, layout.Rule{
		Other: "blocks.{}.mod.lin", Names: []string{"transformer_blocks.{}.scale_shift_table"},
		Transforms: []checkpoint.TransformOp{checkpoint.TransformSixRows},
	})
	return append(rules, layout.Unused("last.up", "last.down")...)
}

func inferKrea2(s *layout.Sizes, inferred, published map[string]any) {
	const block, text = "transformer_blocks.0.", "text_fusion.refiner_blocks.0."
	width, textWidth := s.Dim("img_in.weight", 0), s.Dim("txt_in.linear_1.weight", 1)
	heads, size := s.Heads(width, block+"attn.norm_q.weight")
	textHeads, textSize := s.Heads(textWidth, text+"attn.norm_q.weight")
	inferred["in_channels"] = s.Dim("img_in.weight", 1)
	inferred["num_layers"] = s.Count("transformer_blocks")
	inferred["num_attention_heads"], inferred["attention_head_dim"] = heads, size
	inferred["num_key_value_heads"] = s.Divide("the keys' width", s.Dim(block+"attn.to_k.weight", 0), size)
	inferred["intermediate_size"] = s.Dim(block+"ff.gate.weight", 0)
	inferred["timestep_embed_dim"] = s.Dim("time_embed.linear_1.weight", 1)
	inferred["text_hidden_dim"] = textWidth
	inferred["num_text_layers"] = s.Dim("text_fusion.projector.weight", 1)
	inferred["text_num_attention_heads"] = textHeads
	inferred["text_num_key_value_heads"] = s.Divide("the text's keys' width", s.Dim(text+"attn.to_k.weight", 0), textSize)
	inferred["text_intermediate_size"] = s.Dim(text+"ff.gate.weight", 0)
	inferred["num_layerwise_text_blocks"] = s.Count("text_fusion.layerwise_blocks")
	inferred["num_refiner_text_blocks"] = s.Count("text_fusion.refiner_blocks")
	published["rope_theta"], published["norm_eps"] = 1000, 1e-5
	layout.Axes(published, "axes_dims_rope", size, 32, 48, 48)
}

// krea2FLOPs returns the FLOPs of Krea 2's transformer.
func krea2FLOPs(model any, image, references, text int) float64 {
	c, image := model.(*transformer.Krea2).Config, image+references
	block := func(width, heads, kvHeads, hidden int, tokens, keys float64) float64 {
		d := float64(width)
		keyWidth := d * float64(kvHeads) / float64(heads)
		return tokens * (3*d*d + 2*d*keyWidth + 3*d*float64(hidden) + 2*keys*d)
	}
	d, textDim, t, layers := float64(c.Width()), float64(c.TextHiddenDim), float64(text), float64(c.NumTextLayers)
	textBlock := func(tokens, keys float64) float64 {
		return block(c.TextHiddenDim, c.TextNumAttentionHeads, c.TextNumKeyValueHeads, c.TextIntermediateSize, tokens, keys)
	}
	all := float64(image + text)
	macs := float64(c.TimestepEmbedDim)*d + d*d + 6*d*d
	macs += float64(c.NumLayerwiseTextBlocks)*textBlock(t*layers, layers) + t*textDim*layers
	macs += float64(c.NumRefinerTextBlocks)*textBlock(t, t) + t*(textDim*d+d*d)
	macs += float64(c.NumLayers) * block(c.Width(), c.NumAttentionHeads, c.NumKeyValueHeads, c.IntermediateSize, all, all)
	return 2 * (macs + 2*float64(image)*float64(c.InChannels)*d)
}
