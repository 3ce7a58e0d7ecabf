package component

import (
	"regexp"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/transformer"
)

// ErnieImageTransformer2DModel is the transformer of ERNIE-Image. ComfyUI has diffusers' names, and so have
// the programs that train LoRAs.
var ErnieImageTransformer2DModel = &Class{
	Name: "ErnieImageTransformer2DModel", Library: "diffusers", Role: Transformer, Folder: Transformers,
	MFlux: []*layout.Table{{
		Signature:    []string{"adaln_modulation.weight", "layers.0.adaLN_sa_ln.weight"},
		Rules:        layout.Rename("adaln_modulation", "adaLN_modulation.1"),
		ChannelsLast: true,
	}},
	Original: []*layout.Table{{
		Prefixes: transformerPrefixes, Signature: []string{"adaLN_modulation.1.weight", "layers.0.adaLN_sa_ln.weight"},
	}},
	LoRA: layout.Rename("adaln_modulation", "adaLN_modulation.1"), // mflux
	LoRAHint: &lora.Hint{For: "ERNIE-Image", Names: regexp.MustCompile(
		`layers[._]\d+[._](self_attention[._]to_|mlp[._](gate_proj|up_proj|linear_fc2))`)},
	Infer: inferErnieImage,
	Quantization: []QuantizationRule{
		{"text_proj", 8}, {"time_embedding.*", 8}, {"adaLN_modulation.*", 8}, {"final_norm.linear", 8}, {"final_linear", 8},
	},
	FLOPs: ernieFLOPs,
	Untapped: []Untapped{{
		regexp.MustCompile(`^transformer\.pos_embed@\d+(#\d+)?(:in\..*)?$`),
		"angles, of which cosine and sine are computed on the host",
	}},
}

func inferErnieImage(s *layout.Sizes, inferred, published map[string]any) {
	width := s.Dim("x_embedder.proj.weight", 0)
	heads, size := s.Heads(width, "layers.0.self_attention.norm_q.weight")
	inferred["hidden_size"], inferred["num_attention_heads"] = width, heads
	inferred["num_layers"] = s.Count("layers")
	inferred["ffn_hidden_size"] = s.Dim("layers.0.mlp.gate_proj.weight", 0)
	inferred["in_channels"], inferred["out_channels"] = s.Dim("x_embedder.proj.weight", 1), s.Dim("final_linear.weight", 0)
	inferred["text_in_dim"] = width
	if s.Has("text_proj.weight") {
		inferred["text_in_dim"] = s.Dim("text_proj.weight", 1)
	}
	published["rope_theta"], published["eps"] = 256, 1e-6
	layout.Axes(published, "rope_axes_dim", size, 32, 48, 48)
}

// ernieFLOPs returns the FLOPs of ERNIE-Image's transformer.
func ernieFLOPs(model any, image, references, text int) float64 {
	c, image := model.(*transformer.ErnieImage).Config, image+references
	d := float64(c.HiddenSize)
	macs := jointMACs(d, float64(c.FFNHiddenSize), image, text, c.NumLayers, 3)
	if c.TextInDim != c.HiddenSize {
		macs += float64(text) * float64(c.TextInDim) * d
	}
	return 2 * (macs + endMACs(d, c.InChannels, c.OutChannels, 0, image, 0) + 8*d*d)
}
