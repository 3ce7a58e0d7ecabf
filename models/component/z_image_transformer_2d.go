package component

import (
	"regexp"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/transformer"
)

// ZImageTransformer2DModel is the transformer of Z-Image.
var ZImageTransformer2DModel = &Class{
	Name: "ZImageTransformer2DModel", Library: "diffusers", Role: Transformer, Folder: Transformers,
	MFlux: []*layout.Table{{
		Signature: []string{"t_embedder.linear1.weight", "cap_embedder.1.weight"},
		Rules: layout.Rename(
			"t_embedder.linear1", "t_embedder.mlp.0",
			"t_embedder.linear2", "t_embedder.mlp.2",
			"all_final_layer.{}-{}.adaLN_modulation.0", "all_final_layer.{}-{}.adaLN_modulation.1",
		),
	}},
	Original: []*layout.Table{
		// Lumina 2 has the same names except for adaLN_modulation.1
		{Prefixes: transformerPrefixes, Rules: zimageRules(), Signature: []string{
			"x_embedder.weight",
			"cap_embedder.1.weight",
			"layers.0.adaLN_modulation.0.weight",
			"layers.0.attention.qkv.weight",
		}},
		{Prefixes: transformerPrefixes, Signature: []string{
			"all_x_embedder.2-1.weight",
			"cap_embedder.1.weight",
			"layers.0.attention.to_q.weight",
		}},
	},
	LoRAHint: &lora.Hint{For: "Z-Image", Names: regexp.MustCompile(
		`(noise|context)_refiner|layers[._]\d+[._](attention[._]|feed_forward|adaLN)`)},
	Infer: inferZImage,
	Quantization: []QuantizationRule{
		{"all_x_embedder.*", 8}, {"cap_embedder.*", 8}, {"t_embedder.*", 8}, {"all_final_layer.*", 8},
	},
	FLOPs: zimageFLOPs,
	Blocks: func(model any) BlockMemory {
		c := model.(*transformer.ZImage).Config
		w := float64(c.Dim)
		return BlockMemory{
			Blocks: c.NLayers + 2*c.NRefinerLayers, Heads: c.NHeads,
			Written: 16 * w, Read: 13 * w,
			Live: 31 * w, Scores: 1, Cast: 0.75, CastAlone: 2.5,
		}
	},
	Untapped: []Untapped{{
		regexp.MustCompile(`^transformer\.(layers|(noise|context)_refiner)\.\d+@\d+(#\d+)?:in\.[12]$`),
		"mask and rotary table of Z-Image's blocks",
	}},
}

// zimageRules returns the rules for Z-Image in ComfyUI's files.
func zimageRules() []layout.Rule {
	rules := layout.Rename(
		"x_embedder", "all_x_embedder.2-1",
		"final_layer.linear", "all_final_layer.2-1.linear",
		"final_layer.adaLN_modulation.1", "all_final_layer.2-1.adaLN_modulation.1",
	)
	for _, stack := range []string{"noise_refiner", "context_refiner", "layers"} {
		attention := stack + ".{}.attention"
		rules = append(rules, layout.Under(attention, attention,
			[]layout.Rule{layout.Fuse("qkv", "to_q", "to_k", "to_v")},
			layout.Rename("out", "to_out.0", "q_norm", "norm_q", "k_norm", "norm_k"),
		)...)
	}
	return append(rules, layout.Unused("norm_final")...)
}

func inferZImage(s *layout.Sizes, inferred, published map[string]any) {
	embed := "all_x_embedder.2-1.weight"
	width := s.Dim(embed, 0)
	heads, size := s.Heads(width, "layers.0.attention.norm_q.weight")
	inferred["all_patch_size"], inferred["all_f_patch_size"] = []int{2}, []int{1}
	inferred["in_channels"] = s.Divide("the size of a patch", s.Dim(embed, 1), 4)
	inferred["dim"], inferred["n_heads"], inferred["n_kv_heads"] = width, heads, heads
	inferred["n_layers"], inferred["n_refiner_layers"] = s.Count("layers"), s.Count("noise_refiner")
	inferred["cap_feat_dim"] = s.Dim("cap_embedder.1.weight", 1)
	inferred["qk_norm"] = true
	published["norm_eps"], published["rope_theta"], published["t_scale"] = 1e-5, 256, 1000
	published["axes_lens"] = []int{1536, 512, 512}
	layout.Axes(published, "axes_dims", size, 32, 48, 48)
}

// zimageFLOPs returns the FLOPs of Z-Image's transformer for an image and a caption,
// whose tokens are padded to a multiple of 32.
func zimageFLOPs(model any, image, references, caption int) float64 {
	c, image := model.(*transformer.ZImage).Config, image+references
	const timeHidden, multiple = 1024, 32
	pad := func(n int) float64 { return float64((n + multiple - 1) / multiple * multiple) }
	x, t := pad(image), pad(caption)
	d := float64(c.Dim)
	adaLN := min(d, 256)
	hidden := float64(int(d / 3 * 8))
	features := float64(c.AllPatchSize[0] * c.AllPatchSize[0] * c.InChannels)

	block := func(tokens float64, modulated bool) float64 {
		macs := tokens*(4*d*d+3*d*hidden) + 2*tokens*tokens*d
		if modulated {
			macs += adaLN * 4 * d
		}
		return macs
	}
	macs := timeFeatures*timeHidden + timeHidden*adaLN
	macs += x*features*d + t*float64(c.CapFeatDim)*d
	macs += float64(c.NRefinerLayers) * (block(x, true) + block(t, false))
	macs += float64(c.NLayers) * block(x+t, true)
	macs += adaLN*d + (x+t)*d*features
	return 2 * macs
}
