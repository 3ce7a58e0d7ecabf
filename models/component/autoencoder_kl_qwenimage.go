package component

import (
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/vae"
)

// AutoencoderKLQwenImage is the autoencoder of Qwen-Image, in Wan's architecture.
var AutoencoderKLQwenImage = &Class{
	Name: "AutoencoderKLQwenImage", Library: "diffusers", Role: Autoencoder, Folder: Autoencoders,
	MFlux: []*layout.Table{{
		Signature:    []string{"decoder.conv_in.conv3d.weight", "decoder.up_block0.resnets.0.conv1.conv3d.weight"},
		Rules:        mfluxQwenVAE(),
		ChannelsLast: true,
	}},
	Original:       wanTables(),
	Infer:          inferKLQwenImage,
	Quantization:   []QuantizationRule{{"*", 16}},
	NewAutoencoder: newAutoencoder(vae.DefaultKLQwenImageConfig, vae.NewKLQwenImage),
	LatentKey:      "z_dim",
}

// wanTables returns the layouts of Wan, one for each number of levels and blocks, and
// that of diffusers.
func wanTables() (tables []*layout.Table) {
	for levels := maxLevels; levels > 1; levels-- {
		for blocks := 1; blocks <= 3; blocks++ {
			tables = append(tables, &layout.Table{Prefixes: autoencoderPrefixes, Rules: wanRules(levels, blocks), Signature: []string{
				"decoder.middle.0.residual.0.gamma",
				fmt.Sprintf("decoder.upsamples.%d.resample.1.weight", blocks+1),
				fmt.Sprintf("decoder.upsamples.%d.residual.0.gamma", levels*(blocks+2)-2),
			}})
		}
	}
	return append(tables, &layout.Table{Prefixes: autoencoderPrefixes, Signature: []string{
		"decoder.up_blocks.0.resnets.0.norm1.gamma", "decoder.mid_block.attentions.0.to_qkv.weight",
	}})
}

// wanRules returns the rules for Wan's autoencoder (wan/modules/vae.py), which
// Qwen-Image uses. The blocks of all levels of the encoder, or decoder, are in one
// list: the residual blocks of each level, and a resampling block between levels.
func wanRules(levels, blocks int) []layout.Rule {
	resnet := wanResnet()
	resample := layout.Rename("resample.1", "resample.1", "time_conv", "time_conv")
	rules := append(wanEnds(), layout.Under("encoder.downsamples.{}", "encoder.down_blocks.{}", resnet, resample)...)
	at := 0
	for level := range levels {
		for i := range blocks + 1 {
			name := fmt.Sprintf("decoder.up_blocks.%d.resnets.%d", level, i)
			rules = append(rules, layout.Under(fmt.Sprintf("decoder.upsamples.%d", at), name, resnet)...)
			at++
		}
		if level < levels-1 {
			name := fmt.Sprintf("decoder.up_blocks.%d.upsamplers.0", level)
			rules = append(rules, layout.Under(fmt.Sprintf("decoder.upsamples.%d", at), name, resample)...)
			at++
		}
	}
	return rules
}

// wanResnet returns the rules for a residual block of Wan.
func wanResnet() []layout.Rule {
	return layout.Rename(
		"residual.0", "norm1", "residual.2", "conv1", "residual.3", "norm2", "residual.6", "conv2", "shortcut", "conv_shortcut",
	)
}

// wanEnds returns the rules for everything but the levels of Wan's autoencoders.
func wanEnds() []layout.Rule {
	rules := layout.Rename("conv1", "quant_conv", "conv2", "post_quant_conv")
	for _, side := range []string{"encoder", "decoder"} {
		rules = slices.Concat(rules,
			layout.Rename(side+".conv1", side+".conv_in", side+".head.0", side+".norm_out", side+".head.2", side+".conv_out"),
			layout.Under(side+".middle.0", side+".mid_block.resnets.0", wanResnet()),
			layout.Rename(side+".middle.1", side+".mid_block.attentions.0"),
			layout.Under(side+".middle.2", side+".mid_block.resnets.1", wanResnet()),
		)
	}
	return rules
}

// mfluxQwenVAE returns the rules for an autoencoder with two residual blocks per level
// in the encoder. mflux numbers these by level, diffusers consecutively.
func mfluxQwenVAE() (rules []layout.Rule) {
	norm := func(module string, ones int) layout.Rule {
		forms := slices.Repeat([]checkpoint.TransformOp{checkpoint.TransformExpand}, ones)
		return layout.Rule{Other: module + ".weight", Names: []string{module + ".gamma"}, Transforms: forms}
	}
	block := slices.Concat(layout.Rename(
		"conv1.conv3d", "conv1",
		"conv2.conv3d", "conv2",
		"skip_conv.conv3d", "conv_shortcut",
	), []layout.Rule{norm("norm1", 3), norm("norm2", 3)})
	sample := layout.Rename("resample_conv", "resample.1", "time_conv.conv3d", "time_conv")

	rules = layout.Rename("quant_conv.conv3d", "quant_conv", "post_quant_conv.conv3d", "post_quant_conv")
	for _, part := range []string{"encoder", "decoder"} {
		rules = slices.Concat(rules,
			layout.Rename(part+".conv_in.conv3d", part+".conv_in", part+".conv_out.conv3d", part+".conv_out"),
			[]layout.Rule{norm(part+".norm_out", 3), norm(part+".mid_block.attentions.0.norm", 2)},
			layout.Under(part+".mid_block.resnets.{}", part+".mid_block.resnets.{}", block),
		)
	}
	for i := range 11 {
		other := fmt.Sprintf("encoder.down_blocks.%d", i/3)
		name := fmt.Sprintf("encoder.down_blocks.%d", i)
		if i%3 == 2 {
			rules = append(rules, layout.Under(other+".downsamplers.0", name, sample)...)
		} else {
			rules = append(rules, layout.Under(fmt.Sprintf("%s.resnets.%d", other, i%3), name, block)...)
		}
	}
	return slices.Concat(rules,
		layout.Under("decoder.up_block{}.resnets.{}", "decoder.up_blocks.{}.resnets.{}", block),
		layout.Under("decoder.up_block{}.upsamplers.0", "decoder.up_blocks.{}.upsamplers.0", sample),
	)
}

func inferKLQwenImage(s *layout.Sizes, inferred, published map[string]any) {
	base := s.Dim("encoder.conv_in.weight", 0)
	inferred["base_dim"], inferred["z_dim"] = base, s.Dim("decoder.conv_in.weight", 1)
	inferred["input_channels"] = s.Dim("encoder.conv_in.weight", 1)
	inferred["attn_scales"] = []float64{}
	mults, temporal, blocks := []int{}, []bool{}, 0
	for i := range s.Count("encoder.down_blocks") {
		name := fmt.Sprintf("encoder.down_blocks.%d", i)
		switch {
		case s.Has(name + ".resample.1.weight"):
			temporal = append(temporal, s.Has(name+".time_conv.weight"))
		case len(mults) == len(temporal): // the first of a level
			mults = append(mults, s.Divide("a level's width", s.Dim(name+".conv1.weight", 0), base))
			fallthrough
		default:
			if len(mults) == 1 {
				blocks++
			}
		}
	}
	inferred["dim_mult"], inferred["num_res_blocks"] = mults, blocks
	// not certain, because mflux omits a convolution over time that images do not need
	published["temperal_downsample"] = temporal
}
