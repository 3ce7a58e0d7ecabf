package component

import (
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/vae"
)

// AutoencoderKL is the autoencoder of latent diffusion models, FLUX.1 and Z-Image.
var AutoencoderKL = &Class{
	Name: "AutoencoderKL", Aliases: []string{""}, // of a config.json without a class
	Library: "diffusers", Role: Autoencoder, Folder: Autoencoders,
	MFlux: []*layout.Table{{ // in models of FLUX.1
		Signature: []string{"decoder.conv_in.conv2d.weight", "encoder.conv_in.conv2d.weight"},
		Rules: layout.Rename(
			"encoder.conv_in.conv2d", "encoder.conv_in",
			"encoder.conv_norm_out.norm", "encoder.conv_norm_out",
			"encoder.conv_out.conv2d", "encoder.conv_out",
			"decoder.conv_in.conv2d", "decoder.conv_in",
			"decoder.conv_norm_out.norm", "decoder.conv_norm_out",
			"decoder.conv_out.conv2d", "decoder.conv_out",
		),
		ChannelsLast: true,
	}, AutoencoderKLOfZImage},
	Original:       klTables(nil),
	Infer:          inferKL,
	Quantization:   []QuantizationRule{{"*", 16}},
	NewAutoencoder: newAutoencoder(vae.DefaultKLConfig, vae.NewKL),
	LatentKey:      "latent_channels",
	Preview: func(a vae.Autoencoder) *Projection {
		if !isFlux1(a) {
			return nil
		}
		return &flux1Projection
	},
	Tiny: func(a vae.Autoencoder) *TinyAutoencoder {
		if !isFlux1(a) {
			return nil
		}
		return &TinyAutoencoder{"madebyollin/taef1", "diffusion_pytorch_model.safetensors"}
	},
}

// isFlux1 reports whether an AutoencoderKL is that of FLUX.1, which Z-Image shares.
func isFlux1(a vae.Autoencoder) bool {
	c := a.(*vae.KL).Config
	return a.LatentChannels() == 16 && c.ScalingFactor == 0.3611 && c.ShiftFactor != nil && *c.ShiftFactor == 0.1159
}

// AutoencoderKLOfZImage is mflux's layout of the autoencoder of a Z-Image model.
var AutoencoderKLOfZImage = &layout.Table{
	Signature: []string{"decoder.conv_in.conv.weight", "encoder.conv_in.conv2d.weight"},
	Rules: layout.Rename(
		"encoder.conv_in.conv2d", "encoder.conv_in",
		"encoder.conv_norm_out.norm", "encoder.conv_norm_out",
		"encoder.conv_out.conv2d", "encoder.conv_out",
		"decoder.conv_in.conv", "decoder.conv_in",
		"decoder.conv_norm_out.norm", "decoder.conv_norm_out",
		"decoder.conv_out.conv", "decoder.conv_out",
	),
	ChannelsLast: true,
}

// flux1Projection is the published projection of the autoencoder of FLUX.1, which
// Z-Image shares. ComfyUI and stable-diffusion.cpp use it.
var flux1Projection = Projection{
	Factors: [][3]float64{
		{-0.0346, 0.0244, 0.0681}, {0.0034, 0.0210, 0.0687}, {0.0275, -0.0668, -0.0433}, {-0.0174, 0.0160, 0.0617},
		{0.0859, 0.0721, 0.0329}, {0.0004, 0.0383, 0.0115}, {0.0405, 0.0861, 0.0915}, {-0.0236, -0.0185, -0.0259},
		{-0.0245, 0.0250, 0.1180}, {0.1008, 0.0755, -0.0421}, {-0.0515, 0.0201, 0.0011}, {0.0428, -0.0012, -0.0036},
		{0.0817, 0.0765, 0.0749}, {-0.1264, -0.0522, -0.1103}, {-0.0280, -0.0881, -0.0499}, {-0.1262, -0.0982, -0.0778},
	},
	Bias: [3]float64{-0.0329, -0.0718, -0.0851},
}

// maxLevels is the largest number of levels of an autoencoder. Published ones have four.
const maxLevels = 6

