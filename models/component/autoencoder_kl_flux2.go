package component

import (
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/vae"
)

// AutoencoderKLFlux2 is the autoencoder of FLUX.2.
var AutoencoderKLFlux2 = &Class{
	Name: "AutoencoderKLFlux2", Library: "diffusers", Role: Autoencoder, Folder: Autoencoders,
	MFlux: []*layout.Table{{
		Signature: []string{"decoder.mid_block.attentions.0.to_out.weight", "bn.running_mean"},
		Rules: layout.Rename(
			"encoder.mid_block.attentions.0.to_out", "encoder.mid_block.attentions.0.to_out.0",
			"decoder.mid_block.attentions.0.to_out", "decoder.mid_block.attentions.0.to_out.0",
		),
		ChannelsLast: true,
		Lacks:        []string{"bn.num_batches_tracked"},
	}},
	Original: klTables(layout.Rename("encoder.quant_conv", "quant_conv", "decoder.post_quant_conv", "post_quant_conv"),
		"bn.running_mean"),
	Infer:          inferKLFlux2,
	Quantization:   []QuantizationRule{{"*", 16}},
	NewAutoencoder: newAutoencoder(vae.DefaultKLFlux2Config, vae.NewKLFlux2),
	LatentKey:      "latent_channels",
	Tiny: func(a vae.Autoencoder) *TinyAutoencoder {
		if a.LatentChannels() != 128 || a.ScaleFactor() != 16 {
			return nil
		}
		return &TinyAutoencoder{"madebyollin/taef2", "taef2.safetensors"}
	},
}

func inferKLFlux2(s *layout.Sizes, inferred, published map[string]any) {
	inferred["decoder_block_out_channels"] = inferCoder(s, inferred, published)
	published["batch_norm_eps"], published["patch_size"] = 1e-4, []int{2, 2}
}
