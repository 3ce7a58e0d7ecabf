package component

import (
	"fmt"
	"regexp"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/transformer"
	"github.com/gomflux/gomflux/upscaler"
	"github.com/gomflux/gomflux/vae"
)

// NaDiT is the transformer of SeedVR2. Its files may have the embeddings of the prompt too, see [PromptEmbeddings], and the
// frequencies of rotary embeddings, which are computed instead: in a file they are rounded to its dtype, in 8-bit floats to 0.
var NaDiT = &Class{
	Name: "NaDiT", Library: "seedvr", Role: Upscaler, Folder: Upscalers, Standalone: true,
	Original: []*layout.Table{{
		Prefixes:  transformerPrefixes,
		Signature: []string{"emb_in.proj_hid.weight", "vid_in.proj.weight", "blocks.0.attn.proj_qkv.vid.weight"},
		Rules:     layout.Unused("blocks.{}.attn.rope.rope.freqs", PromptEmbeddings, "negative_conditioning"),
	}},
	Infer: inferNaDiT,
	NewUpscaler: func(read func(Config) error) (upscaler.Model, error) {
		c := transformer.DefaultNaDiTConfig()
		if err := read(&c); err != nil {
			return nil, err
		}
		return &upscaler.SeedVR2{Transformer: transformer.NewNaDiT(c)}, nil
	},
	Untapped: []Untapped{{
		regexp.MustCompile(`^upscaler\.blocks\.\d+\.(attn_norm|attn\.(proj_qkv|norm_[qk]|proj_out)|mlp_norm|mlp|ada)@`),
		"of the modules that hold those of both streams",
	}, {
		regexp.MustCompile(`^upscaler\.(vid_in|vid_out|vid_out_ada|blocks\.\d+\.(ada\.\w+|attn\.(attn|rope(\.\w+)*)))@`),
		"patches, modulation, rotation and attention in windows, which are no modules here",
	}, {
		regexp.MustCompile(`^upscaler[^:]*@0(#1)?:(in\.(timestep|emb|vid_shape|txt_shape)|out\.[23])$|` +
			`^upscaler\.(emb_in@0:in\.0|.*\.attn@0:in\.[23])$`),
		"the time, its embedding and the sizes of the streams, which are computed once",
	}},
}

// PromptEmbeddings is the name of the tensor with the embeddings of SeedVR2's prompt in the files of ComfyUI, and
// MFluxEmbeddings in a file of mflux.
const PromptEmbeddings, MFluxEmbeddings = "positive_conditioning", "embedding"

// VideoAutoencoderKL is the autoencoder of SeedVR2.
var VideoAutoencoderKL = &Class{
	Name: "VideoAutoencoderKL", Library: "seedvr", Role: Autoencoder, Folder: Autoencoders,
	Original: []*layout.Table{{Prefixes: autoencoderPrefixes, Signature: []string{
		"decoder.up_blocks.0.upsamplers.0.upscale_conv.weight", "decoder.mid_block.attentions.0.to_q.weight",
	}}},
	Infer:          inferSeedVR2,
	Quantization:   []QuantizationRule{{"*", 16}},
	NewAutoencoder: newAutoencoder(vae.DefaultSeedVR2Config, vae.NewSeedVR2),
	Untapped: []Untapped{{
		regexp.MustCompile(`^vae\..*\.(upscale_conv|temporal_modules(\.\d+)*)([#:]|$)`),
		"parts of convolutions and of the time axis, which an image has not",
	}},
	LatentKey: "latent_channels",
}

func inferNaDiT(s *layout.Sizes, inferred, published map[string]any) {
	const first = "blocks.0.attn.proj_qkv.vid.weight"
	heads, size := s.Heads(s.Divide(first, s.Dim(first, 0), 3), "blocks.0.attn.norm_q.vid.weight")
	layers, own := s.Count("blocks"), 0
	for s.Has(fmt.Sprintf("blocks.%d.attn.proj_qkv.vid.weight", own)) {
		own++
	}
	inferred["vid_dim"], inferred["heads"], inferred["head_dim"] = s.Dim("vid_in.proj.weight", 0), heads, size
	inferred["vid_in_channels"] = s.Divide("vid_in", s.Dim("vid_in.proj.weight", 1), 4)
	inferred["vid_out_channels"] = s.Divide("vid_out", s.Dim("vid_out.proj.weight", 0), 4)
	inferred["txt_in_dim"], inferred["num_layers"], inferred["mm_layers"] = s.Dim("txt_in.weight", 1), layers, own
	inferred["mlp_dim"], inferred["mlp_type"] = s.Dim("blocks.0.mlp.vid.proj_in.weight", 0), "normal"
	if s.Has("blocks.0.mlp.vid.proj_in_gate.weight") {
		inferred["mlp_type"] = "swiglu"
	}
	inferred["vid_out_norm"] = s.Has("vid_out_norm.weight")
	// the two versions of the network, of which only the second has a norm at its end
	published["rope_type"], published["rope_dim"] = "rope3d", size/2
	if s.Has("vid_out_norm.weight") {
		published["rope_type"], published["rope_dim"] = "mmrope3d", size
	}
}

func inferSeedVR2(s *layout.Sizes, inferred, published map[string]any) {
	inferCoder(s, inferred, published)
	halved := 0
	for s.Has(fmt.Sprintf("decoder.up_blocks.%d.upsamplers.0.upscale_conv.weight", halved)) {
		name := fmt.Sprintf("decoder.up_blocks.%d.upsamplers.0.upscale_conv.weight", halved)
		if s.Dim(name, 0) != 8*s.Dim(name, 1) {
			break
		}
		halved++
	}
	inferred["temporal_scale_num"] = halved
	published["scaling_factor"] = 0.9152
}