// klTables returns the layouts of latent diffusion, one for each number of levels, and
// that of diffusers. Layouts with more levels come first, because the first match is
// used and files contain the names of fewer levels too. Rules and signature are those
// that a class has in addition.
func klTables(rules []layout.Rule, signature ...string) (tables []*layout.Table) {
	for levels := maxLevels; levels > 0; levels-- {
		top := fmt.Sprintf("decoder.up.%d.block.0.norm1.weight", levels-1)
		tables = append(tables, &layout.Table{
			Prefixes: autoencoderPrefixes, Rules: append(klRules(levels), rules...),
			Signature: append([]string{top, "decoder.mid.attn_1.q.weight"}, signature...),
		})
	}
	return append(tables, &layout.Table{
		Prefixes: autoencoderPrefixes,
		Signature: append([]string{"decoder.up_blocks.0.resnets.0.norm1.weight", "decoder.mid_block.attentions.0.to_q.weight"},
			signature...),
	})
}

// klRules returns the rules for an autoencoder of latent diffusion (ldm's
// diffusionmodules/model.py), which numbers the levels of the decoder from the highest
// resolution down.
func klRules(levels int) []layout.Rule {
	resnet := layout.Rename("norm1", "norm1", "conv1", "conv1", "norm2", "norm2", "conv2", "conv2", "nin_shortcut", "conv_shortcut")
	attention := layout.Rename("norm", "group_norm")
	for _, pair := range [][2]string{{"q", "to_q"}, {"k", "to_k"}, {"v", "to_v"}, {"proj_out", "to_out.0"}} {
		attention = append(attention, layout.Rule{ // a convolution with a kernel of 1
			Other: pair[0] + ".weight", Names: []string{pair[1] + ".weight"},
			Transforms: []checkpoint.TransformOp{checkpoint.TransformSqueeze},
		})
		attention = append(attention, layout.Rename(pair[0], pair[1])...)
	}
	rules := slices.Concat(
		layout.Under("encoder.down.{}.block.{}", "encoder.down_blocks.{}.resnets.{}", resnet),
		layout.Rename("encoder.down.{}.downsample.conv", "encoder.down_blocks.{}.downsamplers.0.conv"),
	)
	for _, side := range []string{"encoder", "decoder"} {
		rules = slices.Concat(rules,
			layout.Under(side+".mid.block_1", side+".mid_block.resnets.0", resnet),
			layout.Under(side+".mid.block_2", side+".mid_block.resnets.1", resnet),
			layout.Under(side+".mid.attn_1", side+".mid_block.attentions.0", attention),
			layout.Rename(side+".norm_out", side+".conv_norm_out"),
		)
	}
	for level := range levels {
		up, block := fmt.Sprintf("decoder.up.%d", levels-1-level), fmt.Sprintf("decoder.up_blocks.%d", level)
		rules = slices.Concat(rules,
			layout.Under(up+".block.{}", block+".resnets.{}", resnet),
			layout.Rename(up+".upsample.conv", block+".upsamplers.0.conv"),
		)
	}
	return rules
}

// inferCoder infers the sizes of encoder and decoder, and returns the channels of the
// decoder's levels.
func inferCoder(s *layout.Sizes, inferred, published map[string]any) (decoder []int) {
	levels := s.Count("encoder.down_blocks")
	var widths []int
	for i := range levels {
		widths = append(widths, s.Dim(fmt.Sprintf("encoder.down_blocks.%d.resnets.0.conv1.weight", i), 0))
	}
	for i := range s.Count("decoder.up_blocks") {
		decoder = append(decoder, s.Dim(fmt.Sprintf("decoder.up_blocks.%d.resnets.0.conv1.weight", i), 0))
	}
	slices.Reverse(decoder)
	inferred["block_out_channels"] = widths
	inferred["down_block_types"] = slices.Repeat([]string{"DownEncoderBlock2D"}, levels)
	inferred["up_block_types"] = slices.Repeat([]string{"UpDecoderBlock2D"}, levels)
	inferred["layers_per_block"] = s.Count("encoder.down_blocks.0.resnets")
	inferred["in_channels"], inferred["out_channels"] = s.Dim("encoder.conv_in.weight", 1), s.Dim("decoder.conv_out.weight", 0)
	inferred["latent_channels"] = s.Dim("decoder.conv_in.weight", 1)
	inferred["use_quant_conv"], inferred["use_post_quant_conv"] = s.Has("quant_conv.weight"), s.Has("post_quant_conv.weight")
	inferred["mid_block_add_attention"] = s.Has("decoder.mid_block.attentions.0.to_q.weight")
	published["act_fn"], published["norm_num_groups"] = "silu", 32
	return decoder
}

func inferKL(s *layout.Sizes, inferred, published map[string]any) {
	inferCoder(s, inferred, published)
	if inferred["latent_channels"] == 16 { // as in FLUX.1 and Z-Image
		published["scaling_factor"], published["shift_factor"] = 0.3611, 0.1159
	}
}
